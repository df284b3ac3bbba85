#ifndef REFRACT_BENCH_CUDA_DENSE_MODELS_H_
#define REFRACT_BENCH_CUDA_DENSE_MODELS_H_

// The dense parts of the models that recommender benchmarks use, as programs
// for a device, with random weights.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "runtime/cuda/instance/instance.h"
#include "runtime/cuda/program/device_program.h"

namespace refract::bench {

struct DenseModel {
  runtime::cuda::DeviceProgram program;
  // In the order of the program's weights, dense row-major, numbers that their
  // type represents exactly.
  std::vector<std::vector<float>> weights;
  // Floating-point operations of matrix products and dot products per item.
  double flops_per_item = 0;

  std::vector<runtime::cuda::WeightData> weight_data() const;
};

enum class Precision : uint8_t { kFloat32, kTf32, kFloat16, kBFloat16 };
const char* Name(Precision precision);
runtime::cuda::DType DTypeOf(Precision precision);

struct DlrmShape {
  int64_t num_dense = 13;
  int64_t tables = 26;
  int64_t dim = 128;
  std::vector<int64_t> bottom = {512, 256, 128};  // the last is dim
  std::vector<int64_t> top = {1024, 1024, 512, 256, 1};
  // DCN-v2 instead of dot products: layers of this rank.
  int64_t cross_layers = 0;
  int64_t cross_rank = 512;
  // Embeddings as a CPU node sends them: as float32, in this number of inputs
  // of equal width. 0: one input of the device's type.
  int64_t sent_inputs = 0;
};
// MLPerf's DLRM (v1) and DLRM-DCNv2 (v2). Inputs: "dense" [B, num_dense],
// "embeddings" [B, tables · dim]; output "score" [B, 1], fp32 after a sigmoid.
DlrmShape MlperfV1();
DlrmShape MlperfV2();
DenseModel MakeDlrm(const std::string& name, const DlrmShape& shape,
                    Precision precision, int64_t max_batch, unsigned seed);

// The same model with every product's bias and activation in separate kernels,
// as a framework launches them: the baseline of fused epilogues.
DenseModel SeparateEpilogues(const DenseModel& model);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_CUDA_DENSE_MODELS_H_

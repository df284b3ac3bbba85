#ifndef REFRACT_BENCH_RUNTIME_BASELINE_H_
#define REFRACT_BENCH_RUNTIME_BASELINE_H_

// LibTorch beside the engine, in the same process and on the same inputs. No
// LibTorch type appears here. One thread each.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"

namespace refract::bench {

class Baseline {
 public:
  virtual ~Baseline() = default;
  // Takes `inputs`, which must outlive the runs. Not timed.
  virtual void Bind(absl::Span<const base::TensorView> inputs) = 0;
  // One run, without gradient. Errors end the program.
  virtual void Run() = 0;
  // The elements of each result of the last run, as float32.
  virtual std::vector<std::vector<float>> Results() const = 0;
};

// Frozen TorchScript from torch.jit.freeze: takes tensors, returns a tensor or
// a tuple of tensors. `optimized`: torch::jit::optimize_for_inference is applied
// to it, which made each model of the zoo faster (torch 2.11).
absl::StatusOr<std::unique_ptr<Baseline>> LoadTorchScript(
    const std::string& path, bool optimized);
// A package of AOTInductor.
absl::StatusOr<std::unique_ptr<Baseline>> LoadAotPackage(
    const std::string& path);

// at::linear and at::relu_, layer after layer; weights [n, k] and biases [n].
struct Layer {
  int64_t inputs = 0;
  int64_t outputs = 0;
  std::vector<float> weight;
  std::vector<float> bias;
};
enum class LayerMethod {
  kLinear,      // at::linear, relu_: what a graph runs
  kMklPacked,   // mkl::_mkl_linear on packed weights, relu_
  kDnnlPacked,  // mkldnn::_linear_pointwise on packed weights, relu fused
};
// Packed for `batch` rows.
std::unique_ptr<Baseline> MakeLayers(const std::vector<Layer>& layers,
                                     LayerMethod method, int64_t batch);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_RUNTIME_BASELINE_H_

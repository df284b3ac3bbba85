#include "bench/cuda/product_times.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "bench/cuda/dense_models.h"
#include "bench/cuda/measure.h"
#include "bench/cuda/products.h"
#include "bench/cuda/recorded.h"
#include "runtime/cuda/device/gemm.h"
#include "runtime/cuda/program/own_products.h"
#include "runtime/cuda/program/switches.h"

namespace refract::bench {
namespace {

using runtime::cuda::CudaDevice;
using runtime::cuda::GemmCache;
using runtime::cuda::GemmCall;
using runtime::cuda::GemmShape;
using runtime::cuda::Mechanism;
using runtime::cuda::ProductKernel;
using runtime::cuda::Stream;
using runtime::cuda::Switches;

constexpr int64_t kWorkspace = int64_t{32} << 20;

// Whether a kernel of ours that is not switched off computes `shape`.
bool HasOwn(const GemmShape& shape, const Switches& switches) {
  const std::vector<ProductKernel> own = runtime::cuda::OwnCandidates(shape);
  return std::any_of(own.begin(), own.end(), [&](ProductKernel kernel) {
    return switches.has(kernel == ProductKernel::kRowDots
                            ? Mechanism::kRowProducts
                            : Mechanism::kTileProducts);
  });
}

// Of both models, each size once.
std::vector<GemmShape> LayerShapes(int64_t batch, const Switches& switches) {
  std::vector<GemmShape> shapes;
  std::set<std::pair<int64_t, int64_t>> seen;
  for (const DlrmShape& model : {MlperfV1(), MlperfV2()}) {
    for (const GemmShape& shape : ProductShapes(
             MakeDlrm("m", model, Precision::kFloat16, batch, 1).program,
             batch)) {
      if (seen.emplace(shape.n, shape.k).second && HasOwn(shape, switches)) {
        shapes.push_back(shape);
      }
    }
  }
  return shapes;
}

class ProductBench {
 public:
  ProductBench(CudaDevice& device, Stream stream, int nodes, int repetitions,
               const std::vector<GemmShape>& shapes)
      : device_(device),
        stream_(stream),
        nodes_(nodes),
        repetitions_(repetitions),
        in_(Largest(shapes, [](const auto& s) { return s.m * s.ld_in; })),
        weight_(
            Largest(shapes, [](const auto& s) { return s.n * s.ld_weight; })),
        bias_(Largest(shapes, [](const auto& s) { return s.n; })),
        out_(Largest(shapes, [](const auto& s) { return s.m * s.ld_out; })),
        workspace_(kWorkspace) {}

  Json Measure(const GemmShape& shape) {
    GemmCall call;
    call.shape = shape;
    call.in = in_.get();
    call.weight = weight_.get();
    const bool has_bias = shape.epilogue != runtime::cuda::Epilogue::kNone &&
                          shape.epilogue != runtime::cuda::Epilogue::kRelu;
    call.bias = has_bias ? bias_.get() : nullptr;
    call.out = out_.get();
    call.workspace = workspace_.get();
    call.workspace_bytes = kWorkspace;
    std::vector<std::unique_ptr<Recorded>> runs;
    std::vector<Variant> variants;
    for (GemmCache* cache : {&own_, &cublaslt_}) {
      Must(cache->Prepare(shape, kWorkspace, true));
      runs.push_back(std::make_unique<Recorded>(device_, stream_, [&, cache] {
        for (int i = 0; i < nodes_; ++i) {
          Must(cache->Launch(call, static_cast<cudaStream_t>(stream_.handle),
                             runtime::cuda::Start::kAfter));
        }
      }));
      variants.push_back([this, &run = *runs.back()] {
        run.Launch();
        Must(device_.Synchronize(stream_));
      });
    }
    const auto seconds = MeasureInTurn(variants, repetitions_);
    const auto microseconds = [&](const std::vector<double>& of) {
      return QuartilesOf(of).median / nodes_ * 1e6;
    };
    Json row = RowWithoutBar("own / cuBLASLt, " + std::to_string(shape.m) +
                                 " x " + std::to_string(shape.n) + " x " +
                                 std::to_string(shape.k),
                             PairedRatio(seconds[0], seconds[1]));
    row.Set("rows", static_cast<double>(shape.m));
    row.Set("layer",
            std::to_string(shape.k) + " to " + std::to_string(shape.n));
    row.Set("own_us", microseconds(seconds[0]));
    row.Set("cublaslt_us", microseconds(seconds[1]));
    return row;
  }

 private:
  // Bytes of the largest operand.
  template <typename Elements>
  static int64_t Largest(const std::vector<GemmShape>& shapes,
                         Elements elements) {
    int64_t largest = 1;
    for (const GemmShape& shape : shapes) {
      largest = std::max(largest, elements(shape));
    }
    return 2 * largest;
  }

  CudaDevice& device_;
  const Stream stream_;
  const int nodes_, repetitions_;
  const DeviceMemory in_, weight_, bias_, out_, workspace_;
  GemmCache own_{GemmCache::Candidates::kOwn, device_.switches()};
  GemmCache cublaslt_{GemmCache::Candidates::kCublasLt, device_.switches()};
};

}  // namespace

std::vector<Json> MeasureProducts(CudaDevice& device, Stream stream,
                                  const std::vector<int64_t>& batches,
                                  int nodes, int repetitions) {
  std::vector<GemmShape> shapes;
  for (int64_t batch : batches) {
    const std::vector<GemmShape> of_batch =
        LayerShapes(batch, device.switches());
    shapes.insert(shapes.end(), of_batch.begin(), of_batch.end());
  }
  ProductBench bench(device, stream, nodes, repetitions, shapes);
  std::vector<Json> rows;
  for (const GemmShape& shape : shapes) rows.push_back(bench.Measure(shape));
  return rows;
}

}  // namespace refract::bench

// How much a trial of cuBLASLt's algorithms could gain over the first algorithm
// of its heuristic, which runtime/cuda/device/gemm.cc takes: the fp16 products
// of the dense models, each algorithm in a CUDA graph of 20 launches.
//
//   gemm_algorithms
//
// Prints a line per batch and product, then the sums of each batch. Exit status
// 0; 1: an error of CUDA or cuBLASLt; 77: no GPU.

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kMostAlgorithms = 32;
constexpr int kLaunches = 20;
constexpr int kRepetitions = 7;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kBatches[] = {1, 16, 64, 256, 1024, 8192};

void Check(int status, const char* call) {
  if (status == 0) return;
  std::fprintf(stderr, "%s: error %d\n", call, status);
  std::exit(1);
}
#define CHECK_CALL(call) Check(static_cast<int>(call), #call)

struct Product {
  const char* model;
  int n, k;
  cublasLtEpilogue_t epilogue;
};
// bench/cuda/dense_models.cc; k is padded to 16 bytes.
constexpr cublasLtEpilogue_t kRelu = CUBLASLT_EPILOGUE_RELU_BIAS;
constexpr Product kProducts[] = {
    {"dlrm_v1", 512, 16, kRelu},
    {"dlrm_v1", 256, 512, kRelu},
    {"dlrm_v1", 128, 256, kRelu},
    {"dlrm_v1", 1024, 480, kRelu},
    {"dlrm_v1", 1024, 1024, kRelu},
    {"dlrm_v1", 512, 1024, kRelu},
    {"dlrm_v1", 256, 512, kRelu},
    {"dlrm_v1", 1, 256, CUBLASLT_EPILOGUE_BIAS},
    {"dlrm_dcnv2", 512, 3456, CUBLASLT_EPILOGUE_DEFAULT},
    {"dlrm_dcnv2", 3456, 512, CUBLASLT_EPILOGUE_DEFAULT},
    {"dlrm_dcnv2", 1024, 3456, kRelu},
};

class Trial {
 public:
  Trial() {
    CHECK_CALL(cublasLtCreate(&handle_));
    CHECK_CALL(cudaStreamCreate(&stream_));
    for (void** memory : {&weight_, &in_, &out_}) {
      CHECK_CALL(cudaMalloc(memory, kOperandBytes));
      // No zeros: products of zeros may be faster.
      CHECK_CALL(cudaMemset(*memory, 0x11, kOperandBytes));
    }
    CHECK_CALL(cudaMalloc(&bias_, 1 << 16));
    CHECK_CALL(cudaMemset(bias_, 0x11, 1 << 16));
    CHECK_CALL(cudaMalloc(&workspace_, kWorkspaceBytes));
    CHECK_CALL(cudaEventCreate(&begin_));
    CHECK_CALL(cudaEventCreate(&end_));
  }

  // Microseconds of each algorithm, in the heuristic's order.
  std::vector<double> Times(const Product& product, int m) {
    cublasLtMatmulDesc_t operation;
    CHECK_CALL(
        cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    CHECK_CALL(cublasLtMatmulDescSetAttribute(operation,
                                              CUBLASLT_MATMUL_DESC_TRANSA,
                                              &transposed, sizeof(transposed)));
    CHECK_CALL(cublasLtMatmulDescSetAttribute(
        operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &product.epilogue,
        sizeof(product.epilogue)));
    if (product.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
      CHECK_CALL(cublasLtMatmulDescSetAttribute(
          operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_, sizeof(bias_)));
    }
    const int n = product.n, k = product.k;
    // cuBLASLt is column-major, so the row-major product out = in · weightᵀ is
    // computed as outᵀ = weight · inᵀ. Rows of `out` are padded to 8 elements
    // (16 bytes).
    cublasLtMatrixLayout_t weight, in, out;
    CHECK_CALL(cublasLtMatrixLayoutCreate(&weight, CUDA_R_16F, k, n, k));
    CHECK_CALL(cublasLtMatrixLayoutCreate(&in, CUDA_R_16F, k, m, k));
    CHECK_CALL(
        cublasLtMatrixLayoutCreate(&out, CUDA_R_16F, n, m, (n + 7) / 8 * 8));
    cublasLtMatmulPreference_t preference;
    CHECK_CALL(cublasLtMatmulPreferenceCreate(&preference));
    CHECK_CALL(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
        sizeof(kWorkspaceBytes)));
    std::vector<cublasLtMatmulHeuristicResult_t> found(kMostAlgorithms);
    int count = 0;
    CHECK_CALL(cublasLtMatmulAlgoGetHeuristic(
        handle_, operation, weight, in, out, out, preference, kMostAlgorithms,
        found.data(), &count));
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
      times.push_back(TimeOf([&] {
        const float one = 1, zero = 0;
        CHECK_CALL(cublasLtMatmul(handle_, operation, &one, weight_, weight,
                                  in_, in, &zero, out_, out, out_, out,
                                  &found[i].algo, workspace_, kWorkspaceBytes,
                                  stream_));
      }));
    }
    cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : {weight, in, out}) {
      cublasLtMatrixLayoutDestroy(layout);
    }
    cublasLtMatmulDescDestroy(operation);
    return times;
  }

 private:
  // Bytes of an operand of the largest product.
  static constexpr size_t kOperandBytes = size_t{8192} * 3456 * 2;

  template <typename Launch>
  double TimeOf(Launch launch) {
    CHECK_CALL(
        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kLaunches; ++i) launch();
    cudaGraph_t graph;
    CHECK_CALL(cudaStreamEndCapture(stream_, &graph));
    cudaGraphExec_t ready;
    CHECK_CALL(cudaGraphInstantiate(&ready, graph, 0));
    CHECK_CALL(cudaGraphLaunch(ready, stream_));
    std::vector<float> times;
    for (int i = 0; i < kRepetitions; ++i) {
      CHECK_CALL(cudaEventRecord(begin_, stream_));
      CHECK_CALL(cudaGraphLaunch(ready, stream_));
      CHECK_CALL(cudaEventRecord(end_, stream_));
      CHECK_CALL(cudaStreamSynchronize(stream_));
      float milliseconds = 0;
      CHECK_CALL(cudaEventElapsedTime(&milliseconds, begin_, end_));
      times.push_back(milliseconds);
    }
    CHECK_CALL(cudaGraphExecDestroy(ready));
    CHECK_CALL(cudaGraphDestroy(graph));
    std::nth_element(times.begin(), times.begin() + kRepetitions / 2,
                     times.end());
    return 1000.0 * times[kRepetitions / 2] / kLaunches;
  }

  cublasLtHandle_t handle_;
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
  void *weight_, *in_, *out_, *bias_, *workspace_;
};

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  Trial trial;
  for (const int batch : kBatches) {
    double first_sum = 0, best_sum = 0;
    for (const Product& product : kProducts) {
      const std::vector<double> times = trial.Times(product, batch);
      if (times.empty()) continue;
      const auto best = std::min_element(times.begin(), times.end());
      std::printf(
          "%-10s batch %4d, %4d x %4d: first %6.2f us, best %6.2f us (number "
          "%d "
          "of %d)\n",
          product.model, batch, product.n, product.k, times[0], *best,
          static_cast<int>(best - times.begin()) + 1,
          static_cast<int>(times.size()));
      first_sum += times[0];
      best_sum += *best;
    }
    std::printf("batch %d: first / best %.3f\n", batch, first_sum / best_sum);
  }
  return 0;
}

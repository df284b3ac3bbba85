#include "tests/runtime/cuda/device/fake_cuda.h"

#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/kernels/launch.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda::testing {

FakeCuda& TheFakeCuda() {
  static FakeCuda fake;
  return fake;
}

namespace {

using Work = std::function<void()>;

struct FakeStream {
  bool capturing = false;
  std::vector<Work> captured;
  float captured_ms = 0;
  // What it was given last, since its capture began, is a kernel of ours.
  bool ours_is_last = false;
};
struct FakeGraph {
  std::vector<Work> work;
  float ms = 0;
};

FakeStream* Of(cudaStream_t stream) {
  return reinterpret_cast<FakeStream*>(stream);
}

void Violation(const std::string& what) {
  if (TheFakeCuda().violation.empty()) TheFakeCuda().violation = what;
}

// Streams that capture now. As one thread does all here, a capture of the mode
// "thread-local" forbids it what may wait for or change the device.
int& Capturing() {
  static int capturing = 0;
  return capturing;
}

cudaError_t Planted(const char* name) {
  FakeCuda& fake = TheFakeCuda();
  if (fake.fail_call != name || fake.fail_after-- > 0) return cudaSuccess;
  fake.fail_after = 0;
  if (!fake.fail_always) fake.fail_call.clear();
  return fake.fail_error;
}

cudaError_t Do(cudaStream_t stream, Work work) {
  if (stream == nullptr) {
    Violation("work on the default stream");
    return cudaErrorInvalidResourceHandle;
  }
  Of(stream)->ours_is_last = false;
  if (Of(stream)->capturing) {
    Of(stream)->captured.push_back(std::move(work));
  } else {
    work();
  }
  return cudaSuccess;
}

// As long as a product takes on the device.
Work Taking(cudaStream_t stream, float ms, Work work) {
  const bool launched = stream != nullptr && !Of(stream)->capturing;
  const float least = launched ? TheFakeCuda().launch_ms : 0.0f;
  return [took = std::max(ms, least), work = std::move(work)] {
    TheFakeCuda().now_ms += took;
    work();
  };
}
cudaError_t DoProduct(cudaStream_t stream, float ms, Work work) {
  return Do(stream, Taking(stream, ms, std::move(work)));
}

template <typename KernelCall>
void Run(const KernelCall& call) {
  // One for all: its fibers' stacks are large.
  static EmulatedLauncher launcher(7);
  Dispatch(call, launcher);
}
// A kernel of ours.
cudaError_t DoOurs(cudaStream_t stream, Start start, Work work) {
  FakeCuda& fake = TheFakeCuda();
  const bool early = start == Start::kEarly;
  if (early) {
    if (cudaError_t planted = Planted("an early start"); planted) {
      return planted;
    }
    ++fake.early_launches;
    if (fake.compute_major < 9 || stream == nullptr ||
        !Of(stream)->ours_is_last) {
      Violation("starts early, but not from one kernel of ours to the next");
    }
  }
  const cudaError_t error = Do(stream, std::move(work));
  if (error != cudaSuccess) return error;
  Of(stream)->ours_is_last = true;
  Of(stream)->captured_ms += early ? fake.early_kernel_ms : fake.kernel_ms;
  return cudaSuccess;
}

template <typename KernelCall>
cudaError_t Emulate(const KernelCall& call, cudaStream_t stream, Start start) {
  return DoOurs(stream, start, [call] { Run(call); });
}

// Contents of cuBLASLt's opaque structures.
struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, cols;
  int64_t ld;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t a = 256, b = 256, c = 256, d = 256;
};
struct Algorithm {
  Layout a, b, d;
  Preference preference;
  uint64_t workspace;
};
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

std::vector<Algorithm>& Algorithms() {
  static std::vector<Algorithm> algorithms;
  return algorithms;
}

template <typename T, typename Opaque>
T Read(const Opaque* opaque) {
  T value;
  std::memcpy(static_cast<void*>(&value), opaque, sizeof(value));
  return value;
}
template <typename T, typename Opaque>
void Write(const T& value, Opaque* opaque) {
  std::memcpy(static_cast<void*>(opaque), &value, sizeof(value));
}

DType TypeOf(int type) {
  if (type == CUDA_R_16F) return DType::kFloat16;
  if (type == CUDA_R_16BF) return DType::kBFloat16;
  if (type != CUDA_R_32F) Violation("a type that products do not take");
  return DType::kFloat32;
}

bool Aligned(const void* pointer, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// D = epilogue(op(A) · op(B)), column-major.
void Multiply(const Operation& op, const void* a, const Layout& la,
              const void* b, const Layout& lb, void* d, const Layout& ld) {
  const bool ta = op.a == CUBLAS_OP_T;
  const bool tb = op.b == CUBLAS_OP_T;
  const uint64_t m = ta ? la.cols : la.rows;
  const uint64_t k = ta ? la.rows : la.cols;
  const uint64_t n = tb ? lb.rows : lb.cols;
  if ((tb ? lb.cols : lb.rows) != k || ld.rows != m || ld.cols != n) {
    Violation("a product of shapes that do not fit");
    return;
  }
  auto at = [](const void* data, const Layout& layout, uint64_t row,
               uint64_t col) {
    return static_cast<double>(Load(
        data, TypeOf(layout.type),
        static_cast<int64_t>(row + col * static_cast<uint64_t>(layout.ld))));
  };
  for (uint64_t row = 0; row < m; ++row) {
    for (uint64_t col = 0; col < n; ++col) {
      double sum = 0;
      for (uint64_t i = 0; i < k; ++i) {
        sum += (ta ? at(a, la, i, row) : at(a, la, row, i)) *
               (tb ? at(b, lb, col, i) : at(b, lb, i, col));
      }
      const bool bias = op.epilogue == CUBLASLT_EPILOGUE_BIAS ||
                        op.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS ||
                        op.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS;
      if (bias) {
        sum += Load(
            op.bias,
            TypeOf(op.bias_type < 0 ? static_cast<int>(ld.type) : op.bias_type),
            static_cast<int64_t>(row));
      }
      if (op.epilogue == CUBLASLT_EPILOGUE_RELU ||
          op.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS) {
        sum = sum < 0 ? 0 : sum;
      } else if (op.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS) {
        sum = 0.5 * sum *
              (1 + std::tanh(std::sqrt(2 / M_PI) *
                             (sum + 0.044715 * sum * sum * sum)));
      }
      Store(static_cast<float>(sum), d, TypeOf(ld.type),
            static_cast<int64_t>(row + col * static_cast<uint64_t>(ld.ld)));
    }
  }
}

// As our own kernels.
void MultiplyPlainly(const GemmCall& call) {
  const GemmShape& s = call.shape;
  const auto factor = [&](const void* data, int64_t i) {
    const float value = Load(data, s.dtype, i);
    const bool rounds = s.tf32 && s.dtype == DType::kFloat32 &&
                        call.kernel != ProductKernel::kRowDots;
    return rounds ? RoundToTf32(value) : value;
  };
  std::vector<float> row(static_cast<size_t>(s.k));
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t k = 0; k < s.k; ++k) {
      row[static_cast<size_t>(k)] = factor(call.weight, n * s.ld_weight + k);
    }
    for (int64_t m = 0; m < s.m; ++m) {
      float sum = call.bias == nullptr ? 0.0f : Load(call.bias, s.dtype, n);
      for (int64_t k = 0; k < s.k; ++k) {
        sum += factor(call.in, m * s.ld_in + k) * row[static_cast<size_t>(k)];
      }
      if (s.epilogue == Epilogue::kRelu || s.epilogue == Epilogue::kReluBias) {
        sum = ApplyUnary(ElementOp::kRelu, sum);
      } else if (s.epilogue == Epilogue::kGeluTanhBias) {
        sum = ApplyUnary(ElementOp::kGeluTanh, sum);
      }
      Store(sum, call.out, s.dtype, m * s.ld_out + n);
    }
  }
}

}  // namespace
}  // namespace refract::runtime::cuda::testing

namespace refract::runtime::cuda {

cudaError_t LaunchKernel(const GemmCall& call, cudaStream_t stream,
                         Start start) {
  testing::FakeCuda& fake = testing::TheFakeCuda();
  ++fake.own_products;
  fake.own_kernels.push_back(call.kernel);
  const bool tiles = call.kernel != ProductKernel::kRowDots;
  auto work = testing::Taking(
      stream, tiles ? fake.tiles_ms : fake.own_ms, [call, tiles] {
        // Fibers take too long for the models of the benchmarks.
        if (call.shape.m * call.shape.n > (tiles ? 100 : 500)) {
          testing::MultiplyPlainly(call);
        } else {
          testing::Run(call);
        }
      });
  return testing::DoOurs(stream, start, std::move(work));
}
cudaError_t LaunchKernel(const InteractionCall& call, cudaStream_t stream,
                         Start start) {
  return testing::Emulate(call, stream, start);
}
cudaError_t LaunchKernel(const ChainCall& call, cudaStream_t stream,
                         Start start) {
  return testing::Emulate(call, stream, start);
}
cudaError_t LaunchKernel(const CrossCall& call, cudaStream_t stream,
                         Start start) {
  return testing::Emulate(call, stream, start);
}
cudaError_t LaunchKernel(const GatherCall& call, cudaStream_t stream,
                         Start start) {
  return testing::Emulate(call, stream, start);
}
cudaError_t LaunchKernel(const RowNormCall& call, cudaStream_t stream,
                         Start start) {
  return testing::Emulate(call, stream, start);
}
cudaError_t LaunchKernel(const MapCall& call, cudaStream_t stream,
                         Start start) {
  return testing::Emulate(call, stream, start);
}
cudaError_t LaunchKernel(const MatMulCall& call, cudaStream_t stream,
                         Start start) {
  return testing::Emulate(call, stream, start);
}
cudaError_t LaunchKernel(const ReduceCall& call, cudaStream_t stream,
                         Start start) {
  return testing::Emulate(call, stream, start);
}
cudaError_t LaunchKernel(const LookUpCall& call, cudaStream_t stream,
                         Start start) {
  return testing::Emulate(call, stream, start);
}
cudaError_t LaunchKernel(const BagsCall& call, cudaStream_t stream,
                         Start start) {
  return testing::Emulate(call, stream, start);
}
cudaError_t LaunchKernel(const CopyRowsCall& call, cudaStream_t stream,
                         Start start) {
  ++testing::TheFakeCuda().row_copies;
  return testing::Emulate(call, stream, start);
}
cudaError_t LaunchEmpty(cudaStream_t stream, Start start) {
  return testing::DoOurs(stream, start, [] {});
}
cudaError_t KernelsCanStartEarly(bool* can) {
  *can = testing::TheFakeCuda().can_start_early;
  return testing::Planted("cudaFuncGetAttributes");
}

}  // namespace refract::runtime::cuda

// NOLINTBEGIN: names and signatures are CUDA's.
using refract::runtime::cuda::testing::Algorithm;
using refract::runtime::cuda::testing::Algorithms;
using refract::runtime::cuda::testing::Aligned;
using refract::runtime::cuda::testing::Capturing;
using refract::runtime::cuda::testing::Do;
using refract::runtime::cuda::testing::DoProduct;
using refract::runtime::cuda::testing::FakeCuda;
using refract::runtime::cuda::testing::FakeGraph;
using refract::runtime::cuda::testing::FakeStream;
using refract::runtime::cuda::testing::Layout;
using refract::runtime::cuda::testing::Multiply;
using refract::runtime::cuda::testing::Of;
using refract::runtime::cuda::testing::Operation;
using refract::runtime::cuda::testing::Planted;
using refract::runtime::cuda::testing::Preference;
using refract::runtime::cuda::testing::Read;
using refract::runtime::cuda::testing::TheFakeCuda;
using refract::runtime::cuda::testing::Violation;
using refract::runtime::cuda::testing::Write;

#define RETURN_IF_PLANTED                                                  \
  do {                                                                     \
    if (cudaError_t planted = Planted(__func__); planted != cudaSuccess) { \
      return planted;                                                      \
    }                                                                      \
  } while (false)

// Not allowed in a capture, which it ends.
#define RETURN_IF_CAPTURING                               \
  do {                                                    \
    if (Capturing() > 0) {                                \
      Violation(std::string(__func__) + " in a capture"); \
      return cudaErrorStreamCaptureUnsupported;           \
    }                                                     \
  } while (false)

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  RETURN_IF_PLANTED;
  *count = TheFakeCuda().devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  RETURN_IF_PLANTED;
  return device < TheFakeCuda().devices ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = TheFakeCuda().driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  RETURN_IF_PLANTED;
  *properties = {};
  std::strcpy(properties->name, "a fake");
  properties->major = TheFakeCuda().compute_major;
  properties->totalGlobalMem = size_t{1} << 30;
  properties->multiProcessorCount = 1;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress"
                                          : "an error";
}
const char* cudaGetErrorString(cudaError_t) { return "as planted"; }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  RETURN_IF_PLANTED;
  *free_bytes = *total_bytes = size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xFF, bytes);
  ++TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  RETURN_IF_CAPTURING;
  std::free(memory);
  --TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  RETURN_IF_PLANTED;
  *stream = reinterpret_cast<cudaStream_t>(new FakeStream);
  ++TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete Of(stream);
  --TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned) {
  RETURN_IF_PLANTED;
  Of(stream)->ours_is_last = false;
  return event == nullptr ? cudaErrorInvalidResourceHandle : cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  RETURN_IF_PLANTED;
  *event = reinterpret_cast<cudaEvent_t>(new float);
  ++TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<float*>(event);
  --TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  RETURN_IF_PLANTED;
  Of(stream)->ours_is_last = false;
  *reinterpret_cast<float*>(event) = TheFakeCuda().now_ms;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin,
                                 cudaEvent_t end) {
  RETURN_IF_PLANTED;
  *ms = *reinterpret_cast<float*>(end) - *reinterpret_cast<float*>(begin);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                       cudaMemcpyKind) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind, cudaStream_t stream) {
  RETURN_IF_PLANTED;
  return Do(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from,
                              size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  RETURN_IF_PLANTED;
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
  return Do(stream, [=] {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch,
                  static_cast<const char*>(from) + row * from_pitch, width);
    }
  });
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes,
                            cudaStream_t stream) {
  RETURN_IF_PLANTED;
  return Do(stream, [=] { std::memset(memory, value, bytes); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   cudaStreamCaptureMode mode) {
  RETURN_IF_PLANTED;
  if (mode != cudaStreamCaptureModeThreadLocal) {
    Violation("a capture that other threads' calls break");
  }
  if (Of(stream)->capturing) return cudaErrorIllegalState;
  Of(stream)->capturing = true;
  ++Capturing();
  Of(stream)->ours_is_last = false;
  Of(stream)->captured.clear();
  Of(stream)->captured_ms = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  // Ends even when it fails.
  const bool capturing = std::exchange(Of(stream)->capturing, false);
  if (capturing) --Capturing();
  Of(stream)->ours_is_last = false;
  RETURN_IF_PLANTED;
  if (!capturing) return cudaErrorIllegalState;
  *graph = reinterpret_cast<cudaGraph_t>(
      new FakeGraph{Of(stream)->captured, Of(stream)->captured_ms});
  ++TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph,
                                 unsigned long long) {
  RETURN_IF_PLANTED;
  *ready = reinterpret_cast<cudaGraphExec_t>(
      new FakeGraph(*reinterpret_cast<FakeGraph*>(graph)));
  ++TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<FakeGraph*>(graph);
  --TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  RETURN_IF_PLANTED;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  RETURN_IF_PLANTED;
  ++TheFakeCuda().graph_launches;
  TheFakeCuda().now_ms += reinterpret_cast<FakeGraph*>(graph)->ms;
  return Do(stream, [graph] {
    for (const auto& work : reinterpret_cast<FakeGraph*>(graph)->work) work();
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<FakeGraph*>(graph);
  --TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  return cudaSuccess;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  ++TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  --TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t) { return "a status"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *desc = new cublasLtMatmulDescOpaque_t{};
  Write(Operation{compute, scale}, *desc);
  ++TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  --TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
    const void* value, size_t size) {
  auto op = Read<Operation>(desc);
  auto set = [&](auto& field) {
    if (size != sizeof(field)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&field, value, size);
    Write(op, desc);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(op.a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(op.b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(op.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(op.bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(op.bias_type);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout,
                                          cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  if (ld < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new cublasLtMatrixLayoutOpaque_t{};
  Write(Layout{type, rows, cols, ld}, *layout);
  ++TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  --TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(
    cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t{};
  Write(Preference{}, *preference);
  ++TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(
    cublasLtMatmulPreference_t preference) {
  delete preference;
  --TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t opaque,
    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
    size_t size) {
  auto preference = Read<Preference>(opaque);
  auto set = [&](auto& field) {
    if (size != sizeof(field)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&field, value, size);
    Write(preference, opaque);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference.workspace);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(preference.a);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(preference.b);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(preference.c);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(preference.d);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int requested,
    cublasLtMatmulHeuristicResult_t results[], int* count) {
  ++TheFakeCuda().heuristics;
  if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const auto wanted = Read<Preference>(preference);
  const auto known = static_cast<int>(TheFakeCuda().algorithm_ms.size());
  *count = std::min(requested, known);
  for (int i = 0; i < *count; ++i) {
    // All the workspace that it may have.
    Algorithms().push_back({Read<Layout>(a), Read<Layout>(b), Read<Layout>(d),
                            wanted, wanted.workspace});
    results[i] = {};
    results[i].algo.data[0] = Algorithms().size();
    results[i].algo.data[1] = static_cast<uint64_t>(i);
    results[i].workspaceSize = wanted.workspace;
    results[i].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                              const void* alpha, const void* a,
                              cublasLtMatrixLayout_t la, const void* b,
                              cublasLtMatrixLayout_t lb, const void* beta,
                              const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  ++TheFakeCuda().products;
  if (TheFakeCuda().at_product) {
    std::exchange(TheFakeCuda().at_product, nullptr)();
  }
  const auto op = Read<Operation>(desc);
  if (op.scale != CUDA_R_32F || *static_cast<const float*>(alpha) != 1.0f ||
      *static_cast<const float*>(beta) != 0.0f || c != d) {
    Violation("a product that is scaled or added to");
  }
  if (algo == nullptr || algo->data[0] < 1 ||
      algo->data[0] > Algorithms().size()) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  FakeCuda& fake = TheFakeCuda();
  const auto place = static_cast<size_t>(algo->data[1]);
  float took = 0;
  fake.algorithm_runs.resize(
      std::max(fake.algorithm_runs.size(), fake.algorithm_ms.size()));
  if (place < fake.algorithm_ms.size()) {
    if (fake.algorithm_ms[place] < 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    took = fake.algorithm_ms[place];
    if (fake.algorithm_runs[place]++ == 0) took += fake.load_ms;
  }
  const Algorithm& chosen = Algorithms()[algo->data[0] - 1];
  auto same = [](const Layout& x, const Layout& y) {
    return x.type == y.type && x.rows == y.rows && x.cols == y.cols &&
           x.ld == y.ld;
  };
  const auto layout_a = Read<Layout>(la);
  const auto layout_b = Read<Layout>(lb);
  const auto layout_d = Read<Layout>(ld);
  if (!same(chosen.a, layout_a) || !same(chosen.b, layout_b) ||
      !same(chosen.d, layout_d)) {
    Violation("an algorithm for another shape");
  }
  if (!Aligned(a, chosen.preference.a) || !Aligned(b, chosen.preference.b) ||
      !Aligned(d, chosen.preference.d)) {
    Violation("an operand less aligned than was said");
  }
  if (workspace_bytes < chosen.workspace || !Aligned(workspace, 256)) {
    Violation("too little workspace");
  }
  return DoProduct(stream, took,
                   [=] {
                     Multiply(op, a, layout_a, b, layout_b, d, layout_d);
                   }) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_INVALID_VALUE;
}

}  // extern "C"
// NOLINTEND

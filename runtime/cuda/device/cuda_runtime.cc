#include "runtime/cuda/device/cuda_runtime.h"

#include <cuda_runtime_api.h>

#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "runtime/cuda/device/cuda_status.h"
#include "runtime/cuda/device/gemm.h"
#include "runtime/cuda/kernels/launch.h"

namespace refract::runtime::cuda {
namespace {

std::string VersionString(int version) {
  return std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10);
}

// "driver 12.2, this build needs 13.0"
std::string DriverFacts() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "no NVIDIA driver is loaded";
  }
  return "the driver supports CUDA " + VersionString(driver) +
         ", this build needs " + VersionString(CUDART_VERSION);
}

cudaStream_t Raw(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}
cudaEvent_t Raw(Event event) { return static_cast<cudaEvent_t>(event.handle); }

// A thread has a current device, while instances may be called from any thread:
// calls that allocate, create objects or launch therefore set it first. Calls
// on an existing stream or event follow that object's device.
class Device final : public CudaRuntime {
 public:
  Device(int index, DeviceProperties properties)
      : index_(index), properties_(std::move(properties)) {}

  const DeviceProperties& properties() const override { return properties_; }

  Status Allocate(int64_t bytes, void** memory) override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    return FromCuda("cudaMalloc",
                    cudaMalloc(memory, static_cast<size_t>(bytes)));
  }
  Status Free(void* memory) override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    return FromCuda("cudaFree", cudaFree(memory));
  }
  Status AllocatePinned(int64_t bytes, void** memory) override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    return FromCuda("cudaHostAlloc",
                    cudaHostAlloc(memory, static_cast<size_t>(bytes),
                                  cudaHostAllocPortable | cudaHostAllocMapped));
  }
  Status FreePinned(void* memory) override {
    return FromCuda("cudaFreeHost", cudaFreeHost(memory));
  }
  Result<MemoryInfo> Memory() override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes)));
    return MemoryInfo{static_cast<int64_t>(free_bytes),
                      static_cast<int64_t>(total_bytes)};
  }

  Result<Stream> CreateStream() override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    cudaStream_t stream = nullptr;
    // Non-blocking: not ordered with the legacy default stream, which LibTorch
    // may use.
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaStreamCreateWithFlags",
                 cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    return Stream{stream};
  }
  Status DestroyStream(Stream stream) override {
    return FromCuda("cudaStreamDestroy", cudaStreamDestroy(Raw(stream)));
  }
  Result<Event> CreateEvent() override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    cudaEvent_t event = nullptr;
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaEventCreateWithFlags",
                 cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    return Event{event};
  }
  Status DestroyEvent(Event event) override {
    return FromCuda("cudaEventDestroy", cudaEventDestroy(Raw(event)));
  }
  Status Record(Event event, Stream stream) override {
    return FromCuda("cudaEventRecord",
                    cudaEventRecord(Raw(event), Raw(stream)));
  }
  Status StreamWait(Stream stream, Event event) override {
    return FromCuda("cudaStreamWaitEvent",
                    cudaStreamWaitEvent(Raw(stream), Raw(event), 0));
  }
  Status Synchronize(Event event) override {
    return FromCuda("cudaEventSynchronize", cudaEventSynchronize(Raw(event)));
  }
  Result<bool> Happened(Event event) override {
    const cudaError_t error = cudaEventQuery(Raw(event));
    // Not an error. Cleared, so that a later cudaGetLastError() of this thread
    // (LibTorch calls it) does not report it.
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    REFRACT_CUDA_RETURN_IF_ERROR(FromCuda("cudaEventQuery", error));
    return true;
  }
  Status Synchronize(Stream stream) override {
    return FromCuda("cudaStreamSynchronize",
                    cudaStreamSynchronize(Raw(stream)));
  }

  Status CopyToDevice(const CopyCall& copy, Stream stream) override {
    return Copy(copy, cudaMemcpyHostToDevice, stream);
  }
  Status CopyToHost(const CopyCall& copy, Stream stream) override {
    return Copy(copy, cudaMemcpyDeviceToHost, stream);
  }
  Status Clear(void* memory, int64_t bytes, Stream stream) override {
    return FromCuda(
        "cudaMemsetAsync",
        cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), Raw(stream)));
  }

  // A launch goes to the thread's current device, whatever its stream.
  Status Launch(const Call& call, Stream stream) override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    return std::visit(
        [&](const auto& one) -> Status {
          using OneCall = std::decay_t<decltype(one)>;
          if constexpr (std::is_same_v<OneCall, GemmCall>) {
            return gemms_.Launch(one, Raw(stream));
          } else {
            return FromCuda("kernel launch", LaunchKernel(one, Raw(stream)));
          }
        },
        call);
  }
  Status Run(const ForeignCall& call, Stream stream) override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    return call.kernel->Run(call, stream.handle);
  }
  Status BeginCapture(Stream stream) override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    // Thread-local: other instances' threads may allocate meanwhile.
    return FromCuda(
        "cudaStreamBeginCapture",
        cudaStreamBeginCapture(Raw(stream), cudaStreamCaptureModeThreadLocal));
  }
  Result<Graph> EndCapture(Stream stream) override {
    cudaGraph_t graph = nullptr;
    REFRACT_CUDA_RETURN_IF_ERROR(FromCuda(
        "cudaStreamEndCapture", cudaStreamEndCapture(Raw(stream), &graph)));
    // The recorded graph is only the description from which the launchable
    // graph is made.
    cudaGraphExec_t ready = nullptr;
    Status status = FromCuda("cudaGraphInstantiate",
                             cudaGraphInstantiate(&ready, graph, 0));
    (void)cudaGraphDestroy(graph);
    if (!status.ok()) return status;
    // Uploads now, not at the first launch.
    status = FromCuda("cudaGraphUpload", cudaGraphUpload(ready, Raw(stream)));
    if (!status.ok()) {
      (void)cudaGraphExecDestroy(ready);
      return status;
    }
    return Graph{ready};
  }
  Status Launch(Graph graph, Stream stream) override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    return FromCuda("cudaGraphLaunch",
                    cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.handle),
                                    Raw(stream)));
  }
  Status DestroyGraph(Graph graph) override {
    return FromCuda(
        "cudaGraphExecDestroy",
        cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph.handle)));
  }

  Status Reset() override {
    // cuBLASLt's handle lives in the context that the reset ends.
    gemms_.Clear();
    // On a lost device every call, also this one, returns the same error.
    (void)cudaSetDevice(index_);
    return FromCuda("cudaDeviceReset", cudaDeviceReset());
  }

 private:
  Status MakeCurrent() const {
    return FromCuda("cudaSetDevice", cudaSetDevice(index_));
  }
  Status Copy(const CopyCall& copy, cudaMemcpyKind kind, Stream stream) const {
    if (copy.rows == 0 || copy.row_bytes == 0) return {};
    const auto row = static_cast<size_t>(copy.row_bytes);
    // Dense on both sides: one piece, which the copy engine copies faster.
    if (copy.rows == 1 || (copy.to_pitch == copy.row_bytes &&
                           copy.from_pitch == copy.row_bytes)) {
      return FromCuda("cudaMemcpyAsync",
                      cudaMemcpyAsync(copy.to, copy.from,
                                      row * static_cast<size_t>(copy.rows),
                                      kind, Raw(stream)));
    }
    return FromCuda(
        "cudaMemcpy2DAsync",
        cudaMemcpy2DAsync(copy.to, static_cast<size_t>(copy.to_pitch),
                          copy.from, static_cast<size_t>(copy.from_pitch), row,
                          static_cast<size_t>(copy.rows), kind, Raw(stream)));
  }

  const int index_;
  const DeviceProperties properties_;
  GemmCache gemms_;
};

}  // namespace

CudaRuntime::~CudaRuntime() = default;

Result<int> CountDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  (void)cudaGetLastError();
  return Status(Code::kUnavailable, std::string("cudaGetDeviceCount: ") +
                                        cudaGetErrorName(error) + "; " +
                                        DriverFacts());
}

Result<std::unique_ptr<CudaRuntime>> CudaRuntime::Create(int index) {
  auto count = CountDevices();
  if (!count.ok()) return count.status();
  if (index < 0 || index >= *count) {
    return InvalidArgument("there is no GPU " + std::to_string(index) +
                           ": the driver shows " + std::to_string(*count));
  }
  cudaDeviceProp raw;
  REFRACT_CUDA_RETURN_IF_ERROR(FromCuda("cudaGetDeviceProperties",
                                        cudaGetDeviceProperties(&raw, index)));
  if (raw.major < 8) {
    return Status(Code::kUnimplemented,
                  std::string("GPU ") + std::to_string(index) + ", " +
                      raw.name + ", has compute capability " +
                      std::to_string(raw.major) + "." +
                      std::to_string(raw.minor) +
                      "; this build has code for 8.0 and above");
  }
  return std::unique_ptr<CudaRuntime>(std::make_unique<Device>(
      index, DeviceProperties{raw.name, raw.l2CacheSize}));
}

}  // namespace refract::runtime::cuda

#include "runtime/cuda/device/cuda_device.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/cuda/device/cuda_status.h"
#include "runtime/cuda/device/gemm.h"
#include "runtime/cuda/device/graph_trial.h"
#include "runtime/cuda/kernels/dispatch.h"
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

// REFRACT_EARLY_STARTS, for who checks or measures them, or finds a GPU that
// computes wrongly with them.
Result<EarlyStarts> WantedEarlyStarts() {
  const char* const text = std::getenv("REFRACT_EARLY_STARTS");
  const std::string wanted = text == nullptr ? "" : text;
  if (wanted.empty()) return EarlyStarts::kWhereFaster;
  for (EarlyStarts starts :
       {EarlyStarts::kNever, EarlyStarts::kWhereFaster, EarlyStarts::kAlways}) {
    if (wanted == Name(starts)) return starts;
  }
  return InvalidArgument("REFRACT_EARLY_STARTS is " + wanted +
                         ", not never, faster or always");
}

class Device final : public CudaDevice {
 public:
  Device(int index, DeviceProperties properties, EarlyStarts early_starts,
         const Switches& switches)
      : index_(index),
        properties_(std::move(properties)),
        early_starts_(early_starts),
        switches_(switches),
        gemms_(GemmCache::Candidates::kAll, switches) {}

  const DeviceProperties& properties() const override { return properties_; }
  const Switches& switches() const override { return switches_; }

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
    // Not ordered with the legacy default stream, which LibTorch may use.
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
  Status Launch(const Call& call, Stream stream, Start start) override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    if (const auto* gemm = std::get_if<GemmCall>(&call)) {
      return gemms_.Launch(*gemm, Raw(stream), start);
    }
    return std::visit(
        [&](const auto& kernel) { return LaunchOwn(kernel, stream, start); },
        call);
  }
  bool CanStartEarly(const Call& before, const Call& call) override {
    return early_starts_ != EarlyStarts::kNever && IsOwnKernel(before) &&
           IsOwnKernel(call);
  }
  EarlyStarts early_starts() const override { return early_starts_; }
  bool can_capture() const override {
    return switches_.has(Mechanism::kGraphs);
  }
  std::vector<std::string> TakeWarnings() override {
    return gemms_.TakeWarnings();
  }
  Status Run(const ForeignCall& call, Stream stream) override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    return call.kernel->Run(call, stream.handle);
  }
  Status Prepare(const GemmShape& shape, int64_t workspace_bytes,
                 Choice choice) override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    return gemms_.Prepare(shape, workspace_bytes, choice == Choice::kMeasured);
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
    cudaGraphExec_t ready = nullptr;
    Status status = FromCuda("cudaGraphInstantiate",
                             cudaGraphInstantiate(&ready, graph, 0));
    (void)cudaGraphDestroy(graph);
    if (!status.ok()) return status;
    // Now, rather than in the first launch.
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
  Result<bool> AreFaster(const std::vector<Graph>& these,
                         const std::vector<Graph>& those,
                         Stream stream) override {
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    return FasterGraphs(RawOf(these), RawOf(those), Raw(stream));
  }
  Status DestroyGraph(Graph graph) override {
    return FromCuda(
        "cudaGraphExecDestroy",
        cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph.handle)));
  }

  Status Reset() override {
    gemms_.Clear();
    REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
    return FromCuda("cudaDeviceReset", cudaDeviceReset());
  }

 private:
  Status MakeCurrent() const {
    return FromCuda("cudaSetDevice", cudaSetDevice(index_));
  }
  template <typename KernelCall>
  Status LaunchOwn(const KernelCall& call, Stream stream, Start start) const {
    if constexpr (requires { call.plain; }) {
      const bool tensor = std::is_same_v<KernelCall, InteractionCall>;
      if (!switches_.has(tensor ? Mechanism::kTensorInteraction
                                : Mechanism::kWideKernels)) {
        KernelCall plain = call;
        plain.plain = true;
        return LaunchTables(plain, stream, start);
      }
    }
    return LaunchTables(call, stream, start);
  }
  template <typename KernelCall>
  Status LaunchTables(const KernelCall& call, Stream stream,
                      Start start) const {
    if constexpr (requires { call.num_tables; }) {
      if (!switches_.has(Mechanism::kMergedTables)) {
        KernelCall one = call;
        one.num_tables = 1;
        for (int32_t i = 0; i < call.num_tables; ++i) {
          one.tables[0] = call.tables[i];
          REFRACT_CUDA_RETURN_IF_ERROR(FromCuda(
              "kernel launch",
              LaunchKernel(one, Raw(stream), i == 0 ? start : Start::kAfter)));
        }
        return {};
      }
    }
    return FromCuda("kernel launch", LaunchKernel(call, Raw(stream), start));
  }
  // What gives the device no kernel at all is not one either: what lies before
  // it on the stream may be anything.
  bool IsOwnKernel(const Call& call) {
    return std::visit(
        [this](const auto& kernel) {
          if constexpr (std::is_same_v<std::decay_t<decltype(kernel)>,
                                       GemmCall>) {
            if (!gemms_.IsOwn(kernel.shape)) return false;
          }
          return HasBlocks(kernel);
        },
        call);
  }
  static std::vector<cudaGraphExec_t> RawOf(const std::vector<Graph>& graphs) {
    std::vector<cudaGraphExec_t> raw;
    for (const Graph& graph : graphs) {
      if (graph.handle != nullptr) {
        raw.push_back(static_cast<cudaGraphExec_t>(graph.handle));
      }
    }
    return raw;
  }
  Status Copy(const CopyCall& copy, cudaMemcpyKind kind, Stream stream) const {
    if (copy.rows == 0 || copy.row_bytes == 0) return {};
    const auto row = static_cast<size_t>(copy.row_bytes);
    // Dense on both sides: one piece, which the copy engine takes faster.
    if (copy.rows == 1 || (copy.to_pitch == copy.row_bytes &&
                           copy.from_pitch == copy.row_bytes)) {
      return FromCuda("cudaMemcpyAsync",
                      cudaMemcpyAsync(copy.to, copy.from,
                                      row * static_cast<size_t>(copy.rows),
                                      kind, Raw(stream)));
    }
    if (copy.row_bytes <= kNarrowBytes && copy.rows >= kManyRows &&
        switches_.has(Mechanism::kRowCopies)) {
      REFRACT_CUDA_RETURN_IF_ERROR(MakeCurrent());
      return FromCuda("kernel launch",
                      LaunchKernel(CopyRowsCall{.from = copy.from,
                                                .to = copy.to,
                                                .from_pitch = copy.from_pitch,
                                                .to_pitch = copy.to_pitch,
                                                .row_bytes = copy.row_bytes,
                                                .rows = copy.rows},
                                   Raw(stream), Start::kAfter));
    }
    return FromCuda(
        "cudaMemcpy2DAsync",
        cudaMemcpy2DAsync(copy.to, static_cast<size_t>(copy.to_pitch),
                          copy.from, static_cast<size_t>(copy.from_pitch), row,
                          static_cast<size_t>(copy.rows), kind, Raw(stream)));
  }

  // Rows that a kernel copies instead of a copy engine (kernels/copy_rows.h),
  // which pays off once they are more than a launch costs. Both by estimate.
  static constexpr int64_t kNarrowBytes = 128;
  static constexpr int64_t kManyRows = 256;

  const int index_;
  const DeviceProperties properties_;
  const EarlyStarts early_starts_;
  const Switches switches_;
  GemmCache gemms_;
};

}  // namespace

CudaDevice::~CudaDevice() = default;

Result<int> CountDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  (void)cudaGetLastError();
  return Status(Code::kUnavailable, std::string("cudaGetDeviceCount: ") +
                                        cudaGetErrorName(error) + "; " +
                                        DriverFacts());
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::Create(int index) {
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
  auto early_starts = WantedEarlyStarts();
  if (!early_starts.ok()) return early_starts.status();
  auto switches = SwitchesWithout(std::getenv(kWithoutVariable));
  if (!switches.ok()) return switches.status();
  // An error shows where it matters, at the first load.
  bool can_start_early = false;
  if (raw.major >= 9 && *early_starts != EarlyStarts::kNever &&
      (cudaSetDevice(index) != cudaSuccess ||
       KernelsCanStartEarly(&can_start_early) != cudaSuccess)) {
    (void)cudaGetLastError();
    can_start_early = false;
  }
  return std::unique_ptr<CudaDevice>(std::make_unique<Device>(
      index,
      DeviceProperties{raw.name, raw.major, raw.minor, raw.multiProcessorCount,
                       static_cast<int64_t>(raw.totalGlobalMem),
                       raw.l2CacheSize},
      can_start_early ? *early_starts : EarlyStarts::kNever, *switches));
}

}  // namespace refract::runtime::cuda

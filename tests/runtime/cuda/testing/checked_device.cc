#include "tests/runtime/cuda/testing/checked_device.h"

#include <cstring>
#include <utility>
#include <variant>

namespace refract::runtime::cuda::testing {

CheckedDevice::CheckedDevice(unsigned seed, int64_t memory_bytes)
    : memory_bytes_(memory_bytes), seed_(seed), random_(seed) {
  for (int depth = 0; depth <= kMostAhead; ++depth) {
    kernels_.push_back(
        std::make_unique<EmulatedKernels>(seed + static_cast<unsigned>(depth)));
  }
}

CheckedDevice::~CheckedDevice() {
  for (auto& [begin, block] : blocks_) std::free(begin);
}

void CheckedDevice::ForgetWaits(int64_t every) {
  for (auto& kernels : kernels_) kernels->ForgetWaits(every);
}

void CheckedDevice::HostAccess(const void* begin, int64_t bytes, bool write) {
  CheckAccess({static_cast<const std::byte*>(begin), bytes, write, true},
              host_clock_, "the host");
}

void CheckedDevice::RunSome() {
  RunUntil([] { return false; }, random_() % 4);
}

Status CheckedDevice::Allocate(int64_t bytes, void** memory) {
  return NewBlock(bytes, false, memory);
}

Status CheckedDevice::AllocatePinned(int64_t bytes, void** memory) {
  return NewBlock(bytes, true, memory);
}

Status CheckedDevice::Free(void* memory) { return FreeBlock(memory, false); }

Status CheckedDevice::FreePinned(void* memory) {
  return FreeBlock(memory, true);
}

Result<MemoryInfo> CheckedDevice::Memory() {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Memory"));
  return MemoryInfo{memory_bytes_ - used_bytes_, memory_bytes_};
}

Result<Stream> CheckedDevice::CreateStream() {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("CreateStream", kNotInCapture));
  const int id = next_stream_++;
  auto stream = std::make_unique<StreamState>();
  stream->id = id;
  Stream handle{stream.get()};
  streams_[handle.handle] = std::move(stream);
  return handle;
}

Status CheckedDevice::DestroyStream(Stream handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("DestroyStream", kReleases));
  if (Find(handle) == nullptr) return {};
  streams_.erase(handle.handle);
  return {};
}

Result<Event> CheckedDevice::CreateEvent() {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("CreateEvent"));
  auto event = std::make_unique<EventState>();
  Event handle{event.get()};
  events_[handle.handle] = std::move(event);
  return handle;
}

Status CheckedDevice::DestroyEvent(Event handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("DestroyEvent", kReleases));
  if (events_.erase(handle.handle) == 0) Violation("destroys no event");
  return {};
}

Status CheckedDevice::Record(Event handle, Stream stream_handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Record"));
  StreamState* stream = Find(stream_handle);
  EventState* event = Find(handle);
  if (stream == nullptr || event == nullptr) return Bad();
  if (stream->capturing) Violation("records an event in a capture");
  stream->ours_is_last = false;
  event->clock = stream->clock;
  event->recorded = true;
  return {};
}

Status CheckedDevice::StreamWait(Stream stream_handle, Event handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("StreamWait"));
  StreamState* stream = Find(stream_handle);
  EventState* event = Find(handle);
  if (stream == nullptr || event == nullptr) return Bad();
  if (!event->recorded) Violation("waits for an event never recorded");
  stream->ours_is_last = false;
  Merge(event->clock, stream->clock);
  return {};
}

Status CheckedDevice::Synchronize(Event handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Synchronize(Event)", kNotInCapture));
  EventState* event = Find(handle);
  if (event == nullptr) return Bad();
  if (!event->recorded) Violation("waits for an event never recorded");
  RunUntil([&] { return Reached(event->clock); });
  Merge(event->clock, host_clock_);
  Forget();
  return {};
}

Result<bool> CheckedDevice::Happened(Event handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Happened"));
  EventState* event = Find(handle);
  if (event == nullptr) return Bad();
  RunSome();
  if (!Reached(event->clock)) return false;
  Merge(event->clock, host_clock_);
  Forget();
  return true;
}

Status CheckedDevice::Synchronize(Stream handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Synchronize(Stream)", kNotInCapture));
  StreamState* stream = Find(handle);
  if (stream == nullptr) return Bad();
  RunUntil([&] { return Reached(stream->clock); });
  Merge(stream->clock, host_clock_);
  Forget();
  return {};
}

Status CheckedDevice::CopyToDevice(const CopyCall& copy, Stream stream) {
  return Copy("CopyToDevice", copy, true, stream);
}

Status CheckedDevice::CopyToHost(const CopyCall& copy, Stream stream) {
  return Copy("CopyToHost", copy, false, stream);
}

Status CheckedDevice::Clear(void* memory, int64_t bytes, Stream stream) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Clear"));
  return Give(stream, {{{static_cast<std::byte*>(memory), bytes, true, false}},
                       [=](const auto&) {
                         std::memset(memory, 0, static_cast<size_t>(bytes));
                       }});
}

Status CheckedDevice::Launch(const Call& call, Stream stream, Start start) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Launch"));
  if (const auto* gemm = std::get_if<GemmCall>(&call)) {
    if (prepared_.count(gemm->shape) == 0) {
      Violation("launches a product that was not prepared");
      return Status(Code::kFailedPrecondition, "not prepared");
    }
  }
  ++kernel_launches_;
  const bool ours = IsOurs(call);
  if (start == Start::kEarly) {
    ++early_launches_;
    StreamState* state = Find(stream);
    if (state == nullptr) return Bad();
    if (!ours || !state->ours_is_last) {
      Violation("starts early, but not from one kernel of ours to the next");
    }
  }
  Task task;
  task.accesses = AccessesOf(call);
  task.run = [this, call](const Previous& previous) {
    Execute(call, previous);
  };
  task.early = start == Start::kEarly;
  Status status = Give(stream, std::move(task));
  if (status.ok()) Find(stream)->ours_is_last = ours;
  return status;
}

bool CheckedDevice::CanStartEarly(const Call& before, const Call& call) {
  return early_starts_ != EarlyStarts::kNever && IsOurs(before) && IsOurs(call);
}

Status CheckedDevice::Run(const ForeignCall& call, Stream handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Run", kNotInCapture));
  ++foreign_runs_;
  // Somebody else's code may look at what it is given at once: the device has
  // done all before it.
  REFRACT_CUDA_RETURN_IF_ERROR(
      Give(handle, {AccessesOf(call), [](const auto&) {}}));
  const Clock& clock = Find(handle)->clock;
  RunUntil([&] { return Reached(clock); });
  return call.kernel->Run(call, handle.handle);
}

Status CheckedDevice::Prepare(const GemmShape& shape, int64_t workspace_bytes,
                              Choice choice) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Prepare", kNotInCapture));
  if (workspace_bytes < 0) Violation("prepares with negative workspace");
  const bool fresh = prepared_.try_emplace(shape, ChooseProduct(shape)).second;
  if (!fresh || choice == Choice::kMeasured) return {};
  // As few as the rules allow.
  quick_.push_back(shape);
  if (quick_.size() > kQuickProducts) {
    prepared_.erase(quick_.front());
    quick_.pop_front();
  }
  return {};
}

Status CheckedDevice::BeginCapture(Stream handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("BeginCapture"));
  StreamState* stream = Find(handle);
  if (stream == nullptr) return Bad();
  if (stream->capturing) Violation("captures twice");
  stream->capturing = true;
  stream->ours_is_last = false;
  stream->captured.clear();
  return {};
}

Result<Graph> CheckedDevice::EndCapture(Stream handle) {
  StreamState* stream = Find(handle);
  const bool capturing = stream != nullptr && stream->capturing;
  if (stream != nullptr) stream->capturing = stream->ours_is_last = false;
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("EndCapture"));
  if (!capturing) {
    Violation("ends no capture");
    return Bad();
  }
  ++captures_;
  auto graph = std::make_unique<std::vector<Task>>(stream->captured);
  Graph result{graph.get()};
  graphs_[result.handle] = std::move(graph);
  return result;
}

Status CheckedDevice::Launch(Graph graph, Stream stream) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Launch(Graph)"));
  const auto it = graphs_.find(graph.handle);
  if (it == graphs_.end()) {
    Violation("launches no graph");
    return Bad();
  }
  ++graph_launches_;
  return GiveGraph(*it->second, stream);
}

Result<bool> CheckedDevice::AreFaster(const std::vector<Graph>& these,
                                      const std::vector<Graph>& those,
                                      Stream handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("AreFaster", kNotInCapture));
  for (const auto* graphs : {&these, &those}) {
    for (const Graph& graph : *graphs) {
      if (graph.handle == nullptr) continue;
      const auto it = graphs_.find(graph.handle);
      if (it == graphs_.end()) {
        Violation("measures no graph");
        return Bad();
      }
      REFRACT_CUDA_RETURN_IF_ERROR(GiveGraph(*it->second, handle));
    }
  }
  const StreamState* stream = Find(handle);
  if (stream == nullptr) return Bad();
  RunUntil([&] { return Reached(stream->clock); });
  Merge(stream->clock, host_clock_);
  Forget();
  return early_is_faster_;
}

Status CheckedDevice::DestroyGraph(Graph graph) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("DestroyGraph", kReleases));
  if (graphs_.erase(graph.handle) == 0) Violation("destroys no graph");
  return {};
}

Status CheckedDevice::Reset() {
  ++calls_;
  ++resets_;
  lost_ = false;
  fail_at_ = -1;
  for (auto& [begin, block] : blocks_) std::free(begin);
  blocks_.clear();
  used_bytes_ = 0;
  streams_.clear();
  events_.clear();
  graphs_.clear();
  prepared_.clear();
  quick_.clear();
  waiting_.clear();
  history_.clear();
  return {};
}

}  // namespace refract::runtime::cuda::testing

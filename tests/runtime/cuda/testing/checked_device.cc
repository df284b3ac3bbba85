#include "tests/runtime/cuda/testing/checked_device.h"

#include <cstring>
#include <utility>
#include <variant>

namespace refract::runtime::cuda::testing {

CheckedDevice::CheckedDevice(unsigned seed, int64_t memory_bytes)
    : memory_bytes_(memory_bytes), random_(seed), kernels_(seed) {}

CheckedDevice::~CheckedDevice() {
  for (auto& [begin, block] : blocks_) std::free(begin);
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
  return Give(stream,
              {{{static_cast<std::byte*>(memory), bytes, true, false}},
               [=] { std::memset(memory, 0, static_cast<size_t>(bytes)); }});
}

Status CheckedDevice::Launch(const Call& call, Stream stream) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Launch"));
  ++kernel_launches_;
  return Give(stream, {AccessesOf(call), [this, call] { kernels_.Run(call); }});
}

Status CheckedDevice::Run(const ForeignCall& call, Stream handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("Run", kNotInCapture));
  ++foreign_runs_;
  // A foreign operator may read its operands at once, so all earlier work has
  // been run.
  REFRACT_CUDA_RETURN_IF_ERROR(Give(handle, {AccessesOf(call), [] {}}));
  const Clock& clock = Find(handle)->clock;
  RunUntil([&] { return Reached(clock); });
  return call.kernel->Run(call, handle.handle);
}

Status CheckedDevice::BeginCapture(Stream handle) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter("BeginCapture"));
  StreamState* stream = Find(handle);
  if (stream == nullptr) return Bad();
  if (stream->capturing) Violation("captures twice");
  stream->capturing = true;
  stream->captured.clear();
  return {};
}

Result<Graph> CheckedDevice::EndCapture(Stream handle) {
  StreamState* stream = Find(handle);
  const bool capturing = stream != nullptr && stream->capturing;
  if (stream != nullptr) stream->capturing = false;
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
  Task all;
  for (const Task& task : *it->second) {
    all.accesses.insert(all.accesses.end(), task.accesses.begin(),
                        task.accesses.end());
  }
  all.run = [tasks = *it->second] {
    for (const Task& task : tasks) task.run();
  };
  return Give(stream, std::move(all));
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
  waiting_.clear();
  history_.clear();
  return {};
}

}  // namespace refract::runtime::cuda::testing

#ifndef REFRACT_RUNTIME_CUDA_INSTANCE_DEVICE_API_H_
#define REFRACT_RUNTIME_CUDA_INSTANCE_DEVICE_API_H_

// The calls of a GPU's runtime that an instance makes. CudaRuntime implements
// them by CUDA; CheckedDevice of the tests refuses every wrong order of copies,
// events, captures and releases.
//
// Not thread-safe per stream; one instance uses its streams from one thread.
// Every call may report an error that an earlier asynchronous call caused.
// Code::kUnavailable is sticky: all later calls fail too, until Reset().

#include <cstddef>
#include <cstdint>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/calls/foreign.h"
#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

// Handles are destroyed by their creator. Null: no object.
struct Stream {
  void* handle = nullptr;
};
struct Event {
  void* handle = nullptr;
};
struct Graph {  // ready to launch
  void* handle = nullptr;
};

struct MemoryInfo {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

// `rows` pieces of `row_bytes`, `…_pitch` bytes apart.
struct CopyCall {
  void* to = nullptr;
  int64_t to_pitch = 0;
  const void* from = nullptr;
  int64_t from_pitch = 0;
  int64_t row_bytes = 0;
  int64_t rows = 0;
};

class DeviceApi {
 public:
  virtual ~DeviceApi() = default;

  // Device memory, aligned to kAllocationAlignBytes. ResourceExhausted.
  virtual Status Allocate(int64_t bytes, void** memory) = 0;
  virtual Status Free(void* memory) = 0;
  // Host memory that the device can copy from and to while the CPU goes on.
  virtual Status AllocatePinned(int64_t bytes, void** memory) = 0;
  virtual Status FreePinned(void* memory) = 0;
  virtual Result<MemoryInfo> Memory() = 0;

  virtual Result<Stream> CreateStream() = 0;
  virtual Status DestroyStream(Stream stream) = 0;
  virtual Result<Event> CreateEvent() = 0;
  virtual Status DestroyEvent(Event event) = 0;

  // Marks the work given to `stream` so far.
  virtual Status Record(Event event, Stream stream) = 0;
  // Later work of `stream` starts after what `event` marks.
  virtual Status StreamWait(Stream stream, Event event) = 0;
  // Waits for the work that `event` marks, or asks whether it has ended.
  virtual Status Synchronize(Event event) = 0;
  virtual Result<bool> Happened(Event event) = 0;
  virtual Status Synchronize(Stream stream) = 0;

  // Asynchronous; host memory must be pinned.
  virtual Status CopyToDevice(const CopyCall& copy, Stream stream) = 0;
  virtual Status CopyToHost(const CopyCall& copy, Stream stream) = 0;
  virtual Status Clear(void* memory, int64_t bytes, Stream stream) = 0;
  // ResourceExhausted or Unimplemented, naming the shape, for a product without
  // an algorithm in the library.
  virtual Status Launch(const Call& call, Stream stream) = 0;

  // Calls `call.kernel`, which gives its work to `stream`. Not in a capture.
  virtual Status Run(const ForeignCall& call, Stream stream) = 0;

  // Between both calls, work given to `stream` is recorded, not executed; calls
  // that allocate, free or synchronise are errors.
  virtual Status BeginCapture(Stream stream) = 0;
  virtual Result<Graph> EndCapture(Stream stream) = 0;
  virtual Status Launch(Graph graph, Stream stream) = 0;
  virtual Status DestroyGraph(Graph graph) = 0;

  // Ends everything that this process has on the device: all handles and memory
  // are gone, and the device works again. A reset ends every instance, so only
  // the device's owner calls this, after all instances were unloaded.
  virtual Status Reset() = 0;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_INSTANCE_DEVICE_API_H_

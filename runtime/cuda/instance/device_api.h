#ifndef REFRACT_RUNTIME_CUDA_INSTANCE_DEVICE_API_H_
#define REFRACT_RUNTIME_CUDA_INSTANCE_DEVICE_API_H_

// The calls of a GPU's runtime that an instance makes, and nothing else: so
// that its order of copies, events, captures and clean-up can be checked
// against a strict fake. CudaDevice is the real one.
//
// Not thread-safe per stream; one instance uses its streams from one thread.
// Every call may report an error that an earlier asynchronous call caused.
// Code::kUnavailable is sticky: all later calls fail too, until Reset().

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/calls/foreign.h"
#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

// Handles belong to who created them. Null is none.
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

// `rows` pieces of `row_bytes`, which lie `…_pitch` bytes apart.
struct CopyCall {
  void* to = nullptr;
  int64_t to_pitch = 0;
  const void* from = nullptr;
  int64_t from_pitch = 0;
  int64_t row_bytes = 0;
  int64_t rows = 0;
};

// Whether a kernel of our own may begin while the one before it ends
// (Start::kEarly in calls.h).
enum class EarlyStarts : uint8_t {
  kNever,
  kWhereFaster,  // as measured at load
  kAlways,       // wherever it is legal: to check it, and to measure
};
// "never", "faster", "always"
const char* Name(EarlyStarts starts);

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
  // The caller waits for what `event` marks, or asks whether it has happened.
  virtual Status Synchronize(Event event) = 0;
  virtual Result<bool> Happened(Event event) = 0;
  virtual Status Synchronize(Stream stream) = 0;

  // Asynchronous; host memory must be pinned.
  virtual Status CopyToDevice(const CopyCall& copy, Stream stream) = 0;
  virtual Status CopyToHost(const CopyCall& copy, Stream stream) = 0;
  virtual Status Clear(void* memory, int64_t bytes, Stream stream) = 0;
  // kEarly is legal only where CanStartEarly(before, call) and what was given
  // to the stream last, in the same capture, is a launch of `before`: no copy,
  // no event, no graph between the two.
  virtual Status Launch(const Call& call, Stream stream, Start start) = 0;
  // Both are computed by kernels of our own, and the device can do it.
  virtual bool CanStartEarly(const Call& before, const Call& call) = 0;
  // What the device can do and who started the process wants.
  virtual EarlyStarts early_starts() const = 0;
  // Whether programs may be captured: likewise.
  virtual bool can_capture() const { return true; }

  // Has `call.kernel` give its work to `stream`. Not in a capture.
  virtual Status Run(const ForeignCall& call, Stream stream) = 0;

  // Chooses how to compute products of this shape, once. Launch() of a shape
  // that was not prepared fails: choosing is neither fast nor legal in a
  // capture. ResourceExhausted or Unimplemented when no algorithm takes it.
  // kFirst takes what the library puts first and measures nothing, for shapes
  // that requests bring; of these only so many are kept, so it is called before
  // every such launch or capture, and returns at once where the shape is known.
  enum class Choice : uint8_t { kMeasured, kFirst };
  virtual Status Prepare(const GemmShape& shape, int64_t workspace_bytes,
                         Choice choice) = 0;

  // Between the two, work given to `stream` is recorded, not executed; anything
  // that allocates, frees, synchronises or prepares is an error.
  virtual Status BeginCapture(Stream stream) = 0;
  virtual Result<Graph> EndCapture(Stream stream) = 0;
  virtual Status Launch(Graph graph, Stream stream) = 0;
  // Whether launching all of `these` takes less time than all of `those`, by
  // more than times differ by: both are launched a few times, in turns, while
  // nothing else of the caller's runs. Null ones are passed over. Waits.
  virtual Result<bool> AreFaster(const std::vector<Graph>& these,
                                 const std::vector<Graph>& those,
                                 Stream stream) = 0;
  virtual Status DestroyGraph(Graph graph) = 0;

  // What was found wrong with kernels since the last call, and did without: a
  // line each, for a log.
  virtual std::vector<std::string> TakeWarnings() { return {}; }

  // Ends whatever this process has on the device: all handles and memory are
  // gone, the device works again. For every instance on it, so only its owner
  // calls this, after all instances were unloaded.
  virtual Status Reset() = 0;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_INSTANCE_DEVICE_API_H_

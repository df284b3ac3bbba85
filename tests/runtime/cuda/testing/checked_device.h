#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_CHECKED_DEVICE_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_CHECKED_DEVICE_H_

// A device that exists in this process only, and is stricter than a GPU.
//
// Work runs as late as the rules of streams and events allow, and in a random
// order among streams, by the real kernel bodies (simt.h) and plain products.
// Every access is checked: memory must be allocated and of the right kind, and
// two accesses of which one writes must be ordered by a stream, an event or the
// host. Calls that a capture forbids, handles that do not exist and frees of
// memory in use are violations. A fault can be planted at any call.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/cuda/instance/device_api.h"
#include "tests/runtime/cuda/testing/accesses.h"
#include "tests/runtime/cuda/testing/emulated_kernels.h"

namespace refract::runtime::cuda::testing {

class CheckedDevice : public DeviceApi {
 public:
  explicit CheckedDevice(unsigned seed,
                         int64_t memory_bytes = int64_t{1} << 30);
  ~CheckedDevice() override;

  // --- State for tests -----------------------------------------------------
  const std::vector<std::string>& violations() const { return violations_; }
  // Allocations, streams, events and graphs that exist.
  size_t live() const {
    return blocks_.size() + streams_.size() + events_.size() + graphs_.size();
  }
  int calls() const { return calls_; }
  int graph_launches() const { return graph_launches_; }
  int kernel_launches() const { return kernel_launches_; }
  int resets() const { return resets_; }
  int foreign_runs() const { return foreign_runs_; }
  int allocations() const { return allocations_; }
  int captures() const { return captures_; }
  // The test itself reads or writes pinned memory now.
  void HostAccess(const void* begin, int64_t bytes, bool write);
  // The `n`-th call from now (1 is the next, 0 none) fails with `code`.
  // kUnavailable goes on failing until Reset(). Other faults pass over calls
  // that release.
  void FailCall(int n, Code code) {
    fail_at_ = calls_ + n;
    fail_code_ = code;
  }
  // Runs some of the waiting work, or all.
  void RunSome();

  // --- DeviceApi ----------------------------------------------------------
  Status Allocate(int64_t bytes, void** memory) override;
  Status AllocatePinned(int64_t bytes, void** memory) override;
  Status Free(void* memory) override;
  Status FreePinned(void* memory) override;
  Result<MemoryInfo> Memory() override;
  Result<Stream> CreateStream() override;
  Status DestroyStream(Stream handle) override;
  Result<Event> CreateEvent() override;
  Status DestroyEvent(Event handle) override;
  Status Record(Event handle, Stream stream_handle) override;
  Status StreamWait(Stream stream_handle, Event handle) override;
  Status Synchronize(Event handle) override;
  Result<bool> Happened(Event handle) override;
  Status Synchronize(Stream handle) override;
  Status CopyToDevice(const CopyCall& copy, Stream stream) override;
  Status CopyToHost(const CopyCall& copy, Stream stream) override;
  Status Clear(void* memory, int64_t bytes, Stream stream) override;
  Status Launch(const Call& call, Stream stream) override;
  Status Run(const ForeignCall& call, Stream handle) override;
  Status BeginCapture(Stream handle) override;
  Result<Graph> EndCapture(Stream handle) override;
  Status Launch(Graph graph, Stream stream) override;
  Status DestroyGraph(Graph graph) override;
  Status Reset() override;

 private:
  // Per stream id: how many of its tasks.
  using Clock = std::map<int, int>;
  struct Task {
    std::vector<Access> accesses;
    std::function<void()> run;
    int stream = 0;
    int number = 0;  // in its stream, from 1
    Clock after;     // must have run before
  };
  struct StreamState {
    int id = 0;
    Clock clock;
    bool capturing = false;
    std::vector<Task> captured;
  };
  struct EventState {
    bool recorded = false;
    Clock clock;
  };
  struct Block {
    int64_t bytes;
    bool host;
  };
  struct Past {
    Access access;
    int number;
  };
  enum Rule : uint8_t { kAny, kNotInCapture, kReleases };

  // Counts a call, gives the planted fault, refuses what a capture forbids.
  Status Enter(const char* name, Rule rule = kAny);
  void Violation(const std::string& what);
  Status Bad() { return Status(Code::kInternal, "bad handle"); }
  StreamState* Find(Stream stream);
  EventState* Find(Event event);
  static void Merge(const Clock& from, Clock& into);
  bool Reached(const Clock& clock) const;

  Status NewBlock(int64_t bytes, bool host, void** memory);
  Status FreeBlock(void* memory, bool host);
  Status Copy(const char* name, const CopyCall& copy, bool to_device,
              Stream stream);

  // Adds work to a stream, or to its capture.
  Status Give(Stream handle, Task task);
  void CheckMemory(const Access& access, const char* who);
  // `seen`: calls that are known to have run before.
  void CheckAccess(const Access& access, const Clock& seen, const char* who);
  // Work that the host has waited for can no longer race.
  void Forget();

  // Runs waiting tasks in some legal order.
  void RunUntil(const std::function<bool()>& stop, size_t at_most = SIZE_MAX);

  const int64_t memory_bytes_;
  int64_t used_bytes_ = 0;
  std::mt19937 random_;
  EmulatedKernels kernels_;

  const char* call_ = "";
  int calls_ = 0;
  int fail_at_ = -1;
  Code fail_code_ = Code::kOk;
  bool lost_ = false;
  int graph_launches_ = 0, kernel_launches_ = 0, foreign_runs_ = 0,
      allocations_ = 0, captures_ = 0, resets_ = 0;

  std::map<std::byte*, Block> blocks_;
  std::map<void*, std::unique_ptr<StreamState>> streams_;
  std::map<void*, std::unique_ptr<EventState>> events_;
  std::map<void*, std::unique_ptr<std::vector<Task>>> graphs_;
  int next_stream_ = 0;

  std::vector<Task> waiting_;
  // Past work of each stream by its id, `number` ascending.
  std::map<int, std::vector<Past>> history_;
  Clock done_, host_clock_;
  std::vector<std::string> violations_;
};

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_CHECKED_DEVICE_H_

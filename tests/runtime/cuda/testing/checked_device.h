#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_CHECKED_DEVICE_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_CHECKED_DEVICE_H_

// A device that exists in this process only, and is stricter than a GPU.
//
// Work runs as late as the rules of streams and events allow, and in a random
// order among streams, by the real kernel bodies (simt.h) and plain products.
// Half of the shapes of products count as kernels of our own. A kernel that is
// launched to start early does, as often as not: in a chain it may run as far
// as it waits for nothing before the two kernels ahead of it have begun. Every
// access is checked: memory must be allocated and of the right kind, and two
// accesses of which one writes must be ordered by a stream, an event or the
// host. Calls that a capture forbids, handles that do not exist, products that
// were not prepared, frees of memory in use and what is left at the end are
// violations. A fault can be planted at any call.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/device_api.h"
#include "runtime/cuda/kernels/dispatch.h"
#include "runtime/cuda/own_products.h"
#include "tests/runtime/cuda/testing/accesses.h"
#include "tests/runtime/cuda/testing/plain_product.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda::testing {

class CheckedDevice : public DeviceApi {
 public:
  explicit CheckedDevice(unsigned seed, int64_t memory_bytes = int64_t{1} << 30)
      : memory_bytes_(memory_bytes), seed_(seed), random_(seed) {
    for (int depth = 0; depth <= kMostAhead; ++depth) {
      launchers_.push_back(std::make_unique<EmulatedLauncher>(
          seed + static_cast<unsigned>(depth)));
    }
  }
  ~CheckedDevice() override {
    for (auto& [begin, block] : blocks_) std::free(begin);
  }

  // What the next TakeWarnings() gives.
  void Warn(std::string warning) { warnings_.push_back(std::move(warning)); }
  std::vector<std::string> TakeWarnings() override {
    return std::exchange(warnings_, {});
  }
  // From now on products are computed by one of our own kernels, too.
  void UseOwnProducts() { own_products_ = true; }

  // --- What tests look at -------------------------------------------------
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
  // Launches that may start early, in captures too; and such that did.
  int early_launches() const { return early_launches_; }
  int early_runs() const { return early_runs_; }
  // What it says it wants, what it finds faster, whether products count as
  // ours. Half of them do at first.
  void SetEarlyStarts(EarlyStarts wanted) { early_starts_ = wanted; }
  void SetEarlyIsFaster(bool faster) { early_is_faster_ = faster; }
  void SetOwnProducts(bool own) { count_own_products_ = own; }
  // Every so many threads of our kernels do not wait for what is before them.
  void ForgetWaits(int64_t every) {
    for (auto& launcher : launchers_) launcher->ForgetWaits(every);
  }
  // The test itself reads or writes pinned memory now.
  void HostAccess(const void* begin, int64_t bytes, bool write) {
    CheckAccess({static_cast<const std::byte*>(begin), bytes, write, true},
                host_clock_, "the host");
  }
  // The `n`-th call from now (1 is the next, 0 none) fails with `code`.
  // kUnavailable goes on failing until Reset(). Other faults pass over calls
  // that release.
  void FailCall(int n, Code code) {
    fail_at_ = calls_ + n;
    fail_code_ = code;
  }
  // Runs some of the waiting work, or all.
  void RunSome() {
    RunUntil([] { return false; }, random_() % 4);
  }

  // --- DeviceApi ----------------------------------------------------------
  Status Allocate(int64_t bytes, void** memory) override {
    return NewBlock(bytes, false, memory);
  }
  Status AllocatePinned(int64_t bytes, void** memory) override {
    return NewBlock(bytes, true, memory);
  }
  Status Free(void* memory) override { return FreeBlock(memory, false); }
  Status FreePinned(void* memory) override { return FreeBlock(memory, true); }
  Result<MemoryInfo> Memory() override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("Memory"));
    return MemoryInfo{memory_bytes_ - used_bytes_, memory_bytes_};
  }

  Result<Stream> CreateStream() override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("CreateStream", kNotInCapture));
    const int id = next_stream_++;
    auto stream = std::make_unique<StreamState>();
    stream->id = id;
    Stream handle{stream.get()};
    streams_[handle.handle] = std::move(stream);
    return handle;
  }
  Status DestroyStream(Stream handle) override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("DestroyStream", kReleases));
    if (Find(handle) == nullptr) return {};
    streams_.erase(handle.handle);
    return {};
  }
  Result<Event> CreateEvent() override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("CreateEvent"));
    auto event = std::make_unique<EventState>();
    Event handle{event.get()};
    events_[handle.handle] = std::move(event);
    return handle;
  }
  Status DestroyEvent(Event handle) override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("DestroyEvent", kReleases));
    if (events_.erase(handle.handle) == 0) Violation("destroys no event");
    return {};
  }

  Status Record(Event handle, Stream stream_handle) override {
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
  Status StreamWait(Stream stream_handle, Event handle) override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("StreamWait"));
    StreamState* stream = Find(stream_handle);
    EventState* event = Find(handle);
    if (stream == nullptr || event == nullptr) return Bad();
    if (!event->recorded) Violation("waits for an event never recorded");
    stream->ours_is_last = false;
    Merge(event->clock, stream->clock);
    return {};
  }
  Status Synchronize(Event handle) override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("Synchronize(Event)", kNotInCapture));
    EventState* event = Find(handle);
    if (event == nullptr) return Bad();
    if (!event->recorded) Violation("waits for an event never recorded");
    RunUntil([&] { return Reached(event->clock); });
    Merge(event->clock, host_clock_);
    Forget();
    return {};
  }
  Result<bool> Happened(Event handle) override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("Happened"));
    EventState* event = Find(handle);
    if (event == nullptr) return Bad();
    RunSome();
    if (!Reached(event->clock)) return false;
    Merge(event->clock, host_clock_);
    Forget();
    return true;
  }
  Status Synchronize(Stream handle) override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("Synchronize(Stream)", kNotInCapture));
    StreamState* stream = Find(handle);
    if (stream == nullptr) return Bad();
    RunUntil([&] { return Reached(stream->clock); });
    Merge(stream->clock, host_clock_);
    Forget();
    return {};
  }

  Status CopyToDevice(const CopyCall& copy, Stream stream) override {
    return Copy("CopyToDevice", copy, true, stream);
  }
  Status CopyToHost(const CopyCall& copy, Stream stream) override {
    return Copy("CopyToHost", copy, false, stream);
  }
  Status Clear(void* memory, int64_t bytes, Stream stream) override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("Clear"));
    return Give(stream,
                {{{static_cast<std::byte*>(memory), bytes, true, false}},
                 [=](const auto&) {
                   std::memset(memory, 0, static_cast<size_t>(bytes));
                 }});
  }
  Status Launch(const Call& call, Stream stream, Start start) override {
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
  bool CanStartEarly(const Call& before, const Call& call) override {
    return early_starts_ != EarlyStarts::kNever && IsOurs(before) &&
           IsOurs(call);
  }
  EarlyStarts early_starts() const override { return early_starts_; }
  Status Run(const ForeignCall& call, Stream handle) override {
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
  Status Prepare(const GemmShape& shape, int64_t workspace_bytes,
                 Choice choice) override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("Prepare", kNotInCapture));
    if (workspace_bytes < 0) Violation("prepares with negative workspace");
    const bool fresh =
        prepared_.try_emplace(shape, ChooseProduct(shape)).second;
    if (!fresh || choice == Choice::kMeasured) return {};
    // As few as the rules allow.
    quick_.push_back(shape);
    if (quick_.size() > kQuickProducts) {
      prepared_.erase(quick_.front());
      quick_.pop_front();
    }
    return {};
  }
  static constexpr size_t kQuickProducts = 16;

  Status BeginCapture(Stream handle) override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("BeginCapture"));
    StreamState* stream = Find(handle);
    if (stream == nullptr) return Bad();
    if (stream->capturing) Violation("captures twice");
    stream->capturing = true;
    stream->ours_is_last = false;
    stream->captured.clear();
    return {};
  }
  Result<Graph> EndCapture(Stream handle) override {
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
  Status Launch(Graph graph, Stream stream) override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("Launch(Graph)"));
    const auto it = graphs_.find(graph.handle);
    if (it == graphs_.end()) {
      Violation("launches no graph");
      return Bad();
    }
    ++graph_launches_;
    return GiveGraph(*it->second, stream);
  }
  Result<bool> AreFaster(const std::vector<Graph>& these,
                         const std::vector<Graph>& those,
                         Stream handle) override {
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
  Status DestroyGraph(Graph graph) override {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter("DestroyGraph", kReleases));
    if (graphs_.erase(graph.handle) == 0) Violation("destroys no graph");
    return {};
  }

  Status Reset() override {
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

 private:
  // Per stream id: how many of its tasks.
  using Clock = std::map<int, int>;
  // Runs what is before a kernel that has started early; null: it has run.
  using Previous = std::function<void()>;
  struct Task {
    std::vector<Access> accesses;
    std::function<void(const Previous&)> run;
    bool early = false;
    int stream = 0;
    int number = 0;  // in its stream, from 1
    Clock after;     // what must have run
  };
  struct StreamState {
    int id = 0;
    Clock clock;
    bool capturing = false;
    std::vector<Task> captured;
    // What it was given last, since the capture began if there is one, is the
    // launch of a kernel of ours.
    bool ours_is_last = false;
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
    int stream, number;
  };
  enum Rule : uint8_t { kAny, kNotInCapture, kReleases };

  Status Enter(const char* name, Rule rule = kAny) {
    call_ = name;
    ++calls_;
    if (calls_ == fail_at_ &&
        !(rule == kReleases && fail_code_ != Code::kUnavailable)) {
      lost_ = lost_ || fail_code_ == Code::kUnavailable;
      if (!lost_) return Status(fail_code_, std::string("planted: ") + name);
    }
    if (lost_) return Status(Code::kUnavailable, "the device is lost");
    if (rule != kAny) {
      for (const auto& [handle, stream] : streams_) {
        if (!stream->capturing) continue;
        Violation("is not allowed in a capture");
        return Status(Code::kInternal, "not allowed in a capture");
      }
    }
    return {};
  }
  void Violation(const std::string& what) {
    violations_.push_back(std::string(call_) + " " + what);
  }
  Status Bad() { return Status(Code::kInternal, "bad handle"); }
  StreamState* Find(Stream stream) {
    const auto it = streams_.find(stream.handle);
    if (it != streams_.end()) return it->second.get();
    Violation("of no stream");
    return nullptr;
  }
  EventState* Find(Event event) {
    const auto it = events_.find(event.handle);
    if (it != events_.end()) return it->second.get();
    Violation("of no event");
    return nullptr;
  }
  static void Merge(const Clock& from, Clock& into) {
    for (const auto& [stream, number] : from) {
      into[stream] = std::max(into[stream], number);
    }
  }
  bool Reached(const Clock& clock) const {
    for (const auto& [stream, number] : clock) {
      const auto it = done_.find(stream);
      if (number > (it == done_.end() ? 0 : it->second)) return false;
    }
    return true;
  }

  Status NewBlock(int64_t bytes, bool host, void** memory) {
    REFRACT_CUDA_RETURN_IF_ERROR(
        Enter(host ? "AllocatePinned" : "Allocate", kNotInCapture));
    if (bytes <= 0) Violation("allocates nothing");
    if (!host && used_bytes_ + bytes > memory_bytes_) {
      return Status(Code::kResourceExhausted, "out of memory");
    }
    ++allocations_;
    const auto rounded = static_cast<size_t>((bytes + 255) / 256 * 256);
    void* begin = std::aligned_alloc(256, rounded);
    std::memset(begin, 0xFF, rounded);  // NaN: nothing is zero by itself
    blocks_[static_cast<std::byte*>(begin)] = {bytes, host};
    if (!host) used_bytes_ += bytes;
    *memory = begin;
    return {};
  }
  Status FreeBlock(void* memory, bool host) {
    REFRACT_CUDA_RETURN_IF_ERROR(
        Enter(host ? "FreePinned" : "Free", kReleases));
    const auto it = blocks_.find(static_cast<std::byte*>(memory));
    if (it == blocks_.end() || it->second.host != host) {
      Violation("frees what was not allocated");
      return Bad();
    }
    CheckAccess({it->first, it->second.bytes, true, host}, host_clock_,
                "the free");
    if (!host) used_bytes_ -= it->second.bytes;
    std::free(it->first);
    blocks_.erase(it);
    return {};
  }

  Status Copy(const char* name, const CopyCall& copy, bool to_device,
              Stream stream) {
    REFRACT_CUDA_RETURN_IF_ERROR(Enter(name));
    if (copy.row_bytes > copy.to_pitch || copy.row_bytes > copy.from_pitch) {
      Violation("has rows that overlap");
    }
    Task task;
    for (int64_t row = 0; row < copy.rows; ++row) {
      task.accesses.push_back(
          {static_cast<std::byte*>(copy.to) + row * copy.to_pitch,
           copy.row_bytes, true, !to_device});
      task.accesses.push_back(
          {static_cast<const std::byte*>(copy.from) + row * copy.from_pitch,
           copy.row_bytes, false, to_device});
    }
    task.run = [copy](const auto&) {
      for (int64_t row = 0; row < copy.rows; ++row) {
        std::memcpy(
            static_cast<std::byte*>(copy.to) + row * copy.to_pitch,
            static_cast<const std::byte*>(copy.from) + row * copy.from_pitch,
            static_cast<size_t>(copy.row_bytes));
      }
    };
    return Give(stream, std::move(task));
  }

  // Adds work to a stream, or to its capture.
  Status Give(Stream handle, Task task) {
    StreamState* stream = Find(handle);
    if (stream == nullptr) return Bad();
    stream->ours_is_last = false;
    if (stream->capturing) {
      for (const Access& access : task.accesses)
        CheckMemory(access, "captured");
      stream->captured.push_back(std::move(task));
      return {};
    }
    Merge(host_clock_, stream->clock);
    task.after = stream->clock;
    task.stream = stream->id;
    task.number = ++stream->clock[stream->id];
    for (const Access& access : task.accesses) {
      CheckAccess(access, task.after, "work");
    }
    for (const Access& access : task.accesses) {
      history_.push_back({access, task.stream, task.number});
    }
    waiting_.push_back(std::move(task));
    return {};
  }

  Status GiveGraph(const std::vector<Task>& tasks, Stream stream) {
    Task all;
    for (const Task& task : tasks) {
      all.accesses.insert(all.accesses.end(), task.accesses.begin(),
                          task.accesses.end());
    }
    all.run = [this, tasks](const auto&) { RunFirst(tasks, tasks.size()); };
    return Give(stream, std::move(all));
  }
  // The first `count` tasks of a graph. The last of them may begin before the
  // others have.
  void RunFirst(const std::vector<Task>& tasks, size_t count) {
    if (count == 0) return;
    const Task& last = tasks[count - 1];
    if (last.early && StartsNow()) {
      RunEarly(last, [&] { RunFirst(tasks, count - 1); });
    } else {
      RunFirst(tasks, count - 1);
      last.run(nullptr);
    }
  }
  bool StartsNow() { return ahead_ < kMostAhead && random_() % 2 == 0; }
  void RunEarly(const Task& task, const Previous& previous) {
    ++early_runs_;
    task.run([&] {
      ++ahead_;
      previous();
      --ahead_;
    });
  }

  void CheckMemory(const Access& access, const char* who) {
    if (access.bytes == 0) return;
    auto it = blocks_.upper_bound(const_cast<std::byte*>(access.begin));
    if (it == blocks_.begin()) {
      Violation(std::string(who) + " touches memory that is not allocated");
      return;
    }
    --it;
    if (access.begin + access.bytes > it->first + it->second.bytes ||
        it->second.host != access.host) {
      Violation(std::string(who) + " touches memory that is not allocated");
    }
  }
  // `seen`: what is known to have run before.
  void CheckAccess(const Access& access, const Clock& seen, const char* who) {
    CheckMemory(access, who);
    for (const Past& past : history_) {
      if (!past.access.write && !access.write) continue;
      if (past.access.begin + past.access.bytes <= access.begin ||
          access.begin + access.bytes <= past.access.begin) {
        continue;
      }
      const auto it = seen.find(past.stream);
      if (it != seen.end() && it->second >= past.number) continue;
      Violation(std::string(who) + " races with work of stream " +
                std::to_string(past.stream));
      return;
    }
  }
  // What the host has waited for can race with nothing any more.
  void Forget() {
    history_.erase(std::remove_if(history_.begin(), history_.end(),
                                  [&](const Past& past) {
                                    return host_clock_[past.stream] >=
                                           past.number;
                                  }),
                   history_.end());
  }

  // Runs waiting tasks in some legal order.
  template <typename Stop>
  void RunUntil(Stop stop, size_t at_most = SIZE_MAX) {
    while (!stop() && at_most-- > 0) {
      std::vector<size_t> legal;
      for (size_t i = 0; i < waiting_.size(); ++i) {
        if (Reached(waiting_[i].after)) legal.push_back(i);
      }
      if (legal.empty()) return;
      const Task task = Take(legal[random_() % legal.size()]);
      RunWithNext(task, [&] { task.run(nullptr); });
    }
  }
  Task Take(size_t i) {
    Task task = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    return task;
  }
  // Runs `task` by `run`; or the one after it on its stream, which runs `task`
  // when it waits for it.
  void RunWithNext(const Task& task, const Previous& run) {
    const auto finish = [&] {
      run();
      done_[task.stream] = task.number;
    };
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const Task& next = waiting_[i];
      if (next.stream != task.stream || next.number != task.number + 1) {
        continue;
      }
      Clock others = next.after;
      others[task.stream] = 0;
      if (!next.early || !Reached(others) || !StartsNow()) break;
      const Task taken = Take(i);
      RunEarly(taken, finish);
      done_[taken.stream] = taken.number;
      return;
    }
    finish();
  }

  bool IsOurs(const Call& call) const {
    if (const auto* gemm = std::get_if<GemmCall>(&call)) {
      const GemmShape& s = gemm->shape;
      if (count_own_products_.has_value()) return *count_own_products_;
      if (own_products_) return ChosenFor(s).has_value();
      return (static_cast<unsigned>(s.n * 3 + s.k) / 2 + seed_) % 2 == 0;
    }
    return std::visit([](const auto& kernel) { return HasBlocks(kernel); },
                      call);
  }
  void Execute(const Call& call, const Previous& previous) {
    EmulatedLauncher& launcher = *launchers_[static_cast<size_t>(ahead_)];
    std::visit(
        [&](const auto& kernel) {
          if constexpr (std::is_same_v<std::decay_t<decltype(kernel)>,
                                       GemmCall>) {
            Product(kernel, previous, launcher);
          } else {
            DispatchTo(launcher, kernel, previous);
          }
        },
        call);
  }

  // What a trial might choose: one of our own kernels, or the library's.
  std::optional<ProductKernel> ChooseProduct(const GemmShape& shape) {
    if (!own_products_) return {};
    const std::vector<ProductKernel> own = OwnCandidates(shape);
    // Fibers take too long for large ones.
    if (own.empty() || shape.m * shape.n * shape.k > 1 << 18) return {};
    const size_t i = random_() % (own.size() + 1);
    if (i == own.size()) return {};
    return own[i];
  }
  void Product(GemmCall call, const Previous& previous,
               EmulatedLauncher& launcher) {
    if (const auto chosen = ChosenFor(call.shape)) {
      call.kernel = *chosen;
      DispatchTo(launcher, call, previous);
    } else {
      // Not a kernel, but where it counts as one of ours it behaves like one.
      if (previous != nullptr) previous();
      MultiplyPlainly(call);
    }
  }
  std::optional<ProductKernel> ChosenFor(const GemmShape& shape) const {
    const auto chosen = prepared_.find(shape);
    return chosen == prepared_.end() ? std::nullopt : chosen->second;
  }
  template <typename KernelCall>
  void DispatchTo(EmulatedLauncher& launcher, const KernelCall& call,
                  const Previous& previous) {
    if (previous == nullptr) {
      Dispatch(call, launcher);
    } else if (!launcher.DispatchEarly(call, previous)) {
      violations_.emplace_back(
          "a kernel that starts early does not wait in every thread");
    }
  }

  const int64_t memory_bytes_;
  int64_t used_bytes_ = 0;
  const unsigned seed_;
  std::mt19937 random_;
  // By how many kernels behind it have begun before it.
  static constexpr int kMostAhead = 2;
  std::vector<std::unique_ptr<EmulatedLauncher>> launchers_;
  int ahead_ = 0;
  EarlyStarts early_starts_ = EarlyStarts::kWhereFaster;
  bool early_is_faster_ = true;
  std::optional<bool> count_own_products_;

  const char* call_ = "";
  int calls_ = 0;
  int fail_at_ = -1;
  Code fail_code_ = Code::kOk;
  bool lost_ = false;
  int graph_launches_ = 0, kernel_launches_ = 0, foreign_runs_ = 0,
      allocations_ = 0, captures_ = 0, resets_ = 0, early_launches_ = 0,
      early_runs_ = 0;

  std::map<std::byte*, Block> blocks_;
  std::map<void*, std::unique_ptr<StreamState>> streams_;
  std::map<void*, std::unique_ptr<EventState>> events_;
  std::map<void*, std::unique_ptr<std::vector<Task>>> graphs_;
  bool own_products_ = false;
  std::map<GemmShape, std::optional<ProductKernel>> prepared_;
  std::deque<GemmShape> quick_;  // those not measured
  int next_stream_ = 0;

  std::vector<Task> waiting_;
  std::vector<Past> history_;
  Clock done_, host_clock_;
  std::vector<std::string> warnings_;
  std::vector<std::string> violations_;
};

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_CHECKED_DEVICE_H_

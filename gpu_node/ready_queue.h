#ifndef REFRACT_GPU_NODE_READY_QUEUE_H_
#define REFRACT_GPU_NODE_READY_QUEUE_H_

// Requests that have arrived and wait for an instance, in order of deadline.
// Those without one come last, but under overload still get their share.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "transport/channel.h"

namespace refract::gpu_node {

// What the order depends on.
struct ReadyKey {
  absl::Time deadline = absl::InfiniteFuture();
  uint64_t arrival = 0;  // counts requests; unique
};

// Earliest deadline first; equal deadlines in order of arrival, so that
// requests without one are served first come, first served.
bool RunsBefore(const ReadyKey& a, const ReadyKey& b);

// Of so many requests that are run in a row, at least one has no deadline if
// one waits: 5 % of the node, as pulls without a deadline get of the link.
inline constexpr int kTurnWithoutDeadline = 20;

// What to do with the request at the head of the queue.
enum class Verdict : uint8_t {
  kRun,
  kDropExpired,    // nobody can use the answer any more
  kDropAbandoned,  // nobody waits for the answer
};
Verdict Judge(absl::Time deadline, bool abandoned, absl::Time now);

// Thread-safe. Dropped calls are answered by the queue itself.
class ReadyQueue {
 public:
  // At most `capacity` (≥ 1) requests wait. `clock` must be the transport
  // server's, whose deadlines it is compared with.
  ReadyQueue(size_t capacity, base::Clock& clock);

  // Queues `call`, or fails it: ResourceExhausted when full even after the
  // expired requests were dropped, Unavailable once closed.
  void Push(std::unique_ptr<transport::ServerCall> call);

  // The call to run next; waits for one. Expired and abandoned calls are
  // failed and skipped. nullptr once closed and empty. Each call returned must
  // be followed by one Done() when it has been answered.
  std::unique_ptr<transport::ServerCall> Pop();
  void Done();

  // No more pushes; what is queued is still popped.
  void Close();

  // Waits until nothing is queued or running, or for `timeout`. Whether it is
  // so.
  bool AwaitIdle(absl::Duration timeout);

  // Queued and popped but not Done.
  size_t pending() const;
  // Calls that Pop() or Push() dropped because their deadline had passed.
  uint64_t expired() const;

 private:
  struct Entry {
    ReadyKey key;
    // mutable: moved out of a const set element right before it is erased; the
    // order does not depend on it.
    mutable std::unique_ptr<transport::ServerCall> call;
    friend bool operator<(const Entry& a, const Entry& b) {
      return RunsBefore(a.key, b.key);
    }
  };
  using Calls = std::vector<std::unique_ptr<transport::ServerCall>>;

  bool HasWorkOrClosed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return closed_ || !entries_.empty();
  }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return entries_.empty() && running_ == 0;
  }
  std::unique_ptr<transport::ServerCall> Take(std::set<Entry>::iterator entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first one, or the oldest one without a deadline when it is their turn.
  std::unique_ptr<transport::ServerCall> TakeNext()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeExpired(absl::Time now, Calls& expired)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t capacity_;
  base::Clock& clock_;
  mutable absl::Mutex mu_;
  std::set<Entry> entries_ ABSL_GUARDED_BY(mu_);
  uint64_t arrivals_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t expired_ ABSL_GUARDED_BY(mu_) = 0;
  size_t running_ ABSL_GUARDED_BY(mu_) = 0;
  // Run since the last one without a deadline.
  int run_with_deadline_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_READY_QUEUE_H_

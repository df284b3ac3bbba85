#ifndef REFRACT_GPU_NODE_SCHEDULER_MODEL_QUEUE_H_
#define REFRACT_GPU_NODE_SCHEDULER_MODEL_QUEUE_H_

// Requests of one model that have arrived and wait for an instance, in order of
// deadline. Those without one come last, but under overload still get their
// share.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "transport/links/channel.h"

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
// one waits: 5 % of the model's share, as pulls without a deadline get of the
// link.
inline constexpr int kTurnWithoutDeadline = 20;

// What to do with a request whose turn it is.
enum class Verdict : uint8_t {
  kRun,
  kDropExpired,    // nobody can use the answer any more
  kDropHopeless,   // nobody will be able to when it is there
  kDropAbandoned,  // nobody waits for the answer
};
// `time` is how long it typically executes; zero when unknown.
Verdict Judge(absl::Time deadline, bool abandoned, absl::Duration time,
              absl::Time now);

struct QueuedRequest {
  std::unique_ptr<transport::ServerCall> call;
  int64_t rows = 1;
  // Requests with equal keys can be executed together; empty: with none.
  std::string merge_key;
  absl::Time arrival;
  // How long it would execute alone, as far as was known when it came.
  absl::Duration estimate;
  // Admitted although it seems too late, to find out whether that is so.
  bool is_probe = false;
};

// Not thread-safe; answers nobody. Allocates nothing while no more wait, with
// no longer keys, than have waited before.
class ModelQueue {
 public:
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

  // Copies `merge_key` to request.merge_key.
  void Push(QueuedRequest request, absl::string_view merge_key);
  void Push(QueuedRequest request) {
    const std::string key = std::move(request.merge_key);
    Push(std::move(request), key);
  }

  // The request whose turn it is: the first one, or the oldest one without a
  // deadline when it is their turn. The queue is not empty.
  const QueuedRequest& Next() const;
  // Next(), then, if it can be merged, the others with its merge key in their
  // order. Valid until the queue changes. They are put where `candidates`,
  // whose contents are lost, has room already.
  std::vector<const QueuedRequest*> Candidates(
      std::vector<const QueuedRequest*> candidates = {}) const;
  // Takes out what Next() or Candidates() gave. Its merge key is lost.
  QueuedRequest Take(const QueuedRequest& request);
  // An execution begins, with or without a deadline.
  void CountTurn(bool with_deadline);

  // All whose deadline has passed.
  std::vector<QueuedRequest> TakeExpired(absl::Time now);
  // All whose client does not wait any more. Looks at every one.
  std::vector<QueuedRequest> TakeAbandoned();
  std::vector<QueuedRequest> TakeAll();

  // What would run before a request with this deadline. Looks no further than
  // `enough`.
  struct Work {
    absl::Duration time;  // each alone
    int64_t rows = 0;
  };
  Work WorkBefore(absl::Time deadline, absl::Duration enough) const;
  // All that waits, each alone.
  absl::Duration work() const { return work_; }
  int64_t rows() const { return rows_; }

 private:
  struct Entry {
    ReadyKey key;
    // mutable: moved out of a const set element right before it is erased; the
    // order does not depend on it.
    mutable QueuedRequest request;
    friend bool operator<(const Entry& a, const Entry& b) {
      return RunsBefore(a.key, b.key);
    }
  };
  using Entries = std::set<Entry>;
  Entries::const_iterator NextEntry() const;
  QueuedRequest Take(Entries::const_iterator entry);

  Entries entries_;
  absl::Duration work_;
  int64_t rows_ = 0;
  // Of requests that are gone: the next ones take their memory.
  std::vector<Entries::node_type> spare_;
  uint64_t arrivals_ = 0;
  // Run since the last one without a deadline.
  int run_with_deadline_ = 0;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_SCHEDULER_MODEL_QUEUE_H_

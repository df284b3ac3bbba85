#ifndef REFRACT_SCHEDULING_DEADLINE_QUEUE_H_
#define REFRACT_SCHEDULING_DEADLINE_QUEUE_H_

// Waiting requests of a model: the first priority level first, and within a
// level the earliest deadline first (EDF). Requests without a deadline come last
// in their level, but still get a share under overload.
//
// Only a container: it neither refuses nor answers requests. `Payload` is
// whatever the owner needs to execute a request.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "glog/logging.h"

namespace refract::scheduling {

// Sort key of a request.
struct QueueKey {
  absl::Time deadline = absl::InfiniteFuture();
  uint64_t arrival = 0;  // counts requests; unique in a queue
  uint8_t priority = 0;  // level, 0 first; < kPriorityLevels
};

// Number of levels. Calls of a queue look at each level up to the last that was
// used.
inline constexpr size_t kPriorityLevels = 16;

// By level, then the earliest deadline first; equal deadlines in order of
// arrival, so that requests without a deadline are served first come, first
// served.
inline bool RunsBefore(const QueueKey& a, const QueueKey& b) {
  if (a.priority != b.priority) return a.priority < b.priority;
  if (a.deadline != b.deadline) return a.deadline < b.deadline;
  return a.arrival < b.arrival;
}

// While both kinds wait, one turn in this many goes to a request without a
// deadline: 5 % of the model's turns, the same share of the link that payload
// pulls without a deadline get.
inline constexpr int kTurnWithoutDeadline = 20;

template <typename Payload>
struct QueuedRequest {
  QueueKey key;
  int64_t rows = 1;  // still to be executed
  // Requests with equal keys can share an execution; empty: never shared.
  std::string merge_key;
  absl::Time queued_at;
  // Predicted time of its own execution, when it was queued.
  absl::Duration estimate;
  Payload payload;
};

// Not thread-safe. Memory grows only with the largest number of waiting
// requests and the longest merge key so far; below these the queue allocates
// nothing.
template <typename Payload>
class DeadlineQueue {
 public:
  using Request = QueuedRequest<Payload>;

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  // Number of requests in the levels after `priority`.
  size_t SizeBelow(uint8_t priority) const {
    size_t size = 0;
    for (size_t i = priority + 1; i < levels_; ++i) size += sizes_[i];
    return size;
  }
  // InfiniteFuture: the queue is empty.
  absl::Time earliest_deadline() const {
    absl::Time earliest = absl::InfiniteFuture();
    for (size_t level = 0; level < levels_; ++level) {
      if (sizes_[level] == 0) continue;
      earliest = std::min(earliest, Begin(level)->key.deadline);
    }
    return earliest;
  }

  // Queues a new request; sets request.key. Copies `merge_key`.
  void Push(uint8_t priority, absl::Time deadline, Request request,
            absl::string_view merge_key) {
    request.key = {deadline, arrivals_++, priority};
    levels_ = std::max<size_t>(levels_, priority + 1);
    Insert(std::move(request), merge_key);
  }
  // Queues a request that Take() gave out at its former place, with its
  // remaining rows. The request is never merged again.
  void Return(Request request) { Insert(std::move(request), ""); }

  // The request to execute next: the first request, or, in a turn for requests
  // without a deadline, the oldest of these. The queue is not empty.
  const Request& Next() const { return *NextEntry(); }
  // The request that all others go before. The queue is not empty.
  const Request& Last() const { return *entries_.rbegin(); }
  // A request whose deadline has passed; null: there is none.
  const Request* Expired(absl::Time now) const {
    for (size_t level = 0; level < levels_; ++level) {
      if (sizes_[level] == 0) continue;
      const Request& first = *Begin(level);
      if (first.key.deadline <= now) return &first;
    }
    return nullptr;
  }

  // Next(), then the other requests with its merge key, in order; Next() alone
  // if it cannot be merged. Valid until the queue changes. The result is made
  // in the memory of `candidates`, whose contents are lost.
  std::vector<const Request*> Candidates(
      std::vector<const Request*> candidates = {}) const {
    const Request& next = Next();
    candidates.clear();
    candidates.push_back(&next);
    if (next.merge_key.empty()) return candidates;
    for (const Request& request : entries_) {
      if (candidates.size() >= kMostCandidates) break;
      if (&request != &next && request.merge_key == next.merge_key) {
        candidates.push_back(&request);
      }
    }
    return candidates;
  }

  // Removes a request that Next() or Candidates() gave, and its merge key.
  Request Take(const Request& request) {
    const auto entry = entries_.find(request.key);
    CHECK(entry != entries_.end()) << "a request that is not queued";
    return Take(entry);
  }
  // An execution begins, with or without a deadline.
  void CountTurn(bool with_deadline) {
    run_with_deadline_ = with_deadline ? run_with_deadline_ + 1 : 0;
  }

  // All requests whose deadline has passed.
  std::vector<Request> TakeExpired(absl::Time now) {
    std::vector<Request> expired;
    while (const Request* request = Expired(now)) {
      expired.push_back(Take(*request));
    }
    return expired;
  }
  // All requests for which `predicate` holds. Looks at every request.
  template <typename Predicate>
  std::vector<Request> TakeIf(Predicate predicate) {
    std::vector<Request> taken;
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const auto next = std::next(entry);
      if (predicate(*entry)) taken.push_back(Take(entry));
      entry = next;
    }
    return taken;
  }

  // The work that runs before a new request of this priority and deadline, each
  // request executed alone. The sum stops once its time exceeds `enough`. For a
  // request that would go last, as under overload, the sum is work() and is not
  // counted again.
  struct Work {
    absl::Duration time;
    int64_t rows = 0;
  };
  Work WorkBefore(uint8_t priority, absl::Time deadline,
                  absl::Duration enough) const {
    // The key of the new request: it comes after queued requests of equal
    // deadline.
    const QueueKey last = {deadline, UINT64_MAX, priority};
    if (work_.time <= enough &&
        (entries_.empty() || RunsBefore(Last().key, last))) {
      return work_;
    }
    Work work;
    for (const Request& request : entries_) {
      if (RunsBefore(last, request.key) || work.time > enough) break;
      work.time += request.estimate;
      work.rows += request.rows;
    }
    return work;
  }
  Work work() const { return work_; }

 private:
  // More requests than are ever merged; keeps a look at a long queue short.
  static constexpr size_t kMostCandidates = 512;

  struct Order {
    using is_transparent = void;
    bool operator()(const Request& a, const Request& b) const {
      return RunsBefore(a.key, b.key);
    }
    bool operator()(const Request& a, const QueueKey& b) const {
      return RunsBefore(a.key, b);
    }
    bool operator()(const QueueKey& a, const Request& b) const {
      return RunsBefore(a, b.key);
    }
  };
  using Entries = std::set<Request, Order>;

  typename Entries::const_iterator Begin(size_t level) const {
    return entries_.lower_bound(
        QueueKey{absl::InfinitePast(), 0, static_cast<uint8_t>(level)});
  }

  typename Entries::const_iterator NextEntry() const {
    // Within a level, requests without a deadline are the last entries, oldest
    // first. Their turn never skips a level: it goes to the first level that
    // has requests, and only if this level has a request without a deadline.
    const auto first = entries_.begin();
    if (run_with_deadline_ + 1 >= kTurnWithoutDeadline) {
      const uint8_t level = first->key.priority;
      const auto oldest =
          entries_.lower_bound(QueueKey{absl::InfiniteFuture(), 0, level});
      if (oldest != entries_.end() && oldest->key.priority == level) {
        return oldest;
      }
    }
    return first;
  }

  // Set nodes and the memory of their merge keys are reused.
  void Insert(Request request, absl::string_view merge_key) {
    work_.time += request.estimate;
    work_.rows += request.rows;
    ++sizes_[request.key.priority];
    if (spare_.empty()) {
      request.merge_key = std::string(merge_key);
      entries_.insert(std::move(request));
      // Reserves room, so that taking an entry out allocates nothing for its
      // node.
      if (spare_.capacity() < entries_.size()) {
        spare_.reserve(std::bit_ceil(entries_.size()));
      }
      return;
    }
    typename Entries::node_type node = std::move(spare_.back());
    spare_.pop_back();
    std::string memory = std::move(node.value().merge_key);
    memory.assign(merge_key.data(), merge_key.size());
    node.value() = std::move(request);
    node.value().merge_key = std::move(memory);
    entries_.insert(std::move(node));
  }

  Request Take(typename Entries::const_iterator entry) {
    typename Entries::node_type node = entries_.extract(entry);
    std::string memory = std::move(node.value().merge_key);
    Request request = std::move(node.value());
    node.value().merge_key = std::move(memory);
    spare_.push_back(std::move(node));
    work_.time -= request.estimate;
    work_.rows -= request.rows;
    --sizes_[request.key.priority];
    return request;
  }

  Entries entries_;
  Work work_;  // of all entries
  std::array<size_t, kPriorityLevels> sizes_ = {};
  size_t levels_ = 1;  // later levels were never used
  std::vector<typename Entries::node_type> spare_;
  uint64_t arrivals_ = 0;
  // Turns since the last turn of a request without a deadline.
  int run_with_deadline_ = 0;
};

}  // namespace refract::scheduling

#endif  // REFRACT_SCHEDULING_DEADLINE_QUEUE_H_

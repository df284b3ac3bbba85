#ifndef REFRACT_TRANSPORT_PULLS_PULL_SCHEDULER_H_
#define REFRACT_TRANSPORT_PULLS_PULL_SCHEDULER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "transport/loop/intrusive_heap.h"
#include "transport/pulls/mark_source.h"
#include "transport/pulls/pull_window.h"

namespace refract::transport {

class PullConnection;

// A pull, owned by the caller, who keeps it until it is done() or its
// connection is detached. Not thread-safe, like all classes here.
class ScheduledPull {
 public:
  // Bytes not yet requested.
  size_t remaining() const { return remaining_; }
  // InfiniteFuture: none.
  absl::Time deadline() const { return deadline_; }
  // No byte left to request, and no get outstanding.
  bool done() const { return remaining_ == 0 && outstanding_ == 0; }

 private:
  friend class PullScheduler;
  struct Before {
    bool operator()(const ScheduledPull& a, const ScheduledPull& b) const;
  };
  // With a deadline; without; with a deadline that can no longer be met.
  enum Class : uint8_t { kUrgent, kBackground, kLate, kNumClasses };

  size_t remaining_ = 0;
  int outstanding_ = 0;  // gets
  absl::Time deadline_;
  uint64_t sequence_ = 0;
  Class class_ = kUrgent;
  HeapSlot slot_;

 public:
  // The pulls of one class and connection; for the scheduler.
  struct Queue {
    PullConnection* connection = nullptr;
    IntrusiveHeap<ScheduledPull, &ScheduledPull::slot_, Before> pulls;
    HeapSlot slot;  // among the queues that are ready
  };
};

// A connection as the scheduler sees it: it posts gets.
class PullConnection {
 public:
  struct Post {
    enum class Result : uint8_t {
      kPosted,   // a get of `bytes`
      kWait,     // not now: skipped until Release
      kDropped,  // the pull was cancelled and may be destroyed
    };
    Result result = Result::kPosted;
    size_t bytes = 0;
  };

  virtual ~PullConnection() = default;
  // Posts one get of at most `bytes`, not 0, of `pull`. Called by
  // PullScheduler::Dispatch, on its thread.
  virtual Post PostChunk(ScheduledPull& pull, size_t bytes, absl::Time now) = 0;

 private:
  friend class PullScheduler;
  std::array<ScheduledPull::Queue, 3> queues_;
  size_t max_gets_ = 0;
  uint64_t posted_ = 0;     // gets posted so far
  uint64_t completed_ = 0;  // gets completed so far
  size_t outstanding_ = 0;  // bytes
  // Of these, bytes of overdue gets, which do not count in the window. Gets
  // complete in order, so overdue gets complete first.
  size_t overdue_ = 0;
  // The last completed get was overdue, or the oldest outstanding get is.
  bool slow_ = false;
  // Time of the last completion, or of the first post after no get was
  // outstanding.
  absl::Time progress_ = absl::InfiniteFuture();
  size_t pulls_ = 0;  // not done
  bool held_ = false;
  bool at_cap_ = false;
};

// Decides which bytes a receiver requests next, over all connections of a
// polling thread. The receiver's port is where many senders meet, so order and
// amount are decided only here:
//
//  - at most PullWindow::bytes() are outstanding in all;
//  - of one connection at most `max_chunks_per_connection` chunks, or an equal
//    share of the window where that is more;
//  - the earliest deadline goes first; with equal deadlines the pull with fewer
//    bytes left; then the pull that came first;
//  - a pull that cannot meet its deadline any more (the bytes outstanding and
//    its own, at the measured rate, take longer than the time left) goes behind
//    all others for good: without this rule, earliest deadline first under
//    overload serves the pulls that are about to be late and makes all late;
//  - a get that takes far longer than the path explains is overdue: its sender
//    is stalled, not the receiver's port. Its bytes leave the window, so that
//    other connections go on, and its connection has one get at a time until a
//    get completes in time. Endpoint ends a connection that stays stalled;
//  - pulls without a deadline go in order of arrival, after the pulls with a
//    deadline, but get at least `background_share` of the bytes while they
//    wait.
//
// Pure policy: no memory, no sockets, time is passed in. Not thread-safe: one
// per polling thread.
class PullScheduler {
 public:
  struct Options {
    PullWindow::Options window;
    // Two, so that the next chunk is on its way when a chunk ends.
    size_t max_chunks_per_connection = 2;
    // Share of all bytes that is set aside for pulls without a deadline. 0:
    // none.
    double background_share = 0.05;
    // A share that was unused for this long is lost: otherwise pulls that were
    // held for a while would hold up urgent pulls for as long.
    absl::Duration share_period = absl::Milliseconds(1);
    // Marks are taken this often, while there is something to dispatch: NICs
    // refresh their counters no faster.
    absl::Duration marks_interval = absl::Milliseconds(10);
    // A get is overdue when no get of its connection has completed for this
    // many times the delay that the window predicts: shortest delay, plus the
    // time that all outstanding bytes take.
    double overdue_factor = 4;
    // Bounds of that time. Shorter: senders whose thread loses its core for a
    // moment would count as slow. Longer: other connections would wait as long
    // for a window that a stalled connection has filled.
    absl::Duration overdue_least = absl::Milliseconds(5);
    absl::Duration overdue_most = absl::Milliseconds(100);
  };

  struct Turn {
    PullConnection* connection = nullptr;
    ScheduledPull* pull = nullptr;
    size_t bytes = 0;  // at most
  };

  explicit PullScheduler(const Options& options);

  // `connection` outlives its attachment, may have at most `max_gets`, above 0,
  // outstanding, and is not held. `max_pulls` of its pulls can wait without an
  // allocation.
  void Attach(PullConnection* connection, size_t max_gets,
              size_t max_pulls = 0);
  // Forgets its pulls and its outstanding gets.
  void Detach(PullConnection* connection);

  // `pull` is new or done; `bytes` is above 0.
  void Add(PullConnection* connection, ScheduledPull* pull, size_t bytes,
           absl::Time deadline);
  // Asks for no more of a pull of `connection`.
  void Cancel(PullConnection* connection, ScheduledPull* pull);
  // A get of `bytes` came in.
  void Completed(PullConnection* connection, ScheduledPull* pull, size_t bytes,
                 absl::Time now);

  // The connection can post nothing for now: it is passed over until Release.
  void Hold(PullConnection* connection);
  void Release(PullConnection* connection);

  // Lets connections post until no more may be asked for. Returns how many gets
  // were posted.
  int Dispatch(absl::Time now) {
    if (active_ > 0) return DispatchActive(now);
    // The most frequent case: every round of every connection comes here.
    if (window_.HasRoom()) window_.LackedDemand();
    return 0;
  }
  // The steps of Dispatch: overdue gets leave the window; whose turn it is, if
  // anyone's; and that a get of `bytes`, at most the turn's, was posted.
  void TakeOutOverdue(absl::Time now);
  std::optional<Turn> Next(absl::Time now);
  void Posted(const Turn& turn, size_t bytes, absl::Time now);

  // Time at which a get of `connection` becomes overdue, so that Dispatch must
  // be called. InfiniteFuture: no get is outstanding, or all are overdue
  // already.
  absl::Time OverdueAt(const PullConnection& connection) const;

  // Marks of `source`, which outlives this, move the window from now on. Null:
  // the rate that is achieved alone does.
  void WatchMarks(MarkSource* source) { marks_ = source; }

  // To look at.
  const PullWindow& window() const { return window_; }

 private:
  using Class = ScheduledPull::Class;
  using Queue = ScheduledPull::Queue;
  struct QueueBefore {
    bool operator()(const Queue& a, const Queue& b) const;
  };
  using QueueHeap = IntrusiveHeap<Queue, &Queue::slot, QueueBefore>;

  int DispatchActive(absl::Time now);
  size_t chunk_bytes() const { return window_.options().chunk_bytes; }
  std::optional<Turn> TurnOf(Class which);
  bool AtCap(const PullConnection& connection, size_t bytes) const;
  bool IsLate(const ScheduledPull& pull, absl::Time now) const;
  bool BackgroundIsOwed() const;
  absl::Duration OverdueAfter() const;
  absl::Time OverdueAt(const PullConnection& connection,
                       absl::Duration after) const;
  void Enqueue(PullConnection* connection, Class which, ScheduledPull* pull);
  void Dequeue(PullConnection* connection, ScheduledPull* pull);
  // Adds the queue to the heap of ready queues of its class, moves it there or
  // removes it.
  void Refresh(Queue& queue);
  void RefreshAll(PullConnection* connection);
  void TakeMarks(absl::Time now);
  void FinishIfDone(PullConnection* connection, const ScheduledPull& pull);

  const Options options_;
  PullWindow window_;
  std::array<QueueHeap, ScheduledPull::kNumClasses> ready_;
  std::vector<PullConnection*> connections_;
  size_t active_ = 0;   // connections with pulls that are not done
  size_t stalled_ = 0;  // of these, with overdue gets
  // No get becomes overdue before this.
  absl::Time next_overdue_ = absl::InfiniteFuture();
  MarkSource* marks_ = nullptr;
  absl::Time next_marks_ = absl::InfinitePast();
  uint64_t next_sequence_ = 0;
  double owed_ = 0;  // bytes, to pulls without a deadline
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PULLS_PULL_SCHEDULER_H_

#include "transport/pulls/pull_scheduler.h"

#include <glog/logging.h>

#include <algorithm>

namespace refract::transport {

bool ScheduledPull::Before::operator()(const ScheduledPull& a,
                                       const ScheduledPull& b) const {
  if (a.deadline_ != b.deadline_) return a.deadline_ < b.deadline_;
  // Pulls without a deadline keep their order of arrival: by size, a large pull
  // would starve behind smaller ones.
  if (a.deadline_ != absl::InfiniteFuture() && a.remaining_ != b.remaining_) {
    return a.remaining_ < b.remaining_;
  }
  return a.sequence_ < b.sequence_;
}

bool PullScheduler::QueueBefore::operator()(const Queue& a,
                                            const Queue& b) const {
  return ScheduledPull::Before{}(*a.pulls.top(), *b.pulls.top());
}

PullScheduler::PullScheduler(const Options& options)
    : options_(options), window_(options.window) {}

void PullScheduler::Attach(PullConnection* connection, size_t max_gets,
                           size_t max_pulls) {
  for (Queue& queue : connection->queues_) {
    queue.connection = connection;
    queue.pulls.Reserve(max_pulls);
  }
  connection->max_gets_ = max_gets;
  connections_.push_back(connection);
  for (QueueHeap& heap : ready_) heap.Reserve(connections_.capacity());
}

void PullScheduler::Detach(PullConnection* connection) {
  // Takes its queues out of the heaps of ready queues.
  Hold(connection);
  // Overdue bytes left the window when they became overdue.
  window_.Lost(connection, connection->outstanding_ - connection->overdue_);
  if (connection->overdue_ > 0) --stalled_;
  if (connection->pulls_ > 0) --active_;
  std::erase(connections_, connection);
}

void PullScheduler::Add(PullConnection* connection, ScheduledPull* pull,
                        size_t bytes, absl::Time deadline) {
  pull->remaining_ = bytes;
  pull->deadline_ = deadline;
  pull->sequence_ = next_sequence_++;
  if (connection->pulls_++ == 0) ++active_;
  Enqueue(connection,
          deadline == absl::InfiniteFuture() ? ScheduledPull::kBackground
                                             : ScheduledPull::kUrgent,
          pull);
}

void PullScheduler::Cancel(PullConnection* connection, ScheduledPull* pull) {
  // All gets are posted: the pull is in no queue, and Completed() ends it.
  if (pull->remaining_ == 0) return;
  Dequeue(connection, pull);
  pull->remaining_ = 0;
  FinishIfDone(connection, *pull);
}

void PullScheduler::Completed(PullConnection* connection, ScheduledPull* pull,
                              size_t bytes, absl::Time now) {
  --pull->outstanding_;
  connection->outstanding_ -= bytes;
  const PullWindow::Get get{connection, connection->completed_++, bytes};
  if (connection->overdue_ > 0) {
    // Bytes of an overdue get are no longer in the window. Gets of a connection
    // complete in order, so every get before the last overdue get is overdue.
    window_.CompletedLate(get, now - connection->progress_, now);
    connection->overdue_ -= bytes;
    if (connection->overdue_ == 0) --stalled_;
  } else {
    window_.Completed(get, now);
    connection->slow_ = false;
  }
  connection->progress_ = now;
  // With one get fewer the connection may be below its cap: TurnOf() tests it.
  if (connection->at_cap_) {
    connection->at_cap_ = false;
    RefreshAll(connection);
  }
  FinishIfDone(connection, *pull);
}

void PullScheduler::FinishIfDone(PullConnection* connection,
                                 const ScheduledPull& pull) {
  if (!pull.done()) return;
  window_.PullFinished();
  if (--connection->pulls_ == 0) --active_;
}

void PullScheduler::Hold(PullConnection* connection) {
  connection->held_ = true;
  RefreshAll(connection);
}

void PullScheduler::Release(PullConnection* connection) {
  connection->held_ = false;
  RefreshAll(connection);
}

void PullScheduler::Enqueue(PullConnection* connection, Class which,
                            ScheduledPull* pull) {
  pull->class_ = which;
  Queue& queue = connection->queues_[which];
  queue.pulls.Push(pull);
  Refresh(queue);
}

void PullScheduler::Dequeue(PullConnection* connection, ScheduledPull* pull) {
  Queue& queue = connection->queues_[pull->class_];
  // Removed first: a queue without pulls cannot be compared.
  if (queue.slot.in_heap()) ready_[pull->class_].Remove(&queue);
  queue.pulls.Remove(pull);
  Refresh(queue);
}

void PullScheduler::Refresh(Queue& queue) {
  // A connection's queues lie in the order of the classes.
  QueueHeap& ready = ready_[&queue - queue.connection->queues_.data()];
  const PullConnection& connection = *queue.connection;
  if (queue.pulls.empty() || connection.held_ || connection.at_cap_) {
    if (queue.slot.in_heap()) ready.Remove(&queue);
  } else if (queue.slot.in_heap()) {
    ready.Moved(&queue);
  } else {
    ready.Push(&queue);
  }
}

void PullScheduler::RefreshAll(PullConnection* connection) {
  for (Queue& queue : connection->queues_) Refresh(queue);
}

void PullScheduler::TakeMarks(absl::Time now) {
  next_marks_ = now + options_.marks_interval;
  if (const std::optional<uint64_t> marks = marks_->Take()) {
    window_.CountMarks(*marks);
  }
}

int PullScheduler::DispatchActive(absl::Time now) {
  // While no pull is under way, marks belong to other traffic.
  if (marks_ != nullptr && now >= next_marks_) TakeMarks(now);
  TakeOutOverdue(now);
  int posted = 0;
  while (const std::optional<Turn> turn = Next(now)) {
    const PullConnection::Post post =
        turn->connection->PostChunk(*turn->pull, turn->bytes, now);
    switch (post.result) {
      case PullConnection::Post::Result::kPosted:
        CHECK_GT(post.bytes, 0u);
        CHECK_LE(post.bytes, turn->bytes);
        Posted(*turn, post.bytes, now);
        ++posted;
        break;
      case PullConnection::Post::Result::kWait:
        Hold(turn->connection);
        break;
      case PullConnection::Post::Result::kDropped:
        break;
    }
  }
  return posted;
}

// A get may wait behind all outstanding bytes: a healthy connection explains
// their time on the path and the path's delay.
absl::Duration PullScheduler::OverdueAfter() const {
  return std::clamp(
      options_.overdue_factor *
          (window_.delay() + window_.TimeFor(window_.outstanding())),
      options_.overdue_least, options_.overdue_most);
}

absl::Time PullScheduler::OverdueAt(const PullConnection& connection,
                                    absl::Duration after) const {
  // Nothing outstanding, or all of it overdue already.
  return connection.outstanding_ == connection.overdue_
             ? absl::InfiniteFuture()
             : connection.progress_ + after;
}

absl::Time PullScheduler::OverdueAt(const PullConnection& connection) const {
  // The usual case, in each step of each link, for which the time that explains
  // a get need not be computed.
  if (connection.outstanding_ == connection.overdue_) {
    return absl::InfiniteFuture();
  }
  return OverdueAt(connection, OverdueAfter());
}

void PullScheduler::TakeOutOverdue(absl::Time now) {
  if (now < next_overdue_) return;
  next_overdue_ = absl::InfiniteFuture();
  // Before any bytes leave the window: all of them delayed each other.
  const absl::Duration after = OverdueAfter();
  for (PullConnection* const connection : connections_) {
    const absl::Time at = OverdueAt(*connection, after);
    if (now < at) {
      next_overdue_ = std::min(next_overdue_, at);
      continue;
    }
    if (connection->overdue_ == 0) ++stalled_;
    window_.Lost(connection, connection->outstanding_ - connection->overdue_);
    connection->overdue_ = connection->outstanding_;
    connection->slow_ = true;
  }
}

std::optional<PullScheduler::Turn> PullScheduler::Next(absl::Time now) {
  // Owed background bytes first, then pulls with a deadline, background pulls,
  // and last the late pulls, which can no longer meet their deadlines.
  std::optional<Turn> turn;
  if (BackgroundIsOwed()) turn = TurnOf(ScheduledPull::kBackground);
  // Lateness is found here and not when a pull is queued: the time that a pull
  // needs depends on the bytes that are outstanding now.
  while (!turn.has_value()) {
    turn = TurnOf(ScheduledPull::kUrgent);
    if (!turn.has_value() || !IsLate(*turn->pull, now)) break;
    Dequeue(turn->connection, turn->pull);
    Enqueue(turn->connection, ScheduledPull::kLate, turn->pull);
    turn.reset();
  }
  if (!turn.has_value()) turn = TurnOf(ScheduledPull::kBackground);
  if (!turn.has_value()) turn = TurnOf(ScheduledPull::kLate);
  // The window may grow only while demand fills it.
  if (!turn.has_value()) {
    if (window_.HasRoom()) window_.LackedDemand();
    return std::nullopt;
  }
  // Asked last: late pulls have to be moved also while the window is full.
  if (!window_.HasRoom()) return std::nullopt;
  return turn;
}

std::optional<PullScheduler::Turn> PullScheduler::TurnOf(Class which) {
  QueueHeap& ready = ready_[which];
  while (!ready.empty()) {
    const Queue& queue = *ready.top();
    ScheduledPull* const pull = queue.pulls.top();
    const size_t bytes = std::min(pull->remaining_, chunk_bytes());
    if (!AtCap(*queue.connection, bytes)) {
      return Turn{queue.connection, pull, bytes};
    }
    // Bytes are outstanding, so Completed() brings the queue back.
    queue.connection->at_cap_ = true;
    RefreshAll(queue.connection);
  }
  return std::nullopt;
}

bool PullScheduler::AtCap(const PullConnection& connection,
                          size_t bytes) const {
  const uint64_t gets = connection.posted_ - connection.completed_;
  // A connection always has one get, or it would never show that it is alive.
  if (gets == 0) return false;
  // One get at a time until a get completes in time.
  if (connection.slow_ || gets >= connection.max_gets_) return true;
  // Some chunks per connection hide the path's delay. Beyond them a connection
  // has an equal share of the window; stalled connections use none of it. One
  // get may exceed the share, as it may exceed the window.
  return connection.outstanding_ + bytes >
             options_.max_chunks_per_connection * chunk_bytes() &&
         connection.outstanding_ >=
             window_.bytes() / std::max<size_t>(active_ - stalled_, 1);
}

bool PullScheduler::IsLate(const ScheduledPull& pull, absl::Time now) const {
  return window_.TimeFor(window_.outstanding() + pull.remaining_) >
         pull.deadline_ - now;
}

bool PullScheduler::BackgroundIsOwed() const {
  const QueueHeap& ready = ready_[ScheduledPull::kBackground];
  if (ready.empty()) return false;
  const size_t next =
      std::min(ready.top()->pulls.top()->remaining_, chunk_bytes());
  return owed_ >= static_cast<double>(next);
}

void PullScheduler::Posted(const Turn& turn, size_t bytes, absl::Time now) {
  PullConnection& connection = *turn.connection;
  ScheduledPull& pull = *turn.pull;
  // Background pulls earn a share of the bytes of other pulls while they wait,
  // up to a bound: after a long wait they must not hold up deadlines.
  if (pull.class_ == ScheduledPull::kBackground) {
    owed_ = std::max(owed_ - static_cast<double>(bytes), 0.0);
  } else if (ready_[ScheduledPull::kBackground].empty()) {
    owed_ = 0;
  } else {
    const double most = std::max<double>(
        static_cast<double>(chunk_bytes()),
        options_.background_share * window_.bytes_per_second() *
            absl::ToDoubleSeconds(options_.share_period));
    owed_ = std::min(
        owed_ + options_.background_share * static_cast<double>(bytes), most);
  }
  ++pull.outstanding_;
  if (connection.outstanding_ == 0) {
    // The time of an idle connection does not count as silence.
    connection.progress_ = now;
    next_overdue_ = std::min(next_overdue_, now + OverdueAfter());
  }
  connection.outstanding_ += bytes;
  window_.Posted({&connection, connection.posted_++, bytes}, now);
  if (bytes == pull.remaining_) {
    Dequeue(&connection, &pull);
    pull.remaining_ = 0;
  } else {
    pull.remaining_ -= bytes;
    Queue& queue = connection.queues_[pull.class_];
    queue.pulls.Moved(&pull);
    Refresh(queue);
  }
}

}  // namespace refract::transport

#include "gpu_node/ready_queue.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace refract::gpu_node {
namespace {

absl::Status ExpiredAtQueue(absl::Time deadline, absl::Time now) {
  return absl::DeadlineExceededError(
      absl::StrCat("deadline passed at HN queue, ",
                   absl::FormatDuration(now - deadline), " ago"));
}

}  // namespace

bool RunsBefore(const ReadyKey& a, const ReadyKey& b) {
  if (a.deadline != b.deadline) return a.deadline < b.deadline;
  return a.arrival < b.arrival;
}

Verdict Judge(absl::Time deadline, bool abandoned, absl::Time now) {
  if (abandoned) return Verdict::kDropAbandoned;
  if (deadline <= now) return Verdict::kDropExpired;
  return Verdict::kRun;
}

ReadyQueue::ReadyQueue(size_t capacity, base::Clock& clock)
    : capacity_(capacity), clock_(clock) {}

std::unique_ptr<transport::ServerCall> ReadyQueue::Take(
    std::set<Entry>::iterator entry) {
  std::unique_ptr<transport::ServerCall> call = std::move(entry->call);
  entries_.erase(entry);
  return call;
}

std::unique_ptr<transport::ServerCall> ReadyQueue::TakeNext() {
  if (run_with_deadline_ + 1 >= kTurnWithoutDeadline) {
    const auto oldest =
        entries_.lower_bound(Entry{{absl::InfiniteFuture(), 0}, nullptr});
    if (oldest != entries_.end()) return Take(oldest);
  }
  return Take(entries_.begin());
}

void ReadyQueue::TakeExpired(absl::Time now, Calls& expired) {
  // The order is by deadline, so the expired ones are in front.
  while (!entries_.empty() && entries_.begin()->key.deadline <= now) {
    expired.push_back(Take(entries_.begin()));
    ++expired_;
  }
}

void ReadyQueue::Push(std::unique_ptr<transport::ServerCall> call) {
  const absl::Time now = clock_.Now();
  Calls expired;
  absl::Status refusal;
  {
    absl::MutexLock lock(&mu_);
    if (closed_) {
      refusal = absl::UnavailableError("the HN is stopping");
    } else {
      if (entries_.size() >= capacity_) TakeExpired(now, expired);
      if (entries_.size() >= capacity_) {
        refusal = absl::ResourceExhaustedError(
            absl::StrCat("HN queue is full, ", capacity_, " requests wait"));
      } else {
        const ReadyKey key{call->deadline(), arrivals_++};
        entries_.insert(Entry{key, std::move(call)});
      }
    }
  }
  // Answered outside the lock: Fail() is the transport's code.
  for (const auto& late : expired) {
    late->Fail(ExpiredAtQueue(late->deadline(), now));
  }
  if (!refusal.ok()) call->Fail(refusal);
}

std::unique_ptr<transport::ServerCall> ReadyQueue::Pop() {
  while (true) {
    std::unique_ptr<transport::ServerCall> call;
    absl::Time now;
    Verdict verdict;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &ReadyQueue::HasWorkOrClosed));
      if (entries_.empty()) return nullptr;
      call = TakeNext();
      ++running_;
      now = clock_.Now();
      verdict = Judge(call->deadline(), call->abandoned(), now);
      if (verdict == Verdict::kRun) {
        const bool turn = call->deadline() == absl::InfiniteFuture();
        run_with_deadline_ = turn ? 0 : run_with_deadline_ + 1;
      }
    }
    switch (verdict) {
      case Verdict::kRun:
        return call;
      case Verdict::kDropExpired: {
        call->Fail(ExpiredAtQueue(call->deadline(), now));
        absl::MutexLock lock(&mu_);
        ++expired_;
        break;
      }
      case Verdict::kDropAbandoned:
        call->Fail(absl::CancelledError("the client does not wait any more"));
        break;
    }
    Done();
  }
}

void ReadyQueue::Done() {
  absl::MutexLock lock(&mu_);
  --running_;
}

void ReadyQueue::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

bool ReadyQueue::AwaitIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  return clock_.AwaitWithDeadline(mu_, absl::Condition(this, &ReadyQueue::Idle),
                                  clock_.Now() + timeout);
}

size_t ReadyQueue::pending() const {
  absl::MutexLock lock(&mu_);
  return entries_.size() + running_;
}

uint64_t ReadyQueue::expired() const {
  absl::MutexLock lock(&mu_);
  return expired_;
}

}  // namespace refract::gpu_node

#include "transport/loop/poll_loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <ctime>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::transport {
namespace {

constexpr absl::Duration kMinSpin = absl::Microseconds(1);
// While some tasks are hot, the kernel is asked this often about armed tasks:
// short beside a wake-up, and a system call per interval takes 1–2 % of a
// core.
constexpr absl::Duration kEventInterval = absl::Microseconds(20);
constexpr int kEventsPerLook = 64;
// A manual clock cannot end a sleep, so it is read this often.
constexpr absl::Duration kForeignClockSleep = absl::Milliseconds(1);

// Tag of an event: the seat and which of its file descriptors.
enum class Source : uint64_t { kData = 0, kControl = 1, kWaker = 2 };
constexpr uint64_t Tag(size_t seat, Source source) {
  return (static_cast<uint64_t>(seat) << 2) | static_cast<uint64_t>(source);
}

int EpollWait(int epoll, absl::Span<epoll_event> events,
              absl::Duration timeout) {
  const int room = static_cast<int>(events.size());
  if (timeout <= absl::ZeroDuration()) {
    return epoll_wait(epoll, events.data(), room, 0);
  }
  const bool forever = timeout == absl::InfiniteDuration();
  const timespec limit = absl::ToTimespec(timeout);
  const int count = epoll_pwait2(epoll, events.data(), room,
                                 forever ? nullptr : &limit, nullptr);
  // Kernels before 5.11 lack the call, and older seccomp profiles forbid it:
  // poll up to 1 ms late instead.
  if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return count;
  const int64_t ms =
      forever ? -1
              : std::min<int64_t>(1 + absl::ToInt64Milliseconds(timeout),
                                  3'600'000);
  return epoll_wait(epoll, events.data(), room, static_cast<int>(ms));
}

}  // namespace

absl::Duration MaxSpin(unsigned cores, bool cheap_poll) {
  if (cores >= 4) return absl::Microseconds(50);
  return cheap_poll ? absl::Microseconds(5) : absl::ZeroDuration();
}

// One bit per seat, set by any thread and taken by the loop. Shared with the
// wakers of seats, which may outlive the loop.
class PollLoop::ReadySet {
 public:
  ReadySet(size_t capacity, std::shared_ptr<ThreadWaker> waker)
      : waker_(std::move(waker)), words_((capacity + 63) / 64) {}

  void Mark(size_t seat) {
    // Unconditional: reading the bit first could miss that the loop has just
    // taken it without seeing the caller's writes.
    words_[seat / 64].fetch_or(uint64_t{1} << (seat % 64));
    waker_->Wake();
  }

  template <typename Visit>
  void Take(Visit visit) {
    for (size_t i = 0; i < words_.size(); ++i) {
      if (words_[i].load(std::memory_order_relaxed) == 0) continue;
      for (uint64_t bits = words_[i].exchange(0); bits != 0; bits &= bits - 1) {
        visit(i * 64 + static_cast<size_t>(std::countr_zero(bits)));
      }
    }
  }

 private:
  const std::shared_ptr<ThreadWaker> waker_;
  std::vector<std::atomic<uint64_t>> words_;
};

class PollLoop::SeatWaker final : public Waker {
 public:
  SeatWaker(std::shared_ptr<ReadySet> ready, size_t seat)
      : ready_(std::move(ready)), seat_(seat) {}
  void Wake() override { ready_->Mark(seat_); }

 private:
  const std::shared_ptr<ReadySet> ready_;
  const size_t seat_;
};

// ----------------------------------------------------------------------- seats

PollLoop::Seat::Seat(Seat&& other) noexcept
    : loop_(std::exchange(other.loop_, nullptr)),
      index_(other.index_),
      waker_(std::move(other.waker_)) {}

PollLoop::Seat& PollLoop::Seat::operator=(Seat&& other) noexcept {
  if (this != &other) {
    Reset();
    loop_ = std::exchange(other.loop_, nullptr);
    index_ = other.index_;
    waker_ = std::move(other.waker_);
  }
  return *this;
}

void PollLoop::Seat::Reset() {
  waker_.reset();
  if (PollLoop* loop = std::exchange(loop_, nullptr)) loop->Release(index_);
}

absl::StatusOr<PollLoop::Seat> PollLoop::Reserve() {
  Seat seat;
  {
    absl::MutexLock lock(&mu_);
    if (free_seats_.empty()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "a polling thread has its maximum of ", entries_.size(), " links"));
    }
    seat.index_ = free_seats_.back();
    free_seats_.pop_back();
  }
  ++num_seats_;
  seat.loop_ = this;
  seat.waker_ = std::make_shared<SeatWaker>(ready_, seat.index_);
  return seat;
}

void PollLoop::Release(size_t index) {
  --num_seats_;
  absl::MutexLock lock(&mu_);
  free_seats_.push_back(index);
}

// ------------------------------------------------------------------- the loop

absl::StatusOr<std::unique_ptr<PollLoop>> PollLoop::Create(base::Clock* clock,
                                                           size_t capacity) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create1");
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<ThreadWaker> waker,
                           ThreadWaker::Create());
  std::unique_ptr<PollLoop> loop(
      new PollLoop(clock, capacity, std::move(epoll), std::move(waker)));
  REFRACT_RETURN_IF_ERROR(
      loop->Watch(loop->waker_->fd(), Tag(0, Source::kWaker), EPOLLIN));
  return loop;
}

PollLoop::PollLoop(base::Clock* clock, size_t capacity, UniqueFd epoll,
                   std::shared_ptr<ThreadWaker> waker)
    : clock_(clock),
      round_clock_(clock),
      epoll_(std::move(epoll)),
      waker_(std::move(waker)),
      ready_(std::make_shared<ReadySet>(capacity, waker_)),
      cores_(std::thread::hardware_concurrency()),
      entries_(capacity),
      spin_window_(MaxSpin(cores_, true)) {
  for (size_t i = capacity; i > 0; --i) free_seats_.push_back(i - 1);
  hot_.reserve(capacity);
}

PollLoop::~PollLoop() { Clear(); }

// Spin windows and the interval of kernel events are real time, also where a
// test's manual clock drives the timers.
absl::Time PollLoop::RealNow(absl::Time now) const {
  base::Clock& real = base::Clock::Real();
  return clock_ == &real ? now : real.Now();
}

absl::Status PollLoop::Watch(int fd, uint64_t tag, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl of a link");
  }
  return absl::OkStatus();
}

absl::Status PollLoop::Add(Seat seat, std::unique_ptr<PollTask> task) {
  const size_t index = seat.index_;
  REFRACT_RETURN_IF_ERROR(
      Watch(task->data_fd(), Tag(index, Source::kData), EPOLLIN));
  if (absl::Status status =
          Watch(task->control_fd(), Tag(index, Source::kControl), EPOLLIN);
      !status.ok()) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, task->data_fd(), nullptr);
    return status;
  }
  Entry& entry = entries_[index];
  entry.seat = std::move(seat);
  entry.task = std::move(task);
  entry.writing = false;
  entry.timer = absl::InfiniteFuture();
  entry.idle_since = RealNow(clock_->Now());
  entry.spinning = false;
  Heat(index);
  return absl::OkStatus();
}

void PollLoop::Remove(size_t index) {
  Entry& entry = entries_[index];
  // Called before the task closes its descriptors.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry.task->data_fd(), nullptr);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry.task->control_fd(), nullptr);
  entry.task.reset();
  entry.hot = false;
  entry.seat.Reset();
}

void PollLoop::Remove(const PollTask* task) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].task.get() != task) continue;
    std::erase(hot_, i);
    Remove(i);
    return;
  }
}

void PollLoop::Clear() {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].task != nullptr) Remove(i);
  }
  hot_.clear();
}

void PollLoop::ForEach(const std::function<void(PollTask&)>& visit) {
  for (Entry& entry : entries_) {
    if (entry.task != nullptr) visit(*entry.task);
  }
}

void PollLoop::WakeAll() {
  for (size_t i = 0; i < entries_.size(); ++i) Heat(i);
}

void PollLoop::Heat(size_t index) {
  Entry& entry = entries_[index];
  if (entry.task == nullptr || entry.hot) return;
  entry.hot = true;
  hot_.push_back(index);
}

void PollLoop::HeatSignalled() {
  signalled_ = false;
  ready_->Take([this](size_t seat) { Heat(seat); });
}

void PollLoop::HeatDue(absl::Time now) {
  // next_timer_ is a lower bound, so most rounds end here. Otherwise the scan
  // over all seats finds the timers that are due and a new bound.
  if (now < next_timer_) return;
  next_timer_ = absl::InfiniteFuture();
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].task == nullptr) continue;
    if (entries_[i].timer <= now) {
      Heat(i);  // its step gives the next timer
    } else {
      next_timer_ = std::min(next_timer_, entries_[i].timer);
    }
  }
}

void PollLoop::Round(absl::Time wake_at) {
  const absl::Time now = round_clock_.Now();
  const absl::Time real = RealNow(now);
  const bool woken = waker_->Take();
  if (woken || signalled_) HeatSignalled();
  if (!hot_.empty() && real - last_events_ >= kEventInterval) {
    last_events_ = real;
    TakeEvents(absl::ZeroDuration());
  }
  HeatDue(now);
  const bool stepped = !hot_.empty();
  round_clock_.EndRound(StepHot(now, real));
  // Returns before it sleeps: the caller first handles the results of steps and
  // the reason of a wake-up, and either can change `wake_at`.
  if (!stepped && !woken) Sleep(std::min(wake_at, next_timer_));
}

bool PollLoop::StepHot(absl::Time now, absl::Time real) {
  bool worked = false;
  size_t kept = 0;
  // Steps may heat other tasks, which then have their turn in the next round.
  const size_t count = hot_.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t index = hot_[i];
    Entry& entry = entries_[index];
    const PollTask::Result result = entry.task->Step(now);
    worked |= result != PollTask::Result::kIdle;
    if (result == PollTask::Result::kDone) {
      Remove(index);
      continue;
    }
    entry.timer = entry.task->next_timer();
    next_timer_ = std::min(next_timer_, entry.timer);
    if (entry.task->control_wants_write() != entry.writing) {
      entry.writing = !entry.writing;
      epoll_event event = {};
      event.events = EPOLLIN | (entry.writing ? EPOLLOUT : 0u);
      event.data.u64 = Tag(index, Source::kControl);
      epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, entry.task->control_fd(), &event);
    }
    if (KeepHot(entry, result, real)) {
      hot_[kept++] = index;
    } else {
      entry.hot = false;
    }
  }
  hot_.erase(hot_.begin() + static_cast<ptrdiff_t>(kept),
             hot_.begin() + static_cast<ptrdiff_t>(count));
  return worked;
}

// Spins for a window after the last work. The window doubles if spinning found
// work and halves if it did not.
bool PollLoop::KeepHot(Entry& entry, PollTask::Result result, absl::Time real) {
  const absl::Duration longest = MaxSpin(cores_, entry.task->cheap_poll());
  if (result == PollTask::Result::kWorked) {
    if (entry.spinning) {
      // Work came during the spin, so a sleep would have cost a wake-up.
      spin_window_ = std::min(spin_window_ * 2, MaxSpin(cores_, true));
    }
    entry.spinning = false;
    entry.idle_since = real;
    return true;
  }
  if (real - entry.idle_since < std::min(spin_window_, longest)) {
    entry.spinning = true;
    return true;
  }
  if (entry.spinning) spin_window_ = std::max(spin_window_ / 2, kMinSpin);
  entry.spinning = false;
  // Arm() fails if an event may have come: the task is stepped again.
  return !entry.task->Arm();
}

void PollLoop::Sleep(absl::Time until) {
  signalled_ = true;
  // Arm() and Disarm() consume wake-ups, so the next round must look for marked
  // seats even if Take() reports no wake-up.
  if (!waker_->Arm()) return;
  absl::Duration timeout = until - clock_->Now();
  if (clock_ != &base::Clock::Real()) {
    timeout = std::min(timeout, kForeignClockSleep);
  }
  TakeEvents(timeout);
  waker_->Disarm();
  round_clock_.Forget();
}

void PollLoop::TakeEvents(absl::Duration timeout) {
  std::array<epoll_event, kEventsPerLook> events;
  const int count = EpollWait(epoll_.get(), absl::MakeSpan(events), timeout);
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = events[i].data.u64;
    const auto source = static_cast<Source>(tag & 3);
    const size_t index = tag >> 2;
    // Disarm() clears the waker's descriptor; its seats are in the ready set.
    if (source == Source::kWaker) continue;
    Entry& entry = entries_[index];
    if (entry.task == nullptr) continue;
    if (source == Source::kControl) entry.task->OnControlEvent();
    Heat(index);
  }
}

}  // namespace refract::transport

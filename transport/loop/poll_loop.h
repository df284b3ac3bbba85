#ifndef REFRACT_TRANSPORT_LOOP_POLL_LOOP_H_
#define REFRACT_TRANSPORT_LOOP_POLL_LOOP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "transport/loop/fd.h"
#include "transport/loop/round_clock.h"
#include "transport/loop/waker.h"

namespace refract::transport {

// A connection as a PollLoop sees it. Every method is called on the loop's
// thread and must not block.
class PollTask {
 public:
  enum class Result {
    kIdle,
    kWorked,
    kDone,  // over: the loop destroys the task
  };

  virtual ~PollTask() = default;

  // Does a bounded amount of work.
  virtual Result Step(absl::Time now) = 0;
  // Time of the next Step if no event comes before. May be asked at any time
  // after a Step; if it moves earlier, use the waker of the seat.
  virtual absl::Time next_timer() const = 0;

  // True: data_fd() turns readable as soon as Step has work, until the next
  // Step. False: Step may have work now.
  virtual bool Arm() = 0;
  // Whether an idle Step costs no system call.
  virtual bool cheap_poll() const = 0;

  // Both stay the same for the life of the task, which owns them.
  virtual int data_fd() const = 0;
  virtual int control_fd() const = 0;
  // Whether to watch control_fd() for room to write, too.
  virtual bool control_wants_write() const = 0;
  // Called when control_fd() has an event; a Step follows.
  virtual void OnControlEvent() = 0;
};

// Longest time that a loop looks for work before it sleeps, on a machine with
// this many cores. A wake-up costs about 5–50 µs, so longer than 50 µs never
// pays. With less than four cores every spin takes time from the model that
// runs beside it: there the spin is just long enough to catch an answer that is
// already on its way, and a poll that costs a system call is not worth it.
absl::Duration MaxSpin(unsigned cores, bool cheap_poll);

// Runs many connections on one thread. A task that has work takes a bounded
// step per round, so it delays other tasks by no more than that. A task that
// has had no work for a while is armed and left to the kernel; when all tasks
// are armed, the thread sleeps. More: docs/design/threading.md.
//
// Round(), Add() and the other methods marked so belong to the loop's thread;
// Reserve(), Wake() and the wakers of seats are for any thread.
class PollLoop {
 public:
  // `capacity`: most tasks and reserved seats.
  static absl::StatusOr<std::unique_ptr<PollLoop>> Create(base::Clock* clock,
                                                          size_t capacity);
  ~PollLoop();
  PollLoop(const PollLoop&) = delete;
  PollLoop& operator=(const PollLoop&) = delete;

  // The right to add one task. Move-only; destruction returns it, which must
  // happen before the loop's.
  class Seat {
   public:
    Seat() = default;
    Seat(Seat&& other) noexcept;
    Seat& operator=(Seat&& other) noexcept;
    ~Seat() { Reset(); }

    // Makes the loop step this seat's task. May outlive seat and loop: then
    // without effect, except that a later task may take a needless step.
    const std::shared_ptr<Waker>& waker() const { return waker_; }

   private:
    friend class PollLoop;
    void Reset();
    PollLoop* loop_ = nullptr;
    size_t index_ = 0;
    std::shared_ptr<Waker> waker_;
  };
  // ResourceExhausted: all seats are taken.
  absl::StatusOr<Seat> Reserve();
  size_t num_seats() const { return num_seats_.load(); }  // taken seats

  // Ends the current or next sleep of Round().
  void Wake() { waker_->Wake(); }
  const std::shared_ptr<ThreadWaker>& waker() const { return waker_; }

  // ------------------------------------------------- the loop's thread only

  // On error the task is destroyed.
  absl::Status Add(Seat seat, std::unique_ptr<PollTask> task);
  // One round: a step of every task that has work. If no task has work and
  // Wake() was not called, it sleeps until that changes, a task's timer is due,
  // or `wake_at`.
  void Round(absl::Time wake_at);
  // The time of the next Round, as its tasks see it (RoundClock).
  absl::Time Now() { return round_clock_.Now(); }
  // Call after work outside of rounds: the next Now() reads the clock.
  void ForgetNow() { round_clock_.Forget(); }
  // Makes every task take a step in the next round.
  void WakeAll();
  // `visit` must not add or remove tasks.
  void ForEach(const std::function<void(PollTask&)>& visit);
  // Destroys a task; only outside of Round(). Linear in the capacity.
  void Remove(const PollTask* task);
  // Destroys all tasks.
  void Clear();

 private:
  class ReadySet;
  class SeatWaker;
  struct Entry {
    Seat seat;
    std::unique_ptr<PollTask> task;
    bool hot = false;
    bool writing = false;  // control_fd is watched for room
    absl::Time timer;      // next_timer() after the last step
    absl::Time idle_since;
    bool spinning = false;
  };

  PollLoop(base::Clock* clock, size_t capacity, UniqueFd epoll,
           std::shared_ptr<ThreadWaker> waker);

  absl::Time RealNow(absl::Time now) const;
  absl::Status Watch(int fd, uint64_t tag, uint32_t events);
  void Heat(size_t index);
  void HeatSignalled();
  void HeatDue(absl::Time now);
  // Whether a task did work.
  bool StepHot(absl::Time now, absl::Time real);
  // True: the task stays hot.
  bool KeepHot(Entry& entry, PollTask::Result result, absl::Time real);
  void Remove(size_t index);
  void Sleep(absl::Time until);
  void TakeEvents(absl::Duration timeout);
  void Release(size_t index);

  base::Clock* const clock_;
  RoundClock round_clock_;
  const UniqueFd epoll_;
  const std::shared_ptr<ThreadWaker> waker_;
  const std::shared_ptr<ReadySet> ready_;
  std::atomic<size_t> num_seats_ = 0;

  absl::Mutex mu_;
  std::vector<size_t> free_seats_ ABSL_GUARDED_BY(mu_);

  const unsigned cores_;
  std::vector<Entry> entries_;  // by seat
  std::vector<size_t> hot_;     // seats, each at most once
  bool signalled_ = false;                          // a seat may be marked
  absl::Time next_timer_ = absl::InfiniteFuture();  // not after any task's
  absl::Time last_events_ = absl::InfinitePast();
  absl::Duration spin_window_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_POLL_LOOP_H_

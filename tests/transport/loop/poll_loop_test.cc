#include "transport/loop/poll_loop.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/base/forbidden_call.h"

namespace refract::transport {
namespace {

using Result = PollTask::Result;

// A FakeTask's state for the test, also after the task's end.
struct Record {
  int steps = 0;
  int arms = 0;
  int control_events = 0;
  bool destroyed = false;
};

UniqueFd EventFd(unsigned value = 0) {
  return UniqueFd(eventfd(value, EFD_CLOEXEC | EFD_NONBLOCK));
}

void Signal(int fd) {
  const uint64_t one = 1;
  ASSERT_EQ(write(fd, &one, sizeof(one)), 8);
}

bool Drain(int fd) {
  uint64_t count;
  return read(fd, &count, sizeof(count)) == sizeof(count);
}

class FakeTask : public PollTask {
 public:
  explicit FakeTask(Record* record) : record_(record) {}
  ~FakeTask() override { record_->destroyed = true; }

  Result Step(absl::Time now) override {
    ++record_->steps;
    return on_step ? on_step(now) : Result::kIdle;
  }
  absl::Time next_timer() const override { return timer; }
  bool Arm() override {
    ++record_->arms;
    return on_arm ? on_arm() : true;
  }
  bool cheap_poll() const override { return false; }
  int data_fd() const override { return data.get(); }
  int control_fd() const override { return control.get(); }
  bool control_wants_write() const override { return wants_write; }
  void OnControlEvent() override {
    ++record_->control_events;
    Drain(control.get());
  }

  UniqueFd data = EventFd();
  UniqueFd control = EventFd();
  std::function<Result(absl::Time)> on_step;
  std::function<bool()> on_arm;
  absl::Time timer = absl::InfiniteFuture();
  bool wants_write = false;

 private:
  Record* const record_;
};

class PollLoopTest : public testing::Test {
 protected:
  void SetUp() override { MakeLoop(&base::Clock::Real()); }
  void MakeLoop(base::Clock* clock) {
    auto loop = PollLoop::Create(clock, kCapacity);
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }

  // Tasks write to their record when they end, which may be with the loop.
  Record& NewRecord() { return records_.emplace_back(); }
  // The returned task is the loop's.
  FakeTask* Add(Record* record, std::shared_ptr<Waker>* waker = nullptr) {
    auto seat = loop_->Reserve();
    EXPECT_TRUE(seat.ok()) << seat.status();
    if (waker != nullptr) *waker = seat->waker();
    auto task = std::make_unique<FakeTask>(record);
    FakeTask* const raw = task.get();
    const absl::Status added = loop_->Add(*std::move(seat), std::move(task));
    EXPECT_TRUE(added.ok()) << added;
    return raw;
  }
  // Rounds until every task is armed; the loop then sleeps if asked to.
  void Settle() {
    for (int i = 0; i < 3; ++i) RoundWithoutSleep();
  }
  void RoundWithoutSleep() { loop_->Round(absl::InfinitePast()); }

  static constexpr size_t kCapacity = 70;  // more than one word of ready bits
  std::deque<Record> records_;
  std::unique_ptr<PollLoop> loop_;
};

TEST_F(PollLoopTest, IdleTaskIsArmedOnceAndLeftAlone) {
  Record& record = NewRecord();
  Add(&record);
  Settle();
  const int steps = record.steps;
  EXPECT_GE(steps, 1);
  EXPECT_EQ(record.arms, 1);
  Settle();
  EXPECT_EQ(record.steps, steps);
  EXPECT_EQ(record.arms, 1);
}

TEST_F(PollLoopTest, SleepEndsAtTheCallersTime) {
  Record& record = NewRecord();
  Add(&record);
  Settle();
  const absl::Time start = base::Clock::Real().Now();
  const absl::Time until = start + absl::Milliseconds(30);
  loop_->Round(until);
  EXPECT_GE(base::Clock::Real().Now(), until);
}

// The reason of a wake-up may be known to the owner alone, who has looked for
// it for the last time before the round.
TEST_F(PollLoopTest, RoundAfterAWakeUpDoesNotSleep) {
  const absl::Time patience = base::Clock::Real().Now() + absl::Seconds(20);
  loop_->Wake();
  loop_->Round(patience);
  Add(&NewRecord());
  loop_->Wake();
  for (int i = 0; i < 3; ++i) RoundWithoutSleep();
  loop_->Wake();
  loop_->Round(patience);
  EXPECT_LT(base::Clock::Real().Now(), patience);
}

// A step may tell the owner something that makes it want to wake earlier.
TEST_F(PollLoopTest, RoundWithAStepDoesNotSleep) {
  const absl::Time patience = base::Clock::Real().Now() + absl::Seconds(20);
  std::shared_ptr<Waker> waker;
  FakeTask* const task = Add(&NewRecord(), &waker);
  loop_->Round(patience);  // the first step
  Settle();
  task->timer = base::Clock::Real().Now() + absl::Milliseconds(1);
  waker->Wake();
  loop_->Round(patience);  // learns of the timer
  loop_->Round(patience);  // sleeps until it
  task->on_step = [](absl::Time) { return Result::kDone; };
  loop_->Round(patience);
  EXPECT_LT(base::Clock::Real().Now(), patience);
}

TEST_F(PollLoopTest, EventsOfBothDescriptorsEndTheSleep) {
  Record& record = NewRecord();
  FakeTask* const task = Add(&record);
  task->on_step = [task](absl::Time) {
    return Drain(task->data.get()) ? Result::kWorked : Result::kIdle;
  };
  Settle();
  const int steps = record.steps;
  Signal(task->data.get());
  loop_->Round(absl::InfiniteFuture());  // sleeps, and is woken
  EXPECT_EQ(record.control_events, 0);
  Settle();
  EXPECT_GT(record.steps, steps);

  const int before = record.steps;
  Signal(task->control.get());
  loop_->Round(absl::InfiniteFuture());
  EXPECT_EQ(record.control_events, 1);
  Settle();
  EXPECT_GT(record.steps, before);
}

TEST_F(PollLoopTest, RoomToWriteIsWatchedOnlyWhenWanted) {
  Record& record = NewRecord();
  FakeTask* const task = Add(&record);
  Settle();
  EXPECT_EQ(record.control_events, 0) << "an eventfd always has room";
  task->wants_write = true;
  loop_->WakeAll();
  RoundWithoutSleep();  // sees that it is wanted
  for (int i = 0; i < 3; ++i) RoundWithoutSleep();
  EXPECT_GE(record.control_events, 1);
  task->wants_write = false;
  loop_->WakeAll();
  Settle();
  const int events = record.control_events;
  Settle();
  EXPECT_EQ(record.control_events, events);
}

TEST_F(PollLoopTest, TaskThatCannotBeArmedIsSteppedAgain) {
  Record& record = NewRecord();
  FakeTask* const task = Add(&record);
  int refusals = 5;
  task->on_arm = [&refusals] { return refusals-- <= 0; };
  // No round may sleep: no event would end the sleep.
  for (int i = 0; i < 6; ++i) loop_->Round(absl::InfinitePast());
  EXPECT_EQ(record.arms, 6);
  EXPECT_GE(record.steps, 6);
}

TEST_F(PollLoopTest, TimersAreKeptByTheLoopsClock) {
  base::ManualClock clock;
  MakeLoop(&clock);
  Record& record = NewRecord();
  FakeTask* const task = Add(&record);
  task->timer = clock.Now() + absl::Seconds(10);
  task->on_step = [&](absl::Time now) {
    if (now >= task->timer) task->timer = now + absl::Seconds(10);
    return Result::kIdle;
  };
  Settle();
  const int steps = record.steps;
  clock.Advance(absl::Seconds(9));
  Settle();
  EXPECT_EQ(record.steps, steps);
  clock.Advance(absl::Seconds(1));
  RoundWithoutSleep();
  EXPECT_EQ(record.steps, steps + 1);
  Settle();
  EXPECT_EQ(record.steps, steps + 1);
  clock.Advance(absl::Seconds(10));
  RoundWithoutSleep();
  EXPECT_EQ(record.steps, steps + 2);
}

TEST_F(PollLoopTest, BusyTaskDelaysOthersByOneStepOnly) {
  Record& busy = NewRecord();
  Add(&busy)->on_step = [](absl::Time) { return Result::kWorked; };
  std::vector<Record*> quiet(30);
  std::vector<std::shared_ptr<Waker>> wakers(quiet.size());
  for (size_t i = 0; i < quiet.size(); ++i) {
    quiet[i] = &NewRecord();
    Add(quiet[i], &wakers[i]);
  }
  Settle();
  for (size_t i = 0; i < quiet.size(); ++i) {
    const int busy_steps = busy.steps;
    const int quiet_steps = quiet[i]->steps;
    wakers[i]->Wake();
    RoundWithoutSleep();
    EXPECT_EQ(busy.steps, busy_steps + 1);
    EXPECT_EQ(quiet[i]->steps, quiet_steps + 1);
  }
}

TEST_F(PollLoopTest, KernelEventsReachArmedTasksWhileOthersAreBusy) {
  Record& busy = NewRecord();
  Add(&busy)->on_step = [](absl::Time) { return Result::kWorked; };
  Record& quiet = NewRecord();
  FakeTask* const task = Add(&quiet);
  bool drained = false;
  task->on_step = [&](absl::Time) {
    drained |= Drain(task->data.get());
    return Result::kIdle;
  };
  Settle();
  Signal(task->data.get());
  const absl::Time deadline = base::Clock::Real().Now() + absl::Seconds(20);
  while (!drained && base::Clock::Real().Now() < deadline) RoundWithoutSleep();
  EXPECT_TRUE(drained);
}

TEST_F(PollLoopTest, TaskThatIsDoneIsDestroyedAndItsSeatIsFree) {
  Record& record = NewRecord();
  std::shared_ptr<Waker> waker;
  FakeTask* const task = Add(&record, &waker);
  const size_t seats = loop_->num_seats();
  task->on_step = [](absl::Time) { return Result::kDone; };
  RoundWithoutSleep();
  EXPECT_TRUE(record.destroyed);
  EXPECT_EQ(loop_->num_seats(), seats - 1);
  // A message that outlived its connection gives its memory back.
  waker->Wake();
  Settle();
  Record& next = NewRecord();
  Add(&next);
  Settle();
  EXPECT_FALSE(next.destroyed);
  loop_.reset();
  EXPECT_TRUE(next.destroyed);
  waker->Wake();  // neither seat nor loop is there any more
}

TEST_F(PollLoopTest, SeatsAreBoundedAndComeBack) {
  std::vector<PollLoop::Seat> seats;
  for (size_t i = 0; i < kCapacity; ++i) {
    auto seat = loop_->Reserve();
    ASSERT_TRUE(seat.ok()) << seat.status();
    seats.push_back(*std::move(seat));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(loop_->Reserve().status()));
  seats.pop_back();
  EXPECT_TRUE(loop_->Reserve().ok());
}

// Another thread and the loop take turns: each turn is one wake-up, so a single
// one that gets lost stops both for good.
class Turns {
 public:
  explicit Turns(std::function<void()> wake)
      : asker_([this, wake = std::move(wake)] {
          for (int turn = 1; turn <= kTurns; ++turn) {
            asked_ = turn;
            wake();
            while (answered_.load() < turn) {
              if (stop_) return;
              std::this_thread::yield();
            }
          }
        }) {}
  ~Turns() {
    stop_ = true;
    asker_.join();
  }

  bool asked() const { return answered_.load() < asked_.load(); }
  void Answer() { answered_ = asked_.load(); }
  bool over() const { return answered_.load() == kTurns; }
  // False: a wake-up was lost.
  bool Round(PollLoop& loop) {
    const absl::Time patience = base::Clock::Real().Now() + absl::Seconds(20);
    loop.Round(patience);
    return base::Clock::Real().Now() < patience;
  }

 private:
  static constexpr int kTurns = 100'000;
  std::atomic<int> asked_ = 0;
  std::atomic<int> answered_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread asker_;
};

TEST_F(PollLoopTest, NoWakeUpOfATaskIsLost) {
  Record& record = NewRecord();
  std::shared_ptr<Waker> waker;
  FakeTask* const task = Add(&record, &waker);
  Turns turns([waker] { waker->Wake(); });
  task->on_step = [&](absl::Time) {
    if (!turns.asked()) return Result::kIdle;
    turns.Answer();
    return Result::kWorked;
  };
  while (!turns.over()) ASSERT_TRUE(turns.Round(*loop_));
}

// The same for what only the loop's owner knows of, as a client's inbox.
TEST_F(PollLoopTest, NoWakeUpOfTheOwnerIsLost) {
  Turns turns([this] { loop_->Wake(); });
  while (true) {
    turns.Answer();
    if (turns.over()) break;
    ASSERT_TRUE(turns.Round(*loop_));
  }
}

TEST(PollLoopSleep, NeedsNoPwait2) {
  for (const unsigned error : {ENOSYS, EPERM}) {
    bool forbidden = false;
    absl::Duration slept;
    // Filters are the thread's own.
    std::thread thread([&] {
      forbidden = base::ForbidCall(SYS_epoll_pwait2, error);
      auto loop = PollLoop::Create(&base::Clock::Real(), 1);
      ASSERT_TRUE(loop.ok()) << loop.status();
      const absl::Time begin = base::Clock::Real().Now();
      (*loop)->Round(begin + absl::Milliseconds(50));
      slept = base::Clock::Real().Now() - begin;
    });
    thread.join();
    if (!forbidden) GTEST_SKIP() << "no seccomp filters on this machine";
    EXPECT_GE(slept, absl::Milliseconds(50)) << "errno " << error;
  }
}

TEST(MaxSpin, FewCoresHardlySpin) {
  EXPECT_EQ(MaxSpin(64, true), absl::Microseconds(50));
  EXPECT_EQ(MaxSpin(4, false), absl::Microseconds(50));
  EXPECT_LE(MaxSpin(2, true), absl::Microseconds(5));
  EXPECT_EQ(MaxSpin(2, false), absl::ZeroDuration());
}

}  // namespace
}  // namespace refract::transport

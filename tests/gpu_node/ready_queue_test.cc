#include "gpu_node/ready_queue.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu_node/fake_server_call.h"

namespace refract::gpu_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kStart = absl::UnixEpoch();

absl::Time At(int ms) { return kStart + absl::Milliseconds(ms); }

TEST(RunsBeforeTest, OrdersByDeadlineThenArrival) {
  const absl::Time none = absl::InfiniteFuture();
  struct Case {
    ReadyKey a, b;
    bool a_first;
  } const cases[] = {
      {{At(1), 5}, {At(2), 1}, true},  {{At(2), 1}, {At(1), 5}, false},
      {{At(1), 1}, {At(1), 2}, true},  {{At(1), 2}, {At(1), 1}, false},
      {{At(9), 9}, {none, 1}, true},   {{none, 1}, {none, 2}, true},
      {{At(1), 1}, {At(1), 1}, false},  // irreflexive, as an order must be
  };
  for (const Case& c : cases) {
    EXPECT_EQ(RunsBefore(c.a, c.b), c.a_first)
        << c.a.deadline << "#" << c.a.arrival << " vs " << c.b.deadline << "#"
        << c.b.arrival;
  }
}

TEST(JudgeTest, DropsWhatNobodyCanUse) {
  struct Case {
    absl::Time deadline;
    bool abandoned;
    Verdict verdict;
  } const cases[] = {
      {At(11), false, Verdict::kRun},
      {At(10), false, Verdict::kDropExpired},
      {At(9), false, Verdict::kDropExpired},
      {absl::InfiniteFuture(), false, Verdict::kRun},
      {At(11), true, Verdict::kDropAbandoned},
      {At(9), true, Verdict::kDropAbandoned},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Judge(c.deadline, c.abandoned, At(10)), c.verdict)
        << c.deadline << " " << c.abandoned;
  }
}

class ReadyQueueTest : public ::testing::Test {
 protected:
  void Push(ReadyQueue& queue, const std::string& name, absl::Time deadline,
            bool abandoned = false) {
    queue.Push(
        std::make_unique<FakeServerCall>(name, deadline, &answers_, abandoned));
  }
  static std::string PopName(ReadyQueue& queue) {
    const std::unique_ptr<transport::ServerCall> call = queue.Pop();
    if (call == nullptr) return "";
    queue.Done();
    return static_cast<const FakeServerCall&>(*call).name();
  }

  base::ManualClock clock_{kStart};
  Answers answers_;
};

TEST_F(ReadyQueueTest, PopsEarliestDeadlineFirst) {
  ReadyQueue queue(10, clock_);
  Push(queue, "no deadline 1", absl::InfiniteFuture());
  Push(queue, "late", At(30));
  Push(queue, "early", At(10));
  Push(queue, "no deadline 2", absl::InfiniteFuture());
  Push(queue, "late too", At(30));
  std::vector<std::string> order;
  for (int i = 0; i < 5; ++i) order.push_back(PopName(queue));
  EXPECT_THAT(order, ElementsAre("early", "late", "late too", "no deadline 1",
                                 "no deadline 2"));
  EXPECT_EQ(answers_.size(), 0);
}

TEST_F(ReadyQueueTest, NoDeadlineMeansLastButNotNever) {
  ReadyQueue queue(100, clock_);
  // Nobody waits for the oldest one: it must not use up the turn.
  Push(queue, "abandoned", absl::InfiniteFuture(), true);
  Push(queue, "patient 1", absl::InfiniteFuture());
  Push(queue, "patient 2", absl::InfiniteFuture());
  for (int i = 0; i < 50; ++i) Push(queue, "urgent", At(10 + i));
  for (int i = 1; i <= 2 * kTurnWithoutDeadline; ++i) {
    EXPECT_EQ(PopName(queue), i == kTurnWithoutDeadline       ? "patient 1"
                              : i == 2 * kTurnWithoutDeadline ? "patient 2"
                                                              : "urgent")
        << i;
  }
}

TEST_F(ReadyQueueTest, FailsExpiredCallsWithAMessageOfItsOwn) {
  ReadyQueue queue(10, clock_);
  Push(queue, "expires", At(5));
  Push(queue, "lives", At(50));
  clock_.Advance(absl::Milliseconds(5));
  EXPECT_EQ(PopName(queue), "lives");
  EXPECT_EQ(answers_.Of("expires").code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(answers_.Of("expires").message()),
              HasSubstr("at HN queue"));
  EXPECT_EQ(queue.expired(), 1);
  EXPECT_EQ(queue.pending(), 0);
}

TEST_F(ReadyQueueTest, SkipsAbandonedCalls) {
  ReadyQueue queue(10, clock_);
  Push(queue, "gone", At(5), /*abandoned=*/true);
  Push(queue, "here", At(50));
  EXPECT_EQ(PopName(queue), "here");
  EXPECT_EQ(answers_.Of("gone").code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(queue.expired(), 0);
}

TEST_F(ReadyQueueTest, RefusesTheNewestWhenFull) {
  ReadyQueue queue(2, clock_);
  Push(queue, "a", At(10));
  Push(queue, "b", At(20));
  Push(queue, "c", At(5));
  EXPECT_EQ(answers_.Of("c").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(queue.pending(), 2);
}

TEST_F(ReadyQueueTest, MakesRoomByDroppingExpiredCalls) {
  ReadyQueue queue(2, clock_);
  Push(queue, "a", At(10));
  Push(queue, "b", At(20));
  clock_.Advance(absl::Milliseconds(10));
  Push(queue, "c", At(30));
  EXPECT_EQ(answers_.Of("a").code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(answers_.Answered("c"));
  EXPECT_EQ(PopName(queue), "b");
  EXPECT_EQ(PopName(queue), "c");
}

TEST_F(ReadyQueueTest, CloseDrainsThenEnds) {
  ReadyQueue queue(10, clock_);
  Push(queue, "queued", At(10));
  queue.Close();
  Push(queue, "too late", At(10));
  EXPECT_EQ(answers_.Of("too late").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(PopName(queue), "queued");
  EXPECT_EQ(queue.Pop(), nullptr);
}

TEST_F(ReadyQueueTest, IsIdleOnlyOnceTheLastCallIsDone) {
  ReadyQueue queue(10, clock_);
  EXPECT_TRUE(queue.AwaitIdle(absl::ZeroDuration()));
  Push(queue, "a", At(10));
  EXPECT_FALSE(queue.AwaitIdle(absl::ZeroDuration()));
  const std::unique_ptr<transport::ServerCall> call = queue.Pop();
  EXPECT_FALSE(queue.AwaitIdle(absl::ZeroDuration()));
  std::thread finisher([&] { queue.Done(); });
  EXPECT_TRUE(queue.AwaitIdle(absl::Seconds(1)));
  finisher.join();
}

TEST_F(ReadyQueueTest, EveryCallIsAnsweredOrPoppedOnceUnderManyThreads) {
  constexpr int kProducers = 4;
  constexpr int kCallsEach = 200;
  ReadyQueue queue(32, clock_);
  std::atomic<int> popped = 0;
  std::vector<std::thread> consumers;
  for (int i = 0; i < 3; ++i) {
    consumers.emplace_back([&] {
      while (std::unique_ptr<transport::ServerCall> call = queue.Pop()) {
        call->Reply(transport::OutgoingMessage());
        popped.fetch_add(1);
        queue.Done();
      }
    });
  }
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kCallsEach; ++i) {
        Push(queue, std::to_string(p) + "/" + std::to_string(i), At(i % 7 + 1));
      }
    });
  }
  for (std::thread& producer : producers) producer.join();
  queue.Close();
  for (std::thread& consumer : consumers) consumer.join();
  EXPECT_EQ(answers_.size(), kProducers * kCallsEach);
  int refused = 0;
  for (int p = 0; p < kProducers; ++p) {
    for (int i = 0; i < kCallsEach; ++i) {
      const absl::Status status =
          answers_.Of(std::to_string(p) + "/" + std::to_string(i));
      if (absl::IsResourceExhausted(status)) ++refused;
      EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    }
  }
  EXPECT_EQ(popped.load() + refused, kProducers * kCallsEach);
}

}  // namespace
}  // namespace refract::gpu_node

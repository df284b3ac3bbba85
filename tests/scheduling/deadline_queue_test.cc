#include "scheduling/deadline_queue.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::scheduling {
namespace {

using ::testing::ElementsAre;

absl::Time AtMs(int ms) { return absl::UnixEpoch() + absl::Milliseconds(ms); }

TEST(RunsBeforeTest, OrdersByDeadlineThenArrival) {
  const absl::Time none = absl::InfiniteFuture();
  struct Case {
    QueueKey a, b;
    bool a_first;
  } const cases[] = {
      {{AtMs(1), 5}, {AtMs(2), 1}, true},  {{AtMs(2), 1}, {AtMs(1), 5}, false},
      {{AtMs(1), 1}, {AtMs(1), 2}, true},  {{AtMs(1), 2}, {AtMs(1), 1}, false},
      {{AtMs(9), 9}, {none, 1}, true},     {{none, 1}, {none, 2}, true},
      {{AtMs(1), 1}, {AtMs(1), 1}, false},  // irreflexive, as an order must be
  };
  for (const Case& c : cases) {
    EXPECT_EQ(RunsBefore(c.a, c.b), c.a_first)
        << c.a.deadline << "#" << c.a.arrival << " vs " << c.b.deadline << "#"
        << c.b.arrival;
  }
}

class DeadlineQueueTest : public ::testing::Test {
 protected:
  using Request = DeadlineQueue<std::string>::Request;

  void Push(const std::string& name, absl::Time deadline,
            const std::string& key = "", int estimate_ms = 1) {
    queue_.Push(priority_, deadline,
                {.rows = 2,
                 .queued_at = AtMs(0),
                 .estimate = absl::Milliseconds(estimate_ms),
                 .payload = name},
                key);
  }
  std::string TakeNext() {
    const Request request = queue_.Take(queue_.Next());
    queue_.CountTurn(request.key.deadline != absl::InfiniteFuture());
    return request.payload;
  }

  DeadlineQueue<std::string> queue_;
  uint8_t priority_ = 0;  // of what Push() queues
};

TEST_F(DeadlineQueueTest, EarliestDeadlineFirst) {
  Push("no deadline 1", absl::InfiniteFuture());
  Push("late", AtMs(30));
  Push("early", AtMs(10));
  Push("no deadline 2", absl::InfiniteFuture());
  Push("late too", AtMs(30));
  std::vector<std::string> order;
  while (!queue_.empty()) order.push_back(TakeNext());
  EXPECT_THAT(order, ElementsAre("early", "late", "late too", "no deadline 1",
                                 "no deadline 2"));
}

TEST_F(DeadlineQueueTest, NoDeadlineMeansLastButNotNever) {
  Push("patient 1", absl::InfiniteFuture());
  Push("patient 2", absl::InfiniteFuture());
  for (int i = 0; i < 50; ++i) Push("urgent", AtMs(10 + i));
  for (int i = 1; i <= 2 * kTurnWithoutDeadline; ++i) {
    EXPECT_EQ(TakeNext(), i == kTurnWithoutDeadline       ? "patient 1"
                          : i == 2 * kTurnWithoutDeadline ? "patient 2"
                                                          : "urgent")
        << i;
  }
}

TEST_F(DeadlineQueueTest, OnlyEqualKeysAreMerged) {
  Push("a1", AtMs(1), "a");
  Push("b", AtMs(2), "b");
  Push("alone", AtMs(3), "");
  Push("a2", AtMs(4), "a");
  Push("a3", absl::InfiniteFuture(), "a");
  std::vector<std::string> names;
  for (const Request* request : queue_.Candidates()) {
    names.push_back(request->payload);
  }
  EXPECT_THAT(names, ElementsAre("a1", "a2", "a3"));
  EXPECT_EQ(TakeNext(), "a1");
  EXPECT_EQ(TakeNext(), "b");
  EXPECT_EQ(queue_.Candidates().size(), 1);  // "alone", with nobody
}

TEST_F(DeadlineQueueTest, KnowsTheWorkAheadOfADeadline) {
  Push("a", AtMs(10), "", 3);
  Push("b", AtMs(20), "", 4);
  Push("c", absl::InfiniteFuture(), "", 50);
  const auto before = [&](absl::Time deadline, int enough = 1000) {
    return queue_.WorkBefore(0, deadline, absl::Milliseconds(enough));
  };
  EXPECT_EQ(before(AtMs(9)).time, absl::ZeroDuration());
  EXPECT_EQ(before(AtMs(10)).time, absl::Milliseconds(3));  // it came first
  EXPECT_EQ(before(AtMs(20)).time, absl::Milliseconds(7));
  EXPECT_EQ(before(AtMs(20)).rows, 4);
  EXPECT_EQ(before(AtMs(20), 2).time, absl::Milliseconds(3));
  EXPECT_EQ(before(absl::InfiniteFuture()).time, absl::Milliseconds(57));
  EXPECT_EQ(before(absl::InfiniteFuture()).rows, 6);
  EXPECT_EQ(before(absl::InfiniteFuture(), 6).time, absl::Milliseconds(7));
  EXPECT_EQ(queue_.work().time, absl::Milliseconds(57));
  TakeNext();
  EXPECT_EQ(queue_.work().time, absl::Milliseconds(54));
  EXPECT_EQ(queue_.work().rows, 4);
}

TEST_F(DeadlineQueueTest, GivesOutWhatHasExpired) {
  Push("a", AtMs(10));
  Push("b", AtMs(20));
  Push("c", absl::InfiniteFuture());
  std::vector<std::string> expired;
  for (const Request& request : queue_.TakeExpired(AtMs(20))) {
    expired.push_back(request.payload);
  }
  EXPECT_THAT(expired, ElementsAre("a", "b"));
  EXPECT_EQ(queue_.size(), 1);
}

TEST_F(DeadlineQueueTest, LevelsGoBeforeDeadlines) {
  priority_ = 2;
  Push("low early", AtMs(10), "", 5);
  Push("low never", absl::InfiniteFuture(), "", 7);
  priority_ = 0;
  Push("high late", AtMs(40), "", 3);
  Push("high never", absl::InfiniteFuture(), "", 2);
  priority_ = 1;
  Push("middle", AtMs(30), "", 1);
  EXPECT_EQ(queue_.earliest_deadline(), AtMs(10));
  EXPECT_EQ(queue_.SizeBelow(0), 3);
  EXPECT_EQ(queue_.SizeBelow(1), 2);
  EXPECT_EQ(queue_.SizeBelow(15), 0);
  EXPECT_EQ(queue_.Last().payload, "low never");
  const auto before = [&](uint8_t priority, absl::Time deadline) {
    return queue_.WorkBefore(priority, deadline, absl::Seconds(1)).time;
  };
  EXPECT_EQ(before(0, AtMs(39)), absl::ZeroDuration());
  EXPECT_EQ(before(0, AtMs(40)), absl::Milliseconds(3));
  EXPECT_EQ(before(1, AtMs(29)), absl::Milliseconds(5));
  EXPECT_EQ(before(2, AtMs(10)), absl::Milliseconds(11));
  EXPECT_EQ(before(15, AtMs(1)), absl::Milliseconds(18));
  EXPECT_EQ(queue_.Expired(AtMs(9)), nullptr);
  EXPECT_EQ(queue_.Expired(AtMs(10))->payload, "low early");
  std::vector<std::string> order;
  while (!queue_.empty()) order.push_back(TakeNext());
  EXPECT_THAT(order, ElementsAre("high late", "high never", "middle",
                                 "low early", "low never"));
  EXPECT_EQ(queue_.SizeBelow(0), 0);
  EXPECT_EQ(queue_.earliest_deadline(), absl::InfiniteFuture());
}

TEST_F(DeadlineQueueTest, TheTurnsWithoutADeadlineAreOfALevel) {
  priority_ = 1;
  Push("low", absl::InfiniteFuture());
  priority_ = 0;
  for (int i = 0; i < 2 * kTurnWithoutDeadline; ++i) Push("high", AtMs(10 + i));
  for (int i = 0; i < 2 * kTurnWithoutDeadline; ++i) EXPECT_EQ(TakeNext(), "high");
  EXPECT_EQ(TakeNext(), "low");
}

TEST_F(DeadlineQueueTest, GivesOutThoseThatAreNamed) {
  Push("a", AtMs(10));
  Push("b", AtMs(20));
  Push("c", absl::InfiniteFuture());
  const std::vector<Request> taken =
      queue_.TakeIf([](const Request& r) { return r.payload != "b"; });
  ASSERT_EQ(taken.size(), 2);
  EXPECT_EQ(taken[0].payload, "a");
  EXPECT_EQ(taken[1].payload, "c");
  EXPECT_EQ(TakeNext(), "b");
}

// The rest of a request that has been executed in part.
TEST_F(DeadlineQueueTest, WhatComesBackHasItsOldPlaceAndIsNotMerged) {
  Push("a", absl::InfiniteFuture(), "key");
  Push("b", absl::InfiniteFuture(), "key");
  Request rest = queue_.Take(queue_.Next());
  rest.rows = 1;
  queue_.Return(std::move(rest));
  EXPECT_EQ(queue_.work().rows, 3);
  EXPECT_EQ(queue_.Candidates().size(), 1);
  EXPECT_EQ(TakeNext(), "a");
  EXPECT_EQ(TakeNext(), "b");
  EXPECT_TRUE(queue_.empty());
}

}  // namespace
}  // namespace refract::scheduling

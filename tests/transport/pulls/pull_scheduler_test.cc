// Order and amount of pulls: transport/pulls/pull_scheduler.h. The window's own
// law is tested in pull_window_test.cc, random use in
// pull_scheduler_random_test.cc.
#include "transport/pulls/pull_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace refract::transport {
namespace {

constexpr size_t kChunk = 1000;
constexpr absl::Duration kMs = absl::Milliseconds(1);

class FakeConnection final : public PullConnection {
 public:
  Post PostChunk(ScheduledPull&, size_t bytes, absl::Time) override {
    return {next_result, std::min(bytes, at_most)};
  }
  Post::Result next_result = Post::Result::kPosted;
  size_t at_most = ~size_t{0};
};

class FakeMarks final : public MarkSource {
 public:
  std::optional<uint64_t> Take() override {
    ++calls;
    return next;
  }
  std::optional<uint64_t> next;
  int calls = 0;
};

class PullSchedulerTest : public testing::Test {
 protected:
  static PullScheduler::Options SmallOptions() {
    PullScheduler::Options options;
    options.window.chunk_bytes = kChunk;
    options.window.min_chunks = 4;
    // No probes after the first: they would hide the order.
    options.window.probe_interval = absl::InfiniteDuration();
    return options;
  }

  void Make(const PullScheduler::Options& options, size_t connections = 3) {
    scheduler_ = std::make_unique<PullScheduler>(options);
    for (size_t i = 0; i < connections; ++i) {
      connections_.push_back(std::make_unique<FakeConnection>());
      scheduler_->Attach(connections_.back().get(), 16);
    }
    // One chunk in 1 ms, alone, and another one: 1 MB/s is known, and the
    // window is 4 chunks.
    ScheduledPull first;
    scheduler_->Add(connection(0), &first, 4 * kChunk, absl::InfiniteFuture());
    for (int i = 0; i < 4; ++i) {
      const auto turn = scheduler_->Next(now_);
      scheduler_->Posted(*turn, kChunk, now_);
      now_ += kMs;
      scheduler_->Completed(connection(0), &first, kChunk, now_);
    }
    ASSERT_TRUE(first.done());
    ASSERT_NEAR(scheduler_->window().bytes_per_second(), 1e6, 1);
    ASSERT_EQ(scheduler_->window().bytes(), 4 * kChunk);
  }

  struct Named : ScheduledPull {
    char name = '?';
    size_t connection = 0;
  };
  PullConnection* connection(size_t i) { return connections_[i].get(); }
  // `left` infinite: no deadline.
  void Add(size_t which, char name, size_t chunks, absl::Duration left) {
    auto& pull = pulls_.emplace_back(std::make_unique<Named>());
    pull->name = name;
    pull->connection = which;
    scheduler_->Add(connection(which), pull.get(), chunks * kChunk,
                    now_ + left);
  }
  // Posts the permitted chunks; returns the names of the pulls, in order.
  std::string Fill() {
    std::string order;
    while (const auto turn = scheduler_->Next(now_)) {
      Named* pull = static_cast<Named*>(turn->pull);
      EXPECT_EQ(turn->connection, connection(pull->connection));
      order.push_back(pull->name);
      scheduler_->Posted(*turn, turn->bytes, now_);
      under_way_.emplace_back(pull, turn->bytes);
    }
    return order;
  }
  // The link passes a chunk per millisecond.
  void CompleteOldest() { Complete(under_way_.begin()); }
  // The oldest of the pull `name`.
  void Complete(char name) {
    Complete(std::find_if(
        under_way_.begin(), under_way_.end(),
        [name](const auto& get) { return get.first->name == name; }));
  }
  void Complete(std::vector<std::pair<Named*, size_t>>::iterator get) {
    now_ += kMs;
    const auto [pull, bytes] = *get;
    under_way_.erase(get);
    scheduler_->Completed(connection(pull->connection), pull, bytes, now_);
  }
  // Completes one at a time, 1 ms each, and fills again, until all is done.
  std::string Drain() {
    std::string order = Fill();
    while (!under_way_.empty()) {
      CompleteOldest();
      order += Fill();
    }
    return order;
  }

  std::unique_ptr<PullScheduler> scheduler_;
  std::vector<std::unique_ptr<FakeConnection>> connections_;
  std::vector<std::unique_ptr<Named>> pulls_;
  std::vector<std::pair<Named*, size_t>> under_way_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(PullSchedulerTest, EarliestDeadlineFirst) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  Add(0, 'c', 2, 300 * kMs);
  Add(1, 'a', 2, 100 * kMs);
  Add(2, 'b', 2, 200 * kMs);
  EXPECT_EQ(Drain(), "aabbcc");
}

TEST_F(PullSchedulerTest, ANewUrgentOneOvertakesBetweenChunks) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  Add(0, 'b', 6, 500 * kMs);
  EXPECT_EQ(Fill(), "bbbb");
  Add(1, 'a', 2, 100 * kMs);
  EXPECT_EQ(Fill(), "") << "posted chunks are not recalled";
  EXPECT_EQ(Drain(), "aabb");
}

TEST_F(PullSchedulerTest, EqualDeadlinesByBytesLeftThenByArrival) {
  PullScheduler::Options options = SmallOptions();
  options.max_chunks_per_connection = 4;
  ASSERT_NO_FATAL_FAILURE(Make(options));
  Add(0, 'c', 3, 100 * kMs);
  Add(1, 'a', 1, 100 * kMs);
  Add(2, 'b', 1, 100 * kMs);
  Add(1, 'd', 3, 100 * kMs);
  // Once begun, c has less left than d.
  EXPECT_EQ(Drain(), "abcccddd");
}

TEST_F(PullSchedulerTest, WithoutDeadlineInOrderOfArrivalAndLast) {
  PullScheduler::Options options = SmallOptions();
  options.background_share = 0;
  ASSERT_NO_FATAL_FAILURE(Make(options));
  Add(0, 'x', 2, absl::InfiniteDuration());
  Add(1, 'y', 1, absl::InfiniteDuration());
  Add(2, 'a', 2, 100 * kMs);
  EXPECT_EQ(Drain(), "aaxxy") << "the smaller y came later";
}

TEST_F(PullSchedulerTest,
       ShareOfAConnectionIsTwoChunksOrAnEqualPartOfTheWindow) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  Add(0, 'a', 8, 100 * kMs);
  EXPECT_EQ(Fill(), "aaaa") << "alone: the whole window";
  // Four chunks are two too many now.
  Add(1, 'b', 8, 200 * kMs);
  CompleteOldest();
  EXPECT_EQ(Fill(), "b");
  CompleteOldest();
  EXPECT_EQ(Fill(), "b");
  CompleteOldest();
  EXPECT_EQ(Fill(), "a");
  CompleteOldest();
  EXPECT_EQ(Fill(), "a");
  EXPECT_EQ(Drain(), "bbaabbbb") << "b never waits while a has its share";
}

TEST_F(PullSchedulerTest, NoMoreGetsThanTheConnectionCanHave) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  FakeConnection narrow;
  scheduler_->Attach(&narrow, 1);
  ScheduledPull pull;
  scheduler_->Add(&narrow, &pull, 4 * kChunk, now_ + 100 * kMs);
  auto turn = scheduler_->Next(now_);
  ASSERT_TRUE(turn.has_value());
  scheduler_->Posted(*turn, 10, now_);
  EXPECT_FALSE(scheduler_->Next(now_).has_value());
  scheduler_->Completed(&narrow, &pull, 10, now_);
  EXPECT_TRUE(scheduler_->Next(now_).has_value());
  scheduler_->Detach(&narrow);
}

TEST_F(PullSchedulerTest, HopelessOnesStepBehindForGood) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  // 1 chunk takes 1 ms. a needs 8 and has 7.
  Add(0, 'a', 8, 7 * kMs);
  Add(1, 'b', 2, 9 * kMs);
  Add(2, 'x', 1, absl::InfiniteDuration());
  EXPECT_EQ(Fill(), "bbxa");
  EXPECT_EQ(Drain(), "aaaaaaa");
}

TEST_F(PullSchedulerTest, WhatIsOutstandingCountsForTheDeadline) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  Add(0, 'x', 4, absl::InfiniteDuration());
  EXPECT_EQ(Fill(), "xxxx");
  // 3 of its own, and 3 of x's when its turn comes: 6 ms.
  Add(1, 'a', 3, absl::Milliseconds(5.9));
  Add(2, 'b', 3, absl::Milliseconds(60));
  CompleteOldest();
  EXPECT_EQ(Fill(), "b");
}

TEST_F(PullSchedulerTest, BackgroundGetsItsShareOfTheBytes) {
  PullScheduler::Options options = SmallOptions();
  options.background_share = 0.25;
  ASSERT_NO_FATAL_FAILURE(Make(options));
  Add(0, 'x', 100, absl::InfiniteDuration());
  Add(1, 'a', 60, absl::Hours(1));
  Add(2, 'b', 60, absl::Hours(1));
  const std::string order = Drain().substr(0, 100);
  // A chunk for every four that others got: one in five.
  EXPECT_EQ(std::count(order.begin(), order.end(), 'x'), 20) << order;
  for (size_t i = 0; i + 5 <= order.size(); ++i) {
    EXPECT_NE(order.substr(i, 5).find('x'), std::string::npos) << order;
  }
}

TEST_F(PullSchedulerTest, HeldConnectionsArePassedOver) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  Add(0, 'a', 2, 100 * kMs);
  Add(1, 'b', 2, 200 * kMs);
  scheduler_->Hold(connection(0));
  Add(0, 'c', 1, 50 * kMs);
  EXPECT_EQ(Fill(), "bb");
  scheduler_->Release(connection(0));
  EXPECT_EQ(Fill(), "ca");
  EXPECT_EQ(Drain(), "a");
}

TEST_F(PullSchedulerTest, CancelledPullsAskForNoMore) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  Add(0, 'a', 8, 100 * kMs);
  Add(1, 'b', 2, 200 * kMs);
  EXPECT_EQ(Fill(), "aabb") << "two connections, two chunks each";
  scheduler_->Cancel(connection(0), pulls_[0].get());
  EXPECT_FALSE(pulls_[0]->done()) << "two are under way";
  EXPECT_EQ(Drain(), "");
  EXPECT_TRUE(pulls_[0]->done());
}

TEST_F(PullSchedulerTest, ALostConnectionLeavesTheWindowToOthers) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  Add(0, 'a', 8, 100 * kMs);
  Add(1, 'b', 8, 200 * kMs);
  EXPECT_EQ(Fill(), "aabb");
  scheduler_->Detach(connection(0));
  EXPECT_EQ(scheduler_->window().outstanding(), 2 * kChunk);
  under_way_.erase(under_way_.begin(), under_way_.begin() + 2);
  CompleteOldest();
  EXPECT_EQ(Fill(), "bbb") << "alone now";
}

TEST_F(PullSchedulerTest, OverdueGetsLeaveTheWindowToOthers) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  Add(0, 'a', 8, 100 * kMs);
  Add(1, 'b', 30, 200 * kMs);
  EXPECT_EQ(Fill(), "aabb");
  // A get takes 1 ms, and 4 of them 4 ms: overdue after four times the sum.
  EXPECT_EQ(scheduler_->OverdueAt(*connection(0)), now_ + 20 * kMs);
  for (int i = 0; i < 19; ++i) {
    Complete('b');
    EXPECT_EQ(Fill(), "b") << "a has its share, and the window is full";
    scheduler_->TakeOutOverdue(now_);
    ASSERT_EQ(scheduler_->window().outstanding(), 4 * kChunk);
  }
  Complete('b');
  EXPECT_EQ(Fill(), "b");
  scheduler_->TakeOutOverdue(now_);
  EXPECT_EQ(scheduler_->window().outstanding(), 2 * kChunk);
  EXPECT_EQ(scheduler_->OverdueAt(*connection(0)), absl::InfiniteFuture());
  Complete('b');
  EXPECT_EQ(Fill(), "bbb") << "a may not post, b has the window alone";
  Complete('a');
  EXPECT_EQ(scheduler_->window().outstanding(), 4 * kChunk) << "left it before";
  Complete('b');
  EXPECT_EQ(Fill(), "b") << "the other of a's is still overdue";
  scheduler_->Detach(connection(0));
  EXPECT_EQ(scheduler_->window().outstanding(), 4 * kChunk);
}

TEST_F(PullSchedulerTest, SlowConnectionHasOneGetUntilOneComesInTime) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  Add(0, 'a', 8, 100 * kMs);
  EXPECT_EQ(Fill(), "aaaa");
  now_ += 50 * kMs;
  scheduler_->TakeOutOverdue(now_);
  for (int i = 0; i < 3; ++i) {
    CompleteOldest();
    EXPECT_EQ(Fill(), "");
  }
  CompleteOldest();
  EXPECT_EQ(Fill(), "a") << "one at a time";
  now_ += 50 * kMs;
  scheduler_->TakeOutOverdue(now_);
  CompleteOldest();
  EXPECT_EQ(Fill(), "a") << "late again";
  CompleteOldest();
  EXPECT_EQ(Fill(), "aa") << "in time";
}

// The receiver asks for one get alone now and then, to learn the path's delay.
// The probe must not wait for a get that never completes.
TEST_F(PullSchedulerTest, AStalledConnectionDoesNotHoldUpTheProbe) {
  PullScheduler::Options options = SmallOptions();
  options.window.probe_interval = kMs;
  options.window.delay_span = absl::Hours(1);
  ASSERT_NO_FATAL_FAILURE(Make(options));
  Add(0, 'a', 1, 100 * kMs);
  EXPECT_EQ(Fill(), "a");
  under_way_.clear();
  // 1000 times the delay after the last, a probe is due.
  Add(1, 'b', 2, absl::InfiniteDuration());
  EXPECT_EQ(Fill(), "bb");
  now_ += 1000 * kMs;
  CompleteOldest();
  ASSERT_EQ(scheduler_->window().bytes(), kChunk) << "a probe is due";
  while (!under_way_.empty()) CompleteOldest();
  Add(1, 'c', 1, absl::InfiniteDuration());
  EXPECT_EQ(Fill(), "");
  scheduler_->TakeOutOverdue(now_);
  EXPECT_EQ(Fill(), "c");
}

TEST_F(PullSchedulerTest, DispatchAsksConnectionsToPost) {
  ASSERT_NO_FATAL_FAILURE(Make(SmallOptions()));
  Add(0, 'a', 2, 100 * kMs);
  Add(1, 'b', 2, 200 * kMs);
  connections_[0]->next_result = PullConnection::Post::Result::kWait;
  connections_[1]->at_most = 100;  // ends of ranges
  EXPECT_EQ(scheduler_->Dispatch(now_), 16) << "16 gets, small ones";
  EXPECT_EQ(scheduler_->window().outstanding(), 1600u);
  EXPECT_EQ(pulls_[1]->remaining(), 400u);
  connections_[0]->next_result = PullConnection::Post::Result::kPosted;
  EXPECT_EQ(scheduler_->Dispatch(now_), 0) << "held";
  scheduler_->Release(connection(0));
  EXPECT_EQ(scheduler_->Dispatch(now_), 2);
  EXPECT_EQ(pulls_[0]->remaining(), 0u);
}

TEST_F(PullSchedulerTest, MarksAreTakenNowAndThenWhileThereArePulls) {
  PullScheduler::Options options = SmallOptions();
  options.window.min_chunks = 1;
  options.window.gain = 4;
  Make(options);
  FakeMarks marks;
  scheduler_->WatchMarks(&marks);
  scheduler_->Dispatch(now_);
  EXPECT_EQ(marks.calls, 0) << "nothing is pulled, so marks are not ours";
  Add(0, 'a', 100, absl::InfiniteDuration());
  // No device counts them: the window stays.
  EXPECT_EQ(scheduler_->Dispatch(now_), 4);
  EXPECT_EQ(marks.calls, 1);
  EXPECT_EQ(scheduler_->window().bytes(), 4 * kChunk);
  // Marks are not read again before the interval is over.
  marks.next = 1000;
  now_ += options.marks_interval - absl::Nanoseconds(1);
  scheduler_->Dispatch(now_);
  EXPECT_EQ(marks.calls, 1);
  now_ += absl::Nanoseconds(1);
  scheduler_->Dispatch(now_);
  EXPECT_EQ(marks.calls, 2);
  EXPECT_EQ(scheduler_->window().bytes(), 2 * kChunk);
  marks.next = 0;
  for (int i = 0; i < 2; ++i) {
    now_ += options.marks_interval;
    scheduler_->Dispatch(now_);
  }
  EXPECT_EQ(scheduler_->window().bytes(), 4 * kChunk);
}

}  // namespace
}  // namespace refract::transport

// The start queue in virtual time: workers and GPU nodes of known speed, load
// of known rate, and the requests that are answered within their deadlines.
#include "cpu_node/dispatch/start_queue.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::cpu_node {
namespace {

using ::testing::HasSubstr;

constexpr auto Ms = [](double ms) { return absl::Milliseconds(ms); };
const absl::Time kBegin = absl::FromUnixSeconds(1000);

struct Traffic {
  double rate = 0;  // per second
  PartTimes times;  // means
  absl::Duration deadline = Ms(100);
  double spread = 0;  // times vary by this part of the mean, uniformly
  std::optional<uint8_t> priority = {};  // with a priority: of model 0
};

struct Count {
  int asked = 0, in_time = 0, late = 0, refused = 0, dropped = 0;
};

// Open-loop load on `workers` workers and GPU nodes that hold `slots` requests
// of which `parallel` execute at once, first come, first served.
class Node {
 public:
  Node(int workers, std::vector<Traffic> traffic, uint64_t seed,
       int slots = 1 << 20, int parallel = 1 << 20)
      : traffic_(std::move(traffic)),
        slots_(slots),
        parallel_(parallel),
        generator_(seed),
        queue_(OptionsOf(workers, traffic_.size())),
        free_at_(workers, absl::InfinitePast()),
        counts_(traffic_.size()) {}

  // Counts requests that come after the first second.
  std::vector<Count> Run(absl::Duration time) {
    for (size_t i = 0; i < traffic_.size(); ++i) ScheduleArrival(i);
    const absl::Time end = kBegin + time;
    while (!events_.empty() && events_.top().at < end) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      Handle(event);
      Dispatch();
    }
    return counts_;
  }

 private:
  struct Request final : public StartQueue::Job {
    bool Reserve() override {
      if (!needs_slot || *free_slots == 0) return !needs_slot;
      --*free_slots;
      return true;
    }
    bool abandoned() const override { return false; }
    size_t traffic = 0;
    absl::Time arrived;
    PartTimes times;
    bool needs_slot = false;
    int* free_slots = nullptr;
  };
  enum class What { kArrival, kStarted, kAnswered, kFinished };
  struct Event {
    absl::Time at;
    uint64_t order = 0;
    What what = What::kArrival;
    size_t traffic = 0;
    size_t worker = 0;
    Request* request = nullptr;
    bool operator<(const Event& other) const {  // the earliest is on top
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  static StartQueue::Options OptionsOf(int workers, size_t models) {
    StartQueue::Options options{.workers = workers};
    for (size_t i = 0; i < models; ++i) {
      options.models.push_back({"model " + std::to_string(i)});
    }
    return options;
  }
  void Add(Event event) {
    event.order = events_added_++;
    events_.push(event);
  }
  void ScheduleArrival(size_t i) {
    std::exponential_distribution<double> gap(traffic_[i].rate);
    Add({.at = now_ + absl::Seconds(gap(generator_)), .traffic = i});
  }
  absl::Duration Vary(absl::Duration mean, double spread) {
    return mean * std::uniform_real_distribution<double>(
                      1 - spread, 1 + spread)(generator_);
  }
  Count& CountOf(const Request& request) {
    static Count warm_up;
    return request.arrived < kBegin + absl::Seconds(1)
               ? warm_up
               : counts_[request.traffic];
  }

  void Handle(const Event& event) {
    switch (event.what) {
      case What::kArrival: {
        ScheduleArrival(event.traffic);
        const Traffic& traffic = traffic_[event.traffic];
        auto* request = new Request();
        requests_.emplace_back(request);
        request->traffic = event.traffic;
        request->arrived = now_;
        request->times = {Vary(traffic.times.start, traffic.spread),
                          Vary(traffic.times.away, traffic.spread),
                          Vary(traffic.times.finish, traffic.spread)};
        request->needs_slot = traffic.times.away > absl::ZeroDuration();
        request->free_slots = &slots_;
        request->priority = traffic.priority.value_or(0);
        const size_t model = traffic.priority.has_value() ? 0 : event.traffic;
        ++CountOf(*request).asked;
        const absl::Status status =
            queue_.Admit(*request, model, 1, now_ + traffic.deadline,
                         now_, free_at_);
        if (!status.ok()) ++CountOf(*request).refused;
        break;
      }
      case What::kStarted:
        free_at_[event.worker] = absl::InfinitePast();
        busy_ -= 1;
        idle_.push_back(event.worker);
        if (event.request->needs_slot) {
          at_gpu_.push_back(event.request);
          sent_[event.request] = now_;
          Execute();
        } else {
          End(event.request);
        }
        break;
      case What::kAnswered:
        --executing_;
        ++slots_;
        event.request->times.away = now_ - sent_[event.request];
        finishing_.push_back(event.request);
        Execute();
        break;
      case What::kFinished:
        busy_ -= 1;
        idle_.push_back(event.worker);
        End(event.request);
        break;
    }
  }

  void Execute() {
    while (executing_ < parallel_ && !at_gpu_.empty()) {
      Request* request = at_gpu_.front();
      at_gpu_.pop_front();
      ++executing_;
      Add({.at = now_ + request->times.away,
           .what = What::kAnswered,
           .request = request});
    }
  }

  void End(Request* request) {
    const bool in_time =
        now_ <= request->arrived + traffic_[request->traffic].deadline;
    ++(in_time ? CountOf(*request).in_time : CountOf(*request).late);
    queue_.End(*request, request->times, true, now_);
  }

  // Gives free workers something to do.
  void Dispatch() {
    if (idle_.empty() && busy_ == 0) {
      for (size_t i = 0; i < free_at_.size(); ++i) idle_.push_back(i);
    }
    while (!idle_.empty()) {
      Request* request = nullptr;
      What what = What::kFinished;
      absl::Duration time;
      if (!finishing_.empty()) {
        request = finishing_.front();
        finishing_.pop_front();
        time = request->times.finish;
      } else {
        const std::optional<StartQueue::Turn> turn = queue_.Next(now_);
        if (!turn.has_value()) return;
        request = static_cast<Request*>(turn->job);
        if (!turn->refused.ok()) {
          ++CountOf(*request).dropped;
          continue;
        }
        what = What::kStarted;
        time = request->times.start;
        free_at_[idle_.back()] = now_ + turn->time;
      }
      Add({.at = now_ + time,
           .what = what,
           .worker = idle_.back(),
           .request = request});
      idle_.pop_back();
      ++busy_;
    }
  }

  const std::vector<Traffic> traffic_;
  int slots_;
  const int parallel_;
  std::mt19937_64 generator_;
  StartQueue queue_;
  std::vector<absl::Time> free_at_;
  std::vector<Count> counts_;
  absl::Time now_ = kBegin;
  std::priority_queue<Event> events_;
  uint64_t events_added_ = 0;
  std::vector<std::unique_ptr<Request>> requests_;
  std::deque<Request*> finishing_, at_gpu_;
  std::map<Request*, absl::Time> sent_;
  std::vector<size_t> idle_;
  int busy_ = 0;
  int executing_ = 0;
};

// Requests answered in time ÷ requests that the node can answer.
double Goodput(const Count& count, absl::Duration time, double capacity) {
  return count.in_time / (absl::ToDoubleSeconds(time) - 1) / capacity;
}

TEST(StartQueueLoadTest, GoodputStaysUnderOverload) {
  constexpr absl::Duration kTime = absl::Seconds(11);
  for (const double spread : {0.0, 0.5}) {
    for (const double load : {0.8, 1.0, 1.5, 2.0, 3.0, 10.0}) {
      // Two workers of 1.25 ms a request: 1,600 a second.
      Node node(2,
                {{.rate = 1600 * load,
                  .times = {Ms(1), Ms(5), Ms(0.25)},
                  .spread = spread}},
                /*seed=*/1);
      const Count count = node.Run(kTime)[0];
      EXPECT_GE(Goodput(count, kTime, 1600 * std::min(load, 1.0)), 0.95)
          << load << " " << spread << ": " << count.in_time << " in time, "
          << count.late << " late, " << count.refused << " refused, "
          << count.dropped << " dropped of " << count.asked;
    }
  }
}

TEST(StartQueueLoadTest, GoodputStaysWhereGpuNodesAreTheBottleneck) {
  constexpr absl::Duration kTime = absl::Seconds(11);
  for (const double load : {1.0, 2.0, 3.0}) {
    // One execution of 2 ms at a time: 500 a second. 64 slots: 128 ms of work,
    // more than the deadline.
    Node node(2,
              {{.rate = 500 * load,
                .times = {Ms(0.1), Ms(2), Ms(0.1)},
                .spread = 0.2}},
              /*seed=*/2, /*slots=*/64, /*parallel=*/1);
    const Count count = node.Run(kTime)[0];
    EXPECT_GE(Goodput(count, kTime, 500), 0.9)
        << load << ": " << count.in_time << " in time, " << count.late
        << " late, " << count.refused << " refused, " << count.dropped
        << " dropped of " << count.asked;
  }
}

TEST(StartQueueLoadTest, ALightModelIsAnsweredBesideAHeavyOneThatOverloads) {
  // Requests of 20 ms at twice the rate that the workers can serve, and 5 % of
  // light requests.
  Node node(2,
            {{.rate = 200, .times = {Ms(20)}, .spread = 0.2},
             {.rate = 50, .times = {Ms(2)}, .spread = 0.2}},
            /*seed=*/3);
  const std::vector<Count> counts = node.Run(absl::Seconds(21));
  EXPECT_GE(counts[1].in_time, 0.98 * counts[1].asked);
  // The heavy model has the rest: 95 requests a second.
  EXPECT_GE(counts[0].in_time / 20.0, 0.9 * 95);
}

TEST(StartQueueLoadTest, LowPrioritiesAreShedFirst) {
  constexpr absl::Duration kTime = absl::Seconds(11);
  // 500 requests a second can be answered: by the workers, or by GPU nodes.
  for (const PartTimes& times :
       {PartTimes{Ms(3), {}, Ms(1)}, PartTimes{Ms(0.1), Ms(2), Ms(0.1)}}) {
    for (const double load : {1.5, 3.0}) {
      Node node(2,
                {{.rate = 300, .times = times, .spread = 0.2, .priority = 0},
                 {.rate = 500 * load - 300,
                  .times = times,
                  .spread = 0.2,
                  .priority = 1}},
                /*seed=*/5, /*slots=*/8, /*parallel=*/1);
      const std::vector<Count> counts = node.Run(kTime);
      EXPECT_GE(counts[0].in_time, 0.98 * counts[0].asked) << load;
      // The lower level has the rest.
      EXPECT_GE(Goodput(counts[1], kTime, 500 - 300), 0.75) << load;
    }
  }
}

TEST(StartQueueLoadTest, TimesThatWereTooLongAreFoundOut) {
  // A second of requests that need more than the deadline, then fast ones: the
  // predictions refuse all at first.
  Node node(1, {{.rate = 100, .times = {Ms(1)}}}, /*seed=*/4);
  Node slow(1, {{.rate = 100, .times = {Ms(150)}}}, /*seed=*/4);
  EXPECT_EQ(slow.Run(absl::Seconds(3))[0].in_time, 0);
  EXPECT_GE(node.Run(absl::Seconds(3))[0].in_time, 180);
}

class PlainJob final : public StartQueue::Job {
 public:
  bool Reserve() override { return room; }
  bool abandoned() const override { return gone; }
  bool room = true;
  bool gone = false;
};

const std::vector<absl::Time> kIdle = {absl::InfinitePast()};

TEST(StartQueueTest, EarliestDeadlineFirstAndModelsWithRoomOnly) {
  StartQueue queue({.workers = 1, .models = {{"a"}, {"b"}}});
  PlainJob late, early, other;
  late.room = early.room = false;
  const auto admit = [&](PlainJob& job, size_t model, double deadline_ms) {
    EXPECT_TRUE(
        queue.Admit(job, model, 1, kBegin + Ms(deadline_ms), kBegin, kIdle)
            .ok());
  };
  admit(late, 0, 50);
  admit(early, 0, 20);
  admit(other, 1, 90);
  EXPECT_EQ(queue.NextExpiry(), kBegin + Ms(20));
  EXPECT_EQ(queue.Next(kBegin)->job, &other);
  EXPECT_FALSE(queue.Next(kBegin).has_value());
  late.room = early.room = true;
  EXPECT_EQ(queue.Next(kBegin)->job, &early);
  const std::optional<StartQueue::Turn> expired = queue.Next(kBegin + Ms(50));
  EXPECT_EQ(expired->job, &late);
  EXPECT_EQ(expired->refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(queue.waiting(), 0);
}

TEST(StartQueueTest, ATooLongRequestIsRefusedButTriedNowAndThen) {
  StartQueue queue({.workers = 1, .models = {{"a"}}});
  absl::Time now = kBegin;
  const auto run = [&](absl::Duration time) {
    PlainJob job;
    const absl::Status status =
        queue.Admit(job, 0, 1, now + Ms(100), now, kIdle);
    if (!status.ok()) return status;
    EXPECT_TRUE(queue.Next(now)->refused.ok());
    now += time;
    queue.End(job, {.start = time}, true, now);
    return status;
  };
  EXPECT_TRUE(run(Ms(150)).ok());
  const absl::Status refused = run(Ms(1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("an idle CN"));
  now += absl::Seconds(1);
  EXPECT_TRUE(run(Ms(1)).ok());  // the probe, which was fast
  EXPECT_TRUE(run(Ms(1)).ok());
}

TEST(StartQueueTest, ForeseesRefusalsOfEveryRequest) {
  StartQueue queue({.workers = 1, .models = {{"a"}}});
  const absl::Time deadline = kBegin + Ms(100);
  const auto foresee = [&] {
    return queue.Foresee(0, 0, 1, deadline, kBegin, kIdle).code();
  };
  EXPECT_EQ(foresee(), absl::StatusCode::kOk);
  PlainJob measured;
  EXPECT_TRUE(queue.Admit(measured, 0, 1, deadline, kBegin, kIdle).ok());
  EXPECT_TRUE(queue.Next(kBegin)->refused.ok());
  queue.End(measured, {.start = Ms(20)}, true, kBegin);
  std::vector<PlainJob> jobs(8);
  size_t admitted = 0;
  // Waits count 1.25 times: 20 + 1.25 · 60 = 95 ms for the fourth.
  while (foresee() == absl::StatusCode::kOk && admitted < jobs.size()) {
    EXPECT_TRUE(
        queue.Admit(jobs[admitted++], 0, 1, deadline, kBegin, kIdle).ok());
  }
  EXPECT_EQ(admitted, 4);
  EXPECT_EQ(foresee(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(queue.waiting(), 4);
}

TEST(StartQueueTest, ASlowAnswerAloneDoesNotRefuseABurst) {
  // The only measured request was alone at the GPU node, with a slow answer.
  // 64 requests in flight and 192 that wait are no reason to expect 256 times
  // that answer's time: most of it may be a fixed cost.
  StartQueue queue({.workers = 1, .models = {{"a"}}});
  const absl::Time deadline = kBegin + Ms(2000);
  PlainJob alone;
  EXPECT_TRUE(queue.Admit(alone, 0, 32, deadline, kBegin, kIdle).ok());
  EXPECT_TRUE(queue.Next(kBegin)->refused.ok());
  queue.End(alone, {.start = Ms(0.1), .away = Ms(34), .finish = Ms(0.1)}, true,
            kBegin);
  std::vector<PlainJob> jobs(256);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const absl::Status status =
        queue.Admit(jobs[i], 0, 32, deadline, kBegin, kIdle);
    ASSERT_TRUE(status.ok()) << i << ": " << status;
    if (i < 64) {
      EXPECT_TRUE(queue.Next(kBegin)->refused.ok());
    }
  }
}

TEST(StartQueueTest, AModelHasItsPlacesBesideAModelThatFillsTheQueue) {
  StartQueue queue({.workers = 1, .max_queue = 4, .models = {{"a"}, {"b"}}});
  std::vector<PlainJob> jobs(8);
  const auto admit = [&](size_t job, size_t model) {
    return queue
        .Admit(jobs[job], model, 1, absl::InfiniteFuture(), kBegin, kIdle)
        .code();
  };
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(admit(i, 0), absl::StatusCode::kOk);
  EXPECT_EQ(admit(4, 0), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(admit(5, 1), absl::StatusCode::kOk);
  EXPECT_EQ(admit(6, 1), absl::StatusCode::kOk);
  EXPECT_EQ(admit(7, 1), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(queue.waiting(0), 4);
  EXPECT_EQ(queue.waiting(1), 2);
}

TEST(StartQueueTest, PlacesFollowTheShares) {
  const StartQueue::Options options = {
      .workers = 1, .max_queue = 8, .models = {{"a", 3}, {"b", 1}}};
  // A model has its share of a queue that the other model has filled.
  for (const auto& [model, places] : {std::pair<size_t, size_t>{0, 6}, {1, 2}}) {
    StartQueue queue(options);
    std::vector<PlainJob> jobs(16);
    size_t next = 0;
    const auto admit = [&](size_t to) {
      return queue
          .Admit(jobs[next++], to, 1, absl::InfiniteFuture(), kBegin, kIdle)
          .ok();
    };
    for (size_t i = 0; i < options.max_queue; ++i) EXPECT_TRUE(admit(1 - model));
    for (size_t i = 0; i < places; ++i) EXPECT_TRUE(admit(model)) << model;
    EXPECT_FALSE(admit(model)) << model;
  }
}

TEST(StartQueueTest, LevelsGoInTheirOrder) {
  StartQueue queue({.workers = 1, .models = {{"a"}}});
  std::vector<PlainJob> jobs(4);
  const uint8_t levels[] = {2, 1, 0, 1};
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].priority = levels[i];
    EXPECT_TRUE(queue
                    .Admit(jobs[i], 0, 1, kBegin + Ms(100 - 10 * double(i)),
                           kBegin, kIdle)
                    .ok());
  }
  EXPECT_EQ(queue.waiting(), 4);
  EXPECT_EQ(queue.NextExpiry(), kBegin + Ms(70));
  EXPECT_EQ(queue.Next(kBegin)->job, &jobs[2]);
  EXPECT_EQ(queue.Next(kBegin)->job, &jobs[3]);  // the earlier deadline
  EXPECT_EQ(queue.Next(kBegin)->job, &jobs[1]);
  EXPECT_EQ(queue.Next(kBegin)->job, &jobs[0]);
}

TEST(StartQueueTest, ALowLevelIsAnsweredAtItsDeadlineThoughHigherOnesWait) {
  StartQueue queue({.workers = 1, .models = {{"a"}}});
  PlainJob high, low;
  low.priority = 1;
  high.room = false;
  EXPECT_TRUE(queue.Admit(high, 0, 1, kBegin + Ms(90), kBegin, kIdle).ok());
  EXPECT_TRUE(queue.Admit(low, 0, 1, kBegin + Ms(50), kBegin, kIdle).ok());
  EXPECT_EQ(queue.NextExpiry(), kBegin + Ms(50));
  EXPECT_FALSE(queue.Next(kBegin).has_value());
  const std::optional<StartQueue::Turn> turn = queue.Next(kBegin + Ms(50));
  ASSERT_TRUE(turn.has_value());
  EXPECT_EQ(turn->job, &low);
  EXPECT_EQ(turn->refused.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(StartQueueTest, AFullQueueMakesRoomForHigherLevels) {
  StartQueue queue({.workers = 1, .max_queue = 3, .models = {{"a"}}});
  std::vector<PlainJob> jobs(6);
  const auto admit = [&](size_t job, uint8_t level) {
    jobs[job].priority = level;
    return queue
        .Admit(jobs[job], 0, 1, absl::InfiniteFuture(), kBegin, kIdle)
        .code();
  };
  EXPECT_EQ(admit(0, 1), absl::StatusCode::kOk);
  EXPECT_EQ(admit(1, 2), absl::StatusCode::kOk);
  EXPECT_EQ(admit(2, 2), absl::StatusCode::kOk);
  EXPECT_EQ(admit(3, 2), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(admit(4, 0), absl::StatusCode::kOk);
  EXPECT_EQ(queue.waiting(), 3);
  // The last of the lowest level made room.
  const std::optional<StartQueue::Turn> displaced = queue.Next(kBegin);
  EXPECT_EQ(displaced->job, &jobs[2]);
  EXPECT_EQ(displaced->refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(displaced->refused.message(), HasSubstr("higher priority"));
  EXPECT_EQ(admit(5, 1), absl::StatusCode::kOk);
  EXPECT_EQ(queue.TakeAny(), &jobs[1]);
  EXPECT_EQ(queue.Next(kBegin)->job, &jobs[4]);
  EXPECT_EQ(queue.Next(kBegin)->job, &jobs[0]);
  EXPECT_EQ(queue.Next(kBegin)->job, &jobs[5]);
  EXPECT_EQ(queue.waiting(), 0);
}

TEST(StartQueueTest, ARequestThatNobodyWaitsForIsNotStarted) {
  StartQueue queue({.workers = 1, .models = {{"a"}}});
  PlainJob job;
  EXPECT_TRUE(
      queue.Admit(job, 0, 1, absl::InfiniteFuture(), kBegin, kIdle).ok());
  job.gone = true;
  EXPECT_EQ(queue.Next(kBegin)->refused.code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace refract::cpu_node

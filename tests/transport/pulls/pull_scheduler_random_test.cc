// Random use of the scheduler of pulls beside a model that looks at everything
// each time.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/base/random_seed.h"
#include "transport/pulls/pull_scheduler.h"

namespace refract::transport {
namespace {

constexpr size_t kRandomChunk = 1000;

// The same rules by looking at everything each time.
class Model {
 public:
  struct Pull {
    ScheduledPull* id;
    size_t connection;
    size_t remaining;
    absl::Time deadline;
    int sequence;
    bool late = false;
  };
  struct Connection {
    bool held = false;
    bool at_cap = false;
    size_t outstanding = 0;
    size_t gets = 0;
  };

  bool Before(const Pull& a, const Pull& b) const {
    if (a.deadline != b.deadline) return a.deadline < b.deadline;
    if (a.deadline != absl::InfiniteFuture() && a.remaining != b.remaining) {
      return a.remaining < b.remaining;
    }
    return a.sequence < b.sequence;
  }
  bool Ready(const Pull& pull) const {
    const Connection& connection = connections[pull.connection];
    return pull.remaining > 0 && !connection.held && !connection.at_cap;
  }
  // 0 urgent, 1 background, 2 late.
  static int ClassOf(const Pull& pull) {
    if (pull.late) return 2;
    return pull.deadline == absl::InfiniteFuture() ? 1 : 0;
  }
  Pull* First(int which, const PullWindow& window, size_t max_gets,
              size_t active) {
    while (true) {
      Pull* best = nullptr;
      for (Pull& pull : pulls) {
        if (ClassOf(pull) != which || !Ready(pull)) continue;
        if (best == nullptr || Before(pull, *best)) best = &pull;
      }
      if (best == nullptr) return nullptr;
      Connection& connection = connections[best->connection];
      const size_t bytes = std::min(best->remaining, kRandomChunk);
      const bool has_share =
          connection.outstanding + bytes <= 2 * kRandomChunk ||
          connection.outstanding < window.bytes() / active;
      if (connection.gets == 0 || (connection.gets < max_gets && has_share)) {
        return best;
      }
      connection.at_cap = true;
    }
  }
  Pull* Next(const PullWindow& window, size_t max_gets, size_t active,
             absl::Time now) {
    active = std::max<size_t>(active, 1);
    Pull* turn = nullptr;
    Pull* background = nullptr;
    for (Pull& pull : pulls) {
      if (ClassOf(pull) != 1 || !Ready(pull)) continue;
      if (background == nullptr || Before(pull, *background)) {
        background = &pull;
      }
    }
    if (background != nullptr &&
        owed >= static_cast<double>(
                    std::min(background->remaining, kRandomChunk))) {
      turn = First(1, window, max_gets, active);
    }
    while (turn == nullptr) {
      turn = First(0, window, max_gets, active);
      if (turn == nullptr) break;
      const size_t bytes = window.outstanding() + turn->remaining;
      const double rate = window.bytes_per_second();
      // No pull is late for its length while the rate is unknown.
      const absl::Duration need =
          rate == 0 ? absl::ZeroDuration()
                    : absl::Seconds(static_cast<double>(bytes) / rate);
      if (need <= turn->deadline - now) break;
      turn->late = true;
      ++num_late;
      turn = nullptr;
    }
    if (turn == nullptr) turn = First(1, window, max_gets, active);
    if (turn == nullptr) turn = First(2, window, max_gets, active);
    if (turn == nullptr) return nullptr;
    return window.HasRoom() ? turn : nullptr;
  }
  void Posted(Pull& pull, size_t bytes, const PullWindow& window) {
    if (ClassOf(pull) == 1) {
      owed = std::max(owed - static_cast<double>(bytes), 0.0);
    } else if (std::none_of(pulls.begin(), pulls.end(), [&](const Pull& other) {
                 return ClassOf(other) == 1 && Ready(other);
               })) {
      owed = 0;
    } else {
      owed =
          std::min(owed + 0.05 * static_cast<double>(bytes),
                   std::max<double>(kRandomChunk,
                                    0.05 * 1e-3 * window.bytes_per_second()));
    }
    pull.remaining -= bytes;
    Connection& connection = connections[pull.connection];
    connection.outstanding += bytes;
    ++connection.gets;
  }

  std::vector<Pull> pulls;  // with bytes left
  std::vector<Connection> connections;
  double owed = 0;
  size_t num_late = 0;  // times that a pull became late
};

class RandomConnection final : public PullConnection {
 public:
  Post PostChunk(ScheduledPull&, size_t bytes, absl::Time) override {
    return {Post::Result::kPosted, bytes};
  }
};

TEST(PullSchedulerRandomTest, RandomUseAgreesWithAModelThatLooksAtEverything) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  absl::Time now = absl::FromUnixSeconds(1000);
  constexpr size_t kConnections = 5;
  constexpr size_t kMaxGets = 6;
  PullScheduler::Options options;
  options.window.chunk_bytes = kRandomChunk;
  PullScheduler scheduler(options);
  std::vector<RandomConnection> connections(kConnections);
  Model model;
  model.connections.resize(kConnections);
  for (RandomConnection& connection : connections) {
    scheduler.Attach(&connection, kMaxGets);
  }
  struct Live {
    std::unique_ptr<ScheduledPull> pull;
    size_t connection;
  };
  struct Get {
    ScheduledPull* pull;
    size_t connection;
    size_t bytes;
  };
  std::vector<Live> live;  // not done
  std::vector<Get> gets;
  int sequence = 0;
  uint64_t turns = 0;
  const auto drop_if_done = [&](ScheduledPull* pull) {
    if (!pull->done()) return;
    std::erase_if(live, [&](const Live& l) { return l.pull.get() == pull; });
  };
  const auto drop_from_model = [&](ScheduledPull* pull) {
    std::erase_if(model.pulls,
                  [&](const Model::Pull& p) { return p.id == pull; });
  };
  for (int step = 0; step < 60'000; ++step) {
    now += absl::Microseconds(random() % 200);
    const size_t which = random() % kConnections;
    switch (random() % 12) {
      case 0:
      case 1: {
        if (live.size() > 40) break;
        auto pull = std::make_unique<ScheduledPull>();
        const size_t bytes =
            1 + random() % (random() % 2 ? 500 : 20 * kRandomChunk);
        absl::Time deadline = absl::InfiniteFuture();
        if (random() % 4 != 0) {
          // Few values, so that there are ties.
          deadline = absl::FromUnixMillis(absl::ToUnixMillis(now) +
                                          static_cast<int>(random() % 40));
        }
        scheduler.Add(&connections[which], pull.get(), bytes, deadline);
        model.pulls.push_back({pull.get(), which, bytes, deadline, sequence++});
        live.push_back({std::move(pull), which});
        break;
      }
      case 2: {
        if (live.empty() || random() % 4 != 0) break;
        const Live& victim = live[random() % live.size()];
        ScheduledPull* pull = victim.pull.get();
        scheduler.Cancel(&connections[victim.connection], pull);
        drop_from_model(pull);
        drop_if_done(pull);
        break;
      }
      case 3: {
        scheduler.Hold(&connections[which]);
        model.connections[which].held = true;
        break;
      }
      case 4:
      case 5: {
        scheduler.Release(&connections[which]);
        model.connections[which].held = false;
        break;
      }
      case 6: {
        if (random() % 20 != 0) break;
        scheduler.Detach(&connections[which]);
        connections[which].~RandomConnection();
        new (&connections[which]) RandomConnection();
        scheduler.Attach(&connections[which], kMaxGets);
        std::erase_if(model.pulls, [&](const Model::Pull& p) {
          return p.connection == which;
        });
        std::erase_if(live,
                      [&](const Live& l) { return l.connection == which; });
        std::erase_if(gets,
                      [&](const Get& g) { return g.connection == which; });
        model.connections[which] = {};
        break;
      }
      case 7:
      case 8:
      case 9: {
        if (gets.empty()) break;
        const size_t at = random() % gets.size();
        const Get get = gets[at];
        gets.erase(gets.begin() + static_cast<ptrdiff_t>(at));
        scheduler.Completed(&connections[get.connection], get.pull, get.bytes,
                            now);
        Model::Connection& connection = model.connections[get.connection];
        --connection.gets;
        connection.outstanding -= get.bytes;
        connection.at_cap = false;
        drop_if_done(get.pull);
        break;
      }
      default: {
        std::set<size_t> active;
        for (const Live& l : live) active.insert(l.connection);
        Model::Pull* expected =
            model.Next(scheduler.window(), kMaxGets, active.size(), now);
        const auto turn = scheduler.Next(now);
        ASSERT_EQ(turn.has_value(), expected != nullptr) << "step " << step;
        if (!turn.has_value()) break;
        ++turns;
        ASSERT_EQ(turn->pull, expected->id) << "step " << step;
        ASSERT_EQ(turn->connection, &connections[expected->connection]);
        ASSERT_EQ(turn->bytes, std::min(expected->remaining, kRandomChunk));
        const size_t bytes =
            random() % 3 == 0 ? 1 + random() % turn->bytes : turn->bytes;
        model.Posted(*expected, bytes, scheduler.window());
        gets.push_back({turn->pull, expected->connection, bytes});
        scheduler.Posted(*turn, bytes, now);
        if (expected->remaining == 0) drop_from_model(turn->pull);
        break;
      }
    }
    size_t outstanding = 0;
    for (const Get& get : gets) outstanding += get.bytes;
    ASSERT_EQ(scheduler.window().outstanding(), outstanding);
  }
  EXPECT_GT(turns, 5'000u);
  EXPECT_GT(model.num_late, 100u);
}

}  // namespace
}  // namespace refract::transport

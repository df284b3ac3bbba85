#include "cpu_node/places.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::cpu_node {
namespace {

// One model as a test sets it up.
struct Holder {
  int taken = 0;
  bool asks = false;
};

Places PlacesOf(const std::vector<Holder>& models, int count = 64) {
  Places places(models.size(), count);
  for (size_t i = 0; i < models.size(); ++i) {
    places.SetServed(i, true);
    places.SetAsks(i, models[i].asks);
    for (int taken = 0; taken < models[i].taken; ++taken) places.Take(i);
  }
  return places;
}

// How many places a model gets that takes all it can.
int MostOf(size_t model, Places places) {
  places.SetAsks(model, true);
  while (places.MayTake(model)) places.Take(model);
  return places.taken(model);
}
int MostOf(size_t model, const std::vector<Holder>& models, int count = 64) {
  return MostOf(model, PlacesOf(models, count));
}

TEST(PlacesTest, OneModelAloneHasAll) {
  EXPECT_EQ(MostOf(0, {{}}), 64);
  EXPECT_EQ(MostOf(0, {{}}, 1), 1);
}

TEST(PlacesTest, HalfAreDividedAmongThoseThatAsk) {
  EXPECT_EQ(MostOf(0, {{}, {.asks = true}}), 48);
  // What the other has is not kept besides.
  EXPECT_EQ(MostOf(0, {{}, {.taken = 10, .asks = true}}), 48);
  EXPECT_EQ(MostOf(0, {{}, {.taken = 30, .asks = true}}), 34);
  EXPECT_EQ(MostOf(0, {{}, {.asks = true}, {.asks = true}, {.asks = true}}),
            64 - 3 * 8);
  EXPECT_EQ(MostOf(1, {{.taken = 48, .asks = true}, {}}), 16);
}

TEST(PlacesTest, OneIsKeptForModelsThatDoNotAskYet) {
  EXPECT_EQ(MostOf(0, {{}, {}, {}}), 63);
  EXPECT_EQ(MostOf(1, {{.taken = 63, .asks = true}, {}, {}}), 1);
}

TEST(PlacesTest, NoneIsKeptForModelsThatTheNodeDoesNotServe) {
  Places places = PlacesOf({{}, {.asks = true}});
  places.SetServed(1, false);
  EXPECT_EQ(MostOf(0, places), 64);
  places.SetServed(1, true);
  EXPECT_EQ(MostOf(0, places), 48);
  places.SetAsks(1, false);
  EXPECT_EQ(MostOf(0, places), 63);
}

TEST(PlacesTest, EveryModelOfManyHasOne) {
  std::vector<Holder> models(60, {.taken = 1, .asks = true});
  models[0].taken = 0;
  EXPECT_EQ(MostOf(0, models), 5);
}

// However many ask now and then, one that asks for more is not left with fewer
// than half of the places.
TEST(PlacesTest, HalfAreKeptAtMost) {
  for (const size_t count : {33, 60, 64, 100, 200}) {
    const std::vector<Holder> models(count, {.asks = true});
    EXPECT_EQ(MostOf(7, models), 32) << count;
  }
  std::vector<Holder> models(200, {.asks = true});
  models[7].taken = 32;
  for (size_t other = 100; other < 132; ++other) {
    EXPECT_EQ(MostOf(other, models), 1);
    models[other].taken = 1;
  }
  EXPECT_EQ(MostOf(0, models), 0);
  EXPECT_EQ(MostOf(0, std::vector<Holder>(3, {.asks = true}), 1), 1);
}

// The rule, from the whole state each time.
struct Slow {
  struct Model {
    int taken = 0;
    bool served = false;
    bool asks = false;
  };
  int places = 0;
  std::vector<Model> models;

  bool MayTake(size_t model) const {
    int taken = 0;
    int asking = 0;
    bool others_may_come = false;
    for (const Model& m : models) {
      taken += m.taken;
      asking += m.served && m.asks;
      others_may_come |= m.served && !m.asks;
    }
    if (taken >= places) return false;
    const int own = std::max(1, places / (2 * std::max(asking, 1)));
    if (models[model].taken < own) return true;
    int kept = 0;
    for (size_t i = 0; i < models.size(); ++i) {
      if (i == model || !models[i].served || !models[i].asks) continue;
      kept += std::max(0, own - models[i].taken);
    }
    return taken + std::min(kept, places / 2) + (others_may_come ? 1 : 0) <
           places;
  }
};

TEST(PlacesTest, AgreesWithTheRuleAfterAnySequenceOfChanges) {
  const uint64_t seed = base::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto below = [&](size_t end) { return random() % end; };
  int answers[2] = {0, 0};
  for (int round = 0; round < 20; ++round) {
    const size_t count = 1 + below(round % 4 == 0 ? 100 : 6);
    Slow slow{.places = static_cast<int>(1 + below(64)),
              .models = std::vector<Slow::Model>(count)};
    Places places(count, slow.places);
    for (int step = 0; step < 1000; ++step) {
      const size_t i = below(count);
      Slow::Model& model = slow.models[i];
      switch (below(16)) {
        case 0:
          model.served = below(4) != 0;
          places.SetServed(i, model.served);
          break;
        case 1:
          model.asks = below(4) != 0;
          places.SetAsks(i, model.asks);
          break;
        case 2:
        case 3:
        case 4:
        case 5:
          if (model.taken == 0) break;
          --model.taken;
          places.GiveBack(i);
          break;
        default: {
          // Requests come of models that are served, and so ask.
          model.served = true;
          model.asks = true;
          places.SetServed(i, true);
          places.SetAsks(i, true);
          const bool may = slow.MayTake(i);
          ASSERT_EQ(places.MayTake(i), may) << "step " << step;
          ++answers[may];
          if (!may) break;
          ++model.taken;
          places.Take(i);
          break;
        }
      }
      ASSERT_EQ(places.taken(i), model.taken);
    }
  }
  EXPECT_GT(answers[0], 100);
  EXPECT_GT(answers[1], 100);
}

}  // namespace
}  // namespace refract::cpu_node

#include "runtime/compile/buffer_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/base/random_seed.h"

namespace refract::runtime {
namespace {

using ::testing::ElementsAre;

TEST(BufferPlanTest, SharesOnlyAfterTheLastUse) {
  // A chain: only the next step reads each value.
  const BufferPlan chain =
      PlanBuffers({{0, 1, 64}, {1, 2, 64}, {2, 3, 64}, {3, 4, 64}});
  EXPECT_THAT(chain.buffer_of, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(chain.num_buffers, 2);
}

TEST(BufferPlanTest, ValuesOfOneStepDoNotShare) {
  const BufferPlan plan = PlanBuffers({{0, 0, 8}, {0, 0, 8}, {1, 1, 8}});
  EXPECT_EQ(plan.num_buffers, 2);
  EXPECT_NE(plan.buffer_of[0], plan.buffer_of[1]);
}

TEST(BufferPlanTest, TakesTheBufferThatWastesLeast) {
  // 100, 10 and 1000 are free at step 1; 50 fits best into 100.
  EXPECT_THAT(PlanBuffers({{0, 0, 100}, {0, 0, 10}, {0, 0, 1000}, {1, 1, 50}})
                  .buffer_of,
              ElementsAre(0, 1, 2, 0));
  // No buffer is large enough: the largest grows.
  EXPECT_THAT(PlanBuffers({{0, 0, 100}, {0, 0, 10}, {0, 0, 1000}, {1, 1, 5000}})
                  .buffer_of,
              ElementsAre(0, 1, 2, 2));
}

TEST(BufferPlanTest, OverlappingLifetimesNeverShare) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lifetimes;
    int step = 0;
    for (int i = 0; i < 40; ++i) {
      step += static_cast<int>(random() % 3);
      lifetimes.push_back({step, step + static_cast<int>(random() % 10),
                           static_cast<int64_t>(random() % 1000)});
    }
    const BufferPlan plan = PlanBuffers(lifetimes);
    ASSERT_EQ(plan.buffer_of.size(), lifetimes.size());
    int most_alive = 0;
    for (size_t a = 0; a < lifetimes.size(); ++a) {
      ASSERT_LT(plan.buffer_of[a], plan.num_buffers);
      int alive = 0;
      for (size_t b = 0; b < lifetimes.size(); ++b) {
        const bool overlap =
            lifetimes[a].first_step <= lifetimes[b].last_step &&
            lifetimes[b].first_step <= lifetimes[a].last_step;
        if (a != b && overlap) {
          ASSERT_NE(plan.buffer_of[a], plan.buffer_of[b]);
        }
        alive += lifetimes[b].first_step <= lifetimes[a].first_step &&
                 lifetimes[b].last_step >= lifetimes[a].first_step;
      }
      most_alive = std::max(most_alive, alive);
    }
    // Interval graphs need as many colours as intervals overlap.
    EXPECT_EQ(plan.num_buffers, most_alive);
  }
}

}  // namespace
}  // namespace refract::runtime

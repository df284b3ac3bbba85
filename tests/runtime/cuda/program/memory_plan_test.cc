#include "runtime/cuda/program/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "bench/cuda/dense_models.h"
#include "tests/base/random_seed.h"

namespace refract::runtime::cuda {
namespace {

using ::testing::ElementsAre;

TEST(PlanArenaTest, AChainTakesTwoPieces) {
  // Each value is read by the next step only.
  const Arena arena =
      PlanArena({{0, 1, 1000}, {1, 2, 1000}, {2, 3, 1000}, {3, 4, 1000}});
  EXPECT_EQ(arena.bytes, 2048);
  EXPECT_THAT(arena.offsets, ElementsAre(0, 1024, 0, 1024));
}

TEST(PlanArenaTest, SmallOnesShareTheHoleOfALargeOne) {
  // Both small ones live while the large one does not.
  const Arena arena = PlanArena({{0, 1, 4096}, {2, 3, 512}, {2, 3, 512}});
  EXPECT_EQ(arena.bytes, 4096);
}

TEST(PlanArenaTest, NothingAliveOverlaps) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<Lifetime> lifetimes;
    const int steps = 1 + static_cast<int>(random() % 30);
    for (int i = 0; i < 40; ++i) {
      const int first = static_cast<int>(random() % steps);
      lifetimes.push_back({first, first + static_cast<int>(random() % 8),
                           static_cast<int64_t>(random() % 5000)});
    }
    const Arena arena = PlanArena(lifetimes);
    ASSERT_EQ(arena.offsets.size(), lifetimes.size());
    int64_t separate = 0;
    for (size_t a = 0; a < lifetimes.size(); ++a) {
      separate += (lifetimes[a].bytes + 255) / 256 * 256;
      ASSERT_GE(arena.offsets[a], 0);
      ASSERT_EQ(arena.offsets[a] % kAllocationAlignBytes, 0);
      ASSERT_LE(arena.offsets[a] + lifetimes[a].bytes, arena.bytes);
      for (size_t b = 0; b < a; ++b) {
        const bool together =
            lifetimes[a].first_step <= lifetimes[b].last_step &&
            lifetimes[b].first_step <= lifetimes[a].last_step;
        const bool apart =
            arena.offsets[a] + lifetimes[a].bytes <= arena.offsets[b] ||
            arena.offsets[b] + lifetimes[b].bytes <= arena.offsets[a];
        ASSERT_TRUE(!together || apart || lifetimes[a].bytes == 0 ||
                    lifetimes[b].bytes == 0);
      }
    }
    // Never worse than no sharing, never better than what is alive at once.
    ASSERT_LE(arena.bytes, separate);
    for (int step = 0; step < steps; ++step) {
      int64_t alive = 0;
      for (const Lifetime& l : lifetimes) {
        if (l.first_step <= step && step <= l.last_step) alive += l.bytes;
      }
      ASSERT_GE(arena.bytes, alive);
    }
  }
}

TEST(BucketsTest, PowersOfTwoAndTheLargestItself) {
  EXPECT_THAT(Buckets(1), ElementsAre(1));
  EXPECT_THAT(Buckets(8), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(Buckets(100), ElementsAre(1, 2, 4, 8, 16, 32, 64, 100));
  EXPECT_THAT(Buckets(0), ElementsAre());
}

TEST(BucketsTest, TheSmallestThatTakesTheBatch) {
  const std::vector<int64_t> buckets = Buckets(100);
  EXPECT_EQ(BucketOf(buckets, 0), -1);
  EXPECT_EQ(BucketOf(buckets, -3), -1);
  EXPECT_EQ(BucketOf(buckets, 101), -1);
  for (int64_t batch = 1; batch <= 100; ++batch) {
    const int bucket = BucketOf(buckets, batch);
    ASSERT_GE(bucket, 0);
    EXPECT_GE(buckets[static_cast<size_t>(bucket)], batch);
    if (bucket > 0) {
      EXPECT_LT(buckets[static_cast<size_t>(bucket) - 1], batch);
    }
  }
}

TEST(PlanMemoryTest, EveryRootLiesInOnePlace) {
  for (const bench::DlrmShape& shape : {bench::MlperfV1(), [] {
                                          bench::DlrmShape small =
                                              bench::MlperfV2();
                                          small.tables = 3;
                                          return small;
                                        }()}) {
    const DeviceProgram program =
        bench::MakeDlrm("m", shape, bench::Precision::kFloat16, 64, 1).program;
    const MemoryPlan plan = PlanMemory(program, 16, 64);
    int64_t intermediates = 0;
    for (size_t i = 0; i < program.values.size(); ++i) {
      const auto id = static_cast<ValueId>(i);
      const Value& value = program.value(id);
      const int places = (plan.arena_offsets[i] >= 0) +
                         (plan.slot_offsets[i] >= 0) +
                         (plan.weight_offsets[i] >= 0);
      EXPECT_EQ(places, value.root == id ? 1 : 0) << value.name;
      if (plan.arena_offsets[i] >= 0) {
        intermediates += RootBytes(program, id, 16);
        EXPECT_LE(plan.arena_offsets[i] + RootBytes(program, id, 16),
                  plan.arena_bytes);
      }
      if (plan.slot_offsets[i] >= 0) {
        EXPECT_LE(plan.slot_offsets[i] + RootBytes(program, id, 64),
                  plan.slot_bytes);
      }
    }
    // Layers follow one another: memory is used again.
    EXPECT_LT(plan.arena_bytes, intermediates);
  }
}

}  // namespace
}  // namespace refract::runtime::cuda

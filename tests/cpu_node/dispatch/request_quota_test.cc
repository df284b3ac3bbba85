#include "cpu_node/dispatch/request_quota.h"

#include <cstddef>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::cpu_node {
namespace {

// How many more requests a model can send that sends all it may.
int Fill(RequestQuota& quota, size_t model) {
  int taken = 0;
  for (; quota.HasRoom(model); ++taken) quota.Take(model);
  return taken;
}

RequestQuota Shared(size_t models, int limit = 64) {
  RequestQuota quota(models, limit);
  quota.SetServed(models);
  return quota;
}

TEST(RequestQuotaTest, TheOnlyModelOfANodeHasAll) {
  RequestQuota quota(3, 64);
  quota.SetServed(1);
  EXPECT_EQ(Fill(quota, 1), 64);
  RequestQuota smallest(1, 1);
  EXPECT_EQ(Fill(smallest, 0), 1);
}

TEST(RequestQuotaTest, ABusyModelLeavesAQuarter) {
  RequestQuota quota = Shared(2);
  EXPECT_EQ(Fill(quota, 0), 48);
  // The other finds three quarters of the rest at once,
  EXPECT_EQ(Fill(quota, 1), 12);
  // and both have the same once requests end.
  while (quota.in_flight(0) > 0) {
    quota.Release(0);
    if (quota.HasRoom(1)) {
      quota.Take(1);
    } else {
      break;
    }
  }
  EXPECT_GT(quota.in_flight(1), 12);
}

// With n models that send all they can, each has 3 of 3 n + 1 parts.
TEST(RequestQuotaTest, BusyModelsEndUpWithEqualParts) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const size_t busy : {2, 3, 5}) {
    RequestQuota quota = Shared(8);
    Fill(quota, 0);  // has been alone for long
    for (int step = 0; step < 20000; ++step) {
      const size_t model = random() % busy;
      if (quota.in_flight(model) > 0 && random() % 2 == 0) quota.Release(model);
      for (size_t i = 0; i < busy; ++i) {
        const size_t asks = random() % busy;
        if (quota.HasRoom(asks)) quota.Take(asks);
      }
    }
    for (size_t i = 0; i < busy; ++i) Fill(quota, i);
    const double part = 64.0 * 3 / (3 * static_cast<double>(busy) + 1);
    for (size_t i = 0; i < busy; ++i) {
      EXPECT_NEAR(quota.in_flight(i), part, 3) << busy << " models, " << i;
    }
    // A model that has been quiet finds a place.
    EXPECT_GT(Fill(quota, 7), 0) << busy;
  }
}

TEST(RequestQuotaTest, NeverExceedsTheLimit) {
  for (const int limit : {1, 2, 3, 64}) {
    RequestQuota quota = Shared(100, limit);
    for (size_t model = 0; model < 100; ++model) Fill(quota, model);
    EXPECT_LE(quota.in_flight(), limit);
    EXPECT_GE(quota.in_flight(0), 1);
  }
}

TEST(RequestQuotaTest, ReleasingGivesRoomBack) {
  RequestQuota quota = Shared(2);
  Fill(quota, 0);
  EXPECT_FALSE(quota.HasRoom(0));
  quota.Release(0);
  EXPECT_TRUE(quota.HasRoom(0));
  EXPECT_EQ(quota.in_flight(), 47);
  quota.SetServed(1);
  EXPECT_EQ(Fill(quota, 0), 17);
}

}  // namespace
}  // namespace refract::cpu_node

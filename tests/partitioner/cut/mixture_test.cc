#include "partitioner/cut/mixture.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::partitioner::cut {
namespace {

// Checks the multipliers' proof: no mixture of the points costs less.
double DualBound(const std::vector<Point>& points,
                 const std::vector<double>& limits,
                 const Multipliers& multipliers) {
  double bound = INFINITY;
  for (const Point& point : points) {
    double sum = 0;
    for (size_t i = 0; i < point.objectives.size(); ++i) {
      sum += multipliers.objectives[i] * point.objectives[i];
    }
    for (size_t j = 0; j < limits.size(); ++j) {
      sum += multipliers.limits[j] * (point.usages[j] - limits[j]);
    }
    bound = std::min(bound, sum);
  }
  return bound;
}

// Cost of the shares, by definition.
double PrimalCost(const std::vector<Point>& points,
                  const std::vector<double>& limits,
                  const std::vector<double>& penalties,
                  const std::vector<double>& shares) {
  double cost = 0;
  for (size_t i = 0; i < points[0].objectives.size(); ++i) {
    double sum = 0;
    for (size_t k = 0; k < points.size(); ++k) {
      sum += shares[k] * points[k].objectives[i];
    }
    cost = std::max(cost, sum);
  }
  for (size_t j = 0; j < limits.size(); ++j) {
    double usage = -limits[j];
    for (size_t k = 0; k < points.size(); ++k) {
      usage += shares[k] * points[k].usages[j];
    }
    cost += penalties[j] * std::max(0.0, usage);
  }
  return cost;
}

// By weak duality, a primal and a dual solution of equal value are optimal.
TEST(MixtureTest, CostAndBoundMeet) {
  const unsigned seed = base::RandomSeed();
  std::mt19937 random(seed);
  const auto below = [&](int bound) {
    return std::uniform_int_distribution<int>(0, bound - 1)(random);
  };
  int exceeding = 0;
  for (int round = 0; round < 3000; ++round) {
    const size_t num_objectives = 1 + below(4);
    const size_t num_limits = below(4);
    const double objective_scale = std::pow(10, below(13));
    std::vector<double> limits;
    std::vector<double> penalties;
    std::vector<double> usage_scales;
    for (size_t j = 0; j < num_limits; ++j) {
      usage_scales.push_back(std::pow(10, below(13)));
      limits.push_back(below(30) * usage_scales[j]);
      penalties.push_back(10 * objective_scale / usage_scales[j]);
    }
    std::vector<Point> points(1 + below(12));
    for (Point& point : points) {
      for (size_t i = 0; i < num_objectives; ++i) {
        point.objectives.push_back(below(40) * objective_scale);
      }
      for (size_t j = 0; j < num_limits; ++j) {
        point.usages.push_back(below(60) * usage_scales[j]);
      }
    }
    const Mixture mixture = BestMixture(points, limits, penalties);
    double sum = 0;
    for (const double share : mixture.shares) {
      ASSERT_GE(share, 0);
      sum += share;
    }
    ASSERT_NEAR(sum, 1, 1e-9) << "seed " << seed;
    const double tolerance = 1e-6 * objective_scale;
    ASSERT_NEAR(PrimalCost(points, limits, penalties, mixture.shares),
                mixture.value, tolerance)
        << "seed " << seed << ", round " << round;
    ASSERT_NEAR(DualBound(points, limits, mixture.multipliers), mixture.value,
                tolerance)
        << "seed " << seed << ", round " << round;
    for (size_t j = 0; j < num_limits; ++j) {
      ASSERT_GE(mixture.multipliers.limits[j], 0);
      ASSERT_LE(mixture.multipliers.limits[j], penalties[j]);
    }
    if (mixture.exceeds) ++exceeding;
  }
  EXPECT_GT(exceeding, 100);
  EXPECT_LT(exceeding, 2900);
}

TEST(MixtureTest, HalfOfEachMeetsALimitThatNeitherAloneMeetsWell) {
  const std::vector<Point> points = {{{0}, {10}}, {{8}, {0}}};
  const Mixture mixture = BestMixture(points, {5}, {1000});
  EXPECT_NEAR(mixture.value, 4, 1e-9);
  EXPECT_NEAR(mixture.shares[0], 0.5, 1e-9);
  EXPECT_NEAR(mixture.multipliers.limits[0], 0.8, 1e-9);
  EXPECT_FALSE(mixture.exceeds);
}

TEST(MixtureTest, SaysWhenNoMixtureKeepsTheLimits) {
  const Mixture mixture = BestMixture({{{3}, {10}}, {{2}, {20}}}, {9}, {100});
  EXPECT_TRUE(mixture.exceeds);
  EXPECT_NEAR(mixture.value, 3 + 100, 1e-9);
}

}  // namespace
}  // namespace refract::partitioner::cut

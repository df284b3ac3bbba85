#include "placement/planner/queueing.h"

#include <cmath>

#include "gtest/gtest.h"

namespace refract::placement {
namespace {

// Values of published Erlang C tables, and of the closed forms for one and two
// servers: ρ, and 2ρ² ÷ (1 + ρ).
TEST(ErlangC, AgreesWithTables) {
  EXPECT_NEAR(ErlangC(1, 0.7), 0.7, 1e-12);
  EXPECT_NEAR(ErlangC(2, 1.0), 2 * 0.25 / 1.5, 1e-12);
  EXPECT_NEAR(ErlangC(10, 8.0), 0.4092, 5e-5);
  EXPECT_EQ(ErlangC(3, 3.0), 1);
  // Ten thousand servers neither overflow nor underflow.
  const double large = ErlangC(10'000, 9'900);
  EXPECT_GT(large, 0.1);
  EXPECT_LT(large, 0.5);
}

// M/M/1: P(W > t) = ρ e^{−(μ−λ)t}.
TEST(WaitQuantile, IsExactForOneExponentialServer) {
  const Queue queue{1, 70, 0.01, 1};
  EXPECT_NEAR(WaitQuantile(queue, 0.99), std::log(0.7 / 0.01) / 30, 1e-12);
  EXPECT_EQ(WaitQuantile({1, 1, 0.001, 1}, 0.99), 0);
  EXPECT_TRUE(std::isinf(WaitQuantile({2, 200, 0.01, 1}, 0.5)));
}

}  // namespace
}  // namespace refract::placement

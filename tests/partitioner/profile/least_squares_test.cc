#include "partitioner/profile/least_squares.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::partitioner {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

TEST(FitNonNegativeTest, FindsTheFiguresThatTheEquationsWereMadeFrom) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> count(0, 1e6);
  // Fixed seconds and seconds per byte: ten orders of magnitude apart.
  const std::vector<double> truth = {2e-4, 3e-7, 1e-10};
  std::vector<Equation> equations;
  for (int i = 0; i < 12; ++i) {
    Equation equation{{1, count(random) / 1e4, count(random)}};
    for (size_t j = 0; j < truth.size(); ++j) {
      equation.seconds += equation.counts[j] * truth[j];
    }
    equation.weight = 1 / equation.seconds;
    equations.push_back(equation);
  }
  const auto figures = FitNonNegative(equations);
  ASSERT_TRUE(figures.ok()) << figures.status();
  for (size_t j = 0; j < truth.size(); ++j) {
    EXPECT_NEAR((*figures)[j] / truth[j], 1, 1e-5) << j;
  }
}

TEST(FitNonNegativeTest, WeighsErrors) {
  // x = 1 and x = 4: 16 times the weight squared on the second.
  const std::vector<Equation> equations = {{{1}, 1, 1}, {{1}, 4, 4}};
  const auto figures = FitNonNegative(equations);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_THAT(*figures, ElementsAre(DoubleNear((1 + 16 * 4) / 17.0, 1e-12)));
}

TEST(FitNonNegativeTest, AFigureThatWouldBeNegativeIsZeroAndTheRestFitsAnew) {
  // The line through these falls: 3, 2, 1 at 0, 1, 2.
  const std::vector<Equation> equations = {
      {{1, 0}, 3}, {{1, 1}, 2}, {{1, 2}, 1}};
  const auto figures = FitNonNegative(equations);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_THAT(*figures, ElementsAre(DoubleNear(2, 1e-12), 0));
}

TEST(FitNonNegativeTest, SaysWhenTheEquationsDoNotTellFiguresApart) {
  const std::vector<Equation> multiples = {{{1, 2}, 1}, {{2, 4}, 2}};
  EXPECT_EQ(FitNonNegative(multiples).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const std::vector<Equation> absent = {{{1, 0}, 1}, {{2, 0}, 2}};
  EXPECT_EQ(FitNonNegative(absent).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FitNonNegative({}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::vector<Equation> ragged = {{{1, 2}, 1}, {{2}, 2}};
  EXPECT_EQ(FitNonNegative(ragged).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace refract::partitioner

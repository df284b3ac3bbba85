#include "base/process/byte_budget.h"

#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ByteBudgetTest, RefusesWhatDoesNotFitAndNamesTheFlag) {
  ByteBudget budget(100, "--some-memory");
  absl::StatusOr<ByteBudget::Hold> first = budget.Take(60);
  ASSERT_TRUE(first.ok());
  const absl::Status refused = budget.Take(41).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("--some-memory"), HasSubstr("41 bytes"),
                    HasSubstr("100 bytes"), HasSubstr("40 are free")));
  EXPECT_EQ(budget.held(), 60);
  EXPECT_TRUE(budget.Take(40).ok());  // and given back at once
  EXPECT_EQ(budget.held(), 60);
}

TEST(ByteBudgetTest, GivesBackOnceHoweverAHoldMoves) {
  ByteBudget budget(100, "--some-memory");
  {
    ByteBudget::Hold a = *budget.Take(30);
    ByteBudget::Hold b = std::move(a);
    EXPECT_EQ(a.bytes(), 0);
    b.Shrink(50);  // no growth
    EXPECT_EQ(budget.held(), 30);
    b.Shrink(20);
    EXPECT_EQ(budget.held(), 20);
    ByteBudget::Hold c = *budget.Take(5);
    c = std::move(b);
    EXPECT_EQ(budget.held(), 20);
    EXPECT_EQ(c.bytes(), 20);
    c.Reset();
    EXPECT_EQ(budget.held(), 0);
  }
  EXPECT_EQ(budget.held(), 0);
}

TEST(ByteBudgetTest, WhatIsTakenAnywayKeepsOthersOut) {
  ByteBudget budget(100, "--some-memory");
  ByteBudget::Hold answer = budget.TakeAnyway(150);
  EXPECT_EQ(budget.held(), 150);
  EXPECT_FALSE(budget.Take(1).ok());
  EXPECT_TRUE(budget.Take(0).status().ok());
  answer.Shrink(99);
  EXPECT_TRUE(budget.Take(1).ok());
}

TEST(ByteBudgetTest, ThreadsNeverTakeMoreThanThereIs) {
  ByteBudget budget(10, "--some-memory");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget] {
      for (int i = 0; i < 20000; ++i) {
        const absl::StatusOr<ByteBudget::Hold> hold = budget.Take(4);
        EXPECT_LE(budget.held(), 10);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.held(), 0);
}

}  // namespace
}  // namespace refract::base

#include "base/memory/large_memory.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"

namespace refract::base {
namespace {

constexpr size_t kMib = size_t{1} << 20;

TEST(LargeMemoryTest, IsZeroWritableAndAligned) {
  for (const auto pages : {LargeMemory::Pages::kHuge,
                           LargeMemory::Pages::kSmall}) {
    for (const size_t bytes : {size_t{1}, 3 * kMib + 5, 80 * kMib}) {
      const auto memory = LargeMemory::Allocate(bytes, pages);
      ASSERT_TRUE(memory.ok()) << memory.status();
      const auto span = (*memory)->bytes();
      ASSERT_EQ(span.size(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(span.data()) % (2 * kMib), 0u);
      EXPECT_EQ(span.front(), std::byte{0});
      EXPECT_EQ(span.back(), std::byte{0});
      std::memset(span.data(), 7, bytes);
      (*memory)->MakeReadOnly();
      EXPECT_EQ(span.back(), std::byte{7});
      EXPECT_LE((*memory)->HugeBytes(), bytes + 2 * kMib);
      if (pages == LargeMemory::Pages::kSmall) {
        EXPECT_EQ((*memory)->HugeBytes(), 0u);
      }
    }
  }
}

TEST(LargeMemoryTest, NothingIsNoMemory) {
  const auto memory = LargeMemory::Allocate(0);
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE((*memory)->bytes().empty());
  EXPECT_EQ((*memory)->HugeBytes(), 0u);
}

TEST(LargeMemoryTest, RefusesWhatTheSystemRefuses) {
  EXPECT_EQ(LargeMemory::Allocate(size_t{1} << 60).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(LargeMemoryDeathTest, WritesAfterMakeReadOnlyEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto memory = LargeMemory::Allocate(kMib);
        (*memory)->MakeReadOnly();
        (*memory)->bytes()[0] = std::byte{1};
      },
      "");
}

}  // namespace
}  // namespace refract::base

#include "base/process/affinity.h"

#include <sys/mman.h>

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace refract::base {
namespace {

TEST(AffinityTest, AThreadAndItsThreadsRunWhereTheyAreTold) {
  const std::vector<int> all = UsableCpus();
  ASSERT_FALSE(all.empty());
  std::thread([&] {
    ASSERT_TRUE(RunOn({all.back()}).ok());
    EXPECT_EQ(UsableCpus(), std::vector<int>{all.back()});
    EXPECT_EQ(NumUsableCpus(), 1);
    std::thread([&] {
      EXPECT_EQ(UsableCpus(), std::vector<int>{all.back()});
    }).join();
  }).join();
  EXPECT_EQ(UsableCpus(), all);
}

TEST(AffinityTest, CpusThatAreNotThereAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(RunOn({})));
  EXPECT_TRUE(absl::IsInvalidArgument(RunOn({1023})));
  EXPECT_TRUE(absl::IsInvalidArgument(RunOn({-1, 100000})));
}

TEST(AffinityTest, MemoryIsBoundOrTheReasonIsGiven) {
  constexpr size_t kBytes = 1 << 16;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const absl::Status bound = PreferMemoryOf(0, memory, kBytes);
  // Node 0 is everywhere; containers may forbid the call.
  EXPECT_TRUE(bound.ok() || absl::IsFailedPrecondition(bound)) << bound;
  static_cast<char*>(memory)[0] = 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(PreferMemoryOf(1023, memory, kBytes)));
  EXPECT_TRUE(absl::IsFailedPrecondition(PreferMemoryOf(-1, memory, kBytes)));
  EXPECT_TRUE(absl::IsFailedPrecondition(PreferMemoryOf(5000)));
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace refract::base

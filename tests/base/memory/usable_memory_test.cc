#include "base/memory/usable_memory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class UsableMemoryTest : public ::testing::Test {
 protected:
  ~UsableMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const std::string root_ = absl::StrCat(
      ::testing::TempDir(), "usable_memory_", getpid(), "_",
      ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(UsableMemoryTest, IsTheMachinesWithoutControlGroups) {
  EXPECT_EQ(UsableMemory(root_), 0);
  Write("/proc/meminfo", "MemTotal:       2048 kB\nMemFree:        12 kB\n");
  EXPECT_EQ(UsableMemory(root_), 2 * kMiB);
}

TEST_F(UsableMemoryTest, AvailableIsWhatIsLeftWithinTheLimit) {
  EXPECT_EQ(AvailableMemory(root_), 0);
  Write("/proc/meminfo",
        "MemTotal: 4096 kB\nMemFree: 1024 kB\nMemAvailable: 3072 kB\n");
  EXPECT_EQ(AvailableMemory(root_), 3 * kMiB);
  Write("/proc/self/cgroup", "0::/a\n");
  Write("/sys/fs/cgroup/a/memory.max", absl::StrCat(2 * kMiB));
  EXPECT_EQ(AvailableMemory(root_), 2 * kMiB);
  // The page cache has 1 MiB of the 1.5 MiB that are taken.
  Write("/sys/fs/cgroup/a/memory.current", absl::StrCat(3 * kMiB / 2, "\n"));
  Write("/sys/fs/cgroup/a/memory.stat",
        absl::StrCat("anon ", kMiB / 2, "\nfile ", kMiB, "\ninactive_file ",
                     kMiB / 4, "\nactive_file ", 3 * kMiB / 4, "\n"));
  EXPECT_EQ(AvailableMemory(root_), 3 * kMiB / 2);
  EXPECT_EQ(UsableMemory(root_), 2 * kMiB);
  // A group above has less left.
  Write("/sys/fs/cgroup/memory.max", absl::StrCat(8 * kMiB));
  Write("/sys/fs/cgroup/memory.current", absl::StrCat(7 * kMiB));
  EXPECT_EQ(AvailableMemory(root_), kMiB);
  Write("/sys/fs/cgroup/memory.current", absl::StrCat(9 * kMiB));
  EXPECT_EQ(AvailableMemory(root_), 1);
}

TEST_F(UsableMemoryTest, AvailableIsWhatVersion1Leaves) {
  Write("/proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 1048576 kB\n");
  Write("/proc/self/cgroup", "4:memory:/x\n");
  Write("/sys/fs/cgroup/memory/x/memory.limit_in_bytes",
        absl::StrCat(128 * kMiB));
  Write("/sys/fs/cgroup/memory/x/memory.usage_in_bytes",
        absl::StrCat(100 * kMiB));
  Write("/sys/fs/cgroup/memory/x/memory.stat",
        absl::StrCat("inactive_file 1\ntotal_inactive_file ", 30 * kMiB,
                     "\ntotal_active_file ", 20 * kMiB, "\n"));
  EXPECT_EQ(AvailableMemory(root_), 78 * kMiB);
}

TEST_F(UsableMemoryTest, MappedFilesThatAreInMemoryCountByPages) {
  EXPECT_EQ(MappedFileMemory(root_), 0);
  Write("/proc/self/status",
        "Name:\tnode\nVmRSS:\t    9 kB\nRssAnon:\t    4 kB\n"
        "RssFile:\t    3072 kB\nRssShmem:\t    1 kB\n");
  EXPECT_EQ(MappedFileMemory(root_), 3 * kMiB);
  EXPECT_GT(MappedFileMemory(), 0);  // the test's own code is mapped
}

TEST_F(UsableMemoryTest, IsTheSmallestLimitOfTheGroupsAbove) {
  Write("/proc/meminfo", "MemTotal: 1048576 kB\n");
  Write("/proc/self/cgroup", "0::/pods/a/main\n");
  Write("/sys/fs/cgroup/pods/a/main/memory.max", "max\n");
  EXPECT_EQ(UsableMemory(root_), 1024 * kMiB);
  Write("/sys/fs/cgroup/pods/a/memory.max", absl::StrCat(300 * kMiB, "\n"));
  EXPECT_EQ(UsableMemory(root_), 300 * kMiB);
  Write("/sys/fs/cgroup/pods/a/main/memory.max", absl::StrCat(500 * kMiB));
  EXPECT_EQ(UsableMemory(root_), 300 * kMiB);
  // More than the machine has.
  Write("/sys/fs/cgroup/pods/a/memory.max", absl::StrCat(4096 * kMiB));
  EXPECT_EQ(UsableMemory(root_), 500 * kMiB);
}

TEST_F(UsableMemoryTest, ReadsTheMountsOwnLimitInAContainer) {
  Write("/proc/meminfo", "MemTotal: 1048576 kB\n");
  // The path is the host's; the container sees only its own group.
  Write("/proc/self/cgroup", "0::/../../host/path\n");
  Write("/sys/fs/cgroup/memory.max", absl::StrCat(64 * kMiB));
  EXPECT_EQ(UsableMemory(root_), 64 * kMiB);
}

TEST_F(UsableMemoryTest, ReadsVersion1) {
  Write("/proc/meminfo", "MemTotal: 1048576 kB\n");
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n");
  // Version 1 writes "no limit" as a number near 2^63.
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(UsableMemory(root_), 1024 * kMiB);
  Write("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes",
        absl::StrCat(128 * kMiB));
  EXPECT_EQ(UsableMemory(root_), 128 * kMiB);
}

TEST_F(UsableMemoryTest, ThisMachineHasSome) {
  EXPECT_GT(UsableMemory(), 64 * kMiB);
}

}  // namespace
}  // namespace refract::base

#include "partitioner/verify/other_load.h"

#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace refract::partitioner {
namespace {

TEST(BusySecondsTest, CountsAllButIdleTimeAndWaitingForDisks) {
  // user 100, nice 20, system 30, idle 9000, iowait 800, irq 4, softirq 5,
  // steal 6; guest time is in user's already.
  EXPECT_DOUBLE_EQ(
      *BusySeconds("cpu  100 20 30 9000 800 4 5 6 70 8\ncpu0 1 2\n", 100),
      1.65);
  EXPECT_FALSE(BusySeconds("", 100).has_value());
  EXPECT_FALSE(BusySeconds("intr 1 2 3 4 5 6 7 8 9\n", 100).has_value());
  EXPECT_FALSE(BusySeconds("cpu 1 2 3\n", 100).has_value());
  EXPECT_FALSE(BusySeconds("cpu a b c d e f g h\n", 100).has_value());
}

TEST(ProcessSecondsTest, FindsTheTimesBehindAnyName) {
  // utime 250, stime 50, cutime 7, cstime 3.
  const char* rest = " S 1 2 3 4 5 6 7 8 9 10 250 50 7 3 20 0 5 0 1234";
  for (const char* name : {"42 (node)", "42 (a b) c)", "42 ())"}) {
    EXPECT_DOUBLE_EQ(*ProcessSeconds(std::string(name) + rest, 100), 3.1)
        << name;
  }
  EXPECT_FALSE(ProcessSeconds("", 100).has_value());
  EXPECT_FALSE(ProcessSeconds("42 (node) S 1 2", 100).has_value());
}

// Spins until this much of its own processor time has passed.
void Spin(double seconds) {
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * time.tv_nsec;
  };
  const double end = now() + seconds;
  while (now() < end) {
  }
}

// What a process does that is not the measurement's own counts, and what its
// own do does not. Other programs may run as well: only differences are told.
TEST(OtherLoadTest, TellsOwnProcessesFromOthers) {
  int to_child[2];
  int from_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(from_child), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  char byte = 0;
  if (child == 0) {
    while (read(to_child[0], &byte, 1) == 1 && byte == 's') {
      Spin(0.3);
      if (write(from_child[1], &byte, 1) != 1) break;
    }
    _exit(0);
  }
  const OtherLoad with_child({child});
  const OtherLoad without_child({});
  const absl::Time begin = absl::Now();
  byte = 's';
  ASSERT_EQ(write(to_child[1], &byte, 1), 1);
  ASSERT_EQ(read(from_child[0], &byte, 1), 1);
  const std::optional<double> with = with_child.Processors();
  const std::optional<double> without = without_child.Processors();
  const double passed = absl::ToDoubleSeconds(absl::Now() - begin);
  byte = 'e';
  EXPECT_EQ(write(to_child[1], &byte, 1), 1);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  for (const int fd :
       {to_child[0], to_child[1], from_child[0], from_child[1]}) {
    close(fd);
  }
  ASSERT_TRUE(with.has_value());
  ASSERT_TRUE(without.has_value());
  // A few ticks of 10 ms are lost or won.
  EXPECT_NEAR((*without - *with) * passed, 0.3, 0.1);
}

}  // namespace
}  // namespace refract::partitioner

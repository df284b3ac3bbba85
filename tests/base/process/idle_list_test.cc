#include "base/process/idle_list.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

TEST(IdleListTest, ValuesKeepTheOrderOfTheirThread) {
  constexpr int kThreads = 4;
  constexpr int kValues = 5000;
  IdleList<std::pair<int, int>> list;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&list, t] {
      for (int i = 0; i < kValues; ++i) list.Push({t, i});
    });
  }
  std::vector<int> next(kThreads, 0);
  for (int i = 0; i < kThreads * kValues; ++i) {
    const auto value = list.Next();
    ASSERT_TRUE(value.has_value());
    EXPECT_EQ(value->second, next[value->first]++);
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(IdleListTest, AClosedListHandsOutWhatItHasAndThenNothing) {
  IdleList<std::unique_ptr<int>> list;
  list.Push(std::make_unique<int>(1));
  list.Push(std::make_unique<int>(2));
  list.Close();
  EXPECT_EQ(**list.Next(), 1);
  EXPECT_EQ(**list.Next(), 2);
  EXPECT_EQ(list.Next(), std::nullopt);
  EXPECT_EQ(list.Next(), std::nullopt);
}

TEST(IdleListTest, CloseWakesTheThreadThatWaits) {
  IdleList<int> list;
  std::thread thread([&] { EXPECT_EQ(list.Next(), std::nullopt); });
  list.Close();
  thread.join();
}

TEST(IdleListTest, ValuesLeftAreFreed) {
  const auto value = std::make_shared<int>(0);
  {
    IdleList<std::shared_ptr<int>> list;
    for (int i = 0; i < 3; ++i) list.Push(value);
    list.Next();  // takes all and hands out the first
    list.Push(value);
  }
  EXPECT_EQ(value.use_count(), 1);
}

// Stops its thread where it is moved, as a thread of idle priority may be
// stopped anywhere.
struct Stopping {
  Stopping() = default;
  Stopping(Stopping&& other) noexcept
      : moved(other.moved), go_on(std::exchange(other.go_on, nullptr)) {
    if (go_on == nullptr || !in_reader) return;
    moved->Notify();
    go_on->WaitForNotification();
    go_on = nullptr;
  }
  Stopping& operator=(Stopping&&) = delete;

  absl::Notification* moved = nullptr;
  absl::Notification* go_on = nullptr;
  static inline thread_local bool in_reader = false;
};

TEST(IdleListTest, PushDoesNotWaitForAThreadThatIsStoppedInNext) {
  absl::Notification moved;
  absl::Notification go_on;
  IdleList<Stopping> list;
  std::thread thread([&] {
    Stopping::in_reader = true;
    EXPECT_TRUE(list.Next().has_value());
    EXPECT_TRUE(list.Next().has_value());
  });
  Stopping first;
  first.moved = &moved;
  first.go_on = &go_on;
  list.Push(std::move(first));
  moved.WaitForNotification();
  list.Push(Stopping());  // returns, although the reader stands still
  go_on.Notify();
  thread.join();
}

}  // namespace
}  // namespace refract::base

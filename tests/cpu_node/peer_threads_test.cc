// The threads of a CPU node do not grow with the number of its GPU nodes.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cpu_node/dispatch/node_pool.h"
#include "gtest/gtest.h"
#include "tests/transport/testing/channel_fixture.h"

namespace refract::cpu_node {
namespace {

using transport::Eventually;

constexpr size_t kNodes = 16;

// Threads of this process, as the kernel counts them.
size_t NumThreads() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

class PeerThreadsTest : public ::testing::Test {
 protected:
  // Servers that stand for GPU nodes: they take any model.
  void SetUp() override {
    limits_.max_message_bytes = size_t{1} << 20;
    limits_.source_arena_bytes = size_t{8} << 20;
    for (size_t i = 0; i < kNodes; ++i) {
      transport::ServerOptions options;
      options.host = "127.0.0.1";
      options.limits = limits_;
      auto server = transport::Server::Create(options, &handler_);
      ASSERT_TRUE(server.ok()) << server.status();
      servers_.push_back(*std::move(server));
    }
  }
  // A pool that is connected to the first `count` of them.
  std::unique_ptr<NodePool> Connect(size_t count) {
    NodePoolOptions options;
    for (size_t i = 0; i < count; ++i) {
      options.addresses.push_back(
          absl::StrCat("127.0.0.1:", servers_[i]->port()));
    }
    options.offers.push_back({"model", 1, {}, {}});
    options.limits = limits_;
    auto pool = NodePool::Create(std::move(options));
    EXPECT_TRUE(pool.ok()) << pool.status();
    for (size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(
          Eventually([&] { return (*pool)->Members()[i].state.connected; }));
    }
    return *std::move(pool);
  }
  // Number of threads after the handshakes' threads of both sides have ended.
  static size_t SteadyThreads() {
    size_t fewest = NumThreads();
    for (int i = 0; i < 100; ++i) {
      absl::SleepFor(absl::Milliseconds(5));
      fewest = std::min(fewest, NumThreads());
    }
    return fewest;
  }

  transport::Limits limits_;
  transport::FunctionHandler handler_{transport::Echo};
  std::vector<std::unique_ptr<transport::Server>> servers_;
};

TEST_F(PeerThreadsTest, SixteenGpuNodesNeedAsManyThreadsAsOne) {
  const size_t without = SteadyThreads();
  size_t with_one = 0;
  {
    const auto pool = Connect(1);
    with_one = SteadyThreads();
  }
  const auto pool = Connect(kNodes);
  EXPECT_EQ(SteadyThreads(), with_one);
  // The polling thread and the notifier.
  EXPECT_EQ(with_one, without + 2);
  // Nodes that come and go change nothing.
  for (size_t i = 0; i < kNodes; i += 2) servers_[i].reset();
  for (size_t i = 0; i < kNodes; i += 2) {
    EXPECT_TRUE(
        Eventually([&] { return !pool->Members()[i].state.connected; }));
  }
  EXPECT_TRUE(pool->Usable(0));
  EXPECT_TRUE(pool->Acquire(0, std::nullopt).has_value());
}

}  // namespace
}  // namespace refract::cpu_node

// Probes of idle paths: not before the peer is there, and then again and again.
#include <array>
#include <memory>

#include "gtest/gtest.h"
#include "tests/transport/testing/channel_fixture.h"
#include "tests/transport/sim/paths.h"
#include "transport/verbs/descriptor.h"

namespace refract::transport::sim {
namespace {

TEST(IdleProbeTest, WaitsUntilThePeerIsConnected) {
  Fabric fabric;
  verbs::HubOptions options;
  options.idle_probe_interval = absl::Milliseconds(1);
  std::array<std::unique_ptr<Process>, 2> processes;
  std::array<std::unique_ptr<DataPath>, 2> paths;
  std::array<Region, 2> regions;
  std::array<std::string, 2> exported;
  for (int host = 0; host < 2; ++host) {
    fabric.AddHost();
    processes[host] = std::make_unique<Process>(
        fabric, host, verbs::DeviceContext::Events::kPumped, options);
    paths[host] = processes[host]->NewPath();
    regions[host] = *paths[host]->CreateRegion(4096, Access::kRemoteWrite);
    exported[host] = *paths[host]->Export(regions[host]);
  }
  std::array<Completion, 4> out;
  // Only one end is connected, as a server's while its client is not yet.
  const auto to = paths[0]->Import(exported[1]);
  ASSERT_TRUE(to.ok()) << to.status();
  const absl::Time until = absl::Now() + absl::Milliseconds(20);
  while (absl::Now() < until) {
    // Armed paths look at the timer.
    paths[0]->Arm();
    EXPECT_EQ(paths[0]->Poll(absl::MakeSpan(out)), 0u);
    fabric.RunUntilIdle();
  }
  EXPECT_EQ(fabric.counters(0).sent_packets, 0u);
  ASSERT_TRUE(paths[0]->status().ok()) << paths[0]->status();
  // From the first exchange on.
  ASSERT_TRUE(paths[1]->Import(exported[0]).ok());
  ASSERT_EQ(paths[0]->PutNotify(*to, 0, {}, 1, 1), PostResult::kPosted);
  fabric.RunUntilIdle();
  EXPECT_EQ(paths[0]->Poll(absl::MakeSpan(out)), 1u);
  const uint64_t before = fabric.counters(0).sent_packets;
  EXPECT_TRUE(Eventually([&] {
    paths[0]->Arm();
    paths[0]->Poll(absl::MakeSpan(out));
    fabric.RunUntilIdle();
    return fabric.counters(0).sent_packets > before + 2;
  }));
  EXPECT_TRUE(paths[0]->status().ok()) << paths[0]->status();
  paths = {};
  EXPECT_TRUE(fabric.violations().empty());
}

}  // namespace
}  // namespace refract::transport::sim

// The port and address that a path starts from, over tables of machines' ports.
#include "transport/verbs/device/device_choice.h"

#include <arpa/inet.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace refract::transport::verbs {
namespace {

GidEntry Gid(int index, const std::string& address,
             GidType type = GidType::kRoceV2,
             const std::string& interface = "ens1f0", bool up = true) {
  GidEntry entry;
  entry.index = index;
  EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), entry.gid.raw), 1) << address;
  entry.type = type;
  entry.network_device = interface;
  entry.network_device_up = up;
  return entry;
}

// 4 lanes of `speed`: 32 is 100 Gb/s.
PortInfo Port(std::vector<GidEntry> gids,
              ibv_port_state state = IBV_PORT_ACTIVE, uint8_t number = 1,
              uint8_t speed = 32) {
  PortInfo port;
  port.number = number;
  port.attributes.state = state;
  port.attributes.active_width = 2;
  port.attributes.active_speed = speed;
  port.gids = std::move(gids);
  return port;
}

EndpointDescription Peer(const std::string& address,
                         GidType type = GidType::kRoceV2) {
  EndpointDescription peer;
  const GidEntry entry = Gid(0, address);
  std::copy(entry.gid.raw, entry.gid.raw + 16, peer.gid.begin());
  peer.gid_type = static_cast<uint8_t>(type);
  return peer;
}

// "device/port/index", best first; the error's text when there is none.
std::vector<std::string> Ranked(
    const std::vector<DevicePorts>& devices,
    const AddressPreference& preference = {},
    const std::optional<EndpointDescription>& peer = std::nullopt) {
  const auto ranked = RankAddresses(devices, preference, peer);
  if (!ranked.ok()) {
    EXPECT_EQ(ranked.status().code(), absl::StatusCode::kFailedPrecondition);
    return {std::string(ranked.status().message())};
  }
  std::vector<std::string> names;
  for (const LocalAddress& address : *ranked) {
    names.push_back(absl::StrCat(address.device, "/", address.port, "/",
                                 address.gid.index));
  }
  return names;
}

using Names = std::vector<std::string>;
constexpr const char* kIpv4 = "::ffff:10.0.0.1";

TEST(DeviceChoiceTest, PortsThatAreDownAreLeftOutAlsoWhenTheyComeFirst) {
  EXPECT_EQ(Ranked({{"mlx5_0", {Port({Gid(0, kIpv4)}, IBV_PORT_DOWN)}},
                    {"mlx5_1",
                     {Port({Gid(0, kIpv4)}, IBV_PORT_INIT, 1),
                      Port({Gid(3, kIpv4)}, IBV_PORT_ACTIVE, 2)}}}),
            Names{"mlx5_1/2/3"});
}

TEST(DeviceChoiceTest, AddressesOfInterfacesThatAreDownAreLeftOut) {
  EXPECT_EQ(Ranked({{"mlx5_0",
                     {Port({Gid(0, kIpv4, GidType::kRoceV2, "ens1f0", false),
                            Gid(1, "fe80::1")})}}}),
            Names{"mlx5_0/1/1"});
}

TEST(DeviceChoiceTest, OneRuleAfterTheOther) {
  // A port's list: version 1 and 2 of each address, link-local first.
  const std::vector<GidEntry> gids = {
      Gid(0, "fe80::1", GidType::kRoceV1),
      Gid(1, "fe80::1"),
      Gid(2, kIpv4, GidType::kRoceV1),
      Gid(3, kIpv4),
      Gid(4, "2001:db8::1"),
      Gid(5, "::ffff:169.254.0.9"),
      Gid(6, "::1"),
      Gid(7, "::"),
      Gid(8, "::ffff:172.17.0.1", GidType::kRoceV2, "docker0"),
  };
  EXPECT_EQ(Ranked({{"d", {Port(gids)}}}),
            (Names{"d/1/3", "d/1/8", "d/1/4", "d/1/1", "d/1/5", "d/1/6",
                   "d/1/2", "d/1/0"}));
}

TEST(DeviceChoiceTest, FasterPortsBreakTiesAndThenTheOrderOfTheSystem) {
  EXPECT_EQ(
      Ranked({{"slow", {Port({Gid(0, kIpv4)}, IBV_PORT_ACTIVE, 1, 1)}},
              {"fast", {Port({Gid(0, kIpv4)}, IBV_PORT_ACTIVE, 1, 64)}},
              {"fast_too", {Port({Gid(0, kIpv4)}, IBV_PORT_ACTIVE, 1, 64)}}}),
      (Names{"fast/1/0", "fast_too/1/0", "slow/1/0"}));
}

TEST(DeviceChoiceTest, NearDevicesComeBeforeEquallyFastOnes) {
  const std::vector<DevicePorts> devices = {{"a", {Port({Gid(0, kIpv4)})}},
                                            {"b", {Port({Gid(0, kIpv4)})}},
                                            {"c", {Port({Gid(0, kIpv4)})}}};
  AddressPreference preference;
  preference.locality.devices = {
      {.name = "a", .path_gbps = 400, .factor = 0.63},
      {.name = "b", .path_gbps = 400, .factor = 0.8},
      {.name = "c", .path_gbps = 400, .factor = 1}};
  EXPECT_EQ(Ranked(devices, preference), (Names{"c/1/0", "b/1/0", "a/1/0"}));
  // 100 Gb/s × 0.63 is more than the 50 Gb/s of the near device's path; a
  // device of which nothing is known counts with its port.
  preference.locality.devices = {
      {.name = "a", .path_gbps = 400, .factor = 0.63},
      {.name = "b", .path_gbps = 50, .factor = 1}};
  EXPECT_EQ(Ranked(devices, preference), (Names{"c/1/0", "a/1/0", "b/1/0"}));
  // A path of unknown rate.
  preference.locality.devices = {{.name = "a", .path_gbps = 0, .factor = 1},
                                 {.name = "c", .path_gbps = 0, .factor = 0.5}};
  EXPECT_EQ(Ranked(devices, preference), (Names{"a/1/0", "b/1/0", "c/1/0"}));
}

TEST(DeviceChoiceTest, NearnessDoesNotBeatSpeedOrThePeersNetwork) {
  const std::vector<DevicePorts> devices = {
      {"near", {Port({Gid(0, kIpv4)}, IBV_PORT_ACTIVE, 1, 4)}},  // 40 Gb/s
      {"far", {Port({Gid(0, kIpv4)})}}};
  AddressPreference preference;
  preference.locality.devices = {{.name = "near", .factor = 1},
                                 {.name = "far", .factor = 0.63}};
  EXPECT_EQ(Ranked(devices, preference), (Names{"far/1/0", "near/1/0"}));
  const std::vector<DevicePorts> networks = {
      {"near", {Port({Gid(0, "::ffff:10.7.0.1")})}},
      {"far", {Port({Gid(0, kIpv4)})}}};
  EXPECT_EQ(Ranked(networks, preference, Peer("::ffff:10.0.0.2")),
            (Names{"far/1/0", "near/1/0"}));
}

TEST(DeviceChoiceTest, TheNetworkOfThePeerComesBeforeSpeed) {
  const std::vector<DevicePorts> devices = {
      {"far", {Port({Gid(0, "::ffff:192.168.5.1")}, IBV_PORT_ACTIVE, 1, 64)}},
      {"near", {Port({Gid(0, "::ffff:10.1.2.3")}, IBV_PORT_ACTIVE, 1, 1)}}};
  EXPECT_EQ(Ranked(devices, {}, Peer("::ffff:10.1.2.200")),
            (Names{"near/1/0", "far/1/0"}));
  EXPECT_EQ(Ranked(devices), (Names{"far/1/0", "near/1/0"}));
}

TEST(DeviceChoiceTest, OnlyWhatSpeaksToThePeer) {
  const std::vector<DevicePorts> devices = {
      {"d",
       {Port({Gid(0, "2001:db8::1"), Gid(1, kIpv4, GidType::kRoceV1),
              Gid(2, kIpv4)})}}};
  EXPECT_EQ(Ranked(devices, {}, Peer("::ffff:10.9.9.9")), Names{"d/1/2"});
  EXPECT_EQ(Ranked(devices, {}, Peer("2001:db8::2")), Names{"d/1/0"});
  EXPECT_EQ(Ranked(devices, {}, Peer("::ffff:10.9.9.9", GidType::kRoceV1)),
            Names{"d/1/1"});
  const Names none = Ranked(devices, {}, Peer("fe80::9", GidType::kInfiniband));
  ASSERT_EQ(none.size(), 1u);
  EXPECT_TRUE(absl::StrContains(none[0], "of the peer's kind")) << none[0];
}

TEST(DeviceChoiceTest, InfiniBandNeedsNoNetworkDevice) {
  EXPECT_EQ(
      Ranked(
          {{"ib",
            {Port({Gid(0, "fe80::2:c903:1:2", GidType::kInfiniband, "")})}}}),
      Names{"ib/1/0"});
}

TEST(DeviceChoiceTest, WhatTheUserInsistsOnIsAllThatIsLookedAt) {
  const std::vector<DevicePorts> devices = {
      {"a", {Port({Gid(0, kIpv4), Gid(1, "fe80::1")})}},
      {"b", {Port({Gid(0, kIpv4)}, IBV_PORT_DOWN)}}};
  EXPECT_EQ(Ranked(devices, *ParseAddressPreference("a:1:1")), Names{"a/1/1"});
  EXPECT_EQ(Ranked(devices, *ParseAddressPreference("a")),
            (Names{"a/1/0", "a/1/1"}));
  const Names down = Ranked(devices, *ParseAddressPreference("b"));
  EXPECT_TRUE(absl::StrContains(down[0], "b port 1 is")) << down[0];
  EXPECT_TRUE(absl::StrContains(
      Ranked(devices, *ParseAddressPreference("c"))[0], "no usable RDMA port"));
  EXPECT_TRUE(absl::StrContains(
      Ranked(devices, *ParseAddressPreference("a:1:7"))[0], "GID index 7"));
}

TEST(DeviceChoiceTest, PreferencesAreParsedWhole) {
  const auto all = ParseAddressPreference("mlx5_0:2:3");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->device, "mlx5_0");
  EXPECT_EQ(all->port, 2);
  EXPECT_EQ(all->gid_index, 3);
  EXPECT_TRUE(ParseAddressPreference("").ok());
  for (const char* bad : {":1", "d:", "d:0", "d:256", "d:x", "d:1:", "d:1:-1",
                          "d:1:2:3", "d:1:y"}) {
    EXPECT_EQ(ParseAddressPreference(bad).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

TEST(DeviceChoiceTest, RatesAreLanesTimesTheirSpeed) {
  ibv_port_attr attributes = {};
  EXPECT_EQ(PortRate(attributes), 0);
  attributes.active_width = 2;
  attributes.active_speed = 32;
  EXPECT_EQ(PortRate(attributes), 100e9);
  attributes.active_speed = 128;
  EXPECT_EQ(PortRate(attributes), 400e9);
  attributes.active_width = 1;
  attributes.active_speed = 1;
  EXPECT_EQ(PortRate(attributes), 2.5e9);
}

}  // namespace
}  // namespace refract::transport::verbs

// Which ports are up, as their devices tell.
#include "transport/verbs/device/port_watch.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/verbs_sim/fabric/fabric.h"
#include "transport/verbs/poll_group.h"

namespace refract::transport::verbs {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

class CountingWaker final : public Waker {
 public:
  void Wake() override { ++count; }
  int count = 0;
};

PortState Up(const std::string& rail) { return {rail, true}; }
PortState Down(const std::string& rail) { return {rail, false}; }

class PortWatchTest : public testing::Test {
 protected:
  PortWatchTest() {
    sim::HostOptions host;
    host.nics.resize(2);
    host.nics[1].device = "sim1";
    fabric_.AddHost(host);
    registry_ = std::make_unique<DeviceRegistry>(
        fabric_.library(0), DeviceContext::Events::kPumped);
  }
  std::shared_ptr<DeviceContext> Device(int number) {
    return *registry_->Open(absl::StrCat("sim", number));
  }
  void SetLink(int device, bool up) {
    fabric_.SetLink(0, device, up);
    Device(device)->PumpEvents();
  }

  sim::Fabric fabric_;
  std::unique_ptr<DeviceRegistry> registry_;
  const std::shared_ptr<CountingWaker> waker_ =
      std::make_shared<CountingWaker>();
};

TEST_F(PortWatchTest, TellsOfChangesOnce) {
  PortWatch watch(*registry_, {});
  watch.Start(waker_);
  EXPECT_EQ(watch.Take(), std::nullopt);
  watch.Follow(Device(0));
  watch.Follow(Device(1));
  watch.Follow(Device(1));
  EXPECT_EQ(waker_->count, 2);
  EXPECT_THAT(watch.Take(), Optional(ElementsAre(Up("sim0:1"), Up("sim1:1"))));
  EXPECT_EQ(watch.Take(), std::nullopt);
  SetLink(1, false);
  EXPECT_EQ(waker_->count, 3);
  EXPECT_THAT(watch.Take(),
              Optional(ElementsAre(Up("sim0:1"), Down("sim1:1"))));
  // Down and up between two looks.
  SetLink(0, false);
  SetLink(0, true);
  SetLink(1, true);
  EXPECT_THAT(watch.Take(), Optional(ElementsAre(Up("sim0:1"), Up("sim1:1"))));
  EXPECT_EQ(watch.Take(), std::nullopt);
}

TEST_F(PortWatchTest, EventsThatChangeNothingWakeNobody) {
  PortWatch watch(*registry_, {});
  watch.Start(waker_);
  watch.Follow(Device(0));
  watch.Take();
  const int before = waker_->count;
  verbs::GidEntry gid = (*Device(0)->device().Ports())[0].gids[0];
  fabric_.SetGid(0, 0, gid);
  Device(0)->PumpEvents();
  EXPECT_EQ(waker_->count, before);
  EXPECT_EQ(watch.Take(), std::nullopt);
}

TEST_F(PortWatchTest, KeepsToThePortOfThePreference) {
  PortWatch other(*registry_, *ParseAddressPreference("sim0:2"));
  other.Start(waker_);
  other.Follow(Device(0));
  EXPECT_THAT(other.Take(), Optional(IsEmpty()));
}

TEST_F(PortWatchTest, BrokenDevicesLeaveTheListAndAreLetGo) {
  PortWatch watch(*registry_, {});
  watch.Start(waker_);
  std::weak_ptr<DeviceContext> broken;
  {
    const auto held = Device(0);
    broken = held;
    watch.Follow(held);
    watch.Follow(Device(1));
    watch.Take();
    fabric_.BreakDevice(0, 0);
    held->PumpEvents();
  }
  EXPECT_FALSE(broken.expired());
  EXPECT_THAT(watch.Take(), Optional(ElementsAre(Up("sim1:1"))));
  EXPECT_TRUE(broken.expired());
}

TEST_F(PortWatchTest, FollowsNothingUnlessStarted) {
  PortWatch watch(*registry_, {});
  std::weak_ptr<DeviceContext> context;
  {
    const auto held = Device(0);
    context = held;
    watch.Follow(held);
  }
  EXPECT_TRUE(context.expired());
  EXPECT_EQ(watch.Take(), std::nullopt);
}

// A group follows the devices that its paths may use.
TEST_F(PortWatchTest, PollGroupsFollowWhatTheyMayUse) {
  PollGroup any(*registry_, HubOptions());
  PollGroup one(*registry_, HubOptions(), *ParseAddressPreference("sim1"));
  for (PollGroup* group : {&any, &one}) {
    WatchPorts(group, waker_);
    ASSERT_TRUE(group->Addresses(std::nullopt).ok());
  }
  EXPECT_THAT(TakePorts(&any),
              Optional(ElementsAre(Up("sim0:1"), Up("sim1:1"))));
  EXPECT_THAT(TakePorts(&one), Optional(ElementsAre(Up("sim1:1"))));
  // With one device broken the other still serves.
  fabric_.BreakDevice(0, 0);
  Device(0)->PumpEvents();
  const auto addresses = any.Addresses(std::nullopt);
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  for (const LocalAddress& address : *addresses) {
    EXPECT_EQ(address.device, "sim1");
  }
  fabric_.BreakDevice(0, 1);
  EXPECT_EQ(any.Addresses(std::nullopt).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace refract::transport::verbs

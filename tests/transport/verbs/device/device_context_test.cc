// Listeners to a device's events, and the calls that they may make meanwhile.
#include "transport/verbs/device/device_context.h"

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/verbs_sim/fabric/fabric.h"

namespace refract::transport::verbs {
namespace {

using testing::ElementsAre;

class FunctionListener final : public DeviceListener {
 public:
  explicit FunctionListener(std::function<void(const AsyncEvent&)> on_event)
      : on_event_(std::move(on_event)) {}
  void OnDeviceEvent(absl::string_view, const AsyncEvent& event) override {
    on_event_(event);
  }

 private:
  const std::function<void(const AsyncEvent&)> on_event_;
};

class DeviceContextTest : public testing::Test {
 protected:
  DeviceContextTest() { fabric_.AddHost(); }

  std::shared_ptr<DeviceContext> Open(DeviceContext::Events events) {
    registry_ = std::make_unique<DeviceRegistry>(fabric_.library(0), events);
    return *registry_->Open("sim0");
  }
  // One event.
  void Raise() { fabric_.SetLink(0, 0, up_ = !up_); }

  sim::Fabric fabric_;
  bool up_ = true;
  std::unique_ptr<DeviceRegistry> registry_;
};

TEST_F(DeviceContextTest, ListenersHearInOrder) {
  const auto context = Open(DeviceContext::Events::kPumped);
  std::vector<ibv_event_type> heard;
  FunctionListener listener(
      [&](const AsyncEvent& event) { heard.push_back(event.type); });
  context->AddListener(&listener);
  Raise();
  Raise();
  EXPECT_EQ(context->PumpEvents(), 2);
  context->RemoveListener(&listener);
  Raise();
  EXPECT_EQ(context->PumpEvents(), 1);
  EXPECT_THAT(heard, ElementsAre(IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE));
}

// A listener may do what needs the list of listeners: under the lock of that
// list, each of these would wait for itself for ever.
TEST_F(DeviceContextTest, ListenersMayAddAndRemoveDuringACall) {
  const auto context = Open(DeviceContext::Events::kPumped);
  int first_calls = 0;
  int second_calls = 0;
  int third_calls = 0;
  FunctionListener third([&](const AsyncEvent&) { ++third_calls; });
  FunctionListener second([&](const AsyncEvent&) { ++second_calls; });
  std::unique_ptr<FunctionListener> first;
  first = std::make_unique<FunctionListener>([&](const AsyncEvent&) {
    ++first_calls;
    context->RemoveListener(first.get());
    context->RemoveListener(&second);
    context->AddListener(&third);
  });
  context->AddListener(first.get());
  context->AddListener(&second);
  Raise();
  context->PumpEvents();
  EXPECT_EQ(first_calls, 1);
  EXPECT_EQ(second_calls, 0) << "it was removed before its turn";
  EXPECT_EQ(third_calls, 0) << "the event is from before it came";
  Raise();
  context->PumpEvents();
  EXPECT_EQ(first_calls, 1);
  EXPECT_EQ(third_calls, 1);
  context->RemoveListener(&third);
}

TEST_F(DeviceContextTest, RemovalWaitsForACallOnAnotherThread) {
  const auto context = Open(DeviceContext::Events::kWatched);
  absl::Notification entered;
  absl::Notification leave;
  std::atomic<bool> left = false;
  auto listener =
      std::make_unique<FunctionListener>([&](const AsyncEvent& event) {
        if (event.type != IBV_EVENT_PORT_ERR) return;
        entered.Notify();
        leave.WaitForNotification();
        left = true;
      });
  context->AddListener(listener.get());
  Raise();
  entered.WaitForNotification();
  // The call does not hold up other listeners.
  FunctionListener other([](const AsyncEvent&) {});
  context->AddListener(&other);
  context->RemoveListener(&other);
  std::thread remover([&] {
    context->RemoveListener(listener.get());
    EXPECT_TRUE(left) << "removed while a call was running";
    listener.reset();
  });
  leave.Notify();
  remover.join();
}

TEST_F(DeviceContextTest, DeadDevicesAreOpenedAnew) {
  const auto context = Open(DeviceContext::Events::kPumped);
  EXPECT_EQ(*registry_->Open("sim0"), context);
  EXPECT_FALSE(context->dead());
  bool dead_when_told = false;
  FunctionListener listener(
      [&](const AsyncEvent&) { dead_when_told = context->dead(); });
  context->AddListener(&listener);
  fabric_.BreakDevice(0, 0);
  context->PumpEvents();
  EXPECT_TRUE(context->dead());
  EXPECT_TRUE(dead_when_told);
  const auto again = registry_->Open("sim0");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE(*again, context);
  context->RemoveListener(&listener);
}

}  // namespace
}  // namespace refract::transport::verbs

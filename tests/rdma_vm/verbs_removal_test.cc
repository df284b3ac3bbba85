// A device that is taken away while nodes use it, and put back.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/rdma_vm/guest_network.h"
#include "tests/rdma_vm/verbs_pair.h"
#include "tests/transport/testing/channel_fixture.h"
#include "transport/verbs/device/device_context.h"

namespace refract::transport {
namespace {

bool Listed(const std::string& device) {
  const auto names = verbs::DeviceRegistry::System().DeviceNames();
  return names.ok() &&
         std::find(names->begin(), names->end(), device) != names->end();
}

class DeviceRemovalTest : public ChannelTest {
 protected:
  void SetUp() override {
    const char* layout = std::getenv("REFRACT_RDMA_LAYOUT");
    if (layout == nullptr || std::string(layout) != "veth") {
      GTEST_SKIP() << "no veth pair of a guest: run by tests/rdma_vm/run_in_vm "
                      "--layout veth";
    }
    ChannelTest::SetUp();
    client_options_.rdma_device = rdma_vm::RdmaDevices().front();
    server_options_.rdma_device = rdma_vm::RdmaDevices().back();
  }

  absl::Status Ask() {
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kInt8, {200 << 10}}};
    const std::vector<std::string> contents = Contents(1, specs);
    absl::StatusOr<OutgoingMessage> request = client_->Allocate(0, specs);
    if (!request.ok()) return request.status();
    Fill(*request, contents);
    Call call;
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
    if (!call.Await().ok()) return call.Await().status();
    ExpectTensors(call.Await()->tensors(), specs, contents);
    return absl::OkStatus();
  }
};

TEST_P(DeviceRemovalTest, IsUsedToTheEndThenLetGoAndUsedAgainWhenItIsBack) {
  const std::string device = rdma_vm::RdmaDevices().back();
  const std::string interface = rdma_vm::RdmaInterfaces().back();
  FunctionHandler handler(Echo);
  ASSERT_NO_FATAL_FAILURE(Start(&handler));
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(Eventually([&] { return Ask().ok(); })) << Ask();
    const uint64_t epoch = client_->state().epoch;
    // Soft-RoCE tells its users nothing and waits until they have gone.
    rdma_vm::BackgroundCommand removal("rdma link delete " + device);
    ASSERT_TRUE(Eventually([&] { return !Listed(device); }));
    EXPECT_TRUE(Ask().ok() || client_->state().epoch != epoch);
    // A driver that goes takes the network interface down, too.
    rdma_vm::RunCommand("ip link set " + interface + " down");
    ASSERT_TRUE(AwaitConnected(false));
    EXPECT_EQ(Ask().code(), absl::StatusCode::kUnavailable);
    ASSERT_TRUE(Eventually([&] { return removal.ended(); }))
        << "the device is still held open";
    rdma_vm::RunCommand("ip link set " + interface + " up");
    rdma_vm::RunCommand("rdma link add " + device + " type rxe netdev " +
                        interface);
    ASSERT_TRUE(AwaitConnected()) << client_->state().last_error;
  }
  EXPECT_TRUE(Eventually([&] { return Ask().ok(); })) << Ask();
}

INSTANTIATE_TEST_SUITE_P(Verbs, DeviceRemovalTest,
                         testing::Values(PathPreference::kVerbs),
                         PathParamName);

}  // namespace
}  // namespace refract::transport

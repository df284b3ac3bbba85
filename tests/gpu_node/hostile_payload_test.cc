// A client that goes on writing to the slot of its request while the node runs
// it: ids change between their check and their use.
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "gpu_node/device_model.h"
#include "gtest/gtest.h"
#include "models/split_plan.h"
#include "tests/cpu_node/small_model.h"
#include "transport/link_memory.h"
#include "transport/mapping.h"
#include "transport/shm/memfd.h"

namespace refract::gpu_node {
namespace {

// The look-up on the HN too, so that ids cross.
std::shared_ptr<const models::LoadedModel> LookUpOnTheHn() {
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({}));
  model->plan->stages[0] = models::Stage::kHn;
  models::ComputeCrossings(model->graph, *model->plan);
  return model;
}

// Tensors in memory of the test, answers in an arena.
class SlotCall : public transport::ServerCall {
 public:
  SlotCall(std::vector<base::TensorView> tensors,
           std::shared_ptr<transport::LinkMemory> memory)
      : tensors_(std::move(tensors)), memory_(std::move(memory)) {}

  size_t model() const override { return 0; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  absl::Span<const base::TensorView> tensors() const override {
    return tensors_;
  }
  bool settled() const override { return false; }
  bool abandoned() const override { return false; }
  absl::StatusOr<transport::OutgoingMessage> AllocateReply(
      absl::Span<const base::TensorSpec> specs) override {
    auto message = transport::NewMessage(
        memory_, transport::MessageKind::kResponse, specs);
    if (!message.ok()) return message.status();
    return transport::OutgoingMessage(*std::move(message));
  }
  void Reply(transport::OutgoingMessage) override { status = absl::OkStatus(); }
  void Fail(const absl::Status& why) override { status = why; }

  absl::Status status = absl::UnknownError("unanswered");

 private:
  const std::vector<base::TensorView> tensors_;
  const std::shared_ptr<transport::LinkMemory> memory_;
};

std::shared_ptr<transport::LinkMemory> NewMemory() {
  const auto waker = *transport::ThreadWaker::Create();
  const auto arena = [&] {
    const transport::Region region{0, *transport::Mapping::Anonymous(1 << 20)};
    return std::make_shared<transport::Arena>(region, 0, 1 << 20, waker);
  };
  return std::make_shared<transport::LinkMemory>(transport::Region{}, arena(),
                                                 arena(), arena(), waker,
                                                 size_t{1} << 20, 1);
}

TEST(HostilePayloadTest, IdsThatChangeDuringTheRunReachNoMemory) {
  const auto model = DeviceModel::Create(LookUpOnTheHn());
  ASSERT_TRUE(model.ok()) << model.status();
  // Long enough for the check of the last id to be far from its use.
  constexpr int64_t kBatch = 2000;
  const base::Tensor dense = testing_models::MakeDense(kBatch);
  const base::Tensor good = testing_models::MakeIds(kBatch);
  // The client's mapping of the slot and the node's.
  const transport::UniqueFd file = *transport::shm::CreateMemfd(good.bytes());
  const auto theirs =
      *transport::Mapping::Shared(file.get(), good.bytes(), true);
  const auto ours = *transport::Mapping::Shared(file.get(), good.bytes(), true);
  std::memcpy(theirs->data(), good.data(), good.bytes());
  base::TensorView ids = good.view();
  ids.data = ours->data();
  std::atomic<bool> done = false;
  std::thread client([&] {
    auto* rows = reinterpret_cast<volatile int64_t*>(theirs->data());
    while (!done) {
      // No table is that long: reading there is a fault.
      rows[kBatch - 1] = int64_t{1} << 40;
      rows[0] = -(int64_t{1} << 40);
      rows[0] = 1;
      rows[kBatch - 1] = 1;
    }
  });
  const auto memory = NewMemory();
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    SlotCall call({dense.view(), ids}, memory);
    const absl::Status status = (*model)->Execute(call);
    EXPECT_EQ(status, call.status);
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    ++refused;
  }
  done = true;
  client.join();
  std::printf("5000 requests, %d refused\n", refused);
  // Left alone it is a good request.
  SlotCall call({dense.view(), ids}, memory);
  EXPECT_TRUE((*model)->Execute(call).ok()) << call.status;
}

}  // namespace
}  // namespace refract::gpu_node

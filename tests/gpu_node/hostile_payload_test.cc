// A client that goes on writing to the slot of its request while the node runs
// it: ids change between their check and their use.
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gpu_node/model/device_model.h"
#include "gtest/gtest.h"
#include "models/repository/split_plan.h"
#include "tests/cpu_node/small_model.h"
#include "tests/gpu_node/slot_call.h"
#include "transport/memory/mapping.h"
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

// As the CPU device runs a request of `rows` rows, `max_rows` at a time.
absl::Status Execute(const DeviceModel& model,
                     std::vector<base::TensorView> tensors,
                     const std::shared_ptr<transport::LinkMemory>& memory,
                     int64_t rows, int64_t max_rows) {
  Batch batch;
  batch.rows = rows;
  BatchMember& member = batch.members.emplace_back();
  member.call = std::make_unique<SlotCall>(std::move(tensors), memory,
                                           /*settled=*/false);
  member.rows = rows;
  runtime::RowBuffers buffers;
  ExecuteInSteps(model, batch, max_rows, buffers);
  return member.status;
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
  const auto memory = NewSlotMemory();
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    // In one go and in steps by turns.
    const absl::Status status =
        Execute(**model, {dense.view(), ids}, memory, kBatch,
                round % 2 == 0 ? kBatch : kBatch / 3);
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    ++refused;
  }
  done = true;
  client.join();
  std::printf("5000 requests, %d refused\n", refused);
  // Left alone it is a good request.
  for (const int64_t max_rows : {kBatch, kBatch / 3}) {
    const absl::Status status =
        Execute(**model, {dense.view(), ids}, memory, kBatch, max_rows);
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace refract::gpu_node

// A client that writes to the slot of its request while the node runs it: ids
// change between their check and their use.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_node/model/device_model.h"
#include "gtest/gtest.h"
#include "models/repository/split_plan.h"
#include "tests/cpu_node/small_model.h"
#include "tests/gpu_node/slot_call.h"
#include "transport/memory/mapping.h"
#include "transport/shm/memfd.h"

namespace refract::gpu_node {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBatch = 20;

// A model whose look-up runs on the HN, so that ids cross.
std::shared_ptr<const models::LoadedModel> LookUpOnTheHn() {
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({}));
  model->plan->stages[0] = models::Stage::kHn;
  models::ComputeCrossings(model->graph, *model->plan);
  return model;
}

// Calls `write` when the memory of the reply is asked for: the node has read
// the request by then (DeviceModel::Read) and computes afterwards.
class InterruptedCall final : public SlotCall {
 public:
  InterruptedCall(std::vector<base::TensorView> tensors,
                  std::shared_ptr<transport::LinkMemory> memory,
                  std::function<void()> write)
      : SlotCall(std::move(tensors), std::move(memory), /*settled=*/false),
        write_(std::move(write)) {}
  absl::StatusOr<transport::OutgoingMessage> AllocateReply(
      absl::Span<const base::TensorSpec> specs) override {
    write_();
    return SlotCall::AllocateReply(specs);
  }

 private:
  const std::function<void()> write_;
};

// A request in memory that its client maps too.
class HostilePayloadTest : public testing::Test {
 protected:
  HostilePayloadTest() {
    std::memcpy(theirs_->data(), good_.data(), good_.bytes());
  }

  // Runs a request as the CPU device does, `max_rows` rows each. `write`: what
  // the client does meanwhile.
  absl::Status Execute(int64_t max_rows, std::function<void()> write) {
    Batch batch;
    batch.rows = kBatch;
    BatchMember& member = batch.members.emplace_back();
    base::TensorView ids = good_.view();
    ids.data = ours_->data();
    member.call = std::make_unique<InterruptedCall>(
        std::vector<base::TensorView>{dense_.view(), ids}, memory_,
        std::move(write));
    member.rows = kBatch;
    runtime::RowBuffers buffers;
    ExecuteInSteps(*model_, batch, max_rows, buffers);
    if (!member.status.ok()) return member.status;
    const auto* logits = reinterpret_cast<const float*>(member.reply.data(0));
    logits_.assign(logits, logits + kBatch);
    return absl::OkStatus();
  }

  int64_t* Written() { return reinterpret_cast<int64_t*>(theirs_->data()); }

  const std::unique_ptr<DeviceModel> model_ =
      *DeviceModel::Create(LookUpOnTheHn());
  const std::shared_ptr<transport::LinkMemory> memory_ = NewSlotMemory();
  const base::Tensor dense_ = testing_models::MakeDense(kBatch);
  const base::Tensor good_ = testing_models::MakeIds(kBatch);
  const transport::UniqueFd file_ = *transport::shm::CreateMemfd(good_.bytes());
  const std::shared_ptr<const transport::Mapping> theirs_ =
      *transport::Mapping::Shared(file_.get(), good_.bytes(), true);
  const std::shared_ptr<const transport::Mapping> ours_ =
      *transport::Mapping::Shared(file_.get(), good_.bytes(), true);
  std::vector<float> logits_;
};

TEST_F(HostilePayloadTest, IdsThatChangeAfterTheyWereReadChangeNothing) {
  for (const int64_t max_rows : {kBatch, kBatch / 3}) {
    ASSERT_EQ(Execute(max_rows, [] {}), absl::OkStatus());
    const std::vector<float> want = logits_;
    // Another row of the table, and rows that no table has: reading there is a
    // fault where ids were checked before.
    for (const int64_t id :
         {int64_t{0}, int64_t{1} << 40, -(int64_t{1} << 40)}) {
      std::memcpy(theirs_->data(), good_.data(), good_.bytes());
      int writes = 0;
      ASSERT_EQ(Execute(max_rows,
                        [&] {
                          ++writes;
                          std::fill_n(Written(), kBatch, id);
                        }),
                absl::OkStatus())
          << id << ", " << max_rows << " rows at a time";
      EXPECT_EQ(writes, 1);
      EXPECT_EQ(logits_, want) << id;
    }
    std::memcpy(theirs_->data(), good_.data(), good_.bytes());
  }
}

TEST_F(HostilePayloadTest, IdsThatAreWrongFromTheStartAreRefused) {
  for (const int64_t max_rows : {kBatch, kBatch / 3}) {
    Written()[kBatch - 1] = int64_t{1} << 40;
    const absl::Status status = Execute(max_rows, [] {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("table"));
    // A request that nobody changes is executed.
    std::memcpy(theirs_->data(), good_.data(), good_.bytes());
    EXPECT_EQ(Execute(max_rows, [] {}), absl::OkStatus());
  }
}

}  // namespace
}  // namespace refract::gpu_node

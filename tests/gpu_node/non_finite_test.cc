// Answers with NaNs are counted where they are, also when requests share an
// execution or are executed in steps.
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "gpu_node/model/device_model.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/small_model.h"
#include "tests/gpu_node/slot_call.h"

namespace refract::gpu_node {
namespace {

using testing_models::kDense;
using testing_models::kDim;

// The inputs of the small model's HN part: dense values and looked-up rows.
struct Request {
  explicit Request(int64_t rows)
      : dense(testing_models::MakeDense(rows)),
        looked_up(
            *base::Tensor::Allocate(base::DType::kFloat32, {rows, kDim})) {
    for (float& value : looked_up.as<float>()) value = 0.5f;
  }
  std::vector<base::TensorView> views() const {
    return {dense.view(), looked_up.view()};
  }
  base::Tensor dense;
  base::Tensor looked_up;
};

class NonFiniteBatchTest : public ::testing::Test {
 protected:
  // Runs them as one batch.
  Batch Run(const std::vector<const Request*>& requests, int64_t max_rows) {
    Batch batch;
    for (const Request* request : requests) {
      BatchMember& member = batch.members.emplace_back();
      member.rows = request->dense.dims()[0];
      member.call = std::make_unique<SlotCall>(request->views(), memory_, true);
      batch.rows += member.rows;
    }
    runtime::RowBuffers buffers;
    ExecuteInSteps(*model_, batch, max_rows, buffers);
    return batch;
  }
  static float Logit(const BatchMember& member, int64_t row) {
    return reinterpret_cast<const float*>(member.reply.data(0))[row];
  }

  const std::unique_ptr<DeviceModel> model_ =
      *DeviceModel::Create(testing_models::MakeSmallModel({}));
  const std::shared_ptr<transport::LinkMemory> memory_ = NewSlotMemory();
};

TEST_F(NonFiniteBatchTest, OnlyTheRequestThatHasOneOfThoseExecutedTogether) {
  const Request first(3);
  Request spoiled(4);
  spoiled.dense.as<float>()[2 * kDense] =
      std::numeric_limits<float>::quiet_NaN();
  const Request last(2);
  const Batch batch = Run({&first, &spoiled, &last}, 100);
  const Batch alone = Run({&last}, 100);
  for (size_t i = 0; i < batch.members.size(); ++i) {
    ASSERT_TRUE(batch.members[i].status.ok()) << batch.members[i].status;
    EXPECT_EQ(batch.members[i].non_finite, i == 1) << i;
  }
  for (int64_t row = 0; row < 4; ++row) {
    EXPECT_EQ(std::isnan(Logit(batch.members[1], row)), row == 2) << row;
  }
  for (int64_t row = 0; row < 2; ++row) {
    EXPECT_FLOAT_EQ(Logit(batch.members[2], row), Logit(alone.members[0], row));
  }
}

TEST_F(NonFiniteBatchTest, InAnyStep) {
  for (const int64_t spoiled_row : {0, 7, 19}) {
    Request request(20);
    request.dense.as<float>()[spoiled_row * kDense] =
        std::numeric_limits<float>::infinity();
    const Batch batch = Run({&request}, /*max_rows=*/8);
    ASSERT_TRUE(batch.members[0].status.ok()) << batch.members[0].status;
    EXPECT_TRUE(batch.members[0].non_finite) << spoiled_row;
    for (int64_t row = 0; row < 20; ++row) {
      EXPECT_EQ(std::isinf(Logit(batch.members[0], row)), row == spoiled_row);
    }
  }
  const Request good(20);
  EXPECT_FALSE(Run({&good}, 8).members[0].non_finite);
}

}  // namespace
}  // namespace refract::gpu_node

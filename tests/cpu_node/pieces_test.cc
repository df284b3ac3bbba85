// Requests whose messages are too long for the transport.
#include <atomic>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/rows/row_dependence.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {
namespace {

using ::testing::HasSubstr;

// A row of the small model takes 28 B of a message: dense and its table row.
constexpr size_t kMessageBytes = size_t{64} << 10;
constexpr int64_t kRowsPerMessage = kMessageBytes / 28;

class PiecesTest : public ::testing::Test {
 protected:
  // An engine whose messages are short, and a GPU node. `refuse`: the node's
  // answer to a request with this many rows, or OK.
  void Start(std::shared_ptr<const models::LoadedModel> model,
             std::function<absl::Status(int64_t rows)> refuse = nullptr) {
    real_ = *gpu_node::GpuNode::Create(DeviceModelsOf({model}), {});
    node_ = std::make_unique<TestGpuNode>(
        ModelList{model}, 0,
        [this, refuse](std::unique_ptr<transport::ServerCall> call) {
          ++messages_;
          const int64_t rows = call->tensors()[0].dims[0];
          const absl::Status status =
              refuse == nullptr ? absl::OkStatus() : refuse(rows);
          if (!status.ok()) return call->Fail(status);
          real_->OnRequest(std::move(call));
        });
    EngineOptions options;
    options.workers = 2;
    options.nodes.addresses = {node_->address()};
    options.nodes.limits.eager_bytes = 1024;
    options.nodes.limits.max_message_bytes = kMessageBytes;
    // Two messages: pieces that run at the same time would find no room.
    options.nodes.limits.source_arena_bytes = 2 * kMessageBytes;
    auto engine = Engine::Create(MakeCatalog({model}), std::move(options));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    messages_ = 0;  // whoever counts the messages of the node sees the engine
    ASSERT_TRUE(ReadinessWatch(*engine_).Await(true));
  }
  void TearDown() override {
    if (engine_ == nullptr) return;
    EXPECT_TRUE(engine_->Drain(kPatience));
    engine_->Stop();
  }

  std::atomic<int> messages_ = 0;
  std::unique_ptr<gpu_node::GpuNode> real_;
  std::unique_ptr<TestGpuNode> node_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(PiecesTest, AnswersAllRowsOfRequestsOfEverySize) {
  Start(testing_models::MakeSmallModel({}));
  for (const int64_t rows : {kRowsPerMessage / 2, kRowsPerMessage + 1,
                             3 * kRowsPerMessage, 20 * kRowsPerMessage + 7}) {
    messages_ = 0;
    ExpectRight(Infer(*engine_, MakeRequest("small", rows)), rows);
    EXPECT_GE(messages_, (rows * 28 + kMessageBytes - 1) / kMessageBytes);
    EXPECT_LE(messages_, rows / kRowsPerMessage * 2 + 2) << rows;
  }
}

TEST_F(PiecesTest, CountsOneRequestOfAllItsRows) {
  Start(testing_models::MakeSmallModel({}));
  ASSERT_TRUE(
      Infer(*engine_, MakeRequest("small", 5 * kRowsPerMessage)).status.ok());
  const auto found = engine_->catalog()->Find("small", "");
  ASSERT_TRUE(found.ok());
  const ModelStatistics::Snapshot counted = (*found)->statistics().snapshot();
  EXPECT_EQ(counted.success.count, 1u);
  EXPECT_EQ(counted.rows, static_cast<uint64_t>(5 * kRowsPerMessage));
}

TEST_F(PiecesTest, AnswersOnlyTheOutputsThatWereAskedFor) {
  Start(testing_models::MakeSmallModel({}));
  InferRequest request = MakeRequest("small", 2 * kRowsPerMessage);
  request.outputs = {"twice"};
  const Answer answer = Infer(*engine_, std::move(request));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_EQ(answer.outputs.size(), 1u);
  EXPECT_EQ(answer.outputs[0].dims(),
            (base::Dims{2 * kRowsPerMessage, testing_models::kDim}));
}

TEST_F(PiecesTest, CutsAgainWhereTheAnswerIsTooLong) {
  // The answer of this node fits for a thousand rows.
  Start(testing_models::MakeSmallModel({}), [](int64_t rows) {
    return rows > 1000 ? absl::OutOfRangeError("a message of at least 70000 B")
                       : absl::OkStatus();
  });
  ExpectRight(Infer(*engine_, MakeRequest("small", 3 * kRowsPerMessage)),
              3 * kRowsPerMessage);
  ExpectRight(Infer(*engine_, MakeRequest("small", 2000)), 2000);
}

TEST_F(PiecesTest, RefusesARowThatIsTooLong) {
  Start(testing_models::MakeSmallModel({}), [](int64_t) {
    return absl::OutOfRangeError("a message of at least 70000 B");
  });
  const absl::Status status = Infer(*engine_, MakeRequest("small", 5)).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("at least 70000 B"));
  EXPECT_THAT(status.message(), HasSubstr("it has one row"));
}

TEST_F(PiecesTest, RefusesRowsThatDependOnEachOther) {
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({}));
  model->graph.rows = {.use = models::RowUse::kTogether,
                       .why = "node_m averages the batch"};
  Start(model);
  const absl::Status status =
      Infer(*engine_, MakeRequest("small", 2 * kRowsPerMessage)).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("at most 65536 B"));
  EXPECT_THAT(status.message(), HasSubstr("node_m averages the batch"));
  EXPECT_EQ(messages_, 0);
}

TEST_F(PiecesTest, FailsAsAWholeAndStopsAtTheFirstError) {
  Start(testing_models::MakeSmallModel({}), [this](int64_t) {
    return messages_ == 2 ? absl::InternalError("no memory") : absl::OkStatus();
  });
  const absl::Status status =
      Infer(*engine_, MakeRequest("small", 8 * kRowsPerMessage)).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(status.message(), HasSubstr("no memory"));
  EXPECT_EQ(messages_, 2);
}

TEST_F(PiecesTest, EndsWhenTheClientDoesNotWaitAnyMore) {
  std::stop_source nobody_waits;
  Start(testing_models::MakeSmallModel({}), [&](int64_t) {
    if (messages_ == 2) nobody_waits.request_stop();
    return absl::OkStatus();
  });
  InferRequest request = MakeRequest("small", 8 * kRowsPerMessage);
  request.cancel = nobody_waits.get_token();
  EXPECT_EQ(Infer(*engine_, std::move(request)).status.code(),
            absl::StatusCode::kCancelled);
  EXPECT_LE(messages_, 3);
}

TEST_F(PiecesTest, EndsWhenTheNodeStops) {
  Start(testing_models::MakeSmallModel({}), [&](int64_t) {
    if (messages_ == 2) engine_->StopAdmitting();
    return absl::OkStatus();
  });
  // Admitted before: it is answered.
  ExpectRight(Infer(*engine_, MakeRequest("small", 4 * kRowsPerMessage)),
              4 * kRowsPerMessage);
  EXPECT_TRUE(engine_->Drain(kPatience));
}

}  // namespace
}  // namespace refract::cpu_node

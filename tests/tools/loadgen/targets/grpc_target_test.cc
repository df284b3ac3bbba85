#include "tools/loadgen/targets/grpc_target.h"

#include <atomic>
#include <cstring>

#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/inference/grpc_service.grpc.pb.h"

namespace refract::loadgen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Doubles input `x` [-1] and answers it as `y`; can be told to misbehave.
class Doubler : public inference::GRPCInferenceService::Service {
 public:
  grpc::Status ModelReady(grpc::ServerContext*,
                          const inference::ModelReadyRequest* request,
                          inference::ModelReadyResponse* response) override {
    if (request->name() != "doubler") {
      return {grpc::StatusCode::NOT_FOUND, "no model " + request->name()};
    }
    response->set_ready(ready_after_-- <= 0);
    return grpc::Status::OK;
  }
  grpc::Status ModelMetadata(
      grpc::ServerContext*, const inference::ModelMetadataRequest*,
      inference::ModelMetadataResponse* response) override {
    auto& input = *response->add_inputs();
    input.set_name("x");
    input.set_datatype("FP32");
    input.add_shape(-1);
    return grpc::Status::OK;
  }
  grpc::Status ModelConfig(grpc::ServerContext*,
                           const inference::ModelConfigRequest*,
                           inference::ModelConfigResponse* response) override {
    (*response->mutable_config()->mutable_parameters())["batch_symbol"]
        .set_string_value("s0");
    return grpc::Status::OK;
  }
  grpc::Status ModelInfer(grpc::ServerContext*,
                          const inference::ModelInferRequest* request,
                          inference::ModelInferResponse* response) override {
    if (fail_) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full"};
    response->set_id(wrong_id_ ? "another" : request->id());
    if (no_outputs_) return grpc::Status::OK;
    auto& output = *response->add_outputs();
    output.set_name("y");
    output.set_datatype("FP32");
    *output.mutable_shape() = request->inputs(0).shape();
    std::string raw = request->raw_input_contents(0);
    for (size_t i = 0; i + sizeof(float) <= raw.size(); i += sizeof(float)) {
      float value;
      std::memcpy(&value, &raw[i], sizeof(value));
      value *= 2;
      std::memcpy(&raw[i], &value, sizeof(value));
    }
    if (short_output_) raw.pop_back();
    response->add_raw_output_contents(raw);
    return grpc::Status::OK;
  }

  std::atomic<int> ready_after_ = 0;
  std::atomic<bool> fail_ = false, wrong_id_ = false, no_outputs_ = false,
                    short_output_ = false;
};

class GrpcTargetTest : public testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    auto target = ConnectGrpc({.addresses = {"127.0.0.1:" + std::to_string(port)},
                               .connections = 2},
                              base::Clock::Real());
    ASSERT_TRUE(target.ok()) << target.status();
    target_ = *std::move(target);
  }

  // Prepares `count` requests of `x` = {i, i + 0.5}.
  void Prepare(int count) {
    auto model = target_->DescribeModel("doubler", "", absl::Seconds(10));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    for (int i = 0; i < count; ++i) {
      std::vector<base::Tensor> tensors;
      tensors.push_back(*base::Tensor::Allocate(base::DType::kFloat32, {2}));
      tensors[0].as<float>()[0] = static_cast<float>(i);
      tensors[0].as<float>()[1] = static_cast<float>(i) + 0.5f;
      EXPECT_GT(target_->Prepare(model_, tensors), 8u);
    }
  }

  std::vector<QueryResult> Run(size_t queries, size_t requests) {
    std::vector<PlannedQuery> schedule;
    for (size_t i = 0; i < queries; ++i) {
      schedule.push_back({.items = 2, .request = i % requests});
    }
    return OpenLoopRun(base::Clock::Real(), schedule, {}).Run(*target_);
  }

  Doubler service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Target> target_;
  ServedModel model_;
};

TEST_F(GrpcTargetTest, DescribesTheModelOnceItIsReady) {
  service_.ready_after_ = 2;
  const auto model = target_->DescribeModel("doubler", "", absl::Seconds(10));
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->inputs.size(), 1u);
  EXPECT_EQ(model->inputs[0].name, "x");
  EXPECT_EQ(model->inputs[0].dtype, base::DType::kFloat32);
  EXPECT_THAT(model->inputs[0].dims, ElementsAre(-1));
  EXPECT_EQ(model->parameters.at("batch_symbol"), "s0");
}

TEST_F(GrpcTargetTest, SaysThatAModelIsUnknownOrNeverReady) {
  EXPECT_EQ(
      target_->DescribeModel("other", "", absl::Seconds(10)).status().code(),
      absl::StatusCode::kNotFound);
  service_.ready_after_ = 1'000'000;
  EXPECT_EQ(target_->DescribeModel("doubler", "", absl::ZeroDuration())
                .status()
                .code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(GrpcTargetTest, AnswersArriveAndAreRecorded) {
  Prepare(5);
  target_->Record(3);
  for (const QueryResult& result : Run(40, 5)) {
    EXPECT_EQ(result.code, absl::StatusCode::kOk);
  }
  for (int i = 0; i < 3; ++i) {
    const auto response = target_->Recorded(i);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_THAT(response->names, ElementsAre("y"));
    EXPECT_THAT(response->outputs[0].view().as<float>(),
                ElementsAre(2.0f * i, 2.0f * i + 1));
  }
  EXPECT_EQ(target_->Recorded(3).status().code(), absl::StatusCode::kNotFound);
  const Target::Answers answers = target_->TakeAnswers();
  EXPECT_EQ(answers.count, 40u);
  EXPECT_GT(answers.bytes, 40u * 8);
  EXPECT_TRUE(answers.first_errors.empty());
  EXPECT_EQ(target_->TakeAnswers().count, 0u);
}

TEST_F(GrpcTargetTest, ServerErrorsKeepTheirCodeAndMessage) {
  Prepare(1);
  service_.fail_ = true;
  for (const QueryResult& result : Run(3, 1)) {
    EXPECT_EQ(result.code, absl::StatusCode::kResourceExhausted);
  }
  const Target::Answers answers = target_->TakeAnswers();
  EXPECT_EQ(answers.count, 0u);
  EXPECT_THAT(answers.first_errors.at(absl::StatusCode::kResourceExhausted),
              HasSubstr("queue full"));
}

TEST_F(GrpcTargetTest, WrongAnswersAreErrors) {
  Prepare(1);
  service_.wrong_id_ = true;
  EXPECT_EQ(Run(1, 1)[0].code, absl::StatusCode::kDataLoss);
  service_.wrong_id_ = false;
  service_.no_outputs_ = true;
  EXPECT_EQ(Run(1, 1)[0].code, absl::StatusCode::kDataLoss);
  service_.no_outputs_ = false;
  service_.short_output_ = true;
  target_->Record(1);
  Run(1, 1);
  EXPECT_EQ(target_->Recorded(0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(GrpcTargetTest, AServerThatIsGoneIsUnavailable) {
  Prepare(1);
  server_->Shutdown(std::chrono::system_clock::now());
  EXPECT_EQ(Run(1, 1)[0].code, absl::StatusCode::kUnavailable);
  const auto none = ConnectGrpc(
      {.addresses = {"127.0.0.1:1"}, .connect_timeout = absl::Milliseconds(50)},
      base::Clock::Real());
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace refract::loadgen

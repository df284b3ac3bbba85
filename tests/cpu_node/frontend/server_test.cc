#include "cpu_node/frontend/server.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/node_status.grpc.pb.h"
#include "tests/cpu_node/frontend/frontend_fixture.h"

namespace refract::cpu_node {
namespace {

using ::inference::GRPCInferenceService;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// grpc.health.v1.Health/Check by hand: Debian ships no stubs for it.
// HealthCheckRequest{service = 1}, HealthCheckResponse{status = 1}; status 1 is
// SERVING, 2 NOT_SERVING.
class HealthClient {
 public:
  explicit HealthClient(std::shared_ptr<grpc::Channel> channel)
      : stub_(std::move(channel)) {}

  // The status, or minus the gRPC error code.
  int Check(const std::string& service) {
    std::string request;
    if (!service.empty()) {
      request =
          std::string("\x0a") + static_cast<char>(service.size()) + service;
    }
    const grpc::Slice slice(request);
    grpc::ByteBuffer send(&slice, 1);
    grpc::ByteBuffer received;
    grpc::Status status;
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto call = stub_.PrepareUnaryCall(
        &context, "/grpc.health.v1.Health/Check", send, &queue);
    call->StartCall();
    call->Finish(&received, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    if (!status.ok()) return -static_cast<int>(status.error_code());
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(received.Dump(&slices).ok());
    std::string bytes;
    for (const grpc::Slice& part : slices) {
      bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
    return bytes.size() == 2 ? bytes[1] : 0;
  }

 private:
  grpc::GenericStub stub_;
};

TEST_F(FrontendTest, InfersFromRawContents) {
  Start();
  inference::ModelInferResponse response;
  const grpc::Status status = Infer(Request(3), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.id(), "request 7");
  EXPECT_EQ(response.model_name(), "whole");
  EXPECT_EQ(response.model_version(), "1");
  ASSERT_EQ(response.outputs_size(), 3);
  EXPECT_EQ(response.outputs(0).name(), "score");
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(3, 1));
  ASSERT_EQ(response.raw_output_contents(0).size(), 3 * sizeof(float));
  for (int64_t b = 0; b < 3; ++b) {
    float score;
    std::memcpy(&score, response.raw_output_contents(0).data() + 4 * b, 4);
    EXPECT_NEAR(score, testing_models::ExpectedScore(b, 0), 1e-6);
  }
}

TEST_F(FrontendTest, TypedContentsGiveTheSameBytesAsRaw) {
  Start();
  inference::ModelInferRequest typed = Request(5);
  typed.clear_raw_input_contents();
  const base::Tensor dense = testing_models::MakeDense(5);
  const base::Tensor ids = testing_models::MakeIds(5);
  for (const float value : dense.view().as<float>()) {
    typed.mutable_inputs(0)->mutable_contents()->add_fp32_contents(value);
  }
  for (const int64_t value : ids.view().as<int64_t>()) {
    typed.mutable_inputs(1)->mutable_contents()->add_int64_contents(value);
  }
  inference::ModelInferResponse from_raw, from_typed;
  ASSERT_TRUE(Infer(Request(5), &from_raw).ok());
  ASSERT_TRUE(Infer(typed, &from_typed).ok());
  EXPECT_EQ(from_raw.raw_output_contents(0), from_typed.raw_output_contents(0));
}

TEST_F(FrontendTest, ErrorsCarryTheirCodeAndTheTensorsName) {
  Start();
  inference::ModelInferResponse response;
  inference::ModelInferRequest request = Request(2);
  request.set_model_name("nobody");
  EXPECT_EQ(Infer(request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  // The unknown model is reported, even if other parts are wrong too.
  request.mutable_raw_input_contents(0)->pop_back();
  EXPECT_EQ(Infer(request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  request.set_model_name("whole");
  grpc::Status status = Infer(request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("'dense'"));
  request = Request(2);
  request.set_model_version("8");
  EXPECT_EQ(Infer(request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  request = Request(2);
  (*request.mutable_parameters())["timeout"].set_int64_param(-1);
  EXPECT_EQ(Infer(request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Infer(Request(2), &response).ok());
}

TEST_F(FrontendTest, TakesRequestsOfManyMegabytes) {
  Start();
  inference::ModelInferResponse response;
  // 1 M rows: 12 MB of floats, 8 MB of ids; gRPC's default limit is 4 MiB.
  inference::ModelInferRequest request = Request(100000);
  EXPECT_TRUE(Infer(request, &response).ok());
  request = Request(1000000);
  const grpc::Status status = Infer(request, &response);
  // Past the model's declared range of B: refused by the model, not by gRPC.
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
      << status.error_message();
}

TEST_F(FrontendTest, TellsAboutServerAndModel) {
  Start();
  inference::ServerMetadataResponse server;
  ASSERT_TRUE(Call(&GRPCInferenceService::Stub::ServerMetadata,
                   inference::ServerMetadataRequest(), &server)
                  .ok());
  EXPECT_EQ(server.name(), "refract");
  EXPECT_THAT(server.extensions(),
              ElementsAre("model_configuration", "statistics", "trace"));

  inference::ModelMetadataRequest request;
  request.set_name("whole");
  inference::ModelMetadataResponse model;
  ASSERT_TRUE(
      Call(&GRPCInferenceService::Stub::ModelMetadata, request, &model).ok());
  EXPECT_THAT(model.versions(), ElementsAre("1"));
  ASSERT_EQ(model.inputs_size(), 2);
  EXPECT_EQ(model.inputs(0).name(), "dense");
  EXPECT_EQ(model.inputs(0).datatype(), "FP32");
  EXPECT_THAT(model.inputs(0).shape(), ElementsAre(-1, 3));
  EXPECT_EQ(model.outputs(0).name(), "score");

  inference::ModelConfigRequest config_request;
  config_request.set_name("whole");
  inference::ModelConfigResponse config;
  ASSERT_TRUE(
      Call(&GRPCInferenceService::Stub::ModelConfig, config_request, &config)
          .ok());
  EXPECT_EQ(config.config().name(), "whole");
  config_request.set_name("nobody");
  EXPECT_EQ(
      Call(&GRPCInferenceService::Stub::ModelConfig, config_request, &config)
          .error_code(),
      grpc::StatusCode::NOT_FOUND);
}

TEST_F(FrontendTest, StatisticsCountRowsAndFailures) {
  Start();
  inference::ModelInferResponse response;
  ASSERT_TRUE(Infer(Request(3), &response).ok());
  ASSERT_TRUE(Infer(Request(4), &response).ok());
  inference::ModelInferRequest bad = Request(4);
  bad.mutable_raw_input_contents(0)->pop_back();  // fails in the front end
  ASSERT_FALSE(Infer(bad, &response).ok());
  inference::ModelStatisticsResponse statistics;
  ASSERT_TRUE(Call(&GRPCInferenceService::Stub::ModelStatistics,
                   inference::ModelStatisticsRequest(), &statistics)
                  .ok());
  ASSERT_EQ(statistics.model_stats_size(), 1);
  const inference::ModelStatistics& model = statistics.model_stats(0);
  EXPECT_EQ(model.name(), "whole");
  EXPECT_EQ(model.inference_count(), 7);
  EXPECT_EQ(model.execution_count(), 2);
  EXPECT_EQ(model.inference_stats().success().count(), 2);
  EXPECT_EQ(model.inference_stats().fail().count(), 1);
  EXPECT_GT(model.inference_stats().compute_infer().ns(), 0);
  EXPECT_GT(model.last_inference(), 0);
}

TEST_F(FrontendTest, NodeStatusNamesTheSettingInWhichNodesDiffer) {
  const auto mine = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({.name = "split"}));
  mine->config.dense_weights = models::DenseWeights::kInt8;
  const auto theirs = testing_models::MakeSmallModel({.name = "split"});
  TestGpuNode same({mine});
  TestGpuNode other({theirs});
  std::vector<Catalog::Entry> entries;
  entries.push_back({"split", 1, *ServedModel::Create(mine, {}), {}});
  Start(std::move(entries), {same.address(), other.address()});

  const auto stub = proto::NodeStatus::NewStub(channel_);
  const absl::Time give_up = absl::Now() + kPatience;
  proto::GpuNodesResponse nodes;
  do {
    grpc::ClientContext context;
    ASSERT_TRUE(
        stub->GpuNodes(&context, proto::GpuNodesRequest(), &nodes).ok());
    ASSERT_EQ(nodes.nodes_size(), 2);
  } while (!(nodes.nodes(0).connected() && nodes.nodes(1).connected()) &&
           absl::Now() < give_up);
  ASSERT_EQ(nodes.nodes(0).models_size(), 1);
  EXPECT_TRUE(nodes.nodes(0).models(0).ready());
  ASSERT_EQ(nodes.nodes(1).models_size(), 1);
  EXPECT_TRUE(nodes.nodes(1).connected());
  EXPECT_FALSE(nodes.nodes(1).models(0).ready());
  EXPECT_THAT(nodes.nodes(1).models(0).why(),
              AllOf(HasSubstr("'split' version 1"),
                    HasSubstr("'dense_weights': 'int8' on the CN, the default "
                              "on the HN")));
  // The other one serves it.
  inference::ModelReadyRequest request;
  request.set_name("split");
  inference::ModelReadyResponse ready;
  while (!ready.ready() && absl::Now() < give_up) {
    ASSERT_TRUE(
        Call(&GRPCInferenceService::Stub::ModelReady, request, &ready).ok());
  }
  for (int i = 0; i < 10; ++i) {
    const Answer answer = cpu_node::Infer(*engine_, MakeRequest("split", 3));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
  }
  EXPECT_EQ(same.requests(), 10);
  EXPECT_EQ(other.requests(), 0);
}

TEST_F(FrontendTest, GpuNodesOmitsAnUnloadedVersion) {
  const auto split = testing_models::MakeSmallModel({.name = "split"});
  std::vector<Catalog::Entry> entries;
  entries.push_back({"split", 1, *ServedModel::Create(split, {}), {}});
  Start(std::move(entries), {"127.0.0.1:1"});
  engine_->nodes().RemoveOffer(0);

  grpc::ClientContext context;
  proto::GpuNodesResponse nodes;
  ASSERT_TRUE(proto::NodeStatus::NewStub(channel_)
                  ->GpuNodes(&context, proto::GpuNodesRequest(), &nodes)
                  .ok());
  ASSERT_EQ(nodes.nodes_size(), 1);
  EXPECT_EQ(nodes.nodes(0).models_size(), 0);
}

TEST_F(FrontendTest, ReadinessFollowsTheGpuNodes) {
  const auto split = testing_models::MakeSmallModel({.name = "split"});
  const int port = TestGpuNode({split}).port();
  std::vector<Catalog::Entry> entries;
  entries.push_back({"split", 1, *ServedModel::Create(split, {}), {}});
  entries.push_back(
      {"broken", 2, nullptr, absl::InvalidArgumentError("graph.pb: damaged")});
  Start(std::move(entries), {absl::StrCat("127.0.0.1:", port)});
  HealthClient health(channel_);

  const auto server_ready = [&] {
    inference::ServerReadyResponse response;
    EXPECT_TRUE(Call(&GRPCInferenceService::Stub::ServerReady,
                     inference::ServerReadyRequest(), &response)
                    .ok());
    return response.ready();
  };
  const auto model_ready = [&](const std::string& name) {
    inference::ModelReadyRequest request;
    request.set_name(name);
    inference::ModelReadyResponse response;
    EXPECT_TRUE(
        Call(&GRPCInferenceService::Stub::ModelReady, request, &response).ok());
    return response.ready();
  };
  const auto index = [&](bool only_ready) {
    inference::RepositoryIndexRequest request;
    request.set_ready(only_ready);
    inference::RepositoryIndexResponse response;
    EXPECT_TRUE(
        Call(&GRPCInferenceService::Stub::RepositoryIndex, request, &response)
            .ok());
    std::vector<std::string> lines;
    for (const auto& model : response.models()) {
      lines.push_back(absl::StrCat(model.name(), "/", model.version(), " ",
                                   model.state(), " ", model.reason()));
    }
    return lines;
  };

  inference::ServerLiveResponse live;
  EXPECT_TRUE(Call(&GRPCInferenceService::Stub::ServerLive,
                   inference::ServerLiveRequest(), &live)
                  .ok());
  EXPECT_TRUE(live.live());
  EXPECT_FALSE(server_ready());
  EXPECT_TRUE(model_ready("whole"));
  EXPECT_FALSE(model_ready("split"));
  EXPECT_FALSE(model_ready("broken"));
  EXPECT_EQ(health.Check(""), 2);
  EXPECT_EQ(health.Check("whole"), 1);
  EXPECT_EQ(health.Check("split"), 2);
  EXPECT_EQ(health.Check("unheard of"),
            -static_cast<int>(grpc::StatusCode::NOT_FOUND));
  EXPECT_THAT(index(false),
              ElementsAre("broken/2 UNAVAILABLE graph.pb: damaged",
                          HasSubstr("split/1 UNAVAILABLE no GPU node"),
                          "whole/1 READY "));
  EXPECT_THAT(index(true), ElementsAre("whole/1 READY "));

  TestGpuNode node({split}, port);
  const absl::Time give_up = absl::Now() + kPatience;
  while (health.Check("") != 1 && absl::Now() < give_up) {
  }
  EXPECT_EQ(health.Check(""), 1);
  EXPECT_EQ(health.Check("split"), 1);
  EXPECT_TRUE(server_ready());
  EXPECT_TRUE(model_ready("split"));

  engine_->StopAdmitting();
  EXPECT_EQ(health.Check(""), 2);
  EXPECT_EQ(health.Check("whole"), 2);
  EXPECT_FALSE(server_ready());
  inference::ModelInferResponse response;
  EXPECT_EQ(Infer(Request(2), &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(FrontendTest, UnimplementedMethodsSaySo) {
  Start();
  // Without model control.
  inference::RepositoryModelLoadResponse load;
  EXPECT_EQ(Call(&GRPCInferenceService::Stub::RepositoryModelLoad,
                 inference::RepositoryModelLoadRequest(), &load)
                .error_code(),
            grpc::StatusCode::UNAVAILABLE);
  inference::SystemSharedMemoryStatusResponse memory;
  EXPECT_EQ(Call(&GRPCInferenceService::Stub::SystemSharedMemoryStatus,
                 inference::SystemSharedMemoryStatusRequest(), &memory)
                .error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  grpc::ClientContext context;
  const auto stream = stub_->ModelStreamInfer(&context);
  inference::ModelStreamInferResponse response;
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

// A model that is split, and a GPU node that never answers; it keeps the call
// so that nothing else ends it.
class SilentGpuNodeTest : public FrontendTest {
 protected:
  void SetUp() override {
    std::vector<Catalog::Entry> entries;
    entries.push_back({"split", 1, *ServedModel::Create(split_, {}), {}});
    Start(std::move(entries), {node_.address()});
    HealthClient health(channel_);
    const absl::Time give_up = absl::Now() + kPatience;
    while (health.Check("") != 1 && absl::Now() < give_up) {
    }
    request_.set_model_name("split");
  }

  const std::shared_ptr<const models::LoadedModel> split_ =
      testing_models::MakeSmallModel({.name = "split"});
  absl::Mutex mu_;
  std::vector<std::unique_ptr<transport::ServerCall>> calls_
      ABSL_GUARDED_BY(mu_);
  absl::Notification there_;
  TestGpuNode node_{{split_}, 0, [this](auto call) {
                      absl::MutexLock lock(&mu_);
                      calls_.push_back(std::move(call));
                      there_.Notify();
                    }};
  inference::ModelInferRequest request_ = Request(2);
};

TEST_F(SilentGpuNodeTest, ACallThatIsCancelledIsGivenUpThere) {
  grpc::ClientContext context;
  std::thread client([&] {
    inference::ModelInferResponse response;
    EXPECT_EQ(stub_->ModelInfer(&context, request_, &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  EXPECT_TRUE(there_.WaitForNotificationWithTimeout(kPatience));
  context.TryCancel();
  client.join();
  EXPECT_TRUE(node_.AwaitAbandoned(1));
  engine_->StopAdmitting();
  EXPECT_TRUE(engine_->Drain(kPatience));
}

TEST_F(SilentGpuNodeTest, GrpcDeadlineReachesTheEngine) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(300));
  inference::ModelInferResponse response;
  EXPECT_EQ(stub_->ModelInfer(&context, request_, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  // The engine gave the request up by itself: nothing is left in flight.
  engine_->StopAdmitting();
  EXPECT_TRUE(engine_->Drain(kPatience));
}

TEST_F(FrontendTest, BecomesQuietOnceClientsHaveGone) {
  Start();
  engine_->StopAdmitting();
  std::atomic<bool> stop = false;
  std::thread client([&] {
    inference::ModelInferResponse response;
    while (!stop) {
      EXPECT_EQ(Infer(Request(1), &response).error_code(),
                grpc::StatusCode::UNAVAILABLE);
    }
  });
  // Calls come all the time: a second without one would be a stuck machine.
  EXPECT_FALSE(frontend_->AwaitQuiet(absl::Seconds(1), absl::Seconds(1)));
  stop = true;
  client.join();
  EXPECT_TRUE(frontend_->AwaitQuiet(absl::Milliseconds(1), kPatience));
}

TEST_F(FrontendTest, StillServesBetweenAnnouncementAndStop) {
  Start();
  HealthClient health(channel_);
  EXPECT_EQ(health.Check(""), 1);
  engine_->AnnounceStop();
  EXPECT_EQ(health.Check(""), 2);
  EXPECT_EQ(health.Check("whole"), 2);
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(Call(&GRPCInferenceService::Stub::ServerReady,
                   inference::ServerReadyRequest(), &ready)
                  .ok());
  EXPECT_FALSE(ready.ready());
  inference::ModelInferResponse response;
  EXPECT_TRUE(Infer(Request(2), &response).ok());
  engine_->StopAdmitting();
  EXPECT_EQ(Infer(Request(2), &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace refract::cpu_node

#include "cpu_node/frontend/server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
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
#include "proto/inference/grpc_service.grpc.pb.h"
#include "proto/node_status.grpc.pb.h"
#include "tests/cpu_node/serving_fixture.h"
#include "transport/loop/socket.h"

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

class FrontendTest : public ::testing::Test {
 protected:
  void Start(std::vector<Catalog::Entry> more = {},
             std::vector<std::string> gpu_nodes = {},
             FrontendOptions frontend_options = {}) {
    std::vector<Catalog::Entry> entries = std::move(more);
    const auto model =
        testing_models::MakeSmallModel({.name = "whole", .split = false});
    entries.push_back({"whole", 1, *ServedModel::Create(model, {}), {}});
    EngineOptions options;
    options.workers = 2;
    options.nodes.addresses = std::move(gpu_nodes);
    engine_ = *Engine::Create(Catalog(std::move(entries)), options);
    frontend_options.host = "127.0.0.1";
    frontend_options.port = 0;
    auto frontend = Frontend::Create(frontend_options, engine_.get());
    ASSERT_TRUE(frontend.ok()) << frontend.status();
    frontend_ = *std::move(frontend);
    channel_ =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", frontend_->port()),
                            grpc::InsecureChannelCredentials());
    stub_ = GRPCInferenceService::NewStub(channel_);
  }
  ~FrontendTest() override {
    if (engine_ != nullptr) engine_->Stop();
  }

  static inference::ModelInferRequest Request(int64_t batch) {
    inference::ModelInferRequest request;
    request.set_model_name("whole");
    request.set_id("request 7");
    const auto add = [&](const std::string& name, const char* datatype,
                         const base::Tensor& tensor) {
      auto* input = request.add_inputs();
      input->set_name(name);
      input->set_datatype(datatype);
      for (const int64_t dim : tensor.dims()) input->add_shape(dim);
      request.add_raw_input_contents(tensor.data(), tensor.bytes());
    };
    add("dense", "FP32", testing_models::MakeDense(batch));
    add("ids", "INT64", testing_models::MakeIds(batch));
    return request;
  }

  // Each rpc with a fresh context and a deadline that only a bug reaches.
  template <typename Method, typename RequestType, typename Response>
  grpc::Status Call(Method method, const RequestType& request,
                    Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(30));
    return (stub_.get()->*method)(&context, request, response);
  }
  grpc::Status Infer(const inference::ModelInferRequest& request,
                     inference::ModelInferResponse* response) {
    return Call(&GRPCInferenceService::Stub::ModelInfer, request, response);
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Frontend> frontend_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<GRPCInferenceService::Stub> stub_;
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

TEST_F(FrontendTest, RequestsThatDoNotFitAreRefusedAndOthersGiveTheirsBack) {
  FrontendOptions options;
  options.request_memory = 4 << 20;  // half of it for decoded requests
  Start({}, {}, options);
  inference::ModelInferResponse response;
  // 20 bytes a row; its message and its tensors at the same time.
  const grpc::Status status = Infer(Request(60000), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--request-memory"));
  for (int i = 0; i < 50; ++i) {
    const grpc::Status fits = Infer(Request(5000), &response);
    ASSERT_TRUE(fits.ok()) << i << ": " << fits.error_message();
  }
}

// A client that connects and says `greeting`; whether the server closes the
// connection.
bool IsClosed(int port, absl::string_view greeting) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
      0);
  const timeval patience = {absl::ToInt64Seconds(kPatience), 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  EXPECT_EQ(send(fd, greeting.data(), greeting.size(), 0), greeting.size());
  char buffer[256];
  ssize_t bytes;
  do {
    bytes = recv(fd, buffer, sizeof(buffer), 0);
  } while (bytes > 0);
  const bool closed = bytes == 0 || errno == ECONNRESET;
  close(fd);
  return closed;
}

constexpr char kPreface[] =
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    "\0\0\0\4\0\0\0\0";  // and an empty SETTINGS frame

TEST_F(FrontendTest, ClosesConnectionsThatDoNotSpeakHttp2) {
  FrontendOptions options;
  options.handshake_timeout = absl::Milliseconds(100);
  options.max_idle = absl::Hours(1);
  Start({}, {}, options);
  EXPECT_TRUE(IsClosed(frontend_->port(), ""));
}

TEST_F(FrontendTest, ClosesConnectionsWithoutCalls) {
  FrontendOptions options;
  options.handshake_timeout = absl::Hours(1);
  options.max_idle = absl::Milliseconds(100);
  Start({}, {}, options);
  // With the final zero of the literal: a frame has nine bytes.
  EXPECT_TRUE(IsClosed(frontend_->port(), {kPreface, sizeof(kPreface)}));
  // A client whose connection is closed in between does not notice.
  inference::ModelInferResponse response;
  EXPECT_TRUE(Infer(Request(2), &response).ok());
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_TRUE(Infer(Request(2), &response).ok());
}

// A header field that enters no table (RFC 7541, 6.2.2).
std::string HeaderField(absl::string_view name, absl::string_view value) {
  return absl::StrCat(std::string(1, '\0'),
                      std::string(1, static_cast<char>(name.size())), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

TEST_F(FrontendTest, ClosesOldConnectionsWhoseCallsDoNotEnd) {
  FrontendOptions options;
  options.max_age = absl::Milliseconds(100);
  options.age_grace = absl::Milliseconds(100);
  Start({}, {}, options);
  const std::string headers = absl::StrCat(
      HeaderField(":method", "POST"), HeaderField(":scheme", "http"),
      HeaderField(":path", "/inference.GRPCInferenceService/ModelInfer"),
      HeaderField(":authority", "localhost"),
      HeaderField("content-type", "application/grpc"),
      HeaderField("te", "trailers"));
  // HEADERS of stream 1 with END_HEADERS; its message never comes.
  ASSERT_LT(headers.size(), 256);
  const std::string frame = absl::StrCat(
      std::string("\0\0", 2), std::string(1, static_cast<char>(headers.size())),
      std::string("\1\4\0\0\0\1", 6), headers);
  EXPECT_TRUE(IsClosed(
      frontend_->port(),
      absl::StrCat(absl::string_view(kPreface, sizeof(kPreface)), frame)));
}

TEST(FrontendAddressTest, ListensOnEveryAddressOfAName) {
  struct Case {
    const char* host;
    const char* reached_at;
  };
  const bool has_ipv6 = transport::ListenTcp({"::1", 0}).ok();
  for (const Case& each :
       {Case{"0.0.0.0", "127.0.0.1"}, Case{"localhost", "127.0.0.1"},
        Case{"127.0.0.1", "127.0.0.1"}, Case{"0.0.0.0", "[::1]"},
        Case{"[::1]", "[::1]"}}) {
    if (each.reached_at[0] == '[' && !has_ipv6) continue;
    const std::unique_ptr<Engine> engine = *Engine::Create(Catalog({}), {});
    FrontendOptions options;
    options.host = each.host;
    options.port = 0;
    const auto frontend = Frontend::Create(options, engine.get());
    ASSERT_TRUE(frontend.ok()) << frontend.status();
    const auto channel = grpc::CreateChannel(
        absl::StrCat(each.reached_at, ":", (*frontend)->port()),
        grpc::InsecureChannelCredentials());
    EXPECT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() +
                                          std::chrono::seconds(30)))
        << each.host << ", " << each.reached_at;
    engine->Stop();  // before its front end ends
  }
  const std::unique_ptr<Engine> engine = *Engine::Create(Catalog({}), {});
  FrontendOptions options;
  options.host = "no.such.host.invalid";
  EXPECT_THAT(
      std::string(Frontend::Create(options, engine.get()).status().message()),
      HasSubstr("no.such.host.invalid:8001"));
}

TEST_F(FrontendTest, APortThatIsTakenIsAnError) {
  Start();
  const std::unique_ptr<Engine> other = *Engine::Create(Catalog({}), {});
  FrontendOptions options;
  options.host = "127.0.0.1";
  options.port = frontend_->port();
  const absl::Status status = Frontend::Create(options, other.get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("127.0.0.1:", options.port)));
}

}  // namespace
}  // namespace refract::cpu_node

#ifndef REFRACT_TESTS_CPU_NODE_FRONTEND_FRONTEND_FIXTURE_H_
#define REFRACT_TESTS_CPU_NODE_FRONTEND_FRONTEND_FIXTURE_H_

// A front end over gRPC with a client of it.

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cpu_node/frontend/server.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/inference/grpc_service.grpc.pb.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {

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
    stub_ = inference::GRPCInferenceService::NewStub(channel_);
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
    return Call(&inference::GRPCInferenceService::Stub::ModelInfer, request, response);
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Frontend> frontend_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_TESTS_CPU_NODE_FRONTEND_FRONTEND_FIXTURE_H_

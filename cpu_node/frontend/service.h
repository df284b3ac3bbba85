#ifndef REFRACT_CPU_NODE_FRONTEND_SERVICE_H_
#define REFRACT_CPU_NODE_FRONTEND_SERVICE_H_

#include <atomic>
#include <cstdint>

#include "cpu_node/engine.h"
#include "proto/inference/grpc_service.grpc.pb.h"

namespace refract::cpu_node {

// KServe v2 over gRPC on top of an Engine. Methods that are not overridden
// answer UNIMPLEMENTED (in the generated base). Thread-safe. Methods run on
// gRPC's threads and do not block; the engine's threads answer ModelInfer.
class InferenceService final
    : public inference::GRPCInferenceService::CallbackService {
 public:
  // `engine` must outlive every call.
  explicit InferenceService(Engine* engine) : engine_(*engine) {}

  // ModelInfer calls that have arrived so far.
  uint64_t infer_calls() const {
    return infer_calls_.load(std::memory_order_relaxed);
  }

  grpc::ServerUnaryReactor* ServerLive(
      grpc::CallbackServerContext* context,
      const inference::ServerLiveRequest* request,
      inference::ServerLiveResponse* response) override;
  grpc::ServerUnaryReactor* ServerReady(
      grpc::CallbackServerContext* context,
      const inference::ServerReadyRequest* request,
      inference::ServerReadyResponse* response) override;
  grpc::ServerUnaryReactor* ModelReady(
      grpc::CallbackServerContext* context,
      const inference::ModelReadyRequest* request,
      inference::ModelReadyResponse* response) override;
  grpc::ServerUnaryReactor* ServerMetadata(
      grpc::CallbackServerContext* context,
      const inference::ServerMetadataRequest* request,
      inference::ServerMetadataResponse* response) override;
  grpc::ServerUnaryReactor* ModelMetadata(
      grpc::CallbackServerContext* context,
      const inference::ModelMetadataRequest* request,
      inference::ModelMetadataResponse* response) override;
  grpc::ServerUnaryReactor* ModelInfer(
      grpc::CallbackServerContext* context,
      const inference::ModelInferRequest* request,
      inference::ModelInferResponse* response) override;
  grpc::ServerUnaryReactor* ModelConfig(
      grpc::CallbackServerContext* context,
      const inference::ModelConfigRequest* request,
      inference::ModelConfigResponse* response) override;
  grpc::ServerUnaryReactor* ModelStatistics(
      grpc::CallbackServerContext* context,
      const inference::ModelStatisticsRequest* request,
      inference::ModelStatisticsResponse* response) override;
  grpc::ServerUnaryReactor* RepositoryIndex(
      grpc::CallbackServerContext* context,
      const inference::RepositoryIndexRequest* request,
      inference::RepositoryIndexResponse* response) override;

 private:
  Engine& engine_;
  std::atomic<uint64_t> infer_calls_ = 0;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_SERVICE_H_

#ifndef REFRACT_CPU_NODE_FRONTEND_SERVICE_H_
#define REFRACT_CPU_NODE_FRONTEND_SERVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process/byte_budget.h"
#include "cpu_node/control/model_control.h"
#include "cpu_node/engine.h"
#include "cpu_node/security/access.h"
#include "proto/inference/grpc_service.grpc.pb.h"

namespace refract::cpu_node {

// The generated service with `Methods` taken as bytes.
template <typename Base, template <typename> class... Methods>
struct TakingBytes {
  using Type = Base;
};
template <typename Base, template <typename> class First,
          template <typename> class... Rest>
struct TakingBytes<Base, First, Rest...> {
  using Type = First<typename TakingBytes<Base, Rest...>::Type>;
};

using KServe = inference::GRPCInferenceService;
// All methods whose requests gRPC would decode before the service sees them.
// Methods that this server lacks decode nothing.
using KServeBytes =
    TakingBytes<KServe::WithCallbackMethod_ModelStreamInfer<KServe::Service>,
                KServe::WithRawCallbackMethod_ServerLive,
                KServe::WithRawCallbackMethod_ServerReady,
                KServe::WithRawCallbackMethod_ModelReady,
                KServe::WithRawCallbackMethod_ServerMetadata,
                KServe::WithRawCallbackMethod_ModelMetadata,
                KServe::WithRawCallbackMethod_ModelInfer,
                KServe::WithRawCallbackMethod_ModelConfig,
                KServe::WithRawCallbackMethod_ModelStatistics,
                KServe::WithRawCallbackMethod_RepositoryIndex,
                KServe::WithRawCallbackMethod_RepositoryModelLoad,
                KServe::WithRawCallbackMethod_RepositoryModelUnload,
                KServe::WithRawCallbackMethod_SystemSharedMemoryStatus,
                KServe::WithRawCallbackMethod_SystemSharedMemoryRegister,
                KServe::WithRawCallbackMethod_SystemSharedMemoryUnregister,
                KServe::WithRawCallbackMethod_CudaSharedMemoryStatus,
                KServe::WithRawCallbackMethod_CudaSharedMemoryRegister,
                KServe::WithRawCallbackMethod_CudaSharedMemoryUnregister,
                KServe::WithRawCallbackMethod_TraceSetting,
                KServe::WithRawCallbackMethod_LogSettings>::Type;

// KServe v2 over gRPC on top of an Engine. Thread-safe. Methods run on gRPC's
// threads and do not block; the engine's threads answer ModelInfer.
class InferenceService final : public KServeBytes {
 public:
  // `engine` and `memory` must outlive every call. A ModelInfer
  // request is decoded if its memory fits into `memory` and its
  // message is not longer than `max_request_bytes`. Null `control`:
  // clients may not change models. Null `access`: every client may do
  // everything.
  InferenceService(Engine* engine, ModelControl* control,
                   const AccessControl* access, base::ByteBudget* memory,
                   size_t max_request_bytes)
      : engine_(*engine),
        control_(control),
        access_(access),
        memory_(*memory),
        max_request_bytes_(max_request_bytes) {}

  // ModelInfer calls that have arrived so far.
  uint64_t infer_calls() const {
    return infer_calls_.load(std::memory_order_relaxed);
  }

  grpc::ServerUnaryReactor* ServerLive(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* bytes,
                                       grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* ServerReady(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* bytes,
                                        grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* ModelReady(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* bytes,
                                       grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* ServerMetadata(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* bytes,
                                           grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* bytes,
                                          grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* bytes,
                                       grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* TraceSetting(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* bytes,
                                         grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* ModelConfig(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* bytes,
                                        grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* ModelStatistics(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
      grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* RepositoryIndex(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
      grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* RepositoryModelLoad(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
      grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* RepositoryModelUnload(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
      grpc::ByteBuffer* answer) override;

  // UNIMPLEMENTED, with the reason and what takes the method's place.
  grpc::ServerUnaryReactor* SystemSharedMemoryStatus(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
      grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* SystemSharedMemoryRegister(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
      grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* SystemSharedMemoryUnregister(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
      grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryStatus(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
      grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryRegister(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
      grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryUnregister(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
      grpc::ByteBuffer* answer) override;
  grpc::ServerUnaryReactor* LogSettings(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
      grpc::ByteBuffer* answer) override;
  grpc::ServerBidiReactor<inference::ModelInferRequest,
                          inference::ModelStreamInferResponse>*
  ModelStreamInfer(grpc::CallbackServerContext* context) override;

 private:
  // A decoded request, with the parts of it that its answer needs.
  struct Received {
    InferRequest request;
    std::string id;
  };
  absl::StatusOr<Received> Receive(const grpc::ByteBuffer& bytes,
                                   absl::Time now, absl::Time deadline,
                                   const tracing::RequestContext& trace) const;

  Engine& engine_;
  ModelControl* const control_;
  const AccessControl* const access_;
  base::ByteBudget& memory_;
  const size_t max_request_bytes_;
  std::atomic<uint64_t> infer_calls_ = 0;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_SERVICE_H_

#include "cpu_node/frontend/service.h"

#include <algorithm>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/byte_budget.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "cpu_node/frontend/call.h"
#include "cpu_node/frontend/codec.h"
#include "cpu_node/frontend/message.h"
#include "cpu_node/frontend/methods.h"
#include "cpu_node/frontend/request_size.h"
#include "cpu_node/frontend/status.h"
#include "grpc/support/time.h"

namespace refract::cpu_node {
namespace {

// Changing settings needs the control right, reading them does not.
Access Needs(const inference::TraceSettingRequest& request) {
  return request.settings().empty() ? Access::kClient : Access::kControl;
}
template <typename Request>
Access Needs(const Request&) {
  return Access::kClient;
}
Access Needs(const inference::ServerLiveRequest&) { return Access::kAnybody; }
Access Needs(const inference::ServerReadyRequest&) { return Access::kAnybody; }
Access Needs(const inference::ModelReadyRequest&) { return Access::kAnybody; }

// Answers a method with short requests. Out of memory fails only this call.
template <typename Request, typename Response>
grpc::ServerUnaryReactor* AnswerShort(grpc::CallbackServerContext* context,
                                      Engine& engine,
                                      const AccessControl* access,
                                      const grpc::ByteBuffer& bytes,
                                      grpc::ByteBuffer* answer) {
  return FinishCall(
      context, base::WithinMemory([&] {
        Request request;
        Response response;
        REFRACT_RETURN_IF_ERROR(ParseShort(bytes, request));
        REFRACT_RETURN_IF_ERROR(CheckAccess(access, Needs(request), *context));
        REFRACT_RETURN_IF_ERROR(Answer(engine, request, response));
        WriteMessage(response, *answer);
        return absl::OkStatus();
      }));
}

// The same for a method that answers later.
template <typename Request, typename Response>
grpc::ServerUnaryReactor* AnswerWhenDone(grpc::CallbackServerContext* context,
                                         ModelControl* control,
                                         const AccessControl* access,
                                         const grpc::ByteBuffer& bytes,
                                         grpc::ByteBuffer* answer) {
  Request request;
  absl::Status status = CheckAccess(access, Access::kControl, *context);
  if (status.ok()) status = ParseShort(bytes, request);
  if (!status.ok()) return FinishCall(context, status);
  WriteMessage(Response(), *answer);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  AnswerLater(control, request, [reactor](const absl::Status& result) {
    reactor->Finish(ToGrpcStatus(result));
  });
  return reactor;
}

// The deadline on the engine's clock. gRPC has another clock, so the time left
// is carried over. Not context.deadline(): std::chrono's system clock ends in
// the year 2262, and a later deadline would wrap into the past.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context,
                      absl::Time now) {
  const gpr_timespec deadline = context.raw_deadline();
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) {
    return absl::InfiniteFuture();
  }
  const gpr_timespec left =
      gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  return now + absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
}

constexpr char kSharedMemory[] = "send tensors in ModelInfer";

absl::Status Lacking(absl::string_view method, absl::string_view instead) {
  return absl::UnimplementedError(
      absl::StrCat(method, " is not supported: ", instead));
}

// Ends a stream at once; deletes itself when gRPC is done with it.
class RefusedStream final
    : public grpc::ServerBidiReactor<inference::ModelInferRequest,
                                     inference::ModelStreamInferResponse> {
 public:
  explicit RefusedStream(const absl::Status& why) { Finish(ToGrpcStatus(why)); }

 private:
  void OnDone() override { delete this; }
};

// Reactor of a ModelInfer call with a cancellation callback, which gRPC's
// default reactor lacks. Deletes itself when gRPC is done with it.
class InferReactor final : public grpc::ServerUnaryReactor {
 public:
  std::stop_token cancel() const { return cancel_.get_token(); }
  // Held until the client has the answer or is gone. Call before Finish().
  void Keep(base::ByteBudget::Hold answer) { answer_ = std::move(answer); }

 private:
  // The client cancelled, its connection ended, or the deadline passed.
  void OnCancel() override { cancel_.request_stop(); }
  void OnDone() override { delete this; }

  std::stop_source cancel_;
  base::ByteBudget::Hold answer_;
};

}  // namespace

grpc::ServerUnaryReactor* InferenceService::ServerLive(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return AnswerShort<inference::ServerLiveRequest,
                     inference::ServerLiveResponse>(context, engine_, access_,
                                                    *bytes, answer);
}

grpc::ServerUnaryReactor* InferenceService::ServerReady(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return AnswerShort<inference::ServerReadyRequest,
                     inference::ServerReadyResponse>(context, engine_, access_,
                                                     *bytes, answer);
}

grpc::ServerUnaryReactor* InferenceService::ModelReady(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return AnswerShort<inference::ModelReadyRequest,
                     inference::ModelReadyResponse>(context, engine_, access_,
                                                    *bytes, answer);
}

grpc::ServerUnaryReactor* InferenceService::ServerMetadata(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return AnswerShort<inference::ServerMetadataRequest,
                     inference::ServerMetadataResponse>(
      context, engine_, access_, *bytes, answer);
}

grpc::ServerUnaryReactor* InferenceService::ModelMetadata(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return AnswerShort<inference::ModelMetadataRequest,
                     inference::ModelMetadataResponse>(context, engine_,
                                                       access_, *bytes, answer);
}

absl::StatusOr<InferenceService::Received> InferenceService::Receive(
    const grpc::ByteBuffer& bytes, absl::Time now, absl::Time deadline,
    const tracing::RequestContext& trace) const {
  RequestSize size;
  absl::StatusOr<Received> result = Received();
  const auto receive = [&]() -> absl::Status {
    // Measures and admits the request before its tensors are read: an
    // overloaded node would otherwise spend its time on requests that it
    // refuses.
    absl::Status foreseen;
    const absl::Status measured = ReadMessage(bytes, [&](auto& stream) {
      return MeasureRequest(stream, max_request_bytes_, size, [&] {
        return foreseen = engine_.Foresee(size.model_name, size.model_version,
                                          deadline);
      });
    });
    REFRACT_RETURN_IF_ERROR(foreseen);
    if (absl::IsResourceExhausted(measured)) {
      return absl::ResourceExhaustedError(
          absl::StrCat(measured.message(),
                       " (the limit of this server, which is less "
                       "where ",
                       base::kRequestMemoryFlag, " is short)"));
    }
    REFRACT_RETURN_IF_ERROR(measured);
    REFRACT_ASSIGN_OR_RETURN(
        base::ByteBudget::Hold memory,
        memory_.Take(size.decoded_bytes + size.tensor_bytes));
    inference::ModelInferRequest message;
    REFRACT_RETURN_IF_ERROR(ReadMessage(bytes, [&](auto& stream) {
      return message.ParseFromZeroCopyStream(&stream)
                 ? absl::OkStatus()
                 : absl::InvalidArgumentError(
                       "the request is not a ModelInferRequest of KServe v2");
    }));
    REFRACT_ASSIGN_OR_RETURN(result->request, DecodeRequest(message, now));
    result->id = std::move(*message.mutable_id());
    // Decoding is done: only the tensors stay in memory.
    memory.Shrink(BytesOf(result->request));
    result->request.memory = std::move(memory);
    return absl::OkStatus();
  };
  const absl::Status status = base::WithinMemory(receive);
  if (status.ok()) return result;
  return engine_.Refuse(size.model_name, size.model_version, status, trace,
                        now);
}

grpc::ServerUnaryReactor* InferenceService::ModelInfer(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  // The call ended before its message was complete: nobody waits.
  if (!bytes->Valid()) {
    return FinishCall(
        context,
        absl::CancelledError("the call ended before its message was complete"));
  }
  absl::StatusOr<ClientQuota::Hold> quota = ClientQuota::Hold();
  if (access_ != nullptr) {
    quota = access_->Admit(Metadata(*context, "authorization"));
  }
  if (!quota.ok()) return FinishCall(context, quota.status());
  // Counted before decoding: AwaitQuiet() waits for any arrival.
  infer_calls_.fetch_add(1, std::memory_order_relaxed);
  const absl::Time now = engine_.clock().Now();
  const absl::Time deadline = DeadlineOf(*context, now);
  tracing::RequestContext trace;
  if (engine_.traces()) {
    trace = engine_.tracer()->Begin(Metadata(*context, "traceparent"));
  }
  absl::StatusOr<Received> received = Receive(*bytes, now, deadline, trace);
  // The call owns the buffer and would keep it until its end. The cast is
  // valid: gRPC filled the buffer, so the object is not const.
  const_cast<grpc::ByteBuffer*>(bytes)->Clear();
  if (!received.ok()) return FinishCall(context, received.status());
  InferRequest& request = received->request;
  request.received = now;
  request.trace = trace;
  request.deadline = std::min(request.deadline, deadline);
  request.quota = *std::move(quota);
  auto* const reactor = new InferReactor;
  request.cancel = reactor->cancel();
  // `answer` lives until the reactor is finished.
  engine_.Infer(
      std::move(request), [this, answer, reactor, id = std::move(received->id)](
                              const absl::StatusOr<InferResponse>& result) {
        // Encoding allocates in proportion to the answer; out of memory fails
        // only this request.
        const absl::Status status = base::WithinMemory([&] {
          REFRACT_RETURN_IF_ERROR(result.status());
          // Held twice: as a message and as its bytes.
          const size_t bytes = BytesOf(*result);
          base::ByteBudget::Hold memory = memory_.TakeAnyway(2 * bytes);
          inference::ModelInferResponse message;
          message.set_id(id);
          EncodeResponse(*result, message);
          WriteMessage(message, *answer);
          memory.Shrink(bytes);
          reactor->Keep(std::move(memory));
          return absl::OkStatus();
        });
        reactor->Finish(ToGrpcStatus(status));
      });
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::TraceSetting(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return AnswerShort<inference::TraceSettingRequest,
                     inference::TraceSettingResponse>(context, engine_, access_,
                                                      *bytes, answer);
}

grpc::ServerUnaryReactor* InferenceService::ModelConfig(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return AnswerShort<inference::ModelConfigRequest,
                     inference::ModelConfigResponse>(context, engine_, access_,
                                                     *bytes, answer);
}

grpc::ServerUnaryReactor* InferenceService::ModelStatistics(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return AnswerShort<inference::ModelStatisticsRequest,
                     inference::ModelStatisticsResponse>(
      context, engine_, access_, *bytes, answer);
}

grpc::ServerUnaryReactor* InferenceService::RepositoryIndex(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return AnswerShort<inference::RepositoryIndexRequest,
                     inference::RepositoryIndexResponse>(
      context, engine_, access_, *bytes, answer);
}

grpc::ServerUnaryReactor* InferenceService::RepositoryModelLoad(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return AnswerWhenDone<inference::RepositoryModelLoadRequest,
                        inference::RepositoryModelLoadResponse>(
      context, control_, access_, *bytes, answer);
}

grpc::ServerUnaryReactor* InferenceService::RepositoryModelUnload(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return AnswerWhenDone<inference::RepositoryModelUnloadRequest,
                        inference::RepositoryModelUnloadResponse>(
      context, control_, access_, *bytes, answer);
}

grpc::ServerUnaryReactor* InferenceService::SystemSharedMemoryStatus(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* /*bytes*/,
    grpc::ByteBuffer* /*answer*/) {
  return FinishCall(context, Lacking("SystemSharedMemoryStatus", kSharedMemory));
}

grpc::ServerUnaryReactor* InferenceService::SystemSharedMemoryRegister(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* /*bytes*/,
    grpc::ByteBuffer* /*answer*/) {
  return FinishCall(context, Lacking("SystemSharedMemoryRegister", kSharedMemory));
}

grpc::ServerUnaryReactor* InferenceService::SystemSharedMemoryUnregister(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* /*bytes*/,
    grpc::ByteBuffer* /*answer*/) {
  return FinishCall(context, Lacking("SystemSharedMemoryUnregister", kSharedMemory));
}

grpc::ServerUnaryReactor* InferenceService::CudaSharedMemoryStatus(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* /*bytes*/,
    grpc::ByteBuffer* /*answer*/) {
  return FinishCall(context, Lacking("CudaSharedMemoryStatus", kSharedMemory));
}

grpc::ServerUnaryReactor* InferenceService::CudaSharedMemoryRegister(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* /*bytes*/,
    grpc::ByteBuffer* /*answer*/) {
  return FinishCall(context, Lacking("CudaSharedMemoryRegister", kSharedMemory));
}

grpc::ServerUnaryReactor* InferenceService::CudaSharedMemoryUnregister(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* /*bytes*/,
    grpc::ByteBuffer* /*answer*/) {
  return FinishCall(context, Lacking("CudaSharedMemoryUnregister", kSharedMemory));
}

grpc::ServerUnaryReactor* InferenceService::LogSettings(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* /*bytes*/,
    grpc::ByteBuffer* /*answer*/) {
  return FinishCall(context, Lacking("LogSettings", "--log-level sets what is logged"));
}

grpc::ServerBidiReactor<inference::ModelInferRequest,
                        inference::ModelStreamInferResponse>*
InferenceService::ModelStreamInfer(grpc::CallbackServerContext* /*context*/) {
  return new RefusedStream(Lacking(
      "ModelStreamInfer", "a model answers once, call ModelInfer"));
}

}  // namespace refract::cpu_node

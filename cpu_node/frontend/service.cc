#include "cpu_node/frontend/service.h"

#include <algorithm>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/process/within_memory.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "cpu_node/frontend/codec.h"
#include "cpu_node/frontend/message.h"
#include "cpu_node/frontend/request_size.h"
#include "cpu_node/frontend/status.h"
#include "grpc/support/time.h"

namespace refract::cpu_node {
namespace {

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// Answers a method whose request is short: `fill(request, response)` returns a
// status. Without memory only this call fails.
template <typename Request, typename Response, typename Fill>
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer& bytes,
                                 grpc::ByteBuffer* answer, const Fill& fill) {
  return Finish(context, base::WithinMemory([&] {
                  Request request;
                  Response response;
                  REFRACT_RETURN_IF_ERROR(ParseShort(bytes, request));
                  REFRACT_RETURN_IF_ERROR(fill(request, response));
                  WriteMessage(response, *answer);
                  return absl::OkStatus();
                }));
}

// On gRPC's clock, so only the difference is carried over. Not
// context.deadline(): std::chrono's system clock ends in the year 2262, and a
// deadline beyond that would wrap into the past.
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

// Reactor of a ModelInfer call with a cancellation callback, which gRPC's
// default reactor lacks. Deletes itself when gRPC is done with it.
class InferReactor final : public grpc::ServerUnaryReactor {
 public:
  std::stop_token cancel() const { return cancel_.get_token(); }
  // Held until the client has the answer or is gone. Before Finish().
  void Keep(base::ByteBudget::Hold answer) { answer_ = std::move(answer); }

 private:
  // The client cancelled, its connection ended, or the deadline passed.
  void OnCancel() override { cancel_.request_stop(); }
  void OnDone() override { delete this; }

  std::stop_source cancel_;
  base::ByteBudget::Hold answer_;
};

// Bytes that the answer will have.
size_t BytesOf(const InferResponse& response) {
  size_t bytes = 0;
  for (const InferResponse::Output& output : response.outputs) {
    bytes += output.tensor.bytes;
  }
  return bytes;
}

size_t BytesOf(const InferRequest& request) {
  size_t bytes = 0;
  for (const InputTensor& input : request.inputs) {
    bytes += input.tensor.bytes();
  }
  return bytes;
}

std::vector<std::string> ServedVersions(const Catalog& catalog,
                                        absl::string_view name) {
  std::vector<std::string> versions;
  for (const Catalog::Entry& entry : catalog.entries()) {
    if (entry.name == name && entry.model != nullptr) {
      versions.push_back(absl::StrCat(entry.version));
    }
  }
  return versions;
}

}  // namespace

grpc::ServerUnaryReactor* InferenceService::ServerLive(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return Answer<inference::ServerLiveRequest, inference::ServerLiveResponse>(
      context, *bytes, answer, [](const auto&, auto& response) -> absl::Status {
        response.set_live(true);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* InferenceService::ServerReady(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return Answer<inference::ServerReadyRequest, inference::ServerReadyResponse>(
      context, *bytes, answer,
      [this](const auto&, auto& response) -> absl::Status {
        response.set_ready(engine_.Ready());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* InferenceService::ModelReady(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return Answer<inference::ModelReadyRequest, inference::ModelReadyResponse>(
      context, *bytes, answer,
      [this](const auto& request, auto& response) -> absl::Status {
        const absl::StatusOr<const ServedModel*> model =
            engine_.catalog().Find(request.name(), request.version());
        // A known model that cannot be loaded is "not ready", not an error.
        if (!model.ok() && !absl::IsUnavailable(model.status())) {
          return model.status();
        }
        response.set_ready(model.ok() && engine_.ModelReady(**model).ok());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* InferenceService::ServerMetadata(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return Answer<inference::ServerMetadataRequest,
                inference::ServerMetadataResponse>(
      context, *bytes, answer, [](const auto&, auto& response) -> absl::Status {
        response.set_name("refract");
        response.set_version(REFRACT_VERSION);
        // Without "model_repository": models can be listed, but not loaded, by
        // clients.
        response.add_extensions("model_configuration");
        response.add_extensions("statistics");
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* InferenceService::ModelMetadata(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return Answer<inference::ModelMetadataRequest,
                inference::ModelMetadataResponse>(
      context, *bytes, answer,
      [this](const auto& request, auto& response) -> absl::Status {
        REFRACT_ASSIGN_OR_RETURN(
            const ServedModel* const model,
            engine_.catalog().Find(request.name(), request.version()));
        EncodeMetadata(*model,
                       ServedVersions(engine_.catalog(), request.name()),
                       response);
        return absl::OkStatus();
      });
}

absl::StatusOr<InferenceService::Received> InferenceService::Receive(
    const grpc::ByteBuffer& bytes, absl::Time now, absl::Time deadline) const {
  RequestSize size;
  absl::StatusOr<Received> result = Received();
  const auto receive = [&]() -> absl::Status {
    REFRACT_RETURN_IF_ERROR(ReadMessage(bytes, [&](auto& stream) {
      return MeasureRequest(stream, max_request_bytes_, size);
    }));
    // An overloaded node would spend its time on decoding.
    REFRACT_RETURN_IF_ERROR(
        engine_.Foresee(size.model_name, size.model_version, deadline));
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
    // Only the tensors stay.
    memory.Shrink(BytesOf(result->request));
    result->request.memory = std::move(memory);
    return absl::OkStatus();
  };
  const absl::Status status = base::WithinMemory(receive);
  if (status.ok()) return result;
  return engine_.Refuse(size.model_name, size.model_version, status);
}

grpc::ServerUnaryReactor* InferenceService::ModelInfer(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  // The call ended before its message was complete: nobody hears an answer.
  if (!bytes->Valid()) {
    return Finish(context, absl::CancelledError("the message did not come"));
  }
  // Counted before decoding: AwaitQuiet() waits for arrivals of any kind.
  infer_calls_.fetch_add(1, std::memory_order_relaxed);
  const absl::Time now = engine_.clock().Now();
  const absl::Time deadline = DeadlineOf(*context, now);
  absl::StatusOr<Received> received = Receive(*bytes, now, deadline);
  // The call owns the buffer and would keep it until its end. It is not a const
  // object: gRPC has just filled it.
  const_cast<grpc::ByteBuffer*>(bytes)->Clear();
  if (!received.ok()) return Finish(context, received.status());
  InferRequest& request = received->request;
  request.received = now;
  request.deadline = std::min(request.deadline, deadline);
  auto* const reactor = new InferReactor;
  request.cancel = reactor->cancel();
  // `answer` lives until the reactor is finished.
  engine_.Infer(
      std::move(request), [this, answer, reactor, id = std::move(received->id)](
                              const absl::StatusOr<InferResponse>& result) {
        // Encoding allocates in proportion to the answer; without memory only
        // this request fails.
        const absl::Status status = base::WithinMemory([&] {
          REFRACT_RETURN_IF_ERROR(result.status());
          // Twice: as a message and as its bytes.
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

grpc::ServerUnaryReactor* InferenceService::ModelConfig(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return Answer<inference::ModelConfigRequest, inference::ModelConfigResponse>(
      context, *bytes, answer,
      [this](const auto& request, auto& response) -> absl::Status {
        REFRACT_ASSIGN_OR_RETURN(
            const ServedModel* const model,
            engine_.catalog().Find(request.name(), request.version()));
        return EncodeConfig(*model, *response.mutable_config());
      });
}

grpc::ServerUnaryReactor* InferenceService::ModelStatistics(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return Answer<inference::ModelStatisticsRequest,
                inference::ModelStatisticsResponse>(
      context, *bytes, answer,
      [this](const auto& request, auto& response) -> absl::Status {
        if (!request.name().empty() && !request.version().empty()) {
          REFRACT_ASSIGN_OR_RETURN(
              const ServedModel* const model,
              engine_.catalog().Find(request.name(), request.version()));
          EncodeStatistics(*model, *response.add_model_stats());
          return absl::OkStatus();
        }
        bool known = request.name().empty();
        for (const Catalog::Entry& entry : engine_.catalog().entries()) {
          if (!request.name().empty() && entry.name != request.name()) continue;
          known = true;
          if (entry.model == nullptr) continue;
          EncodeStatistics(*entry.model, *response.add_model_stats());
        }
        if (known) return absl::OkStatus();
        return absl::NotFoundError(absl::StrCat(
            "unknown model '", base::Shorten(request.name()), "'"));
      });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryIndex(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* answer) {
  return Answer<inference::RepositoryIndexRequest,
                inference::RepositoryIndexResponse>(
      context, *bytes, answer,
      [this](const auto& request, auto& response) -> absl::Status {
        for (const Catalog::Entry& entry : engine_.catalog().entries()) {
          const absl::Status ready = entry.model != nullptr
                                         ? engine_.ModelReady(*entry.model)
                                         : entry.status;
          if (request.ready() && !ready.ok()) continue;
          auto* index = response.add_models();
          index->set_name(entry.name);
          index->set_version(absl::StrCat(entry.version));
          index->set_state(ready.ok() ? "READY" : "UNAVAILABLE");
          index->set_reason(std::string(ready.message()));
        }
        return absl::OkStatus();
      });
}

}  // namespace refract::cpu_node

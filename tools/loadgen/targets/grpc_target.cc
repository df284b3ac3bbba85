#include "tools/loadgen/targets/grpc_target.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "proto/inference/grpc_service.grpc.pb.h"
#include "proto/inference/grpc_service.pb.h"

namespace refract::loadgen {
namespace {

constexpr char kInferMethod[] = "/inference.GRPCInferenceService/ModelInfer";
// For the calls around a run: metadata, statistics.
constexpr absl::Duration kControlTimeout = absl::Seconds(30);
constexpr absl::Duration kReadyPollInterval = absl::Milliseconds(100);

// gRPC's codes and Abseil's have the same numbers.
absl::Status ToAbsl(const grpc::Status& status, absl::string_view call) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(call, ": ", status.error_message()));
}

std::chrono::system_clock::time_point WallTimeAfter(absl::Duration duration) {
  return std::chrono::system_clock::now() +
         absl::ToChronoMicroseconds(duration);
}

base::Dims DimsOf(const google::protobuf::RepeatedField<int64_t>& shape) {
  return base::Dims(shape.begin(), shape.end());
}

bool Parse(grpc::ByteBuffer& buffer, google::protobuf::MessageLite& message) {
  return grpc::GenericDeserialize<grpc::ProtoBufferReader,
                                  google::protobuf::MessageLite>(&buffer,
                                                                 &message)
      .ok();
}

absl::StatusOr<RecordedResponse> Decode(
    const inference::ModelInferResponse& response) {
  RecordedResponse result;
  for (int i = 0; i < response.outputs_size(); ++i) {
    const auto& output = response.outputs(i);
    const auto dtype = base::DTypeFromKServeName(output.datatype());
    if (!dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat("output ", output.name(), ": datatype ",
                       output.datatype(), " is not known"));
    }
    REFRACT_ASSIGN_OR_RETURN(
        base::Tensor tensor,
        base::Tensor::Allocate(*dtype, DimsOf(output.shape())));
    const std::string& raw = i < response.raw_output_contents_size()
                                 ? response.raw_output_contents(i)
                                 : std::string();
    if (raw.size() != tensor.bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("output ", output.name(), ": ", raw.size(),
                       " raw bytes, its shape has ", tensor.bytes()));
    }
    if (!raw.empty()) std::memcpy(tensor.data(), raw.data(), raw.size());
    result.names.push_back(output.name());
    result.outputs.push_back(std::move(tensor));
  }
  return result;
}

class GrpcTarget final : public Target {
 public:
  // The first channel of each of `addresses`, then the second of each, and so
  // on: queries in turn go to one address after the other.
  GrpcTarget(const TargetOptions& options,
             const std::vector<std::shared_ptr<grpc::Channel>>& channels,
             base::Clock& clock)
      : clock_(clock), addresses_(options.addresses) {
    if (!options.token.empty()) {
      authorization_ = absl::StrCat("Bearer ", options.token);
    }
    for (const auto& channel : channels) stubs_.emplace_back(channel);
    // The first channels are one per address, in the order of the addresses.
    for (size_t i = 0; i < addresses_.size(); ++i) {
      controls_.push_back(
          inference::GRPCInferenceService::NewStub(channels[i]));
    }
    poller_ = std::thread([this] { Poll(); });
  }

  ~GrpcTarget() override {
    // Every query was answered before (target.h), so the queue is empty and the
    // poller ends at once.
    queue_.Shutdown();
    poller_.join();
  }

  absl::StatusOr<ServedModel> DescribeModel(const std::string& name,
                                            const std::string& version,
                                            absl::Duration timeout) override {
    const absl::Time deadline = clock_.Now() + timeout;
    for (size_t i = 0; i < controls_.size(); ++i) {
      REFRACT_RETURN_IF_ERROR(AwaitReady(i, name, version, deadline));
    }
    ServedModel model{.name = name, .version = version};
    REFRACT_RETURN_IF_ERROR(ReadMetadata(model));
    REFRACT_RETURN_IF_ERROR(ReadParameters(model));
    return model;
  }

  absl::StatusOr<ServerTimes> Statistics(const ServedModel& model) override;
  size_t Prepare(const ServedModel& model,
                 absl::Span<const base::Tensor> tensors) override;

  void Record(size_t count) override {
    absl::MutexLock lock(&mu_);
    record_ = count;
    recorded_.clear();
  }
  absl::StatusOr<RecordedResponse> Recorded(size_t request) const override {
    absl::MutexLock lock(&mu_);
    const auto it = recorded_.find(request);
    if (it == recorded_.end()) {
      return absl::NotFoundError(
          absl::StrCat("request ", request, " was not answered"));
    }
    return Decode(it->second);
  }

  void Issue(size_t query, size_t request, absl::Time deadline,
             CompletionSink& sink) override {
    // Everything that gRPC refers to until the answer lies in the Call.
    // Connections are taken in turn; requests_ holds encoded bytes, so nothing
    // is serialised here.
    auto* call = new Call{.query = query, .request = request, .sink = &sink};
    SetUp(call->context, deadline - clock_.Now());
    call->reader = stubs_[query % stubs_.size()].PrepareUnaryCall(
        &call->context, kInferMethod, requests_[request], &queue_);
    call->reader->StartCall();
    // The poller deletes the call.
    call->reader->Finish(&call->answer, &call->status, call);
  }

  Answers TakeAnswers() override {
    absl::MutexLock lock(&mu_);
    return std::exchange(answers_, {});
  }

 private:
  struct Call {
    size_t query;
    size_t request;
    CompletionSink* sink;
    grpc::ClientContext context;
    grpc::ByteBuffer answer;
    grpc::Status status;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  };

  // Deadline and token of a call.
  void SetUp(grpc::ClientContext& context, absl::Duration timeout) const {
    context.set_deadline(WallTimeAfter(timeout));
    if (!authorization_.empty()) {
      context.AddMetadata("authorization", authorization_);
    }
  }
  absl::Status AwaitReady(size_t server, const std::string& name,
                          const std::string& version, absl::Time deadline);
  absl::Status ReadMetadata(ServedModel& model);
  absl::Status ReadParameters(ServedModel& model);
  void Poll();
  absl::Status Accept(Call& call);

  base::Clock& clock_;
  std::vector<std::string> addresses_;
  std::string authorization_;  // empty: none
  // A stub for each address.
  std::vector<std::unique_ptr<inference::GRPCInferenceService::Stub>> controls_;
  std::vector<grpc::GenericStub> stubs_;
  // Written by Prepare() only, so never while queries are out.
  std::vector<grpc::ByteBuffer> requests_;
  grpc::CompletionQueue queue_;
  std::thread poller_;
  mutable absl::Mutex mu_;
  Answers answers_ ABSL_GUARDED_BY(mu_);
  size_t record_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<size_t, inference::ModelInferResponse> recorded_
      ABSL_GUARDED_BY(mu_);
};

absl::Status GrpcTarget::AwaitReady(size_t server, const std::string& name,
                                    const std::string& version,
                                    absl::Time deadline) {
  inference::ModelReadyRequest request;
  request.set_name(name);
  request.set_version(version);
  absl::Mutex mu;
  while (true) {
    grpc::ClientContext context;
    SetUp(context, kControlTimeout);
    inference::ModelReadyResponse response;
    const grpc::Status status =
        controls_[server]->ModelReady(&context, request, &response);
    if (status.ok() && response.ready()) return absl::OkStatus();
    // Triton reports an unknown model here, other servers report it in the
    // metadata only. Unavailable: the server is still loading.
    if (!status.ok() && status.error_code() != grpc::StatusCode::UNAVAILABLE) {
      return ToAbsl(status, "ModelReady");
    }
    if (clock_.Now() >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("model ", name, " is not ready at ",
                       addresses_[server]));
    }
    absl::MutexLock lock(&mu);
    bool never = false;
    clock_.AwaitWithDeadline(mu, absl::Condition(&never),
                             clock_.Now() + kReadyPollInterval);
  }
}

absl::Status GrpcTarget::ReadMetadata(ServedModel& model) {
  grpc::ClientContext context;
  SetUp(context, kControlTimeout);
  inference::ModelMetadataRequest request;
  request.set_name(model.name);
  request.set_version(model.version);
  inference::ModelMetadataResponse response;
  REFRACT_RETURN_IF_ERROR(ToAbsl(
      controls_[0]->ModelMetadata(&context, request, &response), "ModelMetadata"));
  for (const auto& tensor : response.inputs()) {
    // An unknown type is refused by PlanRequests(), with the input's name.
    const auto dtype = base::DTypeFromKServeName(tensor.datatype());
    model.inputs.push_back(
        {.name = tensor.name(),
         .dtype = dtype.value_or(base::DType::kUnknown),
         .dims = DimsOf(tensor.shape()),
         .unknown_type = dtype.has_value() ? "" : tensor.datatype()});
  }
  return absl::OkStatus();
}

absl::Status GrpcTarget::ReadParameters(ServedModel& model) {
  grpc::ClientContext context;
  SetUp(context, kControlTimeout);
  inference::ModelConfigRequest request;
  request.set_name(model.name);
  request.set_version(model.version);
  inference::ModelConfigResponse response;
  const grpc::Status status =
      controls_[0]->ModelConfig(&context, request, &response);
  // ModelConfig is an extension. Without it the rows of tables come from
  // --rows.
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::OkStatus();
  }
  REFRACT_RETURN_IF_ERROR(ToAbsl(status, "ModelConfig"));
  for (const auto& [key, value] : response.config().parameters()) {
    model.parameters[key] = value.string_value();
  }
  return absl::OkStatus();
}

absl::StatusOr<ServerTimes> GrpcTarget::Statistics(const ServedModel& model) {
  inference::ModelStatisticsRequest request;
  request.set_name(model.name);
  request.set_version(model.version);
  ServerTimes times;
  for (const auto& control : controls_) {
    grpc::ClientContext context;
    SetUp(context, kControlTimeout);
    inference::ModelStatisticsResponse response;
    REFRACT_RETURN_IF_ERROR(
        ToAbsl(control->ModelStatistics(&context, request, &response),
               "ModelStatistics"));
    for (const auto& stats : response.model_stats()) {
      const inference::InferStatistics& sums = stats.inference_stats();
      times.requests += sums.success().count();
      times.queue += absl::Nanoseconds(sums.queue().ns());
      times.before += absl::Nanoseconds(sums.compute_input().ns());
      times.remote += absl::Nanoseconds(sums.compute_infer().ns());
      times.after += absl::Nanoseconds(sums.compute_output().ns());
    }
  }
  return times;
}

size_t GrpcTarget::Prepare(const ServedModel& model,
                               absl::Span<const base::Tensor> tensors) {
  inference::ModelInferRequest request;
  request.set_model_name(model.name);
  request.set_model_version(model.version);
  request.set_id(absl::StrCat(requests_.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& input = *request.add_inputs();
    input.set_name(model.inputs[i].name);
    input.set_datatype(std::string(base::KServeName(model.inputs[i].dtype)));
    input.mutable_shape()->Add(tensors[i].dims().begin(),
                               tensors[i].dims().end());
    request.add_raw_input_contents(tensors[i].data(), tensors[i].bytes());
  }
  const grpc::Slice bytes(request.SerializeAsString());
  requests_.emplace_back(&bytes, 1);
  return bytes.size();
}

void GrpcTarget::Poll() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    const std::unique_ptr<Call> call(static_cast<Call*>(tag));
    const absl::Status status = Accept(*call);
    if (!status.ok()) {
      absl::MutexLock lock(&mu_);
      answers_.first_errors.try_emplace(status.code(), status.message());
    }
    call->sink->Done(call->query, status.code());
  }
}

// Looks at an answer far enough to know that it is this request's.
absl::Status GrpcTarget::Accept(Call& call) {
  REFRACT_RETURN_IF_ERROR(ToAbsl(call.status, "ModelInfer"));
  const size_t bytes = call.answer.Length();
  inference::ModelInferResponse response;
  if (!Parse(call.answer, response)) {
    return absl::DataLossError("an answer is not a ModelInferResponse");
  }
  // KServe v2 lets a server leave the id out.
  if (!response.id().empty() && response.id() != absl::StrCat(call.request)) {
    return absl::DataLossError(absl::StrCat("request ", call.request,
                                            " got the answer of request ",
                                            response.id()));
  }
  if (response.outputs_size() == 0) {
    return absl::DataLossError("an answer has no outputs");
  }
  absl::MutexLock lock(&mu_);
  answers_.bytes += bytes;
  ++answers_.count;
  if (call.request < record_) recorded_[call.request] = std::move(response);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Target>> ConnectGrpc(
    const TargetOptions& options, base::Clock& clock) {
  std::shared_ptr<grpc::ChannelCredentials> credentials =
      options.tls ? grpc::SslCredentials({.pem_root_certs = options.roots,
                                          .pem_private_key = options.key,
                                          .pem_cert_chain = options.certificate})
                  : grpc::InsecureChannelCredentials();
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < options.connections; ++i) {
    for (const std::string& address : options.addresses) {
      grpc::ChannelArguments arguments;
      arguments.SetMaxReceiveMessageSize(-1);
      arguments.SetMaxSendMessageSize(-1);
      // Channels with equal arguments would share one connection otherwise, and
      // the server's HTTP/2 limits would then hold for all of the load.
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      // A query is sent once: a retry would hide an error and distort
      // latencies. Without retries, compression and the counts of channelz a
      // call takes less of the client's processor. Deadline checks are switched
      // on again, because a minimal stack lacks the client's own.
      arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
      arguments.SetInt(GRPC_ARG_ENABLE_CHANNELZ, 0);
      arguments.SetInt(GRPC_ARG_MINIMAL_STACK, 1);
      arguments.SetInt(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 1);
      channels.push_back(
          grpc::CreateCustomChannel(address, credentials, arguments));
    }
  }
  const auto deadline = WallTimeAfter(options.connect_timeout);
  for (size_t i = 0; i < channels.size(); ++i) {
    if (!channels[i]->WaitForConnected(deadline)) {
      return absl::UnavailableError(absl::StrCat(
          "--target ", options.addresses[i % options.addresses.size()],
          ": no connection within ",
          absl::FormatDuration(options.connect_timeout)));
    }
  }
  return std::make_unique<GrpcTarget>(options, channels, clock);
}

}  // namespace refract::loadgen

#include "cpu_node/frontend/server.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log/log_limiter.h"
#include "base/process/byte_budget.h"
#include "base/process/thread.h"
#include "base/status_macros.h"
#include "base/tls/refused_certificate.h"
#include "cpu_node/frontend/acceptor.h"
#include "cpu_node/frontend/delta_service.h"
#include "cpu_node/frontend/node_status.h"
#include "cpu_node/frontend/service.h"
#include "glog/logging.h"
#include "google/protobuf/message.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "proto/health.pb.h"

namespace refract::cpu_node {
namespace {

// Allowance for the parts of a request besides tensors: names, shapes, headers.
constexpr size_t kMessageOverheadBytes = size_t{1} << 20;

// gRPC and Protobuf write errors that clients can cause to stderr themselves,
// where a slow reader would block the writing thread.
constexpr int kLibraryLinesPerSecond = 10;

void LogOfLibrary(absl::string_view library, const char* file, int line,
                  absl::string_view message) {
  static base::LogLimiter& limiter =
      *new base::LogLimiter(kLibraryLinesPerSecond, base::Clock::Real());
  if (!limiter.Admit().has_value()) return;
  LOG(WARNING) << library << ", " << file << ":" << line << ": " << message;
}

void TakeLogsOfLibraries() {
  // gRPC says that a certificate was refused, but neither which nor why. Its
  // line comes from the thread that made the handshake.
  base::NoteRefusedCertificates();
  gpr_set_log_function([](gpr_log_func_args* args) {
    std::string message = args->message;
    const std::string refused = base::TakeRefusedCertificate();
    if (!refused.empty() &&
        absl::StrContains(message, "certificate verify failed")) {
      absl::StrAppend(&message, " The client's certificate ", refused);
    }
    LogOfLibrary("gRPC", args->file, args->line, message);
  });
  google::protobuf::SetLogHandler([](google::protobuf::LogLevel,
                                     const char* file, int line,
                                     const std::string& message) {
    LogOfLibrary("Protobuf", file, line, message);
  });
}

// Limits on message lengths. gRPC checks a length when it has the message, and
// resets the connection without a reason once its quota is in use. Therefore
// only messages within the quota are refused with a reason: by the service,
// which names the flag, or by gRPC, which names the number.
struct MessageLimits {
  size_t quota = 0;    // for all messages being received
  size_t grpc = 0;     // gRPC refuses longer messages
  size_t service = 0;  // InferenceService refuses longer messages
};

MessageLimits LimitsOf(const FrontendOptions& options) {
  MessageLimits limits;
  // Half of --request-memory is for messages as they arrive, less the part for
  // bodies of HTTP; the other half is for decoded requests and answers.
  limits.quota = options.request_memory / 2 - options.http_body_memory;
  const size_t most = options.max_request_bytes + kMessageOverheadBytes;
  limits.grpc = std::min(most, limits.quota / 8 * 7);
  limits.service = std::min(most, limits.quota / 4 * 3);
  return limits;
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// Bounds the bytes, calls and connections that clients can cause.
void SetLimits(const FrontendOptions& options, const MessageLimits& limits,
               grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(limits.grpc));
  builder.SetMaxSendMessageSize(-1);  // no limit: answers are the server's own
  grpc::ResourceQuota quota("requests");
  quota.Resize(limits.quota);
  builder.SetResourceQuota(quota);
  // frontend/message.h decompresses instead, with a limit.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             options.max_streams);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             Milliseconds(options.max_idle));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                             Milliseconds(options.max_age));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                             Milliseconds(options.age_grace));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             Milliseconds(options.handshake_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             Milliseconds(options.keepalive_interval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             Milliseconds(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

std::shared_ptr<grpc::ServerCredentials> Credentials(
    const base::TlsFiles& files) {
  if (!files.on()) return grpc::InsecureServerCredentials();
  // gRPC rereads changed files by itself.
  constexpr unsigned kLookSeconds = 1;
  namespace tls = grpc::experimental;
  tls::TlsServerCredentialsOptions options(
      std::make_shared<tls::FileWatcherCertificateProvider>(
          files.key, files.certificate, files.roots, kLookSeconds));
  options.watch_identity_key_cert_pairs();
  if (!files.roots.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(options);
}

}  // namespace

struct Frontend::Impl {
  Impl(Engine* engine, const FrontendOptions& options, size_t request_memory,
       size_t max_message_bytes)
      : engine(engine),
        memory(request_memory, base::kRequestMemoryFlag),
        service(engine, options.control, options.access, &memory,
                max_message_bytes),
        status_service(engine, options.access),
        delta_service(engine, options.access,
                      {options.deltas_by_request, options.deltas_folder,
                       max_message_bytes}) {}

  // Copies the engine's readiness into grpc.health.v1: "" for the server, and
  // one service per loaded model (its newest version).
  void PublishHealth() {
    // Under a lock, so that an older state never overwrites a newer one.
    absl::MutexLock lock(&health_mu);
    grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
    health->SetServingStatus(engine->Ready());
    const std::shared_ptr<const Catalog> catalog = engine->catalog();
    for (const Catalog::Entry& entry : catalog->entries()) {
      const auto newest = catalog->Find(entry.name, "");
      const bool ready = newest.ok() && engine->ModelReady(**newest).ok();
      health->SetServingStatus(entry.name, ready);
    }
    health->SetServingStatus("inference.GRPCInferenceService", engine->Ready());
  }

  Engine* const engine;
  base::ByteBudget memory;
  InferenceService service;
  NodeStatusService status_service;
  DeltaService delta_service;
  std::unique_ptr<Acceptor> acceptor;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections;
  std::unique_ptr<grpc::Server> server;
  absl::Mutex health_mu;
};

Frontend::Frontend(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Frontend>> Frontend::Create(
    const FrontendOptions& options, Engine* engine) {
  // Process-wide settings; the first two apply to the next ServerBuilder.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  // Otherwise the linker leaves the description of the health service out.
  google::protobuf::LinkMessageReflection<
      grpc::health::v1::HealthCheckRequest>();

  TakeLogsOfLibraries();
  const MessageLimits limits = LimitsOf(options);
  if (limits.service < options.max_request_bytes) {
    LOG(WARNING) << "requests over gRPC may have " << limits.service
                 << " bytes, not " << options.max_request_bytes << ": "
                 << base::kRequestMemoryFlag << " allows no more";
  }
  auto impl =
      std::make_unique<Impl>(engine, options, options.request_memory / 2,
                             limits.service);
  REFRACT_ASSIGN_OR_RETURN(impl->acceptor,
                           Acceptor::Create(options.host, options.port));
  grpc::ServerBuilder builder;
  // The acceptor is this program's (acceptor.h); gRPC gets the sockets.
  impl->connections = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      Credentials(options.tls));
  SetLimits(options, limits, builder);
  builder.RegisterService(&impl->service);
  builder.RegisterService(&impl->status_service);
  builder.RegisterService(&impl->delta_service);
  {
    // gRPC's threads would interrupt the workers for each request that comes,
    // also for requests that are refused.
    const base::StartsBatchThreads batch;
    impl->server = builder.BuildAndStart();
  }
  if (impl->server == nullptr) {
    return absl::UnavailableError("gRPC's server does not start");
  }
  REFRACT_RETURN_IF_ERROR(impl->acceptor->Start([raw = impl.get()](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
        connection;
    connection.fd = fd;
    raw->connections->HandleNewConnection(&connection);
  }));
  // Registered before the first publication, so that no change is missed.
  engine->WatchReadiness([raw = impl.get()] { raw->PublishHealth(); });
  impl->PublishHealth();
  return std::unique_ptr<Frontend>(new Frontend(std::move(impl)));
}

Frontend::~Frontend() { Shutdown(absl::ZeroDuration()); }

int Frontend::port() const { return impl_->acceptor->port(); }

Frontend::Memory Frontend::request_memory() const {
  return {impl_->memory.held(), impl_->memory.bytes()};
}

base::ByteBudget* Frontend::memory() { return &impl_->memory; }

bool Frontend::AnswersLive(absl::Duration longest) const {
  const auto stub = inference::GRPCInferenceService::NewStub(
      impl_->server->InProcessChannel(grpc::ChannelArguments()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + longest));
  inference::ServerLiveResponse response;
  return stub->ServerLive(&context, {}, &response).ok() && response.live();
}

bool Frontend::AwaitQuiet(absl::Duration quiet, absl::Duration longest,
                          absl::FunctionRef<uint64_t()> others) {
  const auto arrivals = [&] { return impl_->service.infer_calls() + others(); };
  base::Clock& clock = impl_->engine->clock();
  const absl::Time give_up = clock.Now() + longest;
  while (true) {
    // Quiet: no request arrived during the whole of `quiet`.
    const uint64_t before = arrivals();
    // Waits on the injected clock.
    absl::Mutex mu;
    absl::MutexLock lock(&mu);
    const bool never = false;
    clock.AwaitWithDeadline(mu, absl::Condition(&never), clock.Now() + quiet);
    if (arrivals() == before) return true;
    if (clock.Now() >= give_up) return false;
  }
}

void Frontend::Shutdown(absl::Duration patience) {
  // The acceptor stops first: gRPC takes no connections during its shutdown.
  impl_->acceptor->Stop();
  impl_->server->Shutdown(std::chrono::system_clock::now() +
                          absl::ToChronoMilliseconds(patience));
}

}  // namespace refract::cpu_node

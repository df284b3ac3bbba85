#include "cpu_node/frontend/server.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cpu_node/frontend/node_status.h"
#include "cpu_node/frontend/service.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace refract::cpu_node {
namespace {

// Allowance for the other parts of a request: names, shapes, field headers.
constexpr size_t kMessageOverheadBytes = size_t{1} << 20;

}  // namespace

struct Frontend::Impl {
  explicit Impl(Engine* engine)
      : engine(engine), service(engine), status_service(engine) {}

  // Copies the engine's readiness into grpc.health.v1: "" for the server, and
  // one service per model that could be loaded (its newest version).
  void PublishHealth() {
    // Under a lock, so that an older state never overwrites a newer one.
    absl::MutexLock lock(&health_mu);
    grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
    health->SetServingStatus(engine->Ready());
    for (const Catalog::Entry& entry : engine->catalog().entries()) {
      const absl::StatusOr<const ServedModel*> newest =
          engine->catalog().Find(entry.name, "");
      const bool ready = newest.ok() && engine->ModelReady(**newest).ok();
      health->SetServingStatus(entry.name, ready);
    }
    health->SetServingStatus("inference.GRPCInferenceService", engine->Ready());
  }

  Engine* const engine;
  InferenceService service;
  NodeStatusService status_service;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  absl::Mutex health_mu;
};

Frontend::Frontend(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Frontend>> Frontend::Create(
    const FrontendOptions& options, Engine* engine) {
  // Both are process-wide switches that the next ServerBuilder reads.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  auto impl = std::make_unique<Impl>(engine);
  const std::string address = absl::StrCat(options.host, ":", options.port);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(),
                           &impl->port);
  // Otherwise a second server on the same port would get half the clients
  // without any error.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(options.max_request_bytes + kMessageOverheadBytes));
  builder.SetMaxSendMessageSize(-1);  // no limit: answers are the server's own
  builder.RegisterService(&impl->service);
  builder.RegisterService(&impl->status_service);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address));
  }
  // Registered before the first publication, so that no change is missed.
  engine->WatchReadiness([raw = impl.get()] { raw->PublishHealth(); });
  impl->PublishHealth();
  return std::unique_ptr<Frontend>(new Frontend(std::move(impl)));
}

Frontend::~Frontend() { Shutdown(absl::ZeroDuration()); }

int Frontend::port() const { return impl_->port; }

bool Frontend::AwaitQuiet(absl::Duration quiet, absl::Duration longest) {
  base::Clock& clock = impl_->engine->clock();
  const absl::Time give_up = clock.Now() + longest;
  while (true) {
    const uint64_t before = impl_->service.infer_calls();
    // Waits for time to pass, on the injected clock.
    absl::Mutex mu;
    absl::MutexLock lock(&mu);
    const bool never = false;
    clock.AwaitWithDeadline(mu, absl::Condition(&never), clock.Now() + quiet);
    if (impl_->service.infer_calls() == before) return true;
    if (clock.Now() >= give_up) return false;
  }
}

void Frontend::Shutdown(absl::Duration patience) {
  impl_->server->Shutdown(std::chrono::system_clock::now() +
                          absl::ToChronoMilliseconds(patience));
}

}  // namespace refract::cpu_node

#ifndef REFRACT_CPU_NODE_FRONTEND_SERVER_H_
#define REFRACT_CPU_NODE_FRONTEND_SERVER_H_

// The gRPC server: KServe v2, NodeStatus, Deltas, grpc.health.v1 and reflection. No
// gRPC type in this header.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process/byte_budget.h"
#include "base/tls/tls_contexts.h"
#include "cpu_node/control/model_control.h"
#include "cpu_node/engine.h"
#include "cpu_node/security/access.h"

namespace refract::cpu_node {

struct FrontendOptions {
  std::string host = "0.0.0.0";
  int port = 8001;  // 0: any free port
  // Longest request, bytes. 64 MiB holds about 80 000 items of DLRM-DCNv2; the
  // transport's messages are as long (transport::Limits). If memory for
  // messages being received is short, the limit is three quarters of it.
  size_t max_request_bytes = size_t{64} << 20;
  // Memory of requests, bytes: half of it for messages that are being received
  // (gRPC cancels calls where they take more), half for requests that are
  // decoded and not yet answered (refused where they do not fit).
  size_t request_memory = size_t{1} << 30;
  // Part of the memory for messages being received that bodies of HTTP requests
  // may take instead.
  size_t http_body_memory = 0;
  // Calls at a time on a connection; a client that follows the protocol delays
  // further calls.
  int max_streams = 1024;
  // A connection without a call for this time is closed; clients reconnect with
  // the next call.
  absl::Duration max_idle = absl::Minutes(1);
  // An older connection is told to take no further calls, and closed after
  // `age_grace` even if calls are under way: endless calls would keep it
  // forever.
  absl::Duration max_age = absl::Hours(1);
  absl::Duration age_grace = absl::Minutes(10);
  // Longest time for a new connection to begin HTTP/2.
  absl::Duration handshake_timeout = absl::Seconds(10);
  // A vanished client is noticed after the sum of both.
  absl::Duration keepalive_interval = absl::Seconds(60);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  // Loads and unloads models on request; null: requests are refused. Outlives
  // the front end; stopped before Shutdown(), so that its calls are answered.
  ModelControl* control = nullptr;
  // Takes deltas of tables (proto/deltas.proto).
  bool deltas_by_request = false;
  std::string deltas_folder;  // as in ServedModelOptions
  // Empty: no TLS. base::TlsContexts must have read the files before: gRPC
  // reports nothing about unusable files.
  base::TlsFiles tls;
  // Rights of clients; null: no restrictions. Outlives the front end.
  const AccessControl* access = nullptr;
};

// Thread-safe.
class Frontend {
 public:
  // Listens before it returns, and registers for the engine's readiness
  // changes. Unavailable names host:port if the port is taken or the address is
  // not of this machine. `engine` must outlive the front end and be stopped
  // before it is destroyed.
  static absl::StatusOr<std::unique_ptr<Frontend>> Create(
      const FrontendOptions& options, Engine* engine);
  // Shuts down without waiting for calls in flight.
  ~Frontend();

  int port() const;

  // Bytes of decoded requests and answers: held and allowed.
  struct Memory {
    size_t held = 0;
    size_t limit = 0;
  };
  Memory request_memory() const;
  // The budget of requests and answers, for other front ends of the node.
  base::ByteBudget* memory();

  // Whether ServerLive is answered within `longest`, asked in this process the
  // way a client asks over the network. For a watchdog.
  bool AnswersLive(absl::Duration longest) const;

  // Waits until no ModelInfer call, nor a request counted by `others`, has
  // arrived for `quiet`, at most for `longest`; returns whether that happened.
  // Call between Engine::StopAdmitting() and Shutdown(), so that clients get
  // UNAVAILABLE and go to another node. Calls that meet gRPC's own shutdown are
  // reset, which clients see as CANCELLED.
  bool AwaitQuiet(
      absl::Duration quiet, absl::Duration longest,
      absl::FunctionRef<uint64_t()> others = [] { return uint64_t{0}; });

  // Refuses new calls and waits for calls in flight; after `patience` they are
  // cancelled. The engine must still answer, or be stopped.
  void Shutdown(absl::Duration patience);

 private:
  struct Impl;
  explicit Frontend(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_SERVER_H_

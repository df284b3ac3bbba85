#ifndef REFRACT_CPU_NODE_HTTP_SERVER_H_
#define REFRACT_CPU_NODE_HTTP_SERVER_H_

// HTTP/1.1 for KServe v2. This header needs no type of Boost.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/process/byte_budget.h"
#include "base/tls/tls_contexts.h"
#include "cpu_node/control/model_control.h"
#include "cpu_node/engine.h"
#include "cpu_node/security/access.h"

namespace refract::cpu_node {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free port
  // Loads and unloads models on request; null: requests are refused. Outlives
  // the server; stopped before Shutdown(), so that its requests are answered.
  ModelControl* control = nullptr;
  // Null: no TLS. Outlives the server.
  base::TlsContexts* tls = nullptr;
  // Rights of clients; null: no restrictions. Outlives the server.
  const AccessControl* access = nullptr;
  // Threads that read, decode, encode and write, ≥ 1. One further thread
  // handles bodies that take long: much JSON, compressed bytes.
  int threads = 2;
  // Longest body, and longest body once decompressed.
  size_t max_body_bytes = size_t{64} << 20;
  // Request line and header fields together.
  size_t max_header_bytes = size_t{16} << 10;
  // Memory for bodies that are being received, over all connections.
  size_t body_memory = size_t{256} << 20;
  // Further connections are answered 503 and closed.
  int max_connections = 1024;
  // A connection without a request for this time is closed.
  absl::Duration max_idle = absl::Minutes(1);
  // Longest time for a request's header; and longest time without a byte of a
  // body that is being received, or of an answer that is being sent.
  absl::Duration max_stall = absl::Seconds(10);
  // Least average speed of bodies and answers, apart from max_stall: a client
  // that sends a byte now and then would hold memory for days.
  size_t least_bytes_per_s = size_t{64} << 10;
};

// Thread-safe.
class HttpServer {
 public:
  // Listens before it returns. Unavailable names host:port if the port is taken
  // or the address is not of this machine. `memory` is for decoded requests and
  // answers, shared with gRPC's front end. `engine` and `memory` must outlive
  // the server; the engine must be stopped before the server is destroyed.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(
      const HttpServerOptions& options, Engine* engine,
      base::ByteBudget* memory);
  // Shuts down without waiting for requests.
  ~HttpServer();

  int port() const;
  int connections() const;
  // Bytes of bodies that are being received.
  size_t body_bytes() const;
  // Inference requests that have arrived so far.
  uint64_t infer_calls() const;

  // Refuses connections, closes those without a request, and waits up to
  // `patience` for answers to be sent.
  void Shutdown(absl::Duration patience);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_HTTP_SERVER_H_

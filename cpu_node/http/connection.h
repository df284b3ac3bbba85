#ifndef REFRACT_CPU_NODE_HTTP_CONNECTION_H_
#define REFRACT_CPU_NODE_HTTP_CONNECTION_H_

// A client's connection over HTTP, and the threads that connections run on.
// Only for http/server.cc and http/connection.cc.

#include <atomic>
#include <thread>

#include "absl/container/flat_hash_set.h"
#include "base/clock.h"
#include "base/log/log_limiter.h"
#include "base/process/byte_budget.h"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "cpu_node/http/server.h"
#include "cpu_node/http/service.h"

namespace refract::cpu_node::http_connections {

class Connection;

// State that all connections share.
struct Shared {
  Shared(const HttpServerOptions& options, Engine* engine,
         base::ByteBudget* memory)
      : options(options),
        service(engine, options.control, options.access, memory,
                options.max_body_bytes),
        bodies(options.body_memory, base::kRequestMemoryFlag) {}

  const HttpServerOptions options;
  HttpService service;
  base::ByteBudget bodies;
  base::LogLimiter handshake_log{1, base::Clock::Real()};
  base::LogLimiter slow_log{1, base::Clock::Real()};
  std::atomic<int> connections = 0;
  std::atomic<bool> stopping = false;
  // Runs long work, so that short requests do not wait behind it.
  boost::asio::io_context long_work{1};
};

// A thread and its connections; no other thread touches them.
struct Loop {
  // Outlives the context, whose destruction destroys the connections.
  absl::flat_hash_set<Connection*> connections;
  boost::asio::io_context context{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{
      context.get_executor()};
  std::thread thread;
};

// Both run on the loop's thread.
//
// Takes the socket `fd` of address family `family`, which counts in
// `shared->connections` already.
void StartConnection(int fd, int family, Loop* loop, Shared* shared);
// At shutdown: each connection ends now or after its answer.
void RetireConnections(const Loop& loop);

}  // namespace refract::cpu_node::http_connections

#endif  // REFRACT_CPU_NODE_HTTP_CONNECTION_H_

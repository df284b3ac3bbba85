// One io_context and one thread per loop; a connection stays on its loop.

#include "cpu_node/http/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>
#include <vector>

#include "base/process/thread.h"
#include "base/status_macros.h"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/post.hpp"
#include "cpu_node/frontend/acceptor.h"
#include "cpu_node/http/connection.h"

namespace refract::cpu_node {
namespace {

// Answer to connections beyond the limit. Sent without waiting.
constexpr absl::string_view kTooMany =
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n"
    "Content-Type: application/json\r\nContent-Length: 37\r\n\r\n"
    "{\"error\":\"too many HTTP connections\"}";

}  // namespace

struct HttpServer::Impl {
  using Loop = http_connections::Loop;

  Impl(const HttpServerOptions& options, Engine* engine,
       base::ByteBudget* memory)
      : shared(options, engine, memory) {}

  // Hands a socket from the acceptor's thread to a loop.
  void Take(int fd) {
    if (++shared.connections > shared.options.max_connections) {
      --shared.connections;
      // An undelivered answer is the client's loss: errors are ignored.
      if (shared.options.tls == nullptr) {
        (void)::send(fd, kTooMany.data(), kTooMany.size(),
                     MSG_DONTWAIT | MSG_NOSIGNAL);
      }
      ::close(fd);
      return;
    }
    int family = AF_INET6;
    socklen_t length = sizeof(family);
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length);
    // Round robin: a connection stays with its loop for good.
    Loop* const loop = loops[next++ % loops.size()].get();
    boost::asio::post(loop->context, [this, fd, family, loop] {
      http_connections::StartConnection(fd, family, loop, &shared);
    });
  }

  absl::Status Start() {
    for (int i = 0; i < shared.options.threads; ++i) {
      loops.push_back(std::make_unique<Loop>());
      REFRACT_ASSIGN_OR_RETURN(loops.back()->thread,
                               base::StartThread([loop = loops.back().get()] {
                                 loop->context.run();
                               }));
    }
    REFRACT_ASSIGN_OR_RETURN(
        long_thread, base::StartThread([this] { shared.long_work.run(); }));
    return acceptor->Start([this](int fd) { Take(fd); });
  }

  void RetireAll() {
    for (const auto& loop : loops) {
      boost::asio::post(loop->context, [raw = loop.get()] {
        http_connections::RetireConnections(*raw);
      });
    }
  }

  http_connections::Shared shared;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type>
      long_guard{shared.long_work.get_executor()};
  std::vector<std::unique_ptr<Loop>> loops;
  std::thread long_thread;
  std::unique_ptr<Acceptor> acceptor;
  size_t next = 0;  // next loop; used by the acceptor's thread
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(
    const HttpServerOptions& options, Engine* engine,
    base::ByteBudget* memory) {
  auto impl = std::make_unique<Impl>(options, engine, memory);
  REFRACT_ASSIGN_OR_RETURN(impl->acceptor,
                           Acceptor::Create(options.host, options.port));
  // From here on the destructor joins the threads, also on errors.
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(impl)));
  REFRACT_RETURN_IF_ERROR(server->impl_->Start());
  return server;
}

HttpServer::~HttpServer() {
  Shutdown(absl::ZeroDuration());
  for (const auto& loop : impl_->loops) {
    loop->context.stop();
    if (loop->thread.joinable()) loop->thread.join();
  }
  // Ends when its queue is empty; loops do not run its results any more.
  impl_->long_guard.reset();
  if (impl_->long_thread.joinable()) impl_->long_thread.join();
  // Destroys the connections, which refer to `shared`.
  impl_->loops.clear();
}

int HttpServer::port() const { return impl_->acceptor->port(); }
int HttpServer::connections() const { return impl_->shared.connections; }
size_t HttpServer::body_bytes() const { return impl_->shared.bodies.held(); }
uint64_t HttpServer::infer_calls() const {
  return impl_->shared.service.infer_calls();
}

void HttpServer::Shutdown(absl::Duration patience) {
  impl_->acceptor->Stop();
  impl_->shared.stopping = true;
  impl_->RetireAll();
  // Polling is enough: this runs once, and connections need no notification.
  const absl::Time end = absl::Now() + patience;
  while (impl_->shared.connections > 0 && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(5));
  }
}

}  // namespace refract::cpu_node

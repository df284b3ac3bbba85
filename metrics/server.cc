#include "metrics/server.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/process/loopback.h"
#include "base/status_macros.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "glog/logging.h"

namespace refract::metrics {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// Longest time for a request, and for taking an answer. A silent connection is
// closed after it.
constexpr std::chrono::seconds kPatience(30);

// Bytes of a request's head. Prometheus sends about 300.
constexpr uint32_t kMaxHead = 8192;

// Pause after a connection that cannot be accepted, as without a free
// descriptor: the next attempt would fail at once, too.
constexpr std::chrono::milliseconds kPauseAfterError(100);

// More than all Prometheus servers, people and probes that scrape a node.
constexpr int kMaxConnections = 64;

// The address to listen on. A name may have several: IPv4 is what clients on
// the same machine write. nullopt: `host` has none.
std::optional<tcp::endpoint> EndpointOf(absl::string_view host, int port,
                                        asio::io_context& context) {
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  // The resolver takes an empty name for all addresses.
  if (host.empty()) return std::nullopt;
  error_code error;
  const auto found = tcp::resolver(context).resolve(
      std::string(host), absl::StrCat(port),
      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  std::optional<tcp::endpoint> endpoint;
  for (const auto& entry : found) {
    if (!endpoint.has_value() ||
        (endpoint->address().is_v6() && entry.endpoint().address().is_v4())) {
      endpoint = entry.endpoint();
    }
  }
  return endpoint;
}

// A client. The operation under way owns it.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, const Server::Collect& collect,
             const Routes& routes, std::shared_ptr<int> connections)
      : stream_(std::move(socket)),
        collect_(collect),
        routes_(routes),
        connections_(std::move(connections)) {
    ++*connections_;
  }
  ~Connection() { --*connections_; }

  void Read() {
    parser_.emplace();
    parser_->header_limit(kMaxHead);
    // The target is not known before the head is read, so the largest limit of
    // all routes applies here. Answer() checks the limit of the route.
    uint64_t most = 0;
    for (const Route& route : routes_.routes) {
      most = std::max(most, route.most_body_bytes);
    }
    parser_->body_limit(most);
    stream_.expires_after(kPatience);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](error_code error, size_t) {
                       self->OnRead(error);
                     });
  }

 private:
  void OnRead(error_code error) {
    // Errors of reading: a request over a limit or not HTTP gets an answer,
    // after which the connection ends, because the place where the next request
    // would begin is unknown. Without an answer: the client has closed the
    // connection or was silent for kPatience.
    answer_ = {};
    answer_.set(http::field::content_type, "text/plain; charset=utf-8");
    if (!error) {
      Answer();
    } else if (error == http::error::body_limit) {
      answer_.result(http::status::bad_request);
      answer_.body() = "the body is too large\n";
      answer_.keep_alive(false);
    } else if (error.category() ==
                   http::make_error_code(http::error::bad_method).category() &&
               error != http::error::end_of_stream &&
               error != http::error::partial_message) {
      answer_.result(http::status::bad_request);
      answer_.body() = "bad request\n";
      answer_.keep_alive(false);
    } else {
      return;  // closed, or silent for too long
    }
    answer_.prepare_payload();
    // The header of an answer to HEAD has the length of GET's body.
    if (parser_->get().method() == http::verb::head) answer_.body().clear();
    stream_.expires_after(kPatience);
    http::async_write(stream_, answer_,
                      [self = shared_from_this()](error_code error, size_t) {
                        self->OnWritten(error);
                      });
  }

  void Answer() {
    const http::request<http::string_body>& request = parser_->get();
    answer_.keep_alive(request.keep_alive());
    const auto takes = [&](uint64_t most_bytes) {
      if (request.body().size() <= most_bytes) return true;
      answer_.result(http::status::bad_request);
      answer_.body() = "the body is too large\n";
      return false;
    };
    // Scrapers may send a query, as Prometheus with `params` does.
    const beast::string_view target =
        request.target().substr(0, request.target().find('?'));
    for (const Route& route : routes_.routes) {
      if (target == beast::string_view(route.target)) {
        if (takes(route.most_body_bytes)) AnswerRoute(route);
        return;
      }
    }
    if (!takes(0)) return;
    if (target != "/metrics") {
      answer_.result(http::status::not_found);
      answer_.body() = "metrics are at /metrics\n";
    } else if (Allows("GET", IsGet(request))) {
      Exposition exposition;
      collect_(exposition);
      answer_.set(http::field::content_type,
                  "text/plain; version=0.0.4; charset=utf-8");
      answer_.body() = exposition.Text();
    }
  }

  void AnswerRoute(const Route& route) {
    const http::request<http::string_body>& request = parser_->get();
    if (!(route.changes ? Allows("POST", request.method() == http::verb::post)
                        : Allows("GET", IsGet(request)))) {
      return;
    }
    if (route.changes) {
      error_code error;
      const tcp::endpoint peer = stream_.socket().remote_endpoint(error);
      // A page in a browser can send a POST to this machine, too: its peer is a
      // loopback address, so its Origin gives it away. Without an address of
      // the peer the request counts as remote.
      const bool page = request.find(http::field::origin) != request.end();
      const bool local = !error && peer.address().is_loopback();
      if (page || (!local && !routes_.remote_changes)) {
        answer_.result(http::status::forbidden);
        answer_.body() =
            page ? "requests from pages in a browser are refused\n"
                 : absl::StrCat(
                       "only requests from this machine are accepted, unless ",
                       routes_.remote_flag, " is given\n");
        return;
      }
    }
    const Route::Answer answer = route.answer_body != nullptr
                                     ? route.answer_body(request.body())
                                     : route.answer();
    answer_.result(static_cast<unsigned>(answer.status));
    answer_.set(http::field::content_type, answer.type);
    answer_.body() = answer.body;
  }

  // HEAD is GET without the answer's body, which OnRead() leaves out.
  static bool IsGet(const http::request<http::string_body>& request) {
    return request.method() == http::verb::get ||
           request.method() == http::verb::head;
  }

  bool Allows(const char* method, bool allowed) {
    if (allowed) return true;
    answer_.result(http::status::method_not_allowed);
    answer_.set(http::field::allow, method);
    answer_.body() = absl::StrCat("the only method here is ", method, "\n");
    return false;
  }

  void OnWritten(error_code error) {
    // A client that is gone, or did not take its answer in time: the last
    // reference goes with this call, which closes the socket.
    if (error) return;
    if (answer_.keep_alive()) return Read();
    stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  }

  beast::tcp_stream stream_;
  const Server::Collect& collect_;
  const Routes& routes_;
  const std::shared_ptr<int> connections_;  // shared by all connections
  beast::flat_buffer buffer_{kMaxHead};
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> answer_;
};

}  // namespace

// All members on one thread, except in Create() and at the end.
struct Server::Impl {
  void Accept() {
    acceptor.async_accept([this](error_code error, tcp::socket socket) {
      // Connections beyond the limit are closed here: `socket` goes out of
      // scope. Counted are connections, not requests, since each may hold a
      // buffer and an answer.
      if (!error && *connections < kMaxConnections) {
        std::make_shared<Connection>(std::move(socket), collect, routes,
                                     connections)
            ->Read();
      }
      if (!error) return Accept();
      pause.expires_after(kPauseAfterError);
      pause.async_wait([this](error_code) { Accept(); });
    });
  }

  // The order matters at the end: `context` goes before `collect` and `routes`,
  // since its pending operations own connections, which refer to both.
  Collect collect;
  Routes routes;
  std::shared_ptr<int> connections = std::make_shared<int>(0);
  asio::io_context context{1};
  tcp::acceptor acceptor{context};
  asio::steady_timer pause{context};
  int port = 0;
  std::thread thread;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() {
  // run() returns after the handler under way. Handlers that have not begun are
  // destroyed with `context`.
  impl_->context.stop();
  impl_->thread.join();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const std::string& host,
                                                       int port,
                                                       Collect collect,
                                                       Routes routes) {
  auto impl = std::make_unique<Impl>();
  impl->routes = std::move(routes);
  impl->collect = std::move(collect);
  error_code error;
  const std::optional<tcp::endpoint> found =
      EndpointOf(host, port, impl->context);
  if (!found.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", host, "' is no IP address and no name of a host"));
  }
  const tcp::endpoint& endpoint = *found;
  tcp::acceptor& acceptor = impl->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  if (!error) impl->port = acceptor.local_endpoint(error).port();
  if (error) {
    const std::string failed =
        absl::StrCat("cannot listen on ", base::AddressText(host, port), ": ",
                     error.message());
    return error == boost::system::errc::address_not_available
               ? absl::InvalidArgumentError(failed)
               : absl::UnavailableError(failed);
  }
  impl->Accept();
  impl->thread = std::thread([raw = impl.get()] { raw->context.run(); });
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

int Server::port() const { return impl_->port; }

absl::StatusOr<std::unique_ptr<Server>> Serve(const Flags& flags,
                                              Server::Collect collect,
                                              Routes routes) {
  const std::optional<int> port = flags.port.number();
  if (!port.has_value()) return nullptr;
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Create(flags.host, *port, std::move(collect), std::move(routes));
  if (server.ok()) return server;
  if (absl::IsInvalidArgument(server.status())) {
    return base::Annotate(server.status(), "--metrics-host");
  }
  const absl::Status failed = base::Annotate(server.status(), "metrics");
  if (!absl::IsUnavailable(failed)) return failed;
  if (flags.port.given) {
    return absl::UnavailableError(absl::StrCat(
        failed.message(), "; --metrics-port chooses another port"));
  }
  LOG(WARNING) << failed.message()
               << "; no metrics are served, --metrics-port chooses another port";
  return nullptr;
}

void PrintAddress(absl::string_view program, const Flags& flags,
                  const Server* server) {
  if (server == nullptr) return;
  std::printf("%s: metrics on http://%s/metrics\n",
              std::string(program).c_str(),
              base::AddressText(flags.host, server->port()).c_str());
  std::fflush(stdout);
}

}  // namespace refract::metrics

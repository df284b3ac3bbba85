#include "metrics/client.h"

#include <chrono>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"

namespace refract::metrics {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// Most bytes of an answer. The metrics of a node with hundreds of models take
// about a megabyte.
constexpr uint64_t kMaxBody = uint64_t{64} << 20;

absl::Status ToStatus(error_code error, const std::string& address) {
  if (error == beast::error::timeout) {
    return absl::DeadlineExceededError(absl::StrCat(address, ": no answer"));
  }
  if (error == http::error::bad_version) {
    return absl::FailedPreconditionError(absl::StrCat(
        address, ": the answer is not HTTP (", error.message(), ")"));
  }
  return absl::UnavailableError(absl::StrCat(address, ": ", error.message()));
}

beast::string_view View(absl::string_view text) {
  return {text.data(), text.size()};
}

absl::StatusOr<Reply> Send(const std::string& address,
                           http::request<http::string_body> request,
                           absl::Duration timeout) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' is not HOST:PORT"));
  }
  // IPv6 addresses are in brackets in HOST:PORT; the resolver wants them
  // without.
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  asio::io_context context{1};
  error_code error;
  const auto endpoints =
      tcp::resolver(context).resolve(host, absl::StrCat(port), error);
  if (error) return ToStatus(error, address);
  beast::tcp_stream stream(context);
  stream.expires_after(absl::ToChronoMilliseconds(timeout));
  // One time limit for all steps below. The stream's timeout applies to
  // asynchronous calls only, so each step is started and `context` is run until
  // it has ended. restart() is necessary after each run() that ran out of work.
  const auto wait = [&] {
    context.restart();
    context.run();
    return !error;
  };
  stream.async_connect(endpoints,
                       [&](error_code e, const tcp::endpoint&) { error = e; });
  if (!wait()) return ToStatus(error, address);
  request.set(http::field::host, address);
  request.set(http::field::connection, "close");
  // prepare_payload() sets the Content-Length, which POST needs even without a
  // body.
  if (request.method() == http::verb::post) request.prepare_payload();
  http::async_write(stream, request, [&](error_code e, size_t) { error = e; });
  if (!wait()) return ToStatus(error, address);
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxBody);
  // The header by itself: reading all at once, Beast (1.74) reserves memory for
  // a body beyond the limit.
  http::async_read_header(stream, buffer, parser,
                          [&](error_code e, size_t) { error = e; });
  if (!wait()) return ToStatus(error, address);
  http::async_read(stream, buffer, parser,
                   [&](error_code e, size_t) { error = e; });
  if (!wait()) return ToStatus(error, address);
  return Reply{static_cast<int>(parser.get().result_int()),
               std::move(parser.get().body())};
}

}  // namespace

absl::StatusOr<Reply> Request(const std::string& address, bool changes,
                              absl::string_view target,
                              absl::Duration timeout) {
  return Send(address,
              {changes ? http::verb::post : http::verb::get, View(target), 11},
              timeout);
}

absl::StatusOr<Reply> Post(const std::string& address, absl::string_view target,
                           absl::string_view type, std::string body,
                           absl::Duration timeout) {
  http::request<http::string_body> request(http::verb::post, View(target), 11,
                                           std::move(body));
  request.set(http::field::content_type, View(type));
  return Send(address, std::move(request), timeout);
}

}  // namespace refract::metrics

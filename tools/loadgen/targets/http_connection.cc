#include "tools/loadgen/targets/http_connection.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ssl.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "boost/beast/ssl.hpp"

namespace refract::loadgen {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr char kJsonLength[] = "Inference-Header-Content-Length";
// Bytes of an answer.
constexpr uint64_t kMaxBody = uint64_t{1} << 32;

// `Stream` is beast::tcp_stream, or a TLS stream over it.
template <typename Stream>
class Connection final : public HttpConnection {
 public:
  Connection(asio::io_context& context, const HttpPeer& peer)
      : context_(context), peer_(peer), resolver_(context) {}

  void Call(HttpCall call, absl::Duration timeout, Done done) override {
    // The deadline holds for the call as a whole, with a second attempt after a
    // connection that the server had closed.
    call_ = std::move(call);
    done_ = std::move(done);
    deadline_ = std::chrono::steady_clock::now() +
                absl::ToChronoNanoseconds(timeout);
    Compose();
    used_before_ = stream_.has_value();
    if (used_before_) {
      Write();
    } else {
      Open();
    }
  }

 private:
  static constexpr bool kTls = !std::is_same_v<Stream, beast::tcp_stream>;

  beast::tcp_stream& tcp_stream() { return beast::get_lowest_layer(*stream_); }

  void Compose() {
    request_ = {};
    request_.version(11);
    request_.method(call_.body.empty() ? http::verb::get : http::verb::post);
    request_.target(call_.target);
    request_.set(http::field::host, peer_.address);
    if (!peer_.token.empty()) {
      request_.set(http::field::authorization,
                   absl::StrCat("Bearer ", peer_.token));
    }
    if (!call_.body.empty()) {
      request_.set(http::field::content_type,
                   call_.json_bytes > 0 ? "application/octet-stream"
                                        : "application/json");
    }
    if (call_.json_bytes > 0) {
      request_.set(kJsonLength, absl::StrCat(call_.json_bytes));
    }
    request_.body() = {call_.body.data(), call_.body.size()};
    request_.prepare_payload();
  }

  void Open() {
    if constexpr (kTls) {
      stream_.emplace(context_, *peer_.tls);
    } else {
      stream_.emplace(context_);
    }
    buffer_.clear();
    // A fresh stream each time: a TLS stream cannot be used for a second
    // handshake. Bytes left in the buffer are of the closed connection.
    resolver_.async_resolve(
        peer_.host, peer_.port,
        [this](error_code error, const tcp::resolver::results_type& found) {
          if (error) return Fail(error);
          tcp_stream().expires_at(deadline_);
          tcp_stream().async_connect(
              found, [this](error_code error, const tcp::endpoint&) {
                if (error) return Fail(error);
                // Requests are single writes; Nagle's algorithm would hold back
                // the end of a request until the acknowledgement of its
                // beginning.
                tcp_stream().socket().set_option(tcp::no_delay(true), error);
                Secure();
              });
        });
  }

  void Secure() {
    if constexpr (kTls) {
      // Names the wanted certificate (SNI), and checks the certificate that the
      // server sends.
      SSL_set_tlsext_host_name(stream_->native_handle(), peer_.host.c_str());
      stream_->set_verify_callback(
          asio::ssl::host_name_verification(peer_.host));
      stream_->async_handshake(asio::ssl::stream_base::client,
                               [this](error_code error) {
                                 if (error) return Fail(error);
                                 Write();
                               });
    } else {
      Write();
    }
  }

  void Write() {
    tcp_stream().expires_at(deadline_);
    http::async_write(*stream_, request_, [this](error_code error, size_t) {
      if (error) return Fail(error);
      Read();
    });
  }

  void Read() {
    parser_.emplace();
    parser_->body_limit(kMaxBody);
    http::async_read(*stream_, buffer_, *parser_,
                     [this](error_code error, size_t) {
                       if (error) return Fail(error);
                       Finish();
                     });
  }

  void Finish() {
    http::response<http::string_body> response = parser_->release();
    HttpAnswer answer{.status = static_cast<int>(response.result_int())};
    const auto length = response[kJsonLength];
    if (!length.empty() &&
        !absl::SimpleAtoi(absl::string_view(length.data(), length.size()),
                          &answer.json_bytes)) {
      return Fail(http::error::bad_value);
    }
    answer.body = std::move(response.body());
    // The next call opens a new connection.
    if (!response.keep_alive()) stream_.reset();
    Report(std::move(answer));
  }

  // A server may close a kept connection at any time, also while a request is
  // on its way. A connection that was used before and ends without a byte of an
  // answer is taken for that case: the request goes over a new connection, once.
  void Fail(error_code error) {
    const bool nothing_read = !parser_ || !parser_->got_some();
    stream_.reset();
    parser_.reset();
    if (error == beast::error::timeout) {
      return Report(absl::DeadlineExceededError(
          absl::StrCat(peer_.address, ": no answer in time")));
    }
    const bool closed = error == http::error::end_of_stream ||
                        error == asio::error::connection_reset ||
                        error == asio::error::broken_pipe ||
                        error == asio::error::eof ||
                        error == asio::ssl::error::stream_truncated;
    if (std::exchange(used_before_, false) && closed && nothing_read) {
      Compose();
      return Open();
    }
    Report(absl::UnavailableError(
        absl::StrCat(peer_.address, ": ", error.message())));
  }

  void Report(absl::StatusOr<HttpAnswer> answer) {
    parser_.reset();
    // Last, and with done_ cleared: `done` may start the next call on this
    // connection.
    std::exchange(done_, nullptr)(std::move(answer));
  }

  asio::io_context& context_;
  const HttpPeer& peer_;
  tcp::resolver resolver_;
  std::optional<Stream> stream_;
  beast::flat_buffer buffer_;
  std::optional<http::response_parser<http::string_body>> parser_;
  http::request<http::span_body<const char>> request_;
  HttpCall call_;
  Done done_;
  std::chrono::steady_clock::time_point deadline_;
  bool used_before_ = false;
};

}  // namespace

std::unique_ptr<HttpConnection> HttpConnection::Create(
    asio::io_context& context, const HttpPeer& peer) {
  if (peer.tls == nullptr) {
    return std::make_unique<Connection<beast::tcp_stream>>(context, peer);
  }
  return std::make_unique<Connection<beast::ssl_stream<beast::tcp_stream>>>(
      context, peer);
}

}  // namespace refract::loadgen

#ifndef REFRACT_CPU_NODE_HTTP_STREAM_H_
#define REFRACT_CPU_NODE_HTTP_STREAM_H_

// A socket with timeouts, with or without TLS. Only for http/connection.cc.

#include <optional>
#include <utility>

#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ssl/context.hpp"
#include "boost/asio/ssl/stream.hpp"
#include "boost/beast/core.hpp"

namespace refract::cpu_node::http_connections {

// One stream type for both, so that the connection code is compiled once.
class ClientStream {
 public:
  using Socket =
      boost::beast::basic_stream<boost::asio::ip::tcp,
                                 boost::asio::io_context::executor_type>;
  using executor_type = Socket::executor_type;

  explicit ClientStream(const executor_type& executor) : socket_(executor) {}

  // Call before reading or writing. Takes a reference to `context`.
  void UseTls(SSL_CTX* context) {
    SSL_CTX_up_ref(context);
    boost::asio::ssl::context owner(context);
    tls_.emplace(socket_, owner);
  }
  // Null: the stream has no TLS.
  SSL* tls() { return tls_.has_value() ? tls_->native_handle() : nullptr; }

  template <typename Handler>
  void async_handshake(Handler handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server,
                          std::move(handler));
  }

  executor_type get_executor() { return socket_.get_executor(); }
  auto& socket() { return socket_.socket(); }
  template <typename Time>
  void expires_at(Time time) {
    socket_.expires_at(time);
  }
  template <typename Duration>
  void expires_after(Duration time) {
    socket_.expires_after(time);
  }
  void expires_never() { socket_.expires_never(); }
  void cancel() { socket_.cancel(); }

  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_read_some(buffers, std::forward<Handler>(handler));
    }
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_write_some(buffers, std::forward<Handler>(handler));
    }
  }

 private:
  Socket socket_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace refract::cpu_node::http_connections

#endif  // REFRACT_CPU_NODE_HTTP_STREAM_H_

#ifndef REFRACT_TOOLS_LOADGEN_TARGETS_HTTP_CONNECTION_H_
#define REFRACT_TOOLS_LOADGEN_TARGETS_HTTP_CONNECTION_H_

// HTTP/1.1 over Boost.Beast, with or without TLS. For http_target.cc alone.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/loadgen/targets/target.h"

namespace boost::asio {
class io_context;
namespace ssl {
class context;
}
}  // namespace boost::asio

namespace refract::loadgen {

// A call. Its bytes outlive the answer.
struct HttpCall {
  std::string target;      // "/v2/models/…"
  std::string_view body;   // not empty: POST
  size_t json_bytes = 0;   // > 0: of the body, before binary tensors
};

struct HttpAnswer {
  int status = 0;
  size_t json_bytes = 0;  // 0: the body has no binary tensors
  std::string body;
};

// One server and how to reach it. Outlives its connections.
struct HttpPeer {
  std::string address;  // HOST:PORT
  std::string host, port;
  std::string token;                           // empty: none
  boost::asio::ssl::context* tls = nullptr;    // null: no TLS
};

// One connection, opened by its first call and again after an error. Used by
// the thread of its io_context alone.
class HttpConnection {
 public:
  static std::unique_ptr<HttpConnection> Create(boost::asio::io_context& context,
                                                const HttpPeer& peer);
  virtual ~HttpConnection() = default;

  // Calls `done` once, later: the answer; DeadlineExceeded after `timeout`;
  // else Unavailable, which names the address. One call at a time.
  using Done = std::function<void(absl::StatusOr<HttpAnswer> answer)>;
  virtual void Call(HttpCall call, absl::Duration timeout, Done done) = 0;
};

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_TARGETS_HTTP_CONNECTION_H_

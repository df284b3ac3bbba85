#ifndef REFRACT_METRICS_CLIENT_H_
#define REFRACT_METRICS_CLIENT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace refract::metrics {

// Answer of a Server.
struct Reply {
  int status = 0;  // of HTTP
  std::string body;
};

// Requests `target` of the HTTP server at `address` (HOST:PORT) by GET, or by
// POST if `changes`. Takes `timeout` at most once the name HOST is resolved,
// whose time the resolver bounds (resolv.conf). Unavailable: not reached, or
// the connection ended; FailedPrecondition: the answer is not HTTP;
// DeadlineExceeded: no answer in time. These errors name the address.
// InvalidArgument: `address` is not HOST:PORT.
absl::StatusOr<Reply> Request(const std::string& address, bool changes,
                              absl::string_view target, absl::Duration timeout);

// POST with a body of `type`. Otherwise as Request().
absl::StatusOr<Reply> Post(const std::string& address, absl::string_view target,
                           absl::string_view type, std::string body,
                           absl::Duration timeout);

}  // namespace refract::metrics

#endif  // REFRACT_METRICS_CLIENT_H_

#ifndef REFRACT_CPU_NODE_DISPATCH_REQUEST_LOG_H_
#define REFRACT_CPU_NODE_DISPATCH_REQUEST_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log/log_limiter.h"
#include "cpu_node/statistics.h"

namespace refract::cpu_node {

// Writes log lines about single requests, at a bounded rate: at most ten of
// each kind per second, and the number of omitted lines. Thread-safe.
class RequestLog {
 public:
  // A request of `slow_after` or longer is slow; infinite: no request is.
  RequestLog(absl::Duration slow_after, base::Clock& clock);

  // `id`: the client's name for the request, any bytes; may be empty.
  void OnFailure(absl::string_view model, absl::string_view id,
                 const absl::Status& status);

  bool IsSlow(absl::Duration took) const { return took >= slow_after_; }

  // A request that ended, with an answer or with an error.
  struct Ended {
    absl::string_view model;
    absl::string_view id;
    absl::string_view gpu_node;  // address of the last node; empty: none
    absl::Duration took;
    StageTimes times;
    int attempts = 0;  // at GPU nodes
  };
  void OnEnd(const Ended& request, const absl::Status& status);

 private:
  const absl::Duration slow_after_;
  base::LogLimiter failures_;
  base::LogLimiter slow_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISPATCH_REQUEST_LOG_H_

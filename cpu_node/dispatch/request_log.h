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

// Lines in the log about single requests, few enough not to be what goes wrong:
// at most ten of each kind in a second, and the number of those left out.
// Thread-safe.
class RequestLog {
 public:
  // A request that ends after `slow_after` or more is slow; infinite: none is.
  RequestLog(absl::Duration slow_after, base::Clock& clock);

  // `id`: as the client calls the request, any bytes; may be empty.
  void OnFailure(absl::string_view model, absl::string_view id,
                 const absl::Status& status);

  bool IsSlow(absl::Duration took) const { return took >= slow_after_; }

  // A request that ended, well or not.
  struct Ended {
    absl::string_view model;
    absl::string_view id;
    absl::string_view gpu_node;  // address of the last one; empty: none
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

#ifndef REFRACT_CPU_NODE_SECURITY_CLIENT_QUOTA_H_
#define REFRACT_CPU_NODE_SECURITY_CLIENT_QUOTA_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace refract::cpu_node {

// Quota of the holder of a token at a CPU node: inference requests in flight,
// and inference requests per second (a token bucket that holds the requests of
// one second). Thread-safe.
class ClientQuota : public std::enable_shared_from_this<ClientQuota> {
 public:
  struct Limits {
    std::string name;  // of the client, in messages and metrics
    int64_t in_flight = std::numeric_limits<int64_t>::max();  // ≥ 1
    double rate = std::numeric_limits<double>::infinity();    // 1/s, > 0
    bool operator==(const Limits&) const = default;
  };

  // A request in flight; gives its place back when it is destroyed. Empty: of a
  // client without a quota.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept : quota_(std::move(other.quota_)) {}
    Hold& operator=(Hold&& other) noexcept {
      Reset();
      quota_ = std::move(other.quota_);
      return *this;
    }
    ~Hold() { Reset(); }

   private:
    friend class ClientQuota;
    explicit Hold(std::shared_ptr<ClientQuota> quota)
        : quota_(std::move(quota)) {}
    void Reset();
    std::shared_ptr<ClientQuota> quota_;
  };

  explicit ClientQuota(Limits limits);

  // ResourceExhausted names the client and the limit that is reached.
  absl::StatusOr<Hold> Take(absl::Time now);

  const Limits& limits() const { return limits_; }
  struct Counts {
    uint64_t taken = 0;    // requests
    uint64_t refused = 0;  // further requests
    int64_t in_flight = 0;
  };
  Counts counts() const;

 private:
  const Limits limits_;
  const double bucket_;  // size in requests
  mutable absl::Mutex mu_;
  Counts counts_ ABSL_GUARDED_BY(mu_);
  double left_ ABSL_GUARDED_BY(mu_);  // in the bucket at `filled_`
  absl::Time filled_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_SECURITY_CLIENT_QUOTA_H_

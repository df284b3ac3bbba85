#ifndef REFRACT_CPU_NODE_DISPATCH_RETRIES_H_
#define REFRACT_CPU_NODE_DISPATCH_RETRIES_H_

// Limits the harm of retries. A request that failed at a GPU node is sent once
// more, to another node. Two things can then go wrong: the retries overload the
// remaining nodes, or a request that crashes GPU nodes is handed from node to
// node.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/digest.h"
#include "cpu_node/request.h"

namespace refract::cpu_node {

// Bounds retries to a fraction of the requests (the retry budget of Google's
// SRE book, chapter 22, as a token bucket). Thread-safe, wait-free.
class RetryBudget {
 public:
  // Retries earned by each admitted request.
  static constexpr double kPerRequest = 0.1;
  // Retries that may be saved up: the requests that are in flight to two GPU
  // nodes, so that after the loss of a node all its requests are retried.
  static constexpr int kMost = 128;

  void OnAdmitted() {
    const int tenths = tenths_.load(std::memory_order_relaxed);
    if (tenths < 10 * kMost) tenths_.fetch_add(1, std::memory_order_relaxed);
  }
  // Takes one retry from the budget; false if fewer than
  // `keep` retries would be left.
  bool Take(int keep = 0) {
    int tenths = tenths_.load(std::memory_order_relaxed);
    while (tenths >= 10 * (keep + 1)) {
      if (tenths_.compare_exchange_weak(tenths, tenths - 10,
                                        std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

 private:
  static_assert(kPerRequest == 0.1, "counted in tenths");
  std::atomic<int> tenths_ = 10 * kMost;
};

// Remembers the contents of requests that were at a GPU node when its
// connection was lost. Content that was present at kLosses losses in a row,
// without an answer between them, is suspected as the cause: it is refused for
// kTime. The first answer to a content releases it, so that innocent requests
// are served again. Thread-safe.
class Quarantine {
 public:
  static constexpr int kLosses = 2;
  static constexpr absl::Duration kTime = absl::Minutes(1);
  // Most contents remembered. Forgetting one costs a GPU node at worst.
  static constexpr size_t kMost = 4096;

  // Whether nothing is remembered, so that Fingerprint() need not be computed.
  // Wait-free.
  bool empty() const { return !any_.load(std::memory_order_acquire); }

  // Digest of the model and the contents of the inputs; about 0.1 ms per MiB.
  static base::Digest Fingerprint(const InferRequest& request);

  // Call when the connection was lost while the GPU node had the request.
  void OnLoss(const base::Digest& request, absl::Time now);
  void OnAnswer(const base::Digest& request);
  bool Holds(const base::Digest& request, absl::Time now);

 private:
  struct Entry {
    int losses = 0;
    absl::Time until;
  };
  struct Hash {
    size_t operator()(const base::Digest& digest) const { return digest.low; }
  };
  void Forget(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::atomic<bool> any_ = false;
  absl::Mutex mu_;
  absl::flat_hash_map<base::Digest, Entry, Hash> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISPATCH_RETRIES_H_

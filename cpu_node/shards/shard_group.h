#ifndef REFRACT_CPU_NODE_SHARDS_SHARD_GROUP_H_
#define REFRACT_CPU_NODE_SHARDS_SHARD_GROUP_H_

// The shard group that this node belongs to: CPU nodes that divide tables
// among them (docs/how-to/shards.md). Each node serves clients; for rows that
// it does not own it asks the owners, over the transport.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cpu_node/shards/shard_server.h"
#include "cpu_node/shards/sharded_model.h"
#include "runtime/cpu/look_ups/shard_peers.h"
#include "transport/links/channel.h"

namespace refract::cpu_node {

struct ShardGroupOptions {
  // "HOST:PORT" of all shards, in their order; empty: there is no group. The
  // node listens at its own address.
  std::vector<std::string> addresses;
  size_t own = 0;
  // Threads that answer the other shards. ≥ 1.
  int threads = 1;
  transport::PathPreference path = transport::PathPreference::kAuto;
  std::string rdma_device;       // as transport::ClientOptions
  transport::Locality locality;  // the same
  transport::ClientTls dial_tls;
  std::shared_ptr<base::TlsContexts> accept_tls;  // null: no TLS
  base::Clock* clock = &base::Clock::Real();
  // After a shard was lost or came back, or can serve a model or ceased to;
  // under no lock, on a transport thread.
  std::function<void()> on_change;
};

// Thread-safe.
class ShardGroup {
 public:
  // Listens and starts connecting; absent shards are no error. InvalidArgument
  // names a bad address, Unavailable an address that is taken.
  static absl::StatusOr<std::unique_ptr<ShardGroup>> Create(
      ShardGroupOptions options);
  ~ShardGroup();

  // Offers `model`, which is sharded, to the other shards, and returns its
  // place, by which the other methods name it. ResourceExhausted: too many
  // models.
  absl::StatusOr<size_t> Add(const std::shared_ptr<const ServedModel>& model);
  // No run of the model is under way, and none comes.
  void Remove(size_t place);

  // OK, or Unavailable names a shard that cannot be asked for rows of the
  // model at `place`.
  absl::Status WhyLost(size_t place) const;

  // Waits of Ask() end with Cancelled from now on.
  void StopAsking() { stopping_.store(true, std::memory_order_relaxed); }

  // Disconnects; on_change is not called any more. No Ask() is under way, and
  // none comes.
  void Close();

  const ShardServer& server() const { return *server_; }

  // The other shards for one run of a model.
  class Run final : public runtime::cpu::ShardPeers {
   public:
    Run(ShardGroup* group, size_t place, absl::Time deadline,
        std::stop_token cancel, absl::string_view request_id)
        : group_(*group),
          place_(place),
          deadline_(deadline),
          cancel_(std::move(cancel)),
          request_id_(request_id) {}
    void Ask(absl::Span<runtime::cpu::ShardCall> calls,
             absl::FunctionRef<void()> meanwhile) override;
    // Whether a call has failed: another try here would fail, too.
    bool failed() const { return failed_; }
    // Sequences of the deltas whose rows the shards that answered have read;
    // kNoDelta: none has answered.
    static constexpr int64_t kNoDelta = std::numeric_limits<int64_t>::max();
    int64_t oldest_delta() const { return oldest_delta_; }
    int64_t newest_delta() const { return newest_delta_; }

   private:
    ShardGroup& group_;
    const size_t place_;
    const absl::Time deadline_;
    const std::stop_token cancel_;
    const absl::string_view request_id_;
    bool failed_ = false;
    int64_t oldest_delta_ = kNoDelta;
    int64_t newest_delta_ = 0;
  };

 private:
  // Longest wait for a shard that is alive and does not answer, if the request
  // has no deadline. No look-up takes that long.
  static constexpr absl::Duration kLongestWait = absl::Seconds(10);

  explicit ShardGroup(ShardGroupOptions options);
  // An error of `shard` as the request gets it.
  absl::Status ErrorOf(size_t shard, const absl::Status& status) const;

  const ShardGroupOptions options_;
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<ShardServer> server_;
  mutable absl::Mutex mu_;
  // By place; null: free.
  std::vector<const ServedModel*> models_ ABSL_GUARDED_BY(mu_);
  // By shard; null: this node. Empty once closed, under mu_; else constant.
  std::vector<std::unique_ptr<transport::Client>> clients_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_SHARDS_SHARD_GROUP_H_

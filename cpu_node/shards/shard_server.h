#ifndef REFRACT_CPU_NODE_SHARDS_SHARD_SERVER_H_
#define REFRACT_CPU_NODE_SHARDS_SHARD_SERVER_H_

// Answers the look-ups of the other nodes of a shard group.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "cpu_node/shards/sharded_model.h"
#include "transport/links/channel.h"

namespace refract::cpu_node {

class ServedModel;

// Peers offer a model version (ShardedModel::OfferTo()) and send look-ups of
// it. The server's own threads look up and never wait for another node, so
// nodes that ask each other cannot deadlock.
//
// Thread-safe.
class ShardServer final : public transport::Handler {
 public:
  // Listens before it returns. Unavailable names host:port when the port is
  // taken. `threads` ≥ 1: threads that look up.
  static absl::StatusOr<std::unique_ptr<ShardServer>> Create(
      transport::ServerOptions options, int threads);
  // Requests that wait fail with Unavailable.
  ~ShardServer() override;

  // Look-ups of the model are answered, until Remove() or its end.
  void Add(const std::shared_ptr<const ServedModel>& model);
  void Remove(const ServedModel* model);

  // Look-ups that were answered, and look-ups that failed.
  uint64_t answered() const;
  uint64_t failed() const;

  // transport::Handler
  absl::StatusOr<size_t> OnOffer(const transport::ModelOffer& offer) override;
  void OnOfferEnd(size_t number, bool withdrawn) override;
  void OnRequest(std::unique_ptr<transport::ServerCall> call) override;

 private:
  // Offers at a time, and look-ups that wait for a thread.
  static constexpr size_t kMaxOffers = 4096;
  static constexpr size_t kMaxQueue = 1024;

  // An offer that some peers make; numbered by its place. Free without peers.
  struct Offer {
    transport::ModelOffer offer;
    size_t peers = 0;
    std::weak_ptr<const ServedModel> model;  // empty: not loaded here
  };

  explicit ShardServer(base::Clock* clock) : clock_(*clock) {}
  // The model of the offer among the models that were added; empty: not added.
  std::weak_ptr<const ServedModel> FindModel(
      const transport::ModelOffer& offer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Finds the models of all offers again, and tells peers about changes.
  void Match();
  void Tell(size_t number);
  void Work();
  absl::Status Answer(transport::ServerCall& call);

  base::Clock& clock_;
  mutable absl::Mutex mu_;
  std::vector<std::weak_ptr<const ServedModel>> models_ ABSL_GUARDED_BY(mu_);
  std::vector<Offer> offers_ ABSL_GUARDED_BY(mu_);
  std::deque<std::unique_ptr<transport::ServerCall>> queue_
      ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t answered_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t failed_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::thread> threads_;
  // Last set and first destroyed: it calls the handler.
  absl::Mutex server_mu_;
  std::unique_ptr<transport::Server> server_ ABSL_GUARDED_BY(server_mu_);
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_SHARDS_SHARD_SERVER_H_

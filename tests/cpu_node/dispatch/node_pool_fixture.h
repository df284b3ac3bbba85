#ifndef REFRACT_TESTS_CPU_NODE_DISPATCH_NODE_POOL_FIXTURE_H_
#define REFRACT_TESTS_CPU_NODE_DISPATCH_NODE_POOL_FIXTURE_H_

// A pool of GPU nodes over links whose state the test sets.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "cpu_node/dispatch/node_pool.h"
#include "gtest/gtest.h"

namespace refract::cpu_node {

// A link whose state the test sets. Carries no messages.
class FakeClient : public transport::Client {
 public:
  FakeClient(const transport::ClientOptions& options,
             std::function<void()> on_change)
      : address(options.address),
        clock_(*options.clock),
        on_change_(std::move(on_change)),
        health_(options.first_backoff, options.last_backoff, options.ejection) {
  }

  void Connect(uint64_t epoch, std::vector<absl::Status> models) {
    transport::ClientState state;
    state.connected = true;
    state.path = "fake";
    state.epoch = epoch;
    state.models = std::move(models);
    health_.OnConnected(clock_.Now());
    Set(std::move(state));
  }
  void Suspect(bool suspect) {
    health_.OnSilence(suspect);
    on_change_();
  }
  void Disconnect(absl::Status why) {
    health_.OnLost(why, clock_.Now(), 0.5);
    transport::ClientState state;
    state.last_error = std::move(why);
    Set(std::move(state));
  }

  transport::ClientState state() const override {
    absl::MutexLock lock(&mu_);
    return state_;
  }
  transport::PeerHealth& health() override { return health_; }
  absl::Status SetOffer(size_t, std::optional<transport::ModelOffer>) override {
    return offer_answer;
  }
  absl::StatusOr<transport::OutgoingMessage> Allocate(
      size_t, absl::Span<const base::TensorSpec>, absl::string_view) override {
    return absl::UnimplementedError("carries no messages");
  }
  void Send(transport::OutgoingMessage, absl::Time, std::stop_token,
            Callback) override {}

  ~FakeClient() override {
    if (ended != nullptr) ended->push_back(address);
  }

  const std::string address;
  std::vector<std::string>* ended = nullptr;
  absl::Status offer_answer;  // of SetOffer()

 private:
  void Set(transport::ClientState state) {
    {
      absl::MutexLock lock(&mu_);
      state_ = std::move(state);
    }
    on_change_();
  }

  base::Clock& clock_;
  const std::function<void()> on_change_;
  transport::PeerHealth health_;
  mutable absl::Mutex mu_;
  transport::ClientState state_ ABSL_GUARDED_BY(mu_);
};

class NodePoolTest : public ::testing::Test {
 protected:
  std::unique_ptr<NodePool> MakePool(std::vector<std::string> addresses) {
    NodePoolOptions options;
    options.addresses = std::move(addresses);
    options.offers.resize(2);
    options.offers[0].name = "a";
    options.offers[1].name = "b";
    options.ejection.failures = 2;
    options.ejection.first = absl::Seconds(1);
    options.clock = &clock_;
    options.on_change = [this] { ++changes_; };
    options.tier_of = tier_of_;
    options.max_nodes = max_nodes_;
    options.connect = [this](const transport::ClientOptions& client_options,
                             std::function<void()> on_change)
        -> absl::StatusOr<std::unique_ptr<transport::Client>> {
      auto client =
          std::make_unique<FakeClient>(client_options, std::move(on_change));
      clients_.push_back(client.get());
      client->ended = &ended_;
      client->offer_answer = offer_answer_;
      return client;
    };
    return *NodePool::Create(std::move(options));
  }

  static size_t NodeOf(NodePool& pool, std::optional<size_t> avoid = {}) {
    const std::optional<NodePool::Lease> lease = pool.Acquire(0, avoid);
    return lease.has_value() ? lease->node() : 999;
  }
  static void Fail(NodePool& pool, size_t avoid) {
    std::optional<NodePool::Lease> lease = pool.Acquire(0, avoid);
    lease->Finish(absl::UnavailableError("lost"), absl::Milliseconds(1));
  }

  base::ManualClock clock_;
  size_t max_nodes_ = 0;
  std::vector<std::string> ended_;  // addresses of clients that were destroyed
  std::function<int(absl::string_view address)> tier_of_;
  absl::Status offer_answer_;  // of later clients
  std::vector<FakeClient*> clients_;
  std::atomic<int> changes_ = 0;
  const absl::Status ok_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_TESTS_CPU_NODE_DISPATCH_NODE_POOL_FIXTURE_H_

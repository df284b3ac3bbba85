// The cost of choosing a GPU node for a request
// (cpu_node/dispatch/node_pool.h): one thread takes and returns leases of pools
// of several sizes, with every model in turn. No connection is behind the pool.

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/quantile.h"
#include "cpu_node/dispatch/node_pool.h"
#include "glog/logging.h"

namespace refract::cpu_node {
namespace {

constexpr int kRounds = 21;
constexpr int kLeasesPerRound = 5000;

// A node that serves every model.
class ConnectedClient final : public transport::Client {
 public:
  explicit ConnectedClient(size_t models) {
    state_.connected = true;
    state_.epoch = 1;
    state_.models.resize(models);
    health_.OnConnected(absl::Now());
  }
  transport::ClientState state() const override { return state_; }
  transport::PeerHealth& health() override { return health_; }
  absl::Status SetOffer(size_t, std::optional<transport::ModelOffer>) override {
    return absl::OkStatus();
  }
  absl::StatusOr<transport::OutgoingMessage> Allocate(
      size_t, absl::Span<const base::TensorSpec>,
      absl::string_view) override {
    return absl::UnimplementedError("carries no messages");
  }
  void Send(transport::OutgoingMessage, absl::Time, std::stop_token,
            Callback) override {}

 private:
  transport::ClientState state_;
  transport::PeerHealth health_{absl::Seconds(1), absl::Seconds(1)};
};

// Nanoseconds per lease.
base::Quartiles Measure(size_t nodes, size_t models) {
  NodePoolOptions options;
  for (size_t i = 0; i < nodes; ++i) {
    options.addresses.push_back(absl::StrCat("node", i, ":1"));
  }
  options.offers.resize(models);
  options.connect = [models](const transport::ClientOptions&,
                             std::function<void()>)
      -> absl::StatusOr<std::unique_ptr<transport::Client>> {
    return std::make_unique<ConnectedClient>(models);
  };
  auto pool = NodePool::Create(std::move(options));
  if (!pool.ok()) std::abort();
  size_t offer = 0;
  std::vector<double> ns;
  for (int round = 0; round <= kRounds; ++round) {
    const absl::Time begin = absl::Now();
    for (int i = 0; i < kLeasesPerRound; ++i) {
      offer = (offer + 1) % models;
      std::optional<NodePool::Lease> lease =
          (*pool)->Acquire(offer, std::nullopt);
      if (!lease.has_value()) std::abort();
      lease->Finish(absl::OkStatus(), absl::Milliseconds(1));
    }
    // The first round warms up.
    if (round == 0) continue;
    ns.push_back(absl::ToDoubleNanoseconds(absl::Now() - begin) /
                 kLeasesPerRound);
  }
  return base::QuartilesOf(std::move(ns));
}

}  // namespace
}  // namespace refract::cpu_node

int main() {
  FLAGS_minloglevel = 1;  // connections are of no interest here
  std::printf("%6s %7s %14s %s\n", "nodes", "models", "ns per lease",
              "[quartiles]");
  for (const size_t nodes : {1, 4, 16}) {
    for (const size_t models : {1, 20, 200}) {
      const refract::base::Quartiles ns =
          refract::cpu_node::Measure(nodes, models);
      std::printf("%6zu %7zu %14.0f [%.0f, %.0f]\n", nodes, models, ns.median,
                  ns.q1, ns.q3);
    }
  }
  return 0;
}

#ifndef REFRACT_TESTS_TRANSPORT_SIM_NODE_FIXTURE_H_
#define REFRACT_TESTS_TRANSPORT_SIM_NODE_FIXTURE_H_

// Server and client of the channel, whole, over simulated verbs devices. Both
// are processes of one machine with several devices: the server has the last
// one, the client what it is told to use.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/session.pb.h"
#include "tests/base/random_seed.h"
#include "tests/transport/testing/channel_fixture.h"
#include "tests/transport/verbs_sim/fabric/fabric.h"
#include "transport/client.h"
#include "transport/verbs/device/device_context.h"

namespace refract::transport::sim {

class SimNodeTest : public testing::Test {
 protected:
  static constexpr int kServerDevice = 2;

  SimNodeTest() : seed_(base::RandomSeed()) {
    FabricOptions options;
    options.seed = seed_;
    options.automatic = true;
    fabric_ = std::make_unique<Fabric>(options);
    HostOptions host;
    host.nics.resize(kServerDevice + 1);
    for (size_t i = 0; i < host.nics.size(); ++i) {
      host.nics[i].device = absl::StrCat("sim", i);
    }
    fabric_->AddHost(host);
    registry_ = std::make_unique<verbs::DeviceRegistry>(
        fabric_->library(0), verbs::DeviceContext::Events::kWatched);
    verbs::DeviceRegistry::ReplaceSystem(registry_.get());
    RecordProperty("seed", std::to_string(seed_));
  }
  ~SimNodeTest() override {
    client_.reset();
    server_.reset();
    verbs::DeviceRegistry::ReplaceSystem(nullptr);
    for (const std::string& violation : fabric_->violations()) {
      ADD_FAILURE() << violation << " (seed " << seed_ << ")";
    }
  }

  // Enough for the messages of these tests.
  static Limits SmallLimits() {
    Limits limits;
    limits.max_message_bytes = size_t{2} << 20;
    limits.source_arena_bytes = size_t{8} << 20;
    limits.max_in_flight = 16;
    return limits;
  }
  // How long either side waits for a sign of life from the other.
  absl::Duration liveness_timeout_ = absl::Seconds(2);

  // `handler` null: answers with the request's contents.
  void StartServer(int port = 0, Handler* handler = nullptr) {
    ServerOptions options;
    options.host = "127.0.0.1";
    options.port = port;
    options.rdma_device = absl::StrCat("sim", kServerDevice);
    options.limits = SmallLimits();
    options.liveness_timeout = liveness_timeout_;
    auto server =
        Server::Create(options, handler == nullptr ? &handler_ : handler);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // Not Client::Create: that would add shared memory, which is better than
  // everything, or leave only one path.
  void StartClient(std::vector<proto::TransportPath> paths,
                   const std::string& device) {
    ClientOptions options;
    options.address = absl::StrCat("127.0.0.1:", server_->port());
    options.rdma_device = device;
    options.models.push_back({"model", 1, {}, {}});
    options.limits = SmallLimits();
    options.liveness_timeout = liveness_timeout_;
    options.last_backoff = absl::Milliseconds(200);
    // Longer than any of these tests.
    options.probe_interval = absl::Hours(10);
    auto hub = ClientHub::Create(ClientHub::OptionsFor(options));
    ASSERT_TRUE(hub.ok()) << hub.status();
    auto client = ClientImpl::Start(*std::move(hub), options,
                                    HostPort{"127.0.0.1", server_->port()},
                                    std::move(paths), nullptr);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  bool AwaitPath(const std::string& path, const std::string& rail) {
    const bool there = Eventually([&] {
      const ClientState state = client_->state();
      return state.connected && state.path == path && state.rail == rail;
    });
    if (!there) {
      const ClientState state = client_->state();
      ADD_FAILURE() << "waited for " << path << " " << rail << ", is at \""
                    << state.path << "\" \"" << state.rail << "\" "
                    << state.last_error << " (seed " << seed_ << ")";
    }
    return there;
  }
  // A short message and one that is pulled.
  void ExpectEcho() {
    for (const int64_t floats : {100, 100'000}) {
      const std::vector<base::TensorSpec> specs = {
          {base::DType::kFloat32, {floats}}};
      auto request = client_->Allocate(0, specs);
      ASSERT_TRUE(request.ok()) << request.status();
      Fill(*request, Contents(3, specs));
      Call call;
      client_->Send(*std::move(request), absl::InfiniteFuture(),
                    call.callback());
      ASSERT_TRUE(call.Await().ok()) << call.Await().status();
      ExpectTensors(call.Await()->tensors(), specs, Contents(3, specs));
    }
  }
  void SetLink(int device, bool up) { fabric_->SetLink(0, device, up); }

  const uint64_t seed_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<verbs::DeviceRegistry> registry_;
  FunctionHandler handler_{Echo};
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_SIM_NODE_FIXTURE_H_

#ifndef REFRACT_TESTS_CPU_NODE_SERVING_FIXTURE_H_
#define REFRACT_TESTS_CPU_NODE_SERVING_FIXTURE_H_

// A CPU node's engine and GPU nodes in one process, joined by the real
// transport over loopback.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "cpu_node/catalog.h"
#include "cpu_node/engine.h"
#include "gpu_node/gpu_node.h"
#include "gpu_node/model/device_model.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/small_model.h"
#include "transport/links/channel.h"

namespace refract::cpu_node {

using testing_models::SmallModelOptions;
using ModelList = std::vector<std::shared_ptr<const models::LoadedModel>>;

// Long enough for a loaded machine; never waited for when things work.
constexpr absl::Duration kPatience = absl::Seconds(30);

inline gpu_node::DeviceModels DeviceModelsOf(const ModelList& models) {
  std::vector<std::unique_ptr<gpu_node::DeviceModel>> result;
  for (const auto& model : models) {
    if (!model->plan.has_value()) continue;
    auto device_model = gpu_node::DeviceModel::Create(model);
    EXPECT_TRUE(device_model.ok()) << device_model.status();
    result.push_back(*std::move(device_model));
  }
  return gpu_node::DeviceModels(std::move(result));
}

// A GPU node on its own port. `on_request`, if given, answers in place of the
// real node.
class TestGpuNode : public transport::Handler {
 public:
  using OnRequestFunction =
      std::function<void(std::unique_ptr<transport::ServerCall>)>;

  explicit TestGpuNode(const ModelList& models, int port = 0,
                       OnRequestFunction on_request = nullptr,
                       const gpu_node::GpuNodeOptions& node_options = {},
                       const gpu_node::GpuNode::MakeDevice& device = nullptr,
                       absl::Duration heartbeat_interval =
                           transport::ServerOptions().heartbeat_interval)
      : on_request_(std::move(on_request)) {
    node_ = *gpu_node::GpuNode::Create(DeviceModelsOf(models), node_options,
                                       device);
    transport::ServerOptions options;
    options.host = "127.0.0.1";
    options.port = port;
    options.clock = node_options.clock;
    options.heartbeat_interval = heartbeat_interval;
    options.liveness_timeout =
        std::max(options.liveness_timeout, 10 * heartbeat_interval);
    auto server = transport::Server::Create(options, this);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    node_->WatchReadiness([this](size_t model, const absl::Status& ready) {
      server_->SetModelStatus(model, ready);
    });
  }
  ~TestGpuNode() override {
    node_->WatchReadiness(nullptr);
    server_.reset();
  }

  absl::StatusOr<size_t> OnOffer(const transport::ModelOffer& offer) override {
    return node_->OnOffer(offer);
  }
  absl::Status OnAnnounced(
      const transport::RequestDescriptor& request) override {
    return node_->OnAnnounced(request);
  }
  void OnRequest(std::unique_ptr<transport::ServerCall> call) override {
    ++requests_;
    if (on_request_ != nullptr) return on_request_(std::move(call));
    node_->OnRequest(std::move(call));
  }

  void OnAbandoned(size_t model) override {
    node_->OnAbandoned(model);
    absl::MutexLock lock(&mu_);
    ++abandoned_;
  }
  void OnWithdrawn(size_t model) override { node_->OnWithdrawn(model); }

  int port() const { return server_->port(); }
  // Requests that have arrived with their payload.
  int requests() const { return requests_; }
  // Whether the node hears of `count` cancelled requests that it holds.
  bool AwaitAbandoned(int count) {
    const auto heard = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return abandoned_ >= count;
    };
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&heard), kPatience);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port()); }
  transport::Server& server() { return *server_; }
  gpu_node::GpuNode& node() { return *node_; }

 private:
  const OnRequestFunction on_request_;
  std::atomic<int> requests_ = 0;
  absl::Mutex mu_;
  int abandoned_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<gpu_node::GpuNode> node_;
  std::unique_ptr<transport::Server> server_;
};

inline Catalog MakeCatalog(const ModelList& models,
                           const ServedModelOptions& options = {}) {
  std::vector<Catalog::Entry> entries;
  for (const auto& model : models) {
    auto served = ServedModel::Create(model, options);
    EXPECT_TRUE(served.ok()) << served.status();
    entries.push_back({model->name, model->version, *std::move(served), {}});
  }
  return Catalog(std::move(entries));
}

// Waits for the engine's readiness without polling.
class ReadinessWatch {
 public:
  explicit ReadinessWatch(Engine& engine) : engine_(engine) {
    engine.WatchReadiness([changes = changes_] {
      absl::MutexLock lock(&changes->mu);
      ++changes->count;
    });
  }
  // Whether Ready() became `wanted` within kPatience.
  bool Await(bool wanted) {
    const absl::Time give_up = absl::Now() + kPatience;
    while (true) {
      const int seen = changes_->Count();
      if (engine_.Ready() == wanted) return true;
      if (!changes_->AwaitOther(seen, give_up)) return false;
    }
  }

 private:
  // Shared with the engine's listener, which outlives the watch.
  struct Changes {
    absl::Mutex mu;
    int count ABSL_GUARDED_BY(mu) = 0;

    int Count() {
      absl::MutexLock lock(&mu);
      return count;
    }
    bool AwaitOther(int seen, absl::Time give_up) {
      const auto differs = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return count != seen;
      };
      absl::MutexLock lock(&mu);
      return mu.AwaitWithDeadline(absl::Condition(&differs), give_up);
    }
  };

  Engine& engine_;
  const std::shared_ptr<Changes> changes_ = std::make_shared<Changes>();
};

// The answer, copied out of the callback.
struct Answer {
  absl::Status status;
  std::string model;
  int64_t version = 0;
  std::vector<std::string> names;
  std::vector<base::Tensor> outputs;
  int retries = 0;
  bool hedged = false;
  bool ran_locally = false;
  int64_t newest_version = 0;
  uint64_t replaced_ids = 0;
};

inline InferRequest MakeRequest(const std::string& model, int64_t batch,
                                int64_t first_row = 0) {
  InferRequest request;
  request.model_name = model;
  request.inputs.push_back({"ids", testing_models::MakeIds(batch, first_row)});
  request.inputs.push_back(
      {"dense", testing_models::MakeDense(batch, first_row)});
  return request;
}

// Starts a request; Wait() gives its answer.
class PendingAnswer {
 public:
  PendingAnswer(Engine& engine, InferRequest request) {
    engine.Infer(std::move(request),
                 [this](const absl::StatusOr<InferResponse>& response) {
                   Take(response);
                   done_.Notify();
                 });
  }
  Answer& Wait() {
    EXPECT_TRUE(done_.WaitForNotificationWithTimeout(kPatience));
    return answer_;
  }
  bool answered() const { return done_.HasBeenNotified(); }

 private:
  void Take(const absl::StatusOr<InferResponse>& response) {
    answer_.status = response.status();
    if (!response.ok()) return;
    answer_.model = std::string(response->model_name);
    answer_.version = response->model_version;
    answer_.retries = response->retries;
    answer_.hedged = response->hedged;
    answer_.ran_locally = response->ran_locally;
    answer_.newest_version = response->newest_version;
    answer_.replaced_ids = response->replaced_ids;
    for (const InferResponse::Output& output : response->outputs) {
      answer_.names.emplace_back(output.name);
      answer_.outputs.push_back(*base::Tensor::CopyOf(output.tensor));
    }
  }

  absl::Notification done_;
  Answer answer_;
};

inline Answer Infer(Engine& engine, InferRequest request) {
  return std::move(PendingAnswer(engine, std::move(request)).Wait());
}

// All outputs are those of rows [first_row, first_row + batch).
inline void ExpectRight(const Answer& answer, int64_t batch,
                        int64_t first_row = 0, int variant = 0) {
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_EQ(answer.outputs.size(), 3);
  const base::TensorView score = answer.outputs[0].view();
  const base::TensorView echo = answer.outputs[1].view();
  const base::TensorView twice = answer.outputs[2].view();
  ASSERT_EQ(score.dims, (base::Dims{batch, 1}));
  ASSERT_EQ(echo.dims, (base::Dims{batch, testing_models::kDense}));
  ASSERT_EQ(twice.dims, (base::Dims{batch, testing_models::kDim}));
  for (int64_t b = 0; b < batch; ++b) {
    EXPECT_NEAR(score.as<float>()[b],
                testing_models::ExpectedScore(first_row + b, variant), 1e-6)
        << b;
    for (int64_t i = 0; i < testing_models::kDense; ++i) {
      EXPECT_EQ(echo.as<float>()[b * testing_models::kDense + i],
                2 * testing_models::DenseValue(first_row + b, i))
          << b << ", " << i;
    }
    const int64_t id = testing_models::IdValue(first_row + b);
    for (int64_t i = 0; i < testing_models::kDim; ++i) {
      EXPECT_EQ(twice.as<float>()[b * testing_models::kDim + i],
                2 * testing_models::WeightValue(id * testing_models::kDim + i,
                                                variant))
          << b << ", " << i;
    }
  }
}

}  // namespace refract::cpu_node

#endif  // REFRACT_TESTS_CPU_NODE_SERVING_FIXTURE_H_

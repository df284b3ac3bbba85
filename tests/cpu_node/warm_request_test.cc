// A request allocates nothing on a CPU node that is warm, on any thread that
// has part in it, from Engine::Infer() to the answer: admission, CN-pre, choice
// of GPU node, transport, CN-post. Counted by replacing the allocation
// functions of this program. What a front end allocates to decode a request and
// to encode an answer is not part of it; the last test says how much that is,
// without gRPC's and Protobuf's own.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <ostream>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cpu_node/engine.h"
#include "cpu_node/frontend/codec.h"
#include "models/repository/wire_form.h"
#include "tests/cpu_node/serving_fixture.h"
#include "tests/transport/testing/allocation_counter.h"
#include "transport/client_hub.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Buffers of tensors come from here.
extern "C" int posix_memalign(void** memory, size_t align, size_t bytes) {
  refract::transport::AllocationCounter::Note(bytes);
  *memory = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  return *memory == nullptr ? ENOMEM : 0;
}
#endif

namespace refract::cpu_node {
namespace {

using models::WireForm;
using models::WireType;
using transport::AllocationCounter;
using transport::kCountsAllocations;

// Every thread of the CPU node asks for the time, and is counted from then on.
// GPU nodes have another clock.
class CountingClock final : public base::Clock {
 public:
  absl::Time Now() override {
    AllocationCounter::CountThisThread();
    return Real().Now();
  }
  bool AwaitWithDeadline(absl::Mutex& mu, const absl::Condition& condition,
                         absl::Time deadline) override {
    return Real().AwaitWithDeadline(mu, condition, deadline);
  }
};

struct Case {
  std::string name;
  std::vector<WireForm> up, down;
  bool split = true;
  int64_t min_batch = 1;
  size_t models = 1;
  size_t nodes = 1;
  transport::PathPreference path = transport::PathPreference::kShm;
  bool rows_for_hn_only = false;  // ServedModel::unique()
};

void PrintTo(const Case& setup, std::ostream* out) { *out << setup.name; }

std::vector<Case> AllCases() {
  const WireForm half = {WireType::kFloat16, false};
  const WireForm unique = {WireType::kFloat16, true};
  return {
      {.name = "Plain"},
      {.name = "OverTcp", .path = transport::PathPreference::kTcp},
      {.name = "Encoded", .up = {half, unique}, .down = {half}},
      {.name = "DistinctIds", .up = {half, unique}, .rows_for_hn_only = true},
      {.name = "Unsplit", .split = false},
      {.name = "Padded", .min_batch = 4},
      {.name = "TwoModels", .models = 2},
      {.name = "ThreeNodes", .nodes = 3}};
}

// GPU nodes hold requests back until this many have arrived, so that every
// burst has the same number of requests in flight.
class Gate {
 public:
  // From now on; nothing is held back when this is called.
  void SetBurst(size_t burst) {
    absl::MutexLock lock(&mu_);
    burst_ = burst;
  }

  void Take(gpu_node::GpuNode& node,
            std::unique_ptr<transport::ServerCall> call) {
    std::vector<Held> all;
    {
      absl::MutexLock lock(&mu_);
      held_.push_back({&node, std::move(call)});
      if (held_.size() < burst_) return;
      all.swap(held_);
    }
    for (Held& held : all) held.node->OnRequest(std::move(held.call));
  }

 private:
  struct Held {
    gpu_node::GpuNode* node = nullptr;
    std::unique_ptr<transport::ServerCall> call;
  };
  absl::Mutex mu_;
  size_t burst_ ABSL_GUARDED_BY(mu_) = 1;
  std::vector<Held> held_ ABSL_GUARDED_BY(mu_);
};

class WarmRequestTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kBurst = 8;
  static constexpr int kRounds = 5;
  // Never: a heartbeat allocates its frame, and is no part of a request.
  static constexpr absl::Duration kHeartbeat = absl::Hours(1);
  // Warms up each of several nodes for a whole burst, although they share it,
  // and for messages of one burst that are freed during the next.
  static constexpr int kWarmUpBurst = 32;

  WarmRequestTest() {
    const Case& setup = GetParam();
    ModelList models;
    for (size_t i = 0; i < setup.models; ++i) {
      auto model = std::const_pointer_cast<models::LoadedModel>(
          testing_models::MakeSmallModel({.name = "model" + std::to_string(i),
                                          .split = setup.split,
                                          .variant = static_cast<int>(i),
                                          .min_batch = setup.min_batch}));
      if (setup.rows_for_hn_only) {
        model->plan->stages[5] = models::Stage::kHn;
        models::ComputeCrossings(model->graph, *model->plan);
      }
      if (setup.split) {
        model->plan->up_forms = setup.up;
        model->plan->down_forms = setup.down;
      }
      models.push_back(std::move(model));
    }
    EngineOptions options;
    options.clock = &clock_;
    if (setup.split) StartNodes(models, options);
    auto engine = Engine::Create(MakeCatalog(models), std::move(options));
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    ReadinessWatch watch(*engine_);
    EXPECT_TRUE(watch.Await(true));
    if (!setup.split) return;
    // All of them, or a connection would be made while allocations are counted.
    for (size_t i = 0; i < engine_->nodes().Members().size(); ++i) {
      while (!engine_->nodes().Members()[i].state.connected) {
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
  }
  ~WarmRequestTest() override {
    engine_.reset();
    nodes_.clear();
  }

  void StartNodes(const ModelList& models, EngineOptions& options) {
    for (size_t i = 0; i < GetParam().nodes; ++i) {
      // The hook runs only when requests come, and then the node is there.
      nodes_.push_back(nullptr);
      nodes_[i] = std::make_unique<TestGpuNode>(
          models, 0,
          [this, i](std::unique_ptr<transport::ServerCall> call) {
            gate_.Take(nodes_[i]->node(), std::move(call));
          },
          gpu_node::GpuNodeOptions(), nullptr, kHeartbeat);
      options.nodes.addresses.push_back(nodes_[i]->address());
    }
    transport::ClientHub::Options hub_options;
    hub_options.max_clients = GetParam().nodes;
    hub_options.clock = &clock_;
    auto hub = *transport::ClientHub::Create(hub_options);
    options.nodes.path = GetParam().path;
    options.nodes.connect = [hub](transport::ClientOptions client,
                                  std::function<void()> on_change) {
      client.heartbeat_interval = kHeartbeat;
      client.liveness_timeout = 10 * kHeartbeat;
      return transport::Client::Create(client, std::move(on_change), hub);
    };
  }

  // `size` requests at once, and their answers.
  void Burst(int size) {
    gate_.SetBurst(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) {
      InferRequest request;
      {
        const AllocationCounter::Pause pause;
        request = MakeRequest(
            "model" + std::to_string(sent_ % GetParam().models), 1 + i % 3, i);
        // Every other request has a deadline, every third may be cancelled.
        if (i % 2 == 0) request.deadline = clock_.Now() + absl::Hours(1);
        if (i % 3 == 0) request.cancel = cancel_.get_token();
      }
      ++sent_;
      engine_->Infer(std::move(request),
                     [this](const absl::StatusOr<InferResponse>& response) {
                       Count(response);
                     });
    }
    const auto all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return answered_ == sent_;
    };
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&all));
  }
  void Count(const absl::StatusOr<InferResponse>& response) {
    absl::MutexLock lock(&mu_);
    ++answered_;
    if (response.ok() && response->outputs.size() == 3) return;
    const AllocationCounter::Pause pause;
    ADD_FAILURE() << response.status();
  }

  CountingClock clock_;
  Gate gate_;
  std::stop_source cancel_;
  std::vector<std::unique_ptr<TestGpuNode>> nodes_;
  std::unique_ptr<Engine> engine_;
  size_t sent_ = 0;
  absl::Mutex mu_;
  size_t answered_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_P(WarmRequestTest, AllocatesNothing) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  for (int i = 0; i < 50; ++i) Burst(kWarmUpBurst);
  // Work after the last answer is part of the request.
  ASSERT_TRUE(engine_->Drain(kPatience));
  AllocationCounter::CountThisThread();
  // A connection makes an object for each answer that is held at a time, and
  // keeps it. The scheduling of threads decides how many answers are held, also
  // after the warm-up. An allocation of a request shows in every round, the
  // making of an object in a single round.
  uint64_t least = std::numeric_limits<uint64_t>::max();
  std::string traces;
  for (int round = 0; round < kRounds && least > 0; ++round) {
    AllocationCounter::Start();
    for (int i = 0; i < 50; ++i) Burst(kBurst);
    EXPECT_TRUE(engine_->Drain(kPatience));
    least = std::min(least, AllocationCounter::Stop());
    traces = AllocationCounter::Traces();
  }
  EXPECT_EQ(least, 0) << traces;
}

INSTANTIATE_TEST_SUITE_P(All, WarmRequestTest, testing::ValuesIn(AllCases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return info.param.name;
                         });

// The front end copies a request's tensors and names out of the message: the
// list of inputs and one buffer per tensor; names of more than 15 letters add
// one each. Answers are copied into Protobuf's own memory.
TEST(FrontEndCodec, AllocatesTheListOfInputsAndABufferForEachTensor) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  inference::ModelInferRequest message;
  message.set_model_name("model");
  const InferRequest request = MakeRequest("model", 4);
  for (const InputTensor& input : request.inputs) {
    auto* tensor = message.add_inputs();
    tensor->set_name(input.name);
    tensor->set_datatype(std::string(base::KServeName(input.tensor.dtype())));
    for (const int64_t dim : input.tensor.dims()) tensor->add_shape(dim);
    message.add_raw_input_contents(input.tensor.data(),
                                   input.tensor.view().bytes);
  }
  AllocationCounter::CountThisThread();
  for (int round = 0; round < 2; ++round) {
    AllocationCounter::Start();
    const auto decoded = DecodeRequest(message, absl::UnixEpoch());
    const uint64_t count = AllocationCounter::Stop();
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    RecordProperty("allocations", std::to_string(count));
    EXPECT_LE(count, 3u) << AllocationCounter::Traces();
  }
}

}  // namespace
}  // namespace refract::cpu_node

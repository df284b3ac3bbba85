// A CPU node's reactions to reports of GPU nodes about their models, over the
// real transport: a model cannot be served now, can be served again, a node has
// no room for a request, or no node could answer in time.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_models::MakeSmallModel;

std::unique_ptr<Engine> MakeEngine(const ModelList& models,
                                   std::vector<std::string> addresses,
                                   bool local_fallback = false) {
  EngineOptions options;
  options.workers = 2;
  options.nodes.addresses = std::move(addresses);
  auto engine =
      Engine::Create(MakeCatalog(models, {.local_fallback = local_fallback}),
                     std::move(options));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// Until every node is connected, and says so of the engine's only model.
void AwaitNodes(const Engine& engine, std::vector<bool> ready) {
  const absl::Time give_up = absl::Now() + kPatience;
  for (size_t i = 0; i < ready.size(); ++i) {
    const auto is_so = [&] {
      const transport::ClientState state = engine.nodes().Members()[i].state;
      return state.connected && state.models[0].ok() == ready[i];
    };
    while (!is_so() && absl::Now() < give_up) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    ASSERT_TRUE(is_so()) << "node " << i;
  }
}

const ServedModel& Find(const Engine& engine, const char* name) {
  return **engine.catalog()->Find(name, "");
}

TEST(ModelReadinessTest, OneModelThatANodeCannotServeNow) {
  const auto a = MakeSmallModel({.name = "a"});
  const auto b = MakeSmallModel({.name = "b", .variant = 1});
  TestGpuNode node({a, b});
  const auto engine = MakeEngine({a, b}, {node.address()});
  ReadinessWatch watch(*engine);
  ASSERT_TRUE(watch.Await(true));

  node.server().SetModelStatus(1, absl::UnavailableError("its device is sick"));
  ASSERT_TRUE(watch.Await(false));
  EXPECT_TRUE(engine->ModelReady(Find(*engine, "a")).ok());
  const absl::Status why = engine->ModelReady(Find(*engine, "b"));
  EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr(node.address()), HasSubstr("device is sick")));
  ExpectRight(Infer(*engine, MakeRequest("a", 3)), 3);
  EXPECT_EQ(node.requests(), 1);
  const Answer refused = Infer(*engine, MakeRequest("b", 3));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  // The request was not even sent.
  EXPECT_EQ(node.requests(), 1);

  node.server().SetModelStatus(1, absl::OkStatus());
  ASSERT_TRUE(watch.Await(true));
  ExpectRight(Infer(*engine, MakeRequest("b", 3)), 3, 0, 1);
}

TEST(ModelReadinessTest, WhoConnectsLaterIsToldToo) {
  const auto model = MakeSmallModel({.name = "a"});
  TestGpuNode sick({model});
  sick.server().SetModelStatus(0, absl::UnavailableError("sick"));
  TestGpuNode fine({model});
  const auto engine = MakeEngine({model}, {sick.address(), fine.address()});
  AwaitNodes(*engine, {false, true});
  // Another thread informs the pool soon.
  const absl::Time give_up = absl::Now() + kPatience;
  bool settled = false;
  while (!settled && absl::Now() < give_up) {
    const int before = sick.requests();
    settled = true;
    for (int i = 0; i < 20; ++i) {
      settled &= Infer(*engine, MakeRequest("a", 2)).status.ok();
    }
    settled &= sick.requests() == before;
  }
  EXPECT_TRUE(settled);
}

TEST(ModelReadinessTest, WhatCanRunHereIsReadyWhateverTheNodesSay) {
  const auto model = MakeSmallModel({.name = "a"});
  TestGpuNode node({model});
  node.server().SetModelStatus(0, absl::UnavailableError("sick"));
  const auto engine = MakeEngine({model}, {node.address()}, true);
  EXPECT_TRUE(engine->ModelReady(Find(*engine, "a")).ok());
  ExpectRight(Infer(*engine, MakeRequest("a", 2)), 2);
}

// A front end may be destroyed after Stop(), while a change of models goes on.
TEST(ModelReadinessTest, NobodyIsToldAfterStop) {
  const auto engine = MakeEngine({MakeSmallModel({.name = "a"})}, {}, true);
  int calls = 0;
  engine->WatchReadiness([&] { ++calls; });
  engine->Publish({});
  EXPECT_EQ(calls, 1);
  engine->Stop();
  EXPECT_EQ(calls, 2);
  engine->Publish({});
  EXPECT_EQ(calls, 2);
}

// Fails when it is told to, and does not start again until it is.
class MoodyDevice : public gpu_node::Device {
 public:
  struct Mood {
    std::atomic<bool> good = true;
  };
  MoodyDevice(const gpu_node::DeviceModels& models, Mood* mood) : mood_(mood) {
    for (size_t i = 0; i < models.size(); ++i) models_.push_back(&models[i]);
  }

  const gpu_node::DeviceTraits& traits() const override { return traits_; }
  void Start(int, Done done) override {
    done(mood_->good ? absl::OkStatus() : absl::InternalError("still moody"));
  }
  void Upload(int, int, gpu_node::Batch*, Done done) override {
    done(absl::OkStatus());
  }
  void Execute(int, int, gpu_node::Batch* batch, Done done) override {
    if (!mood_->good) return done(absl::InternalError("moody"));
    models_[batch->model]->ExecuteBatch(*batch, buffers_);
    done(absl::OkStatus());
  }
  void Download(int, int, gpu_node::Batch*, Done done) override {
    done(absl::OkStatus());
  }
  void LoadWeights(size_t, absl::Span<const size_t>, Done done) override {
    done(absl::OkStatus());
  }

 private:
  const gpu_node::DeviceTraits traits_{.name = "moody"};
  std::vector<const gpu_node::DeviceModel*> models_;
  Mood* const mood_;
  runtime::RowBuffers buffers_;
};

TEST(ModelReadinessTest, FollowsADeviceThatFailsAndRecovers) {
  const auto model = MakeSmallModel({.name = "a"});
  MoodyDevice::Mood mood;
  gpu_node::GpuNodeOptions options;
  options.first_backoff = absl::Milliseconds(1);
  options.last_backoff = absl::Milliseconds(10);
  TestGpuNode node({model}, 0, nullptr, options,
                   [&](const gpu_node::DeviceModels& models) {
                     return std::make_unique<MoodyDevice>(models, &mood);
                   });
  const auto engine = MakeEngine({model}, {node.address()});
  ReadinessWatch watch(*engine);
  ASSERT_TRUE(watch.Await(true));
  ExpectRight(Infer(*engine, MakeRequest("a", 2)), 2);
  mood.good = false;
  const Answer failed = Infer(*engine, MakeRequest("a", 2));
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(watch.Await(false));
  EXPECT_THAT(
      std::string(engine->ModelReady(Find(*engine, "a")).message()),
      AllOf(HasSubstr("no instance of device moody"), HasSubstr("moody")));
  mood.good = true;
  ASSERT_TRUE(watch.Await(true));
  ExpectRight(Infer(*engine, MakeRequest("a", 2)), 2);
}

TEST(RefusalTest, WhatOneNodeHasNoRoomForGoesToAnother) {
  const auto model = MakeSmallModel({.name = "a"});
  TestGpuNode full({model}, 0, [](std::unique_ptr<transport::ServerCall> call) {
    call->Fail(absl::ResourceExhaustedError("full"));
  });
  TestGpuNode free({model});
  const auto engine = MakeEngine({model}, {full.address(), free.address()});
  AwaitNodes(*engine, {true, true});
  // Another thread informs the pool: waits until both nodes were asked.
  for (const TestGpuNode* node : {&full, &free}) {
    while (node->requests() == 0) Infer(*engine, MakeRequest("a", 2));
  }
  const int before = free.requests();
  for (int i = 0; i < 50; ++i) {
    InferRequest request = MakeRequest("a", 2);
    request.deadline = engine->clock().Now() + kPatience;
    ExpectRight(Infer(*engine, std::move(request)), 2);
  }
  // The full node was asked, and each time the free node afterwards.
  EXPECT_GT(full.requests(), 1);
  EXPECT_EQ(free.requests(), before + 50);
}

TEST(RefusalTest, WhatASlowNodeCannotDoInTimeGoesToOneThatHasDoneIt) {
  const auto model = MakeSmallModel({.name = "a"});
  TestGpuNode slow({model}, 0, [](std::unique_ptr<transport::ServerCall> call) {
    call->Fail(absl::DeadlineExceededError("too slow"));
  });
  TestGpuNode fast({model});
  const auto engine = MakeEngine({model}, {slow.address(), fast.address()});
  AwaitNodes(*engine, {true, true});
  const auto infer = [&] {
    InferRequest request = MakeRequest("a", 2);
    request.deadline = engine->clock().Now() + kPatience;
    return Infer(*engine, std::move(request));
  };
  // Until the fast one's time is known, and both are connected for the pool.
  for (const TestGpuNode* node : {&slow, &fast}) {
    while (node->requests() == 0) infer();
  }
  const int before = fast.requests();
  // Whichever is asked first.
  for (int i = 0; i < 50; ++i) ExpectRight(infer(), 2);
  EXPECT_EQ(fast.requests(), before + 50);
}

TEST(RefusalTest, WhatNobodyCanDoInTimeIsNotTriedAgain) {
  const auto model = MakeSmallModel({.name = "a"});
  const auto refuse = [](std::unique_ptr<transport::ServerCall> call) {
    call->Fail(absl::DeadlineExceededError("too slow"));
  };
  TestGpuNode one({model}, 0, refuse);
  TestGpuNode other({model}, 0, refuse);
  const auto engine =
      MakeEngine({model}, {one.address(), other.address()}, true);
  // Either is enough for the fallback, both for the test.
  for (const TestGpuNode* node : {&one, &other}) {
    while (node->requests() == 0) Infer(*engine, MakeRequest("a", 2));
  }
  const int before = one.requests() + other.requests();
  const Answer answer = Infer(*engine, MakeRequest("a", 2));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(one.requests() + other.requests(), before + 1);
}

}  // namespace
}  // namespace refract::cpu_node

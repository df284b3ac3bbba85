#include "gpu_node/gpu_node.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/split_plan.h"
#include "tests/cpu_node/small_model.h"
#include "tests/gpu_node/fake_server_call.h"

namespace refract::gpu_node {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_models::MakeSmallModel;

transport::ModelOffer OfferOf(const models::LoadedModel& model) {
  return {.name = model.name,
          .version = model.version,
          .model = model.digest,
          .schema = models::SchemaDigest(model.graph, *model.plan)};
}

DeviceModels MakeModels(
    const std::vector<std::shared_ptr<const models::LoadedModel>>& models) {
  std::vector<std::unique_ptr<DeviceModel>> result;
  for (const auto& model : models) {
    result.push_back(*DeviceModel::Create(model));
  }
  return DeviceModels(std::move(result));
}

TEST(DeviceModelTest, NeedsAPlanThatUsesTheHn) {
  const auto whole = MakeSmallModel({.name = "whole", .split = false});
  const absl::Status no_plan = DeviceModel::Create(whole).status();
  EXPECT_EQ(no_plan.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(no_plan.message()),
              AllOf(HasSubstr("'whole'"), HasSubstr("no split plan")));

  auto all_cn = std::make_shared<models::LoadedModel>(
      *MakeSmallModel({.name = "all cn"}));
  all_cn->plan->method = "all-cn";
  for (models::Stage& stage : all_cn->plan->stages) {
    stage = models::Stage::kCnPre;
  }
  models::ComputeCrossings(all_cn->graph, *all_cn->plan);
  const absl::Status no_part = DeviceModel::Create(all_cn).status();
  EXPECT_EQ(no_part.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(no_part.message()),
              AllOf(HasSubstr("'all cn'"), HasSubstr("all-cn")));
}

TEST(GpuNodeOffersTest, AcceptsOnlyOffersOfTheSameModelAndCrossing) {
  const auto a = MakeSmallModel({.name = "a"});
  const auto b2 = MakeSmallModel({.name = "b", .version = 2, .variant = 1});
  const auto node = *GpuNode::Create(MakeModels({a, b2}), GpuNodeOptions());
  EXPECT_EQ(*node->OnOffer(OfferOf(*a)), 0);
  EXPECT_EQ(*node->OnOffer(OfferOf(*b2)), 1);

  struct Case {
    const char* what;
    void (*spoil)(transport::ModelOffer&);
    absl::StatusCode code;
    const char* word;
  } const cases[] = {
      {"name", [](transport::ModelOffer& o) { o.name = "c"; },
       absl::StatusCode::kNotFound, "'c'"},
      {"version", [](transport::ModelOffer& o) { o.version = 3; },
       absl::StatusCode::kNotFound, "version 3"},
      {"model", [](transport::ModelOffer& o) { ++o.model.low; },
       absl::StatusCode::kFailedPrecondition, "the CPU node has model"},
      {"crossing", [](transport::ModelOffer& o) { ++o.schema.high; },
       absl::StatusCode::kFailedPrecondition, "split plans differ"},
  };
  for (const Case& c : cases) {
    transport::ModelOffer offer = OfferOf(*b2);
    c.spoil(offer);
    const absl::Status status = node->OnOffer(offer).status();
    EXPECT_EQ(status.code(), c.code) << c.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.word));
  }
}

TEST(GpuNodeOffersTest, AcceptsOnlyOffersOfTheSameSettings) {
  auto model =
      std::make_shared<models::LoadedModel>(*MakeSmallModel({.name = "a"}));
  model->config.dense_weights = models::DenseWeights::kBFloat16;
  const auto node = *GpuNode::Create(MakeModels({model}), GpuNodeOptions());
  using Settings = std::vector<std::pair<std::string, std::string>>;
  struct Case {
    std::optional<Settings> settings;
    const char* words;  // of the refusal; null: accepted
  } const cases[] = {
      {Settings{{"dense_weights", "bf16"}}, nullptr},
      // Clients that do not say are believed.
      {std::nullopt, nullptr},
      {Settings{}, "'dense_weights': the default on the CN, 'bf16' on the HN"},
      {Settings{{"dense_weights", "int8"}},
       "'dense_weights': 'int8' on the CN, 'bf16' on the HN"},
      {Settings{{"dense_weights", "bf16"}, {"gpu_precision", "tf32"}},
       "'gpu_precision': 'tf32' on the CN, the default on the HN"},
      // A setting of a later release, which this one does not know.
      {Settings{{"dense_weights", "bf16"}, {"magic", "\n2"}},
       "'magic': '\\n2' on the CN, the default on the HN"},
  };
  for (const Case& c : cases) {
    transport::ModelOffer offer = OfferOf(*model);
    offer.settings = c.settings;
    const absl::Status status = node->OnOffer(offer).status();
    if (c.words == nullptr) {
      EXPECT_EQ(status, absl::OkStatus());
      continue;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("'a' version 1"), HasSubstr(c.words)));
  }
}

TEST(GpuNodeTest, RefusesRequestsWithTheWrongTensors) {
  const auto model = MakeSmallModel({});
  const auto node = *GpuNode::Create(MakeModels({model}), {});
  Answers answers;
  // A fake has no tensors, the plan sends two.
  node->OnRequest(std::make_unique<FakeServerCall>(
      "empty", absl::InfiniteFuture(), &answers));
  EXPECT_TRUE(node->Drain(absl::Seconds(30)));
  EXPECT_EQ(answers.Of("empty").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answers.Of("empty").message()),
              HasSubstr("0 tensors, wanted 2"));
  EXPECT_EQ(node->stats().failed, 1);
  EXPECT_EQ(node->stats().succeeded, 0);
}

TEST(GpuNodeTest, LeavesOutWhatDoesNotFitIntoTheDevice) {
  const auto model = MakeSmallModel({});
  GpuNodeOptions options;
  options.weight_memory = 8;
  const auto node = *GpuNode::Create(MakeModels({model}), options);
  const absl::Status status = node->OnOffer(OfferOf(*model)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  // fc has 7 floats, bias one; the table stays on the CN.
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'small'"), HasSubstr("need 32 bytes"),
                    HasSubstr("8 are free")));
}

TEST(GpuNodeTest, DestructionAnswersWhatIsQueued) {
  const auto model = MakeSmallModel({});
  Answers answers;
  {
    const auto node = *GpuNode::Create(MakeModels({model}), {});
    for (int i = 0; i < 20; ++i) {
      node->OnRequest(std::make_unique<FakeServerCall>(
          std::to_string(i), absl::InfiniteFuture(), &answers));
    }
  }
  EXPECT_EQ(answers.size(), 20);
}

// A device that answers nothing until it is told, then fails.
class DoomedDevice : public Device {
 public:
  const DeviceTraits& traits() const override { return traits_; }
  void Start(int, Done done) override {
    done(starts_++ == 0 ? absl::OkStatus() : absl::InternalError("still dead"));
  }
  void Upload(int, int, Batch*, Done done) override { done(absl::OkStatus()); }
  void Execute(int, int, Batch*, Done done) override {
    done(absl::InternalError("uncorrectable error"));
  }
  void Download(int, int, Batch*, Done done) override {
    done(absl::OkStatus());
  }
  void LoadWeights(size_t, absl::Span<const size_t>, Done done) override {
    done(absl::OkStatus());
  }

 private:
  const DeviceTraits traits_{.name = "doomed"};
  int starts_ = 0;
};

TEST(GpuNodeTest, IsNotReadyForItsModelsWhenTheDeviceHasFailed) {
  const auto model = MakeSmallModel({});
  GpuNodeOptions options;
  options.first_backoff = absl::Hours(1);
  options.last_backoff = absl::Hours(1);
  const auto node = *GpuNode::Create(
      MakeModels({model}), options,
      [](const auto&) { return std::make_unique<DoomedDevice>(); });
  EXPECT_EQ(node->ModelReady(0), absl::OkStatus());
  Answers answers;
  node->OnRequest(std::make_unique<FakeServerCall>(
      "first", absl::InfiniteFuture(), &answers));
  EXPECT_TRUE(absl::IsUnavailable(answers.Of("first")));
  EXPECT_TRUE(absl::IsUnavailable(node->ModelReady(0)));
  EXPECT_THAT(std::string(node->ModelReady(0).message()),
              AllOf(HasSubstr("doomed"), HasSubstr("uncorrectable error")));
  node->OnRequest(std::make_unique<FakeServerCall>(
      "second", absl::InfiniteFuture(), &answers));
  EXPECT_TRUE(absl::IsUnavailable(answers.Of("second")));
  EXPECT_EQ(node->stats(0).unavailable, 2);
}

TEST(GpuNodeTest, RefusesOptionsOutOfRange) {
  GpuNodeOptions options;
  options.instances = 0;
  EXPECT_EQ(GpuNode::Create(MakeModels({}), options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.instances = 1;
  options.max_queue = 0;
  EXPECT_EQ(GpuNode::Create(MakeModels({}), options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.max_queue = 1;
  options.max_batch = 0;
  EXPECT_EQ(GpuNode::Create(MakeModels({}), options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SummaryTest, NamesEveryWayInWhichARequestCanEnd) {
  ModelStats stats;
  stats.succeeded = 101;
  stats.failed = 102;
  stats.expired = 103;
  stats.abandoned = 104;
  stats.refused = 105;
  stats.queue_full = 106;
  stats.too_large = 107;
  stats.unavailable = 108;
  const std::string line = Summary(stats);
  for (int count = 101; count <= 108; ++count) {
    EXPECT_THAT(line, HasSubstr(std::to_string(count) + " "));
  }
}

}  // namespace
}  // namespace refract::gpu_node

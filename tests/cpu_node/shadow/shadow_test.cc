// Answered requests are scored once more by LibTorch. The oracle is the small
// model's formula; wrong answers are made by hand.

#include "cpu_node/shadow/shadow.h"

#include <memory>
#include <utility>
#include <vector>

#include "cpu_node/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/requests/request_files.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {
namespace {

using ::testing::HasSubstr;

// Three outputs of `batch` rows by the formula.
std::vector<base::Tensor> RightAnswers(int64_t batch) {
  using namespace testing_models;  // NOLINT
  std::vector<base::Tensor> answers;
  const auto add = [&](int64_t columns) {
    answers.push_back(
        *base::Tensor::Allocate(base::DType::kFloat32, {batch, columns}));
    return answers.back().as<float>();
  };
  const auto score = add(1);
  for (int64_t b = 0; b < batch; ++b) {
    score[b] = static_cast<float>(ExpectedScore(b, 0));
  }
  const auto echo = add(kDense);
  for (int64_t i = 0; i < batch * kDense; ++i) {
    echo[i] = 2 * DenseValue(i / kDense, i % kDense);
  }
  const auto twice = add(kDim);
  for (int64_t i = 0; i < batch * kDim; ++i) {
    twice[i] = 2 * WeightValue(IdValue(i / kDim) * kDim + i % kDim, 0);
  }
  return answers;
}

std::vector<base::Tensor> Inputs(int64_t batch) {
  std::vector<base::Tensor> inputs;
  inputs.push_back(testing_models::MakeDense(batch));
  inputs.push_back(testing_models::MakeIds(batch));
  return inputs;
}

absl::Status Score(ShadowVersion& version,
                   const std::vector<base::Tensor>& answers, int64_t batch) {
  const std::vector<base::Tensor> inputs = Inputs(batch);
  return version.Score(models::ViewsOf(inputs), models::ViewsOf(answers));
}

TEST(ShadowVersionTest, RightAnswersAgreeAndWrongOnesAreNamed) {
  // Batches of one row are padded.
  ShadowVersion version(testing_models::MakeSmallModel({.min_batch = 2}));
  for (const int64_t batch : {1, 2, 33}) {
    const absl::Status status = Score(version, RightAnswers(batch), batch);
    EXPECT_TRUE(status.ok()) << status;
  }
  std::vector<base::Tensor> answers = RightAnswers(3);
  answers[1].as<float>()[4] += 0.25f;
  const absl::Status differs = Score(version, answers, 3);
  EXPECT_EQ(differs.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(differs.message()),
              HasSubstr("output 'echo': at [1, 1]"));
  const metrics::Histogram::Snapshot seen = version.differences().snapshot();
  EXPECT_EQ(seen.count(), 4);
  EXPECT_NEAR(static_cast<double>(seen.sum), 0.25e9, 1e4);
  // An output that nobody wanted.
  answers[1] = base::Tensor();
  EXPECT_TRUE(Score(version, answers, 3).ok());
}

TEST(ShadowVersionTest, WhatLibTorchRefusesIsNoDifference) {
  ShadowVersion version(testing_models::MakeSmallModel({}));
  std::vector<base::Tensor> inputs = Inputs(2);
  inputs[1].as<int64_t>()[1] = testing_models::kRows;  // outside the table
  const std::vector<base::Tensor> answers = RightAnswers(2);
  const absl::Status status =
      version.Score(models::ViewsOf(inputs), models::ViewsOf(answers));
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ShadowTest, TheSampleHasTheShareThatIsAskedFor) {
  for (const double rate : {0.0, 0.001, 0.03, 0.5, 1.0}) {
    Shadow shadow({.rate = rate});
    int sampled = 0;
    constexpr int kRequests = 10000;
    for (int i = 0; i < kRequests; ++i) sampled += shadow.Sample();
    EXPECT_NEAR(sampled, rate * kRequests, 1) << rate;
  }
}

TEST(ShadowTest, WhatHasNoRoomIsDropped) {
  const auto version =
      std::make_shared<ShadowVersion>(testing_models::MakeSmallModel({}));
  Shadow shadow({.rate = 1, .max_bytes = 100});
  EXPECT_TRUE(shadow.HasRoom(100));
  EXPECT_FALSE(shadow.HasRoom(101));
  shadow.Add(
      {.version = version, .inputs = Inputs(33), .answers = RightAnswers(33)});
  EXPECT_EQ(version->count(ShadowOutcome::kDropped), 1);
}

// Through the engine: a whole model and a split one, whose GPU node changes its
// answers after a while.
class ShadowEngineTest : public ::testing::Test {
 protected:
  static void Await(const ShadowVersion& version, ShadowOutcome outcome,
                    uint64_t count) {
    const absl::Time give_up = absl::Now() + kPatience;
    while (version.count(outcome) < count && absl::Now() < give_up) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(version.count(outcome), count);
  }
};

TEST_F(ShadowEngineTest, RequestsAreScoredAgainAndWrongGpuNodesAreSeen) {
  const auto model = testing_models::MakeSmallModel({.name = "split"});
  std::atomic<bool> wrong = false;
  TestGpuNode node(
      ModelList{model}, 0, [&](std::unique_ptr<transport::ServerCall> call) {
        if (!wrong) return node.node().OnRequest(std::move(call));
        const int64_t rows = call->tensors()[0].dims[0];
        auto reply = call->AllocateReply(
            {{.dtype = base::DType::kFloat32, .dims = {rows, 1}}});
        for (int64_t b = 0; b < rows; ++b) {
          reinterpret_cast<float*>(reply->data(0))[b] = 1;
        }
        call->Reply(*std::move(reply));
      });
  Shadow shadow({.rate = 1});
  EngineOptions options;
  options.shadow = &shadow;
  options.nodes.addresses = {node.address()};
  const auto engine =
      *Engine::Create(MakeCatalog({model}, {.shadow = true}), options);
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  const auto served = *engine->catalog()->Find("split", "");
  const ShadowVersion& version = *served->shadow();
  for (int i = 1; i <= 3; ++i) {
    ExpectRight(Infer(*engine, MakeRequest("split", 5)), 5);
    Await(version, ShadowOutcome::kAgrees, i);
  }
  // A request of one output is compared, too.
  InferRequest request = MakeRequest("split", 2);
  request.outputs = {"echo"};
  EXPECT_TRUE(Infer(*engine, std::move(request)).status.ok());
  Await(version, ShadowOutcome::kAgrees, 4);
  wrong = true;
  EXPECT_TRUE(Infer(*engine, MakeRequest("split", 5)).status.ok());
  Await(version, ShadowOutcome::kDiffers, 1);
  engine->Stop();
}

TEST_F(ShadowEngineTest, AVersionIsFreedAlthoughItsRequestsWait) {
  const auto model = testing_models::MakeSmallModel({.split = false});
  Shadow shadow({.rate = 1});
  EngineOptions options;
  options.shadow = &shadow;
  auto catalog = MakeCatalog({model}, {.shadow = true});
  const auto engine = *Engine::Create(std::move(catalog), options);
  for (int i = 0; i < 20; ++i) {
    ExpectRight(Infer(*engine, MakeRequest("small", 5)), 5);
  }
  std::shared_ptr<ServedModel> served;
  for (const Catalog::Entry& entry : engine->catalog()->entries()) {
    served = entry.model;
  }
  engine->Publish({});
  engine->Retire(std::move(served));  // waits for nobody but requests
  engine->Stop();
}

}  // namespace
}  // namespace refract::cpu_node

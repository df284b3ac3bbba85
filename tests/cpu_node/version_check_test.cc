// Versions answer golden requests before they are served: as a whole, and at
// each GPU node. The oracle is the small model's formula.

#include "cpu_node/version_check.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpu_node/control/model_control.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/requests/golden.h"
#include "tests/cpu_node/serving_fixture.h"
#include "tests/cpu_node/stored_model.h"

namespace refract::cpu_node {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_models::StoredModels;

// `batch` rows with their scores by the formula, `off` beside them in row 1.
models::GoldenRequest Golden(int64_t batch, float off = 0, int variant = 0) {
  models::GoldenRequest request;
  request.inputs.push_back(testing_models::MakeDense(batch));
  request.inputs.push_back(testing_models::MakeIds(batch));
  base::Tensor score =
      *base::Tensor::Allocate(base::DType::kFloat32, {batch, 1});
  for (int64_t b = 0; b < batch; ++b) {
    score.as<float>()[b] =
        static_cast<float>(testing_models::ExpectedScore(b, variant));
  }
  if (batch > 1) score.as<float>()[1] += off;
  request.outputs.push_back(std::move(score));
  request.outputs.emplace_back();
  request.outputs.emplace_back();
  return request;
}

class VersionCheckTest : public ::testing::Test {
 protected:
  void WriteGolden(const std::string& name, int64_t version,
                   std::vector<models::GoldenRequest> requests) {
    const absl::Status status =
        models::WriteGolden(stored_.File(absl::StrCat(name, "/", version, "/",
                                                      models::kGoldenFile)),
                            testing_models::MakeGraph(), requests);
    ASSERT_TRUE(status.ok()) << status;
  }
  void WriteGolden(const std::string& name, int64_t version, float off) {
    std::vector<models::GoldenRequest> requests;
    requests.push_back(Golden(3, off));
    requests.push_back(Golden(1));
    WriteGolden(name, version, std::move(requests));
  }
  void AddToConfig(const std::string& name, const std::string& text) {
    std::ofstream(stored_.File(name + "/config.pbtxt"), std::ios::app) << text;
  }
  std::shared_ptr<const models::LoadedModel> Load(const std::string& name,
                                                  int64_t version) {
    auto loaded = stored_.repository().Load(name, version);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *std::move(loaded);
  }
  static absl::StatusOr<std::vector<CheckRequest>> RequestsOf(
      const models::LoadedModel& model) {
    auto settings =
        models::ReadCheckSettings(model.config_text, model.graph, "c");
    if (!settings.ok()) return settings.status();
    return CheckRequestsOf(model, *settings);
  }
  std::unique_ptr<Engine> MakeEngine(std::vector<std::string> addresses,
                                     ServedModelOptions served = {}) {
    EngineOptions options;
    options.workers = 2;
    options.nodes.addresses = std::move(addresses);
    options.nodes.offers_may_come = true;
    options.readiness.when = ReadinessRule::When::kAny;
    auto engine = Engine::Create(*Catalog::Load(stored_.repository(), served),
                                 std::move(options));
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  // The first failed check of the model's offer; waits for it.
  static absl::Status AwaitFailure(Engine& engine, const std::string& name,
                                   const std::string& version) {
    const absl::Time give_up = absl::Now() + kPatience;
    while (absl::Now() < give_up) {
      const absl::Status failed =
          engine.FailedCheck(**engine.catalog()->Find(name, version));
      if (!failed.ok()) return failed;
      absl::SleepFor(absl::Milliseconds(2));
    }
    ADD_FAILURE() << "no check failed";
    return absl::OkStatus();
  }

  StoredModels stored_;
};

// A GPU node of the right schema whose answers are 1 everywhere.
TestGpuNode::OnRequestFunction Wrong() {
  return [](std::unique_ptr<transport::ServerCall> call) {
    const int64_t rows = call->tensors()[0].dims[0];
    auto reply = call->AllocateReply(
        {{.dtype = base::DType::kFloat32, .dims = {rows, 1}}});
    ASSERT_TRUE(reply.ok()) << reply.status();
    for (int64_t b = 0; b < rows; ++b) {
      reinterpret_cast<float*>(reply->data(0))[b] = 1;
    }
    call->Reply(*std::move(reply));
  };
}

TEST_F(VersionCheckTest, AWholeModelWithOtherAnswersIsNotServed) {
  stored_.Add("whole", /*split=*/false);
  WriteGolden("whole", 1, 0.0f);
  stored_.Add("whole", /*split=*/false);
  WriteGolden("whole", 2, 0.25f);
  const auto catalog = Catalog::Load(stored_.repository(), {});
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_TRUE(catalog->Find("whole", "1").ok());
  EXPECT_EQ((*catalog->Find("whole", ""))->version(), 1);
  const std::string why(catalog->Find("whole", "2").status().message());
  EXPECT_THAT(why, AllOf(HasSubstr("version 2"), HasSubstr("golden request 1"),
                         HasSubstr("dense[3, 3], ids[3]"),
                         HasSubstr("output 'score': at [1, 0] is"),
                         HasSubstr("the recorded answer is")));
}

TEST_F(VersionCheckTest, ADamagedGoldenFileIsNamed) {
  stored_.Add("whole", /*split=*/false);
  std::ofstream(stored_.File("whole/1/golden.safetensors")) << "nothing";
  const auto catalog = Catalog::Load(stored_.repository(), {});
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_THAT(std::string(catalog->Find("whole", "1").status().message()),
              HasSubstr("golden.safetensors"));
}

TEST_F(VersionCheckTest, AGpuNodeAnswersBeforeItGetsRequests) {
  stored_.Add("split");
  WriteGolden("split", 1, 0.0f);
  TestGpuNode node({Load("split", 1)});
  const auto engine = MakeEngine({node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  EXPECT_EQ(node.requests(), 2);  // no more: each golden request once
  ExpectRight(Infer(*engine, MakeRequest("split", 5)), 5);
  // Golden requests do not count in the model's statistics.
  const auto statistics =
      (*engine->catalog()->Find("split", ""))->statistics().snapshot();
  EXPECT_EQ(statistics.success.count, 1);
  engine->Stop();
}

TEST_F(VersionCheckTest, AGpuNodeWithOtherAnswersGetsNone) {
  stored_.Add("split");
  WriteGolden("split", 1, 0.0f);
  const auto model = Load("split", 1);
  TestGpuNode wrong({model}, 0, Wrong());
  TestGpuNode right({model});
  const auto engine = MakeEngine({wrong.address(), right.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  for (int i = 0; i < 20; ++i) {
    ExpectRight(Infer(*engine, MakeRequest("split", 5)), 5);
  }
  EXPECT_LE(wrong.requests(), 1);  // its first golden request
  EXPECT_EQ(right.requests(), 22);
  // Served by one node, so it has not failed.
  EXPECT_TRUE(engine->FailedCheck(**engine->catalog()->Find("split", "")).ok());
  engine->Stop();
}

TEST_F(VersionCheckTest, AVersionWithOtherAnswersLeavesTheOldOneServing) {
  stored_.Add("split");
  WriteGolden("split", 1, 0.0f);
  stored_.Add("split", true, /*variant=*/1);
  std::vector<models::GoldenRequest> recorded;
  recorded.push_back(Golden(3, 0.25f, 1));
  WriteGolden("split", 2, std::move(recorded));
  TestGpuNode node({Load("split", 1), Load("split", 2)});
  const auto engine = MakeEngine({node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  const absl::Status failed = AwaitFailure(*engine, "split", "2");
  EXPECT_THAT(std::string(failed.message()),
              AllOf(HasSubstr(node.address()), HasSubstr("golden request 1"),
                    HasSubstr("output 'score': at [1, 0]")));
  Answer answer = Infer(*engine, MakeRequest("split", 5));
  ExpectRight(answer, 5);
  EXPECT_EQ(answer.version, 1);
  InferRequest request = MakeRequest("split", 5);
  request.model_version = "2";
  answer = Infer(*engine, std::move(request));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answer.status.message()),
              HasSubstr("the recorded answer is"));
  engine->Stop();
}

TEST_F(VersionCheckTest, ALoadOfSuchAVersionFailsAtOnce) {
  stored_.Add("split");
  WriteGolden("split", 1, 0.0f);
  const auto first = Load("split", 1);
  stored_.Add("split", true, /*variant=*/1);
  WriteGolden("split", 2, 0.0f);  // another variant's outputs
  TestGpuNode node({first, Load("split", 2)});
  AddToConfig("split", "version_policy { specific { versions: [ 1 ] } }\n");
  const auto engine = MakeEngine({node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  ModelControlOptions options;
  options.by_request = true;
  options.ready_timeout = absl::InfiniteDuration();
  ModelControl control(stored_.repository(), engine.get(), options);
  absl::Status loaded;
  absl::Notification done;
  control.Load("split",
               R"({"version_policy": {"specific": {"versions": [2]}}})",
               [&](const absl::Status& status) {
                 loaded = status;
                 done.Notify();
               });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_THAT(std::string(loaded.message()),
              AllOf(HasSubstr("version 2"), HasSubstr("golden request 1"),
                    HasSubstr("the recorded answer is")));
  EXPECT_EQ(Infer(*engine, MakeRequest("split", 5)).version, 1);
  engine->Stop();
  control.Stop();
}

TEST_F(VersionCheckTest, WarmUpRequestsAreExecutedAndMayGiveAnyAnswer) {
  stored_.Add("split");
  const std::string ids(24, '\0');  // three ids, 0
  std::filesystem::create_directories(stored_.File("split/warmup"));
  std::ofstream(stored_.File("split/warmup/ids")) << ids;
  AddToConfig("split", R"(
    model_warmup {
      name: "random" count: 3
      inputs { key: "dense"
        value { data_type: TYPE_FP32 dims: [ 4, 3 ] random_data: true } }
      inputs { key: "ids"
        value { data_type: TYPE_INT64 dims: 4 random_data: true } }
    }
    model_warmup {
      name: "files"
      inputs { key: "dense"
        value { data_type: TYPE_FP32 dims: [ 3, 3 ] zero_data: true } }
      inputs { key: "ids"
        value { data_type: TYPE_INT64 dims: 3 input_data_file: "ids" } }
    })");
  const auto model = Load("split", 1);
  const auto requests = RequestsOf(*model);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 2);
  for (const int64_t id : (*requests)[0].inputs[1].view().as<int64_t>()) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, testing_models::kRows);
  }
  TestGpuNode node({model});
  const auto engine = MakeEngine({node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  EXPECT_EQ(node.requests(), 4);
  engine->Stop();

  std::ofstream(stored_.File("split/warmup/ids")) << "short";
  EXPECT_THAT(std::string(RequestsOf(*model).status().message()),
              AllOf(HasSubstr("model_warmup 'files'"), HasSubstr("warmup/ids"),
                    HasSubstr("has 5 bytes, the input has 24")));
}

}  // namespace
}  // namespace refract::cpu_node

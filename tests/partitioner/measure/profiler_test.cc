#include "partitioner/measure/profiler.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/repository.h"
#include "partitioner/profile/drift.h"
#include "tests/tools/tiny_model.h"

namespace refract::partitioner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using tools::MakeTensor;
using tools::TempFolder;
using tools::TinyModel;

// Every look is 100 ns after the last, so that a look takes 100 ns and nothing
// else takes any time.
int64_t now_ns = 0;
int64_t EvenClock() { return now_ns += 100; }

// Every run of batch ≥ 16 is interrupted at first, then every third.
int64_t asked = 0;
int64_t OftenInterrupted() { return asked++ / 3; }

class ProfilerTest : public testing::Test {
 protected:
  void SetUp() override {
    const models::ImportedModel model = TinyModel::Make(folder_);
    const models::Repository repository(folder_ / "repo");
    ASSERT_TRUE(repository.AddVersion("tiny", model, {}).ok());
    auto loaded = repository.Load("tiny");
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    model_ = *std::move(loaded);
  }

  absl::StatusOr<Profile> Measure(const ProfilerOptions& options) {
    auto source = RandomRequests(model_->graph, {}, 1);
    if (!source.ok()) return source.status();
    return MeasureProfile(*model_, **source, options);
  }

  TempFolder folder_;
  std::shared_ptr<const models::LoadedModel> model_;
};

TEST_F(ProfilerTest, TakesTheClockOffAndMissesNoOperator) {
  ProfilerOptions options;
  options.batches = {1, 4, 16};
  options.repetitions = 9;
  options.clock = EvenClock;
  int last_done = 0;
  int wanted = 0;
  options.progress = [&](int done, int of) {
    EXPECT_EQ(done, last_done + 1);
    last_done = done;
    wanted = of;
  };
  const absl::StatusOr<Profile> profile = Measure(options);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(last_done, 30);  // nine and one to warm up, for each of three
  EXPECT_EQ(wanted, 30);
  EXPECT_EQ(profile->model, model_->digest);
  EXPECT_THAT(profile->batches, ElementsAre(1, 4, 16));
  EXPECT_EQ(profile->repetitions, 9u);
  EXPECT_DOUBLE_EQ(profile->clock_s, 100e-9);
  std::vector<bool> covered(model_->graph.nodes.size(), false);
  for (const Profile::Operator& op : profile->operators) {
    for (const models::NodeId node : op.nodes) {
      EXPECT_FALSE(covered[node]);
      covered[node] = true;
    }
    ASSERT_EQ(op.timing.samples.size(), 3u);
    for (const auto& sample : op.timing.samples) {
      EXPECT_EQ(sample.seconds.q3, 0) << op.kernel;
    }
  }
  EXPECT_THAT(profile->free_nodes, testing::IsEmpty());
  EXPECT_THAT(covered, testing::Each(true));
  EXPECT_EQ(profile->run.samples[2].seconds.median, 0);
  // Looked at around the run only.
  EXPECT_DOUBLE_EQ(profile->whole.samples[0].seconds.median, 100e-9);
}

TEST_F(ProfilerTest, RealRunsTakeTimeAndSurviveTheFile) {
  ProfilerOptions options;
  options.batches = {1, 4, 16};
  options.repetitions = 9;
  options.interruptions = OftenInterrupted;
  absl::StatusOr<Profile> profile = Measure(options);
  ASSERT_TRUE(profile.ok()) << profile.status();
  profile->cpus = 1;
  profile->memory_bytes = 1;
  EXPECT_GT(profile->whole.samples[0].seconds.least, 0);
  EXPECT_GT(profile->SumAt(16), 0);
  const auto read = ParseProfile(ProfileToText(model_->graph, *profile), "p",
                                 model_->graph, model_->digest);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->SumAt(9), profile->SumAt(9));
}

TEST_F(ProfilerTest, EveryMeasuredRunFollowsAWait) {
  static int waits;
  static int looks;  // at the interruptions: before and after measured runs
  waits = looks = 0;
  ProfilerOptions options;
  options.batches = {1, 4, 16};
  options.repetitions = 9;
  options.interruptions = +[]() -> int64_t {
    ++looks;
    return 0;
  };
  options.wait = +[] {
    ++waits;
    EXPECT_EQ(looks % 2, 0);
  };
  ASSERT_TRUE(Measure(options).ok());
  EXPECT_GE(waits, 10 * 3 * 2);
  EXPECT_EQ(looks, waits * 2);
}

// Requests that the model refuses.
class BadRequests final : public RequestSource {
 public:
  absl::StatusOr<std::vector<base::Tensor>> Make(int64_t batch) override {
    std::vector<base::Tensor> request;
    request.push_back(MakeTensor<float>(base::DType::kFloat32, {batch, 2},
                                        std::vector<float>(2 * batch)));
    request.push_back(MakeTensor<int64_t>(base::DType::kInt64, {batch},
                                          std::vector<int64_t>(batch, 99)));
    return request;
  }
  const std::map<std::string, int64_t>& sizes() const override {
    return sizes_;
  }
  const std::string& description() const override { return text_; }

 private:
  const std::map<std::string, int64_t> sizes_;
  const std::string text_ = "bad";
};

TEST_F(ProfilerTest, RefusedRequestsAreToldWithTheirBatch) {
  BadRequests source;
  ProfilerOptions options;
  options.batches = {4, 8, 16};
  const auto profile = MeasureProfile(*model_, source, options);
  EXPECT_EQ(profile.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(profile.status().message()),
      testing::AllOf(HasSubstr("a request of batch 4"), HasSubstr("99")));
}

Timing Flat(double seconds) {
  return MakeTiming({{1, {seconds, seconds, seconds, seconds}},
                     {16, {seconds, seconds, seconds, seconds}}});
}

// Operators 0 and 1 were two steps and are one now.
TEST_F(ProfilerTest, ProfilesAreComparedStepByStep) {
  Profile before;
  before.batches = {1, 16};
  before.operators = {{{0}, "a", Flat(10e-6)},
                      {{1}, "b", Flat(20e-6)},
                      {{2}, "c", Flat(30e-6)},
                      {{3}, "d", Flat(40e-6)}};
  before.run = Flat(1e-6);
  Profile now = before;
  EXPECT_FALSE(CompareProfiles(model_->graph, before, now).reprofile);
  now.operators = {{{0, 1}, "ab", Flat(28e-6)},
                   {{2}, "c", Flat(45e-6)},
                   {{3}, "d", Flat(41e-6)}};
  const ProfileDrift drift = CompareProfiles(model_->graph, before, now);
  ASSERT_EQ(drift.batches.size(), 2u);
  EXPECT_EQ(drift.batches[1].batch, 16);
  ASSERT_EQ(drift.batches[1].drift.left.size(), 1u);
  EXPECT_EQ(drift.batches[1].drift.left[0].name, model_->graph.nodes[2].name);
  EXPECT_NEAR(drift.batches[1].drift.left[0].measured_s, 45e-6, 1e-12);
  // 28 + 45 + 41 + 1 of 10 + 20 + 30 + 40 + 1.
  EXPECT_NEAR(drift.batches[0].drift.ratio, 115.0 / 101, 1e-9);
  EXPECT_TRUE(drift.reprofile);
}

}  // namespace
}  // namespace refract::partitioner

#include "partitioner/profile/profile.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/partitioner/graph_builder.h"

namespace refract::partitioner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr base::Digest kModel = {.low = 11, .high = 22};

// fixed 10 us and 2 us per item, but `off` times that at batch 16.
Timing Bent(double off) {
  const auto sample = [](int64_t batch, double seconds) {
    return Timing::Sample{
        batch, {0.9 * seconds, 0.95 * seconds, seconds, 1.5 * seconds}};
  };
  return MakeTiming(
      {sample(1, 12e-6), sample(16, off * 42e-6), sample(256, 522e-6)});
}

models::Graph ThreeNodes() {
  GraphBuilder builder;
  const auto x = builder.Input("x");
  const auto w = builder.Weight("w");
  const auto folded = builder.Node("folded", "aten.neg.default", {w});
  const auto y = builder.Node("product", "aten.linear.default", {x, folded});
  builder.Output(builder.Node("positive", "aten.relu.default", {y}));
  return builder.graph();
}

Profile Small() {
  Profile profile;
  profile.model = kModel;
  profile.model_name = "ranker";
  profile.cpu = "a \"fast\" CPU";
  profile.cpus = 2;
  profile.memory_bytes = 1 << 30;
  profile.kernel = "6.1";
  profile.revision = "abc";
  profile.time = "2026-01-02T03:04:05Z";
  profile.inputs = "uniform ids";
  profile.sizes = {{"N_0", 20}};
  profile.batches = {1, 16, 256};
  profile.repetitions = 9;
  profile.clock_s = 25e-9;
  profile.operators = {
      {{1, 2}, "linear/relu", Bent(1), {{{1}, Bent(1)}, {{2}, Bent(2)}}}};
  profile.wire = {{"fp16", {2.5e9, 3.5e9}}};
  profile.free_nodes = {0};
  profile.run = Bent(1);
  profile.whole = Bent(1);
  return profile;
}

TEST(TimingTest, IsTheLineWhereTheLineHolds) {
  const Timing timing = Bent(1);
  EXPECT_NEAR(timing.line.fixed_s, 10e-6, 1e-12);
  EXPECT_NEAR(timing.line.item_s, 2e-6, 1e-12);
  for (const double batch : {0.5, 1.0, 7.0, 16.0, 100.0, 256.0, 5000.0}) {
    EXPECT_NEAR(timing.At(batch), 10e-6 + 2e-6 * batch, 1e-9 * batch) << batch;
  }
  EXPECT_NEAR(timing.Residual(timing.samples[1]), 0, 1e-9);
}

TEST(TimingTest, FollowsWhatWasMeasuredWhereTheLineIsOff) {
  const Timing timing = Bent(2);
  const auto correction = [&](size_t i) {
    const Timing::Sample& sample = timing.samples[i];
    return sample.seconds.median /
           timing.line.At(static_cast<double>(sample.batch));
  };
  // The medians themselves.
  EXPECT_NEAR(timing.At(1), 12e-6, 1e-15);
  EXPECT_NEAR(timing.At(16), 84e-6, 1e-15);
  EXPECT_NEAR(timing.At(256), 522e-6, 1e-15);
  // 4 is half way from 1 to 16 on a logarithmic scale, 64 from 16 to 256.
  EXPECT_NEAR(timing.At(4),
              timing.line.At(4) * (correction(0) + correction(1)) / 2, 1e-15);
  EXPECT_NEAR(timing.At(64),
              timing.line.At(64) * (correction(1) + correction(2)) / 2, 1e-15);
  // Beyond both ends as far off as there.
  EXPECT_NEAR(timing.At(1024), timing.line.At(1024) * correction(2), 1e-15);
  EXPECT_LT(timing.Residual(timing.samples[1]), -0.1);
  EXPECT_DOUBLE_EQ(timing.Residual(timing.samples[1]), 1 / correction(1) - 1);
}

TEST(TimingTest, NothingTakesNoTime) {
  EXPECT_EQ(Timing().At(16), 0);
  EXPECT_EQ(MakeTiming({{1, {}}, {16, {}}}).At(4), 0);
}

class ProfileFileTest : public testing::Test {
 protected:
  absl::StatusOr<Profile> Parse(const std::string& text,
                                const base::Digest& model = kModel) const {
    return ParseProfile(text, "p.textproto", graph_, model);
  }
  // The message when `from`, which must be in the text, is `to`.
  std::string ErrorWith(const std::string& from, const std::string& to) const {
    std::string text = ProfileToText(graph_, Small());
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from << " is not in\n" << text;
    if (at != std::string::npos) text.replace(at, from.size(), to);
    const absl::StatusOr<Profile> read = Parse(text);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(read.status().message());
  }
  const models::Graph graph_ = ThreeNodes();
};

TEST_F(ProfileFileTest, ReadsWhatItWrote) {
  const Profile wrote = Small();
  const absl::StatusOr<Profile> read = Parse(ProfileToText(graph_, wrote));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->model, wrote.model);
  EXPECT_EQ(read->model_name, "ranker");
  EXPECT_EQ(read->device, "cpu");
  EXPECT_EQ(read->cpu, wrote.cpu);
  EXPECT_EQ(read->cpus, 2u);
  EXPECT_EQ(read->memory_bytes, 1u << 30);
  EXPECT_EQ(read->kernel, "6.1");
  EXPECT_EQ(read->revision, "abc");
  EXPECT_EQ(read->time, wrote.time);
  EXPECT_EQ(read->inputs, wrote.inputs);
  EXPECT_EQ(read->sizes, wrote.sizes);
  EXPECT_THAT(read->batches, ElementsAre(1, 16, 256));
  EXPECT_EQ(read->repetitions, 9u);
  EXPECT_EQ(read->clock_s, 25e-9);
  ASSERT_EQ(read->operators.size(), 1u);
  EXPECT_THAT(read->operators[0].nodes, ElementsAre(1, 2));
  EXPECT_EQ(read->operators[0].kernel, "linear/relu");
  EXPECT_THAT(read->free_nodes, ElementsAre(0));
  for (const double batch : {1, 10, 300}) {
    EXPECT_EQ(read->SumAt(batch), wrote.SumAt(batch));
    EXPECT_EQ(read->whole.At(batch), wrote.whole.At(batch));
    EXPECT_EQ(read->SumAt(batch),
              read->run.At(batch) + read->operators[0].timing.At(batch));
  }
  EXPECT_EQ(read->run.samples[2].seconds.q3, wrote.run.samples[2].seconds.q3);
  ASSERT_EQ(read->operators[0].pieces.size(), 2u);
  EXPECT_THAT(read->operators[0].pieces[1].nodes, ElementsAre(2));
  EXPECT_EQ(read->operators[0].pieces[1].timing.At(16),
            wrote.operators[0].pieces[1].timing.At(16));
  ASSERT_EQ(read->wire.count("fp16"), 1u);
  EXPECT_EQ(read->wire.at("fp16").encode_bytes_per_s, 2.5e9);
  EXPECT_EQ(read->wire.at("fp16").decode_bytes_per_s, 3.5e9);
}

TEST_F(ProfileFileTest, PiecesAreOfTheirOperator) {
  // The last of the two.
  const auto error_with = [&](const std::string& from, const std::string& to) {
    std::string text = ProfileToText(graph_, Small());
    const size_t at = text.rfind(from);
    EXPECT_NE(at, std::string::npos);
    const absl::StatusOr<Profile> read =
        Parse(text.replace(at, from.size(), to));
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(read.status().message());
  };
  EXPECT_THAT(error_with("nodes: \"positive\"", "nodes: \"product\""),
              HasSubstr("operator product: its pieces do not list each"));
  EXPECT_THAT(error_with("nodes: \"positive\"", "nodes: \"quotient\""),
              HasSubstr("operator product: a piece lists the node quotient"));
  EXPECT_THAT(error_with("form: \"fp16\"", "form: \"fp17\""),
              HasSubstr("p.textproto: wire fp17"));
  EXPECT_THAT(
      error_with("encode_bytes_per_second: ", "encode_bytes_per_second: -"),
      HasSubstr("wire fp16"));
}

TEST_F(ProfileFileTest, NamesWhatIsWrong) {
  EXPECT_THAT(
      ErrorWith("format_version: 1", "format_version: 9"),
      HasSubstr("p.textproto: format_version: 9; this program reads 1"));
  EXPECT_THAT(ErrorWith("low: 11", "low: 12"),
              HasSubstr("model: the profile is of model "));
  EXPECT_THAT(ErrorWith("\"product\"", "\"quotient\""),
              HasSubstr("operator quotient: the model has no such operator"));
  EXPECT_THAT(ErrorWith("\"positive\"", "\"product\""),
              HasSubstr("operator product: is listed twice"));
  EXPECT_THAT(ErrorWith("free_nodes: \"folded\"", "free_nodes: \"positive\""),
              HasSubstr("operator positive: is listed twice"));
  EXPECT_THAT(ErrorWith("median_seconds: ", "median_seconds: -"),
              HasSubstr("operator product: median_seconds -1.2e-05 is "
                        "negative"));
  EXPECT_THAT(ErrorWith("fixed_seconds: ", "fixed_seconds: nan #"),
              HasSubstr("operator product: fixed_seconds is no finite number"));
  EXPECT_THAT(ErrorWith("q1_seconds: ", "q1_seconds: 9"),
              HasSubstr("operator product: least, quartiles and median of "
                        "batch 1 are out of order"));
  EXPECT_THAT(ErrorWith("batches: 16", "batches: 0"),
              HasSubstr("batches: 0 after 1: must ascend from 1"));
  EXPECT_THAT(ErrorWith("batches: 16", "batches: 17"),
              HasSubstr("operator product: has a sample of batch 16, expected "
                        "was batch 17"));
  EXPECT_THAT(ErrorWith("batches: 16\n", ""),
              HasSubstr("operator product: has 3 samples for 2 batches"));
  EXPECT_THAT(ErrorWith("cpus: 2", "cpus: 0"), HasSubstr("machine: cpus"));
  EXPECT_THAT(ErrorWith("per_item: 20", "per_item: -2000000000000"),
              HasSubstr("size N_0: -2000000000000 is out of range"));
  EXPECT_THAT(ErrorWith("clock_seconds: ", "clock_seconds: inf #"),
              HasSubstr("clock_seconds is no finite number"));
  EXPECT_THAT(ErrorWith("run {", "ruin {"), HasSubstr("p.textproto: line "));
  EXPECT_THAT(ErrorWith("whole {", "run {"), HasSubstr("p.textproto: line "));
}

TEST_F(ProfileFileTest, DamagedFilesAreRefusedWhereverTheyEnd) {
  Profile small = Small();
  small.wire.clear();  // stands last, and need not be there
  const std::string text = ProfileToText(graph_, small);
  for (size_t end = 0; end + 2 < text.size(); end += 7) {
    EXPECT_FALSE(Parse(text.substr(0, end)).ok()) << end;
  }
  EXPECT_FALSE(Parse("not a profile").ok());
  EXPECT_FALSE(Parse(text, {.low = 11, .high = 23}).ok());
}

TEST_F(ProfileFileTest, MissingFileIsNotFound) {
  const absl::StatusOr<Profile> read =
      LoadProfile(testing::TempDir() + "/no/such/profile", graph_, kModel);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(read.status().message()),
              HasSubstr("/no/such/profile: cannot be read"));
}

}  // namespace
}  // namespace refract::partitioner

#include "placement/planner/spec.h"

#include <string>
#include <utility>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/placement/planner/specs.h"

namespace refract::placement {
namespace {

using testing::HasSubstr;

TEST(PlanSpec, ReadsEveryField) {
  const absl::StatusOr<PlanSpec> spec =
      ParsePlanSpec(kSpecText, "spec.json", TestReaders());
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->nodes.size(), 2u);
  EXPECT_EQ(spec->nodes[0].nics, 1);
  EXPECT_EQ(spec->nodes[0].labels[0].second, "cpu");
  EXPECT_EQ(spec->nodes[1].gpus, 8);
  EXPECT_EQ(spec->nodes[1].count, -1);
  ASSERT_EQ(spec->services.size(), 1u);
  const ServiceSpec& service = spec->services[0];
  EXPECT_DOUBLE_EQ(service.slo_p99_s, 0.025);
  EXPECT_EQ(service.traffic.rows, std::vector<double>{256});
  EXPECT_EQ(service.traffic.curve.size(), 4u);
  EXPECT_DOUBLE_EQ(service.costs.At(256).cn_pre_s, 0.005);
  EXPECT_DOUBLE_EQ(service.costs.At(256).up_bytes, 2560 * 1024);
  // Linear between the points: half-way in rows.
  EXPECT_NEAR(service.costs.At(128.5).hn_s, 0.00125, 1e-12);
  EXPECT_EQ(service.costs.cn.sigma, 0.1);
  EXPECT_EQ(service.costs.hn.factors.size(), 3u);
  EXPECT_EQ(service.cn.cores, (std::vector<double>{8, 16}));
  ASSERT_EQ(service.hn.parts.size(), 2u);
  EXPECT_EQ(service.hn.parts[1].mig, MigProfile::k2g);
  EXPECT_EQ(service.hn.batching_window_us, (std::vector<double>{-1, 200}));
  EXPECT_TRUE(service.monolith.has_value());
}

TEST(PlanSpec, TakesAVersionInPlaceOfFigures) {
  std::string text = kSpecText;
  const size_t profile = text.find("\"profile\"");
  const size_t end = text.find("\"round_trip_us\"");
  text.replace(profile, end - profile, "\"path\": \"models/m\", ");
  const absl::StatusOr<PlanSpec> spec =
      ParsePlanSpec(text, "spec.json", TestReaders());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->services[0].costs.points.size(), 1u);
  EXPECT_EQ(spec->services[0].source->path, "models/m");
}

// A text of the spec, its replacement, and the expected error.
TEST(PlanSpec, RefusesBadFieldsByName) {
  const struct {
    const char* from;
    const char* to;
    const char* error;
  } cases[] = {
      {"\"demo\",", "\"demo\", \"nots\": 1,", "spec.json: nots: is no field"},
      {"\"demo\",", "\"demo\"", "spec.json: line 4: is no JSON"},
      {"\"price_per_h\": 3", "\"price_per_h\": -3",
       "nodes[0].price_per_h: is no number from 0"},
      {"\"name\": \"gpu\"", "\"name\": \"cpu\"",
       "nodes[1].name: 'cpu' is there twice"},
      {"\"gpu_model\": \"A100\"", "\"gpu_model\": \"T4\"",
       "services[0].hn.gpu_parts[1].part: GPUs of a node 'gpu' ('T4') cannot "
       "be divided"},
      {"\"p99_ms\": 25", "\"p99_ms\": \"25\"",
       "services[0].slo.p99_ms: is no number"},
      {"\"slo\": {\"p99_ms\": 25},", "", "services[0].slo: is missing"},
      {"\"cores\": [8, 16]", "\"cores\": [8, 96]",
       "services[0].cn.cores: 96 cores is more than a node 'cpu' has, 64"},
      {"\"memory_gib\": 120},", "\"memory_gib\": 50},",
       "services[0].cn.memory_gib: 50 GiB is less than the model's 100 GiB"},
      {"\"cores\": 16, \"memory_gib\": 120}",
       "\"cores\": 16, \"memory_gib\": 99}",
       "services[0].monolith.memory_gib: 99 GiB is less than the model's 100 "
       "GiB"},
      {"\"node\": \"gpu\", \"cores\": 4", "\"node\": \"cpu\", \"cores\": 4",
       "services[0].hn.node: a node 'cpu' has no GPUs"},
      {"\"node\": \"gpu\", \"cores\": 4", "\"node\": \"tpu\", \"cores\": 4",
       "services[0].hn.node: 'tpu' is none of nodes[].name"},
      {"\"slowdown\": 2.2", "\"slowdown\": 0.5",
       "gpu_parts[1].slowdown: 0.5: a slice is not faster"},
      {"[0.2, 0.5, 1.0, 0.6]", "[0.2, 0.5, 0.6]",
       "services[0].traffic.curve: its largest entry is not 1"},
      {"fixed:256", "gauss",
       "services[0].traffic.query_sizes: knows fixed:N alone"},
      {"\"rows\": 256", "\"rows\": 1",
       "services[0].model: profile[1].rows: 1 does not ascend"},
      {"\"profile\":", "\"path\": \"models/x\", \"profile\":",
       "services[0].model: has both path and profile"},
      {"\"off\", 200", "\"never\", 200",
       "services[0].hn.batching_window_us: is no number"},
      {"\"profile\":", "\"traces\": {}, \"profile\":",
       "services[0].model: has both traces and profile"},
      {"\"gpus\": 8,", "\"gpus\": 0,", "nodes[1].gpu_model: 'A100', but gpus"},
  };
  for (const auto& one : cases) {
    const std::string text =
        absl::StrReplaceAll(kSpecText, {{one.from, one.to}});
    ASSERT_NE(text, kSpecText) << one.from;
    const absl::StatusOr<PlanSpec> spec =
        ParsePlanSpec(text, "spec.json", TestReaders());
    ASSERT_FALSE(spec.ok()) << one.to;
    EXPECT_TRUE(absl::IsInvalidArgument(spec.status()));
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(one.error));
  }
}

TEST(PlanSpec, RefusesBatchesOfAModelThatCannotBeMerged) {
  absl::StatusOr<PlanSpec> spec =
      ParsePlanSpec(kSpecText, "spec.json", TestReaders());
  ASSERT_TRUE(spec.ok()) << spec.status();
  spec->services[0].costs.never_merged = "a mean over the batch";
  EXPECT_THAT(std::string(Check(*spec).message()),
              HasSubstr("services[0].hn.batching_window_us: 200: requests of "
                        "this model do not share an execution: a mean"));
  spec->services[0].hn.batching_window_us = {-1};
  EXPECT_TRUE(Check(*spec).ok()) << Check(*spec);
}

TEST(ModelCosts, NeverFallBelowZeroBeyondTheirPoints) {
  ModelCosts costs;
  costs.points = {{.rows = 100, .hn_s = 0.001}, {.rows = 200, .hn_s = 0.003}};
  EXPECT_EQ(costs.At(10).hn_s, 0);
  EXPECT_NEAR(costs.At(400).hn_s, 0.007, 1e-12);
}

}  // namespace
}  // namespace refract::placement

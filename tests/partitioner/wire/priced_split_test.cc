#include "partitioner/wire/priced_split.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partitioner/costs/prediction.h"
#include "partitioner/wire/crossing_table.h"
#include "tests/cpu_node/small_model.h"

namespace refract::partitioner {
namespace {

using models::Stage;
using models::ValueId;
using models::WireForm;
using models::WireType;
using testing::HasSubstr;

constexpr int64_t kItems = 100;

class PricedSplitTest : public testing::Test {
 protected:
  PricedSplitTest() : model_(testing_models::MakeSmallModel({})) {
    SampleRequest& request = requests_.requests.emplace_back();
    request.inputs.push_back(testing_models::MakeDense(kItems));
    request.inputs.push_back(testing_models::MakeIds(kItems));
    samples_ = *AnswerSamples(*model_, requests_);
    conditions_.cn.name = conditions_.hn.name = "toy";
    conditions_.cn.bytes_per_s = 1e9;
    conditions_.hn.bytes_per_s = 4e9;
    conditions_.cn.wire = {
        {"fp16", {5e8, 4e8}}, {"int8", {1e8, 2e8}}, {kUniqueRows, {1e8, 2e8}}};
    Conditions& conditions = conditions_.conditions;
    conditions.sizes = {{"B", kItems}};
    for (size_t n = 0; n < model_->graph.nodes.size(); ++n) {
      conditions.costs.cn_s.push_back(4e-5 * static_cast<double>(n + 1));
      conditions.costs.hn_s.push_back(1e-6);
    }
    conditions.link = {.bytes_per_s = 2e8, .latency_s = 1e-6};
    conditions_.goal.max_cuts = 10'000;
  }

  // Every plan that a node would take.
  std::vector<models::SplitPlan> EveryPlan() const {
    const models::Graph& graph = model_->graph;
    std::vector<models::SplitPlan> plans;
    models::SplitPlan plan;
    plan.model = model_->digest;
    plan.stages.assign(graph.nodes.size(), Stage::kCnPre);
    while (true) {
      models::ComputeCrossings(graph, plan);
      const bool idle = plan.uses_hn() && plan.up.empty() && plan.down.empty();
      if (!idle && models::ValidatePlan(graph, model_->digest, plan).ok() &&
          plan.stages[0] == Stage::kCnPre) {  // its table stays on the CN
        plans.push_back(plan);
      }
      size_t n = 0;
      while (n < plan.stages.size() && plan.stages[n] == Stage::kCnPost) {
        plan.stages[n++] = Stage::kCnPre;
      }
      if (n == plan.stages.size()) return plans;
      plan.stages[n] = static_cast<Stage>(static_cast<int>(plan.stages[n]) + 1);
    }
  }

  std::shared_ptr<const models::LoadedModel> model_;
  SampleRequests requests_;
  WireSamples samples_;
  SplitConditions conditions_;
};

TEST_F(PricedSplitTest, TheTableSaysWhatTheEncodersDo) {
  const auto table = CrossingTable::Measure(*model_, requests_.requests);
  ASSERT_TRUE(table.ok()) << table.status();
  int compared = 0;
  for (models::SplitPlan& plan : EveryPlan()) {
    if (plan.up.empty()) continue;
    const auto meter = WireMeter::Create(*model_, plan, samples_);
    ASSERT_TRUE(meter.ok()) << meter.status();
    for (const WireType type :
         {WireType::kAsIs, WireType::kFloat16, WireType::kBFloat16,
          WireType::kInt8, WireType::kInt32}) {
      for (const bool unique : {false, true}) {
        const WireForm form{type, unique};
        WireForms forms{std::vector<WireForm>(plan.up.size()),
                        std::vector<WireForm>(plan.down.size())};
        for (size_t i = 0; i < plan.up.size(); ++i) {
          const models::Value& value = model_->graph.value(plan.up[i]);
          if (models::CheckWireForm(value, form).ok()) forms.up[i] = form;
        }
        const auto reading = (*meter)->Measure(forms);
        ASSERT_TRUE(reading.ok()) << reading.status();
        for (size_t i = 0; i < plan.up.size(); ++i) {
          const CrossingTable::Size size = table->Of(plan.up[i], forms.up[i]);
          EXPECT_EQ(size.message_bytes, reading->up_bytes[i])
              << model_->graph.value(plan.up[i]).name << " as "
              << models::Name(type) << unique;
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 100);
  // ids are 1, 4, 7, 0, 3, …: ten of them, which fit int32.
  const ValueId ids = model_->graph.inputs[1];
  EXPECT_TRUE(table->Narrows(ids));
  EXPECT_FALSE(table->Narrows(model_->graph.inputs[0]));
  EXPECT_EQ(table->Of(ids, {}).bytes, 8 * kItems);
  EXPECT_EQ(table->Of(ids, {WireType::kInt32, false}).bytes, 4 * kItems);
  EXPECT_DOUBLE_EQ(table->Of(ids, {WireType::kAsIs, true}).distinct, 0.1);
}

TEST_F(PricedSplitTest, IsTheBestOfAllPlansInTheirForms) {
  int cheaper_for_forms = 0;
  for (const char* dtype : {"fp32", "fp16", "int8"}) {
    for (const bool with_sample : {false, true}) {
      for (const double bytes_per_s : {2e6, 2e7, 2e8}) {
        SplitConditions conditions = conditions_;
        conditions.conditions.link.bytes_per_s = bytes_per_s;
        WireOptions options{.dtype = dtype};
        if (with_sample) options.samples = {"given"};
        auto priced = SplitWithForms(options, *model_, samples_, conditions);
        ASSERT_TRUE(priced.ok()) << priced.status();
        const Alternative& best = priced->split.best;
        double least = std::numeric_limits<double>::infinity();
        double plain = least;
        for (models::SplitPlan& plan : EveryPlan()) {
          Conditions own = conditions.conditions;
          own.wire = {};
          plain =
              std::min(plain, Predict(model_->graph, plan, own).latency_s());
          ASSERT_TRUE(ChooseWireForms(options, *model_, samples_, plan).ok());
          own.wire = priced->pricing.PricesOf(plan);
          least =
              std::min(least, Predict(model_->graph, plan, own).latency_s());
        }
        EXPECT_NEAR(best.cost, least, 1e-9 * least)
            << dtype << " " << with_sample << " " << bytes_per_s;
        cheaper_for_forms += least < 0.98 * plain;
        // The forms of the plan are the forms that it was priced in.
        models::SplitPlan plan = best.plan;
        const auto report = ChooseWireForms(options, *model_, samples_, plan);
        ASSERT_TRUE(report.ok());
        ASSERT_EQ(best.prediction.sent_up.size(), plan.up.size());
        for (size_t i = 0; i < plan.up.size(); ++i) {
          EXPECT_EQ(best.prediction.sent_up[i].form, plan.up_form(i));
        }
        if (*report) {
          EXPECT_NEAR(best.prediction.message_bytes_up,
                      (*report)->chosen.message_bytes_up, 64);
        }
      }
    }
  }
  EXPECT_GT(cheaper_for_forms, 0);
}

TEST_F(PricedSplitTest, AutomaticFormsKeepTheBoundAndThePriceIsTheirs) {
  conditions_.conditions.link.bytes_per_s = 2e7;
  for (const double bound : {1e-7, 1e-4, 1e-3, 1e-1}) {
    SplitConditions conditions = conditions_;
    const WireOptions options{.dtype = "auto", .error_bound = bound};
    auto priced = SplitWithForms(options, *model_, samples_, conditions);
    ASSERT_TRUE(priced.ok()) << priced.status();
    const OptimalSplit& split = priced->split;
    models::SplitPlan plan = split.best.plan;
    const auto report = ChooseWireForms(options, *model_, samples_, plan);
    ASSERT_TRUE(report.ok()) << report.status();
    if (*report) {
      EXPECT_LE((*report)->chosen.worst(), bound);
    }
    EXPECT_EQ(plan.up_forms, split.best.plan.up_forms);
    Conditions own = conditions.conditions;
    own.wire = priced->pricing.PricesOf(plan);
    EXPECT_DOUBLE_EQ(Predict(model_->graph, plan, own).latency_s(),
                     split.best.cost);
    EXPECT_LE(split.lower_bound, split.best.cost);
    for (const Alternative& other : split.others) {
      EXPECT_LE(split.best.cost, other.cost) << other.plan.method;
    }
  }
}

TEST_F(PricedSplitTest, SlowEncodingIsPaidForAndWhatIsNotMeasuredIsNamed) {
  const WireOptions options{.dtype = "fp16"};
  SplitConditions quick = conditions_;
  quick.conditions.link.bytes_per_s = 2e7;
  auto priced = SplitWithForms(options, *model_, samples_, quick);
  ASSERT_TRUE(priced.ok()) << priced.status();
  EXPECT_TRUE(priced->split.best.plan.uses_hn());
  EXPECT_GT(priced->split.best.prediction.cn_crossing_s, 0);
  ASSERT_FALSE(quick.notes.empty());
  EXPECT_THAT(quick.notes.back(), HasSubstr("encoding on the HN"));
  SplitConditions slow = conditions_;
  slow.conditions.link.bytes_per_s = 2e7;
  slow.cn.wire["fp16"] = {1e3, 1e3};
  const auto dear = SplitWithForms(options, *model_, samples_, slow);
  ASSERT_TRUE(dear.ok()) << dear.status();
  // A kilobyte per millisecond of encoding is more than all of the CN's work.
  EXPECT_FALSE(dear->split.best.plan.uses_hn());
}

TEST_F(PricedSplitTest, ErrorsAboveTheBoundAreRefusedByName) {
  const WireOptions options{.dtype = "int8", .error_bound = 0.0};
  models::SplitPlan plan = *model_->plan;
  const auto report = ChooseWireForms(options, *model_, samples_, plan);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(report.status().message()),
              HasSubstr("--wire-error-bound"));
}

}  // namespace
}  // namespace refract::partitioner

// A GPU node's trials with made-up requests before real ones come.
#include "gpu_node/model/warm_up.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu_node/model/device_model.h"
#include "gtest/gtest.h"
#include "models/repository/split_plan.h"
#include "models/rows/row_dependence.h"
#include "tests/cpu_node/small_model.h"
#include "tests/runtime/testing/graph_builder.h"

namespace refract::gpu_node {
namespace {

using runtime::testing::GraphBuilder;
using runtime::testing::Int;
using runtime::testing::Ref;
using runtime::testing::Sym;

// items[b, 2] · user[1, 2], the user's row repeated by a number of rows that
// the CN sends: an input with rows, one that is the same for all, and the
// count.
std::shared_ptr<const models::LoadedModel> OneUserForAllItems() {
  GraphBuilder builder;
  const auto items =
      builder.Input("items", base::DType::kFloat32, {Sym("b"), 2});
  const auto user = builder.Input("user", base::DType::kFloat32, {1, 2});
  const auto rows =
      builder.Node("aten.sym_size.int", {Ref("self", items), Int("dim", 0)},
                   {base::DType::kInt64, {}, models::ValueKind::kSymInt});
  builder.graph().values[rows].sym_value = Sym("b");
  const auto users = builder.Node(
      "aten.expand.default",
      {Ref("self", user),
       {"size", models::IntList{{0, rows}, {2, models::kNoValue}}}},
      {base::DType::kFloat32, {Sym("b"), 2}});
  builder.Output(builder.Node("aten.mul.Tensor",
                              {Ref("self", items), Ref("other", users)},
                              {base::DType::kFloat32, {Sym("b"), 2}}));
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({}));
  model->graph = builder.graph();
  model->graph.batch_symbol = "b";
  model->plan = runtime::testing::PlanOf(model->graph, {0, 1, 1});
  models::MarkRows(model->graph, *model->plan);
  return model;
}

// history[b, 3] at the place of its last step, lengths[b, 1] - 1.
std::shared_ptr<const models::LoadedModel> LastStepOfAHistory() {
  GraphBuilder builder;
  const auto history =
      builder.Input("history", base::DType::kFloat32, {Sym("b"), 3});
  const auto lengths =
      builder.Input("lengths", base::DType::kInt64, {Sym("b"), 1});
  const auto last =
      builder.Node("aten.sub.Scalar", {Ref("self", lengths), Int("other", 1)},
                   {base::DType::kInt64, {Sym("b"), 1}});
  builder.Output(
      builder.Node("aten.gather.default",
                   {Ref("self", history), Int("dim", 1), Ref("index", last)},
                   {base::DType::kFloat32, {Sym("b"), 1}}));
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({}));
  model->graph = builder.graph();
  model->graph.batch_symbol = "b";
  model->plan = runtime::testing::PlanOf(model->graph, {1, 1});
  models::MarkRows(model->graph, *model->plan);
  return model;
}

// Generated lengths of 0 are refused: the place of the last step is then -1.
TEST(WarmUpTest, APartThatTakesNoLengthOfZeroIsTriedWithOthers) {
  const auto model = DeviceModel::Create(LastStepOfAHistory());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->least_integer(), 1);
  EXPECT_EQ((*model)->layout().why_not(), "");
  EXPECT_FALSE(WarmUp(**model, {.max_rows = 4}).empty());
  EXPECT_EQ((*DeviceModel::Create(OneUserForAllItems()))->least_integer(), 0);
}

TEST(WarmUpTest, TheNumberOfRowsIsNoneOfWhatRequestsShare) {
  const auto model = DeviceModel::Create(OneUserForAllItems());
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ((*model)->layout().why_not(), "");
  double difference = -1;
  const absl::Status alone =
      VerifyRows((*model)->model().graph, (*model)->program(),
                 (*model)->layout(), (*model)->least_integer(), &difference);
  EXPECT_TRUE(alone.ok()) << alone;
  EXPECT_EQ(difference, 0);
}

TEST(WarmUpTest, TimesOfSomeSizesAreKnownBeforeTheFirstRequest) {
  const auto model = DeviceModel::Create(OneUserForAllItems());
  ASSERT_TRUE(model.ok()) << model.status();
  WarmUpOptions options;
  options.max_rows = 16;
  const scheduling::ExecutionTimes times = TimesOf(WarmUp(**model, options));
  EXPECT_TRUE(times.known(absl::Now()));
}

TEST(WarmUpTest, MadeUpInputsHaveTheRowsThatWereAskedFor) {
  const auto model = DeviceModel::Create(OneUserForAllItems());
  ASSERT_TRUE(model.ok()) << model.status();
  const auto inputs =
      MakeInputs((*model)->model().graph, (*model)->program().part(), 7, 1);
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  std::vector<std::string> dims;
  for (const base::Tensor& input : *inputs) {
    dims.push_back(base::DimsToString(input.dims()));
    if (input.dims().empty()) {
      EXPECT_EQ(input.view().as<int64_t>()[0], 7);
    }
  }
  EXPECT_EQ(dims.size(), 3u);
}

}  // namespace
}  // namespace refract::gpu_node

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "runtime/program.h"
#include "tests/runtime/testing/run.h"
#include "tests/runtime/testing/small_dlrm.h"

namespace refract::runtime {
namespace {

using base::DType;
using base::TensorView;
using testing::GraphBuilder;
using testing::Must;
using testing::MustBeOk;
using testing::Ref;
using testing::SmallDlrm;
using testing::Sym;
using testing::Views;

// The n-th reading of the clock is n².
int64_t looks = 0;
int64_t SquareClock() {
  const int64_t n = looks++;
  return n * n;
}

TEST(StepTimesTest, EveryInstantIsInExactlyOneTime) {
  SmallDlrm dlrm;
  const models::Graph& graph = dlrm.builder().graph();
  const auto program = Must(Program::Compile(graph, Part::Whole(graph),
                                             dlrm.builder().Weights(), {}));
  RunContext context(*program);
  const auto request = dlrm.Request(7);
  std::vector<TensorView> outputs;
  StepTimes times;
  // Twice: a second run replaces the times of the first.
  for (int run = 0; run < 2; ++run) {
    looks = 0;
    MustBeOk(program->RunTimed(Views(request), {}, context, outputs, times,
                               SquareClock));
    const int64_t steps = static_cast<int64_t>(program->steps().size());
    ASSERT_GT(steps, 5);
    ASSERT_EQ(static_cast<int64_t>(times.steps.size()), steps);
    EXPECT_EQ(looks, steps + 3);
    EXPECT_EQ(times.before, 1);
    for (int64_t i = 0; i < steps; ++i) {
      EXPECT_EQ(times.steps[i], (i + 2) * (i + 2) - (i + 1) * (i + 1)) << i;
    }
    EXPECT_EQ(times.after, 2 * (steps + 2) - 1);
    EXPECT_EQ(times.total(), (steps + 2) * (steps + 2));
  }
}

TEST(StepTimesTest, TimedRunsComputeTheSameBits) {
  SmallDlrm dlrm;
  const models::Graph& graph = dlrm.builder().graph();
  const auto program = Must(Program::Compile(graph, Part::Whole(graph),
                                             dlrm.builder().Weights(), {}));
  RunContext plain_context(*program);
  RunContext timed_context(*program);
  const auto request = dlrm.Request(7);
  std::vector<TensorView> plain;
  std::vector<TensorView> timed;
  StepTimes times;
  MustBeOk(program->Run(Views(request), {}, plain_context, plain));
  MustBeOk(program->RunTimed(Views(request), {}, timed_context, timed, times));
  ASSERT_EQ(plain.size(), timed.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(testing::SameBits(Must(base::Tensor::CopyOf(plain[i])),
                                  Must(base::Tensor::CopyOf(timed[i]))))
        << i;
  }
  EXPECT_GE(times.before, 0);
  EXPECT_GT(times.total(), 0);
}

TEST(StepTimesTest, ErrorsAreThoseOfRun) {
  SmallDlrm dlrm;
  const models::Graph& graph = dlrm.builder().graph();
  const auto program = Must(Program::Compile(graph, Part::Whole(graph),
                                             dlrm.builder().Weights(), {}));
  RunContext context(*program);
  std::vector<TensorView> outputs;
  StepTimes times;
  const absl::Status timed = program->RunTimed({}, {}, context, outputs, times);
  EXPECT_EQ(timed, program->Run({}, {}, context, outputs));
  EXPECT_FALSE(timed.ok());
}

TEST(StepTimesTest, StepsTellTheirNodesAndLeaveOutWhatIsFolded) {
  GraphBuilder builder;
  const auto x = builder.Input("x", DType::kFloat32, {Sym("b"), 2});
  const auto w = builder.Weight<float>("w", {2, 2}, {1, 2, 3, 4});
  // Node 0 depends on weights alone.
  const auto negated = builder.Node("aten.neg.default", {Ref("self", w)},
                                    {DType::kFloat32, {2, 2}});
  const auto y = builder.Node("aten.linear.default",
                              {Ref("input", x), Ref("weight", negated)},
                              {DType::kFloat32, {Sym("b"), 2}});
  const auto z = builder.Node("aten.relu.default", {Ref("self", y)},
                              {DType::kFloat32, {Sym("b"), 2}});
  builder.Output(z);
  const models::Graph& graph = builder.graph();
  const auto program =
      Must(Program::Compile(graph, Part::Whole(graph), builder.Weights(), {}));
  std::set<models::NodeId> covered;
  const std::vector<StepInfo> steps = program->steps();
  for (const StepInfo& step : steps) {
    EXPECT_FALSE(step.kernel.empty());
    ASSERT_FALSE(step.nodes.empty());
    for (const models::NodeId node : step.nodes) {
      EXPECT_TRUE(covered.insert(node).second) << node << " is in two steps";
    }
  }
  EXPECT_EQ(covered, (std::set<models::NodeId>{1, 2}));
  EXPECT_EQ(steps.size(), program->Describe().size());
}

}  // namespace
}  // namespace refract::runtime

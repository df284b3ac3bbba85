// Models whose requests differ in other sizes than the batch, on a GPU that
// exists in this process only (cuda_node.h).

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_node/device/compile_for_cuda.h"
#include "gpu_node/device/device_programs.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"
#include "tests/gpu_node/device/cuda_node.h"

namespace refract::gpu_node {
namespace {

using models::SymExpr;
using models::ValueRef;
using runtime::cuda::Instance;
using runtime::cuda_plan::SizeValues;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_models::AddNode;
using testing_models::AddValue;

constexpr int64_t kWidth = kDense + kDim;

// out[b] = Σ_t relu(fc · history[b, t] + bias) where t < lengths[b]: all of it
// on the HN. `most`: of T; 0: it declares none.
models::Graph StepGraph(int64_t most) {
  constexpr auto kFloat = base::DType::kFloat32;
  const SymExpr batch = SymExpr::Symbol("B");
  const SymExpr steps = SymExpr::Symbol("T");
  models::Graph graph;
  graph.batch_symbol = "B";
  graph.symbols = {{.symbol = "B", .min = 1, .max = 100000}};
  if (most > 0) graph.symbols.push_back({"T", 1, most});
  const auto history =
      AddValue(graph, "history", kFloat, {batch, steps, kWidth});
  const auto lengths = AddValue(graph, "lengths", base::DType::kInt64, {batch});
  const auto fc = AddValue(graph, "fc", kFloat, {1, kWidth}, "fc");
  const auto bias = AddValue(graph, "bias", kFloat, {1}, "bias");
  const auto linear = AddValue(graph, "linear", kFloat, {batch, steps, 1});
  const auto relu = AddValue(graph, "relu", kFloat, {batch, steps, 1});
  const auto line = AddValue(graph, "line", kFloat, {batch, steps});
  const auto size = graph.AddValue({.name = "size"});
  graph.values[size].kind = models::ValueKind::kSymInt;
  graph.values[size].sym_value = steps;
  const auto counting =
      AddValue(graph, "counting", base::DType::kInt64, {steps});
  const auto column =
      AddValue(graph, "column", base::DType::kInt64, {batch, 1});
  const auto mask = AddValue(graph, "mask", base::DType::kBool, {batch, steps});
  const auto zero = AddValue(graph, "zero", kFloat, {batch, steps});
  const auto kept = AddValue(graph, "kept", kFloat, {batch, steps});
  const auto out = AddValue(graph, "out", kFloat, {batch});
  graph.inputs = {history, lengths};
  AddNode(graph, "aten.linear.default",
          {{"input", ValueRef{history}},
           {"weight", ValueRef{fc}},
           {"bias", ValueRef{bias}}},
          linear);
  AddNode(graph, "aten.relu.default", {{"self", ValueRef{linear}}}, relu);
  AddNode(graph, "aten.squeeze.dim",
          {{"self", ValueRef{relu}}, {"dim", int64_t{2}}}, line);
  AddNode(graph, "aten.sym_size.int",
          {{"self", ValueRef{history}}, {"dim", int64_t{1}}}, size);
  AddNode(graph, "aten.arange.default", {{"end", ValueRef{size}}}, counting);
  AddNode(graph, "aten.unsqueeze.default",
          {{"self", ValueRef{lengths}}, {"dim", int64_t{1}}}, column);
  AddNode(graph, "aten.lt.Tensor",
          {{"self", ValueRef{counting}}, {"other", ValueRef{column}}}, mask);
  AddNode(graph, "aten.mul.Scalar", {{"self", ValueRef{line}}, {"other", 0.0}},
          zero);
  AddNode(graph, "aten.where.self",
          {{"condition", ValueRef{mask}},
           {"self", ValueRef{line}},
           {"other", ValueRef{zero}}},
          kept);
  AddNode(graph, "aten.sum.dim_IntList",
          {{"self", ValueRef{kept}},
           {"dim", models::IntList{models::IntOrValue{.literal = 1}}}},
          out);
  graph.outputs = {out};
  graph.output_names = {"out"};
  return graph;
}

std::shared_ptr<models::LoadedModel> StepModel(int64_t most = 12) {
  return NewHnModel("steps", StepGraph(most));
}

std::unique_ptr<Exchange> StepRequest(int64_t rows, int64_t steps,
                                      std::mt19937& random) {
  std::uniform_real_distribution<float> values(-1, 1);
  auto exchange = std::make_unique<Exchange>();
  exchange->rows = rows;
  exchange->inputs.push_back(
      Allocate(base::DType::kFloat32, {rows, steps, kWidth}));
  for (float& value : exchange->inputs[0].as<float>()) value = values(random);
  exchange->inputs.push_back(Allocate(base::DType::kInt64, {rows}));
  for (int64_t& length : exchange->inputs[1].as<int64_t>()) {
    length = static_cast<int64_t>(random() % (steps + 2));
  }
  return exchange;
}

TEST(CudaSizesTest, RequestsOfManySizesAloneTogetherAndInPieces) {
  GpuNodeOptions options = Batching();
  options.instances = 2;
  CudaNode cuda({StepModel()}, options);
  ASSERT_EQ(cuda.node().served().size(), 1u);
  std::vector<std::unique_ptr<Exchange>> requests;
  for (int i = 0; i < 60; ++i) {
    const auto rows = static_cast<int64_t>(
        i % 7 == 0 ? 9 + cuda.random()() % 20 : 1 + cuda.random()() % 4);
    const auto steps =
        static_cast<int64_t>(i % 3 == 0 ? 5 : 1 + cuda.random()() % 12);
    requests.push_back(StepRequest(rows, steps, cuda.random()));
    cuda.Send(*requests.back());
  }
  for (const auto& request : requests) cuda.Expect(*request);
  EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
  EXPECT_EQ(cuda.node().stats().succeeded, requests.size());
  EXPECT_THAT(cuda.api().violations(), IsEmpty());
}

// Rows that mix have no buckets, and the batch is a size like the steps.
TEST(CudaSizesTest, RowsThatMixHaveAProgramPerBatch) {
  models::Graph graph = StepGraph(12);
  constexpr auto kFloat = base::DType::kFloat32;
  const auto sum = AddValue(graph, "sum", kFloat, {1});
  const auto shifted =
      AddValue(graph, "shifted", kFloat, {SymExpr::Symbol("B")});
  AddNode(graph, "aten.sum.dim_IntList",
          {{"self", ValueRef{graph.outputs[0]}},
           {"dim", models::IntList{models::IntOrValue{.literal = 0}}},
           {"keepdim", true}},
          sum);
  AddNode(graph, "aten.sub.Tensor",
          {{"self", ValueRef{graph.outputs[0]}}, {"other", ValueRef{sum}}},
          shifted);
  graph.outputs = {shifted};
  for (const bool declared : {true, false}) {
    CudaDevice::Options cuda_options;
    cuda_options.max_size = 5;
    if (!declared) graph.symbols.pop_back();
    CudaNode cuda({NewHnModel("steps", graph)}, Batching(), int64_t{1} << 26,
                  false, cuda_options);
    ASSERT_EQ(cuda.node().served().size(), 1u);
    std::vector<std::unique_ptr<Exchange>> requests;
    for (int i = 0; i < 40; ++i) {
      // A declared history has a step at least.
      const int64_t least = declared ? 1 : 0;
      requests.push_back(
          StepRequest(1 + i % 5, least + cuda.random()() % 5, cuda.random()));
      cuda.Send(*requests.back());
    }
    for (const auto& request : requests) cuda.Expect(*request);
    const auto large = StepRequest(6, 3, cuda.random());
    cuda.Send(*large);
    large->done.WaitForNotification();
    EXPECT_EQ(large->status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(large->status.message()),
        HasSubstr("size B is 6, more than the 5 that the device has memory"));
    EXPECT_THAT(cuda.api().violations(), IsEmpty());
  }
}

TEST(CudaSizesTest, MemoryIsReservedOnce) {
  CudaNode cuda({StepModel()}, Batching());
  const int64_t free = cuda.api().Memory()->free_bytes;
  for (int64_t steps = 1; steps <= 12; ++steps) {
    const auto request = StepRequest(8, steps, cuda.random());
    cuda.Send(*request);
    cuda.Expect(*request);
  }
  EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
  EXPECT_EQ(cuda.api().Memory()->free_bytes, free);
}

TEST(CudaSizesTest, ASizeBeyondItsLimitFailsItsRequestByName) {
  struct {
    int64_t declared, steps;
    std::vector<std::string> says;
  } const cases[] = {
      {12, 13, {"T", "13", "12"}},
      {0,
       31,
       {"input 'history': size T is 31, more than the 30", "--max-size"}},
  };
  for (const auto& c : cases) {
    CudaDevice::Options cuda_options;
    cuda_options.max_size = 30;
    CudaNode cuda({StepModel(c.declared)}, Batching(), int64_t{1} << 26, false,
                  cuda_options);
    const auto good = StepRequest(2, c.steps - 1, cuda.random());
    const auto bad = StepRequest(2, c.steps, cuda.random());
    cuda.Send(*good);
    cuda.Send(*bad);
    cuda.Expect(*good);
    bad->done.WaitForNotification();
    EXPECT_EQ(bad->status.code(), absl::StatusCode::kInvalidArgument);
    for (const std::string& word : c.says) {
      EXPECT_THAT(std::string(bad->status.message()), HasSubstr(word));
    }
    EXPECT_THAT(cuda.api().violations(), IsEmpty());
  }
}

// A size of 0 has no program: the CPU answers.
TEST(CudaSizesTest, NothingInAHistory) {
  CudaNode cuda({StepModel(0)}, Batching());
  std::vector<std::unique_ptr<Exchange>> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(
        StepRequest(2 + 9 * (i % 2), i % 3 == 0 ? 4 : 0, cuda.random()));
    cuda.Send(*requests.back());
  }
  for (const auto& request : requests) cuda.Expect(*request);
  EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
  EXPECT_EQ(cuda.node().stats().succeeded, requests.size());
  EXPECT_THAT(cuda.api().violations(), IsEmpty());
}

// Where there is little memory, large sizes have few rows at a time.
TEST(CudaSizesTest, FewRowsAtATimeWhereMemoryIsShort) {
  CudaDevice::Options cuda_options;
  cuda_options.sized_memory = 4096;
  CudaNode cuda({StepModel(40)}, Batching(), int64_t{1} << 26, false,
                cuda_options);
  for (const int64_t steps : {40, 1, 20, 40}) {
    const auto request = StepRequest(19, steps, cuda.random());
    cuda.Send(*request);
    cuda.Expect(*request);
  }
  EXPECT_THAT(cuda.api().violations(), IsEmpty());
}

TEST(CudaSizesTest, ErrorsOfTheDeviceEndTheInstanceWhichStartsAgain) {
  for (const runtime::cuda::Code code :
       {runtime::cuda::Code::kInternal, runtime::cuda::Code::kUnavailable}) {
    CudaNode cuda({StepModel()}, Batching());
    for (int n = 1; n < 40; n += 3) {
      SCOPED_TRACE(absl::StrCat("call ", n));
      ASSERT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
      cuda.AwaitReady();
      cuda.api().FailCall(n, code);
      for (int64_t steps = 1; steps <= 3; ++steps) {
        const auto request = StepRequest(2, steps, cuda.random());
        cuda.Send(*request);
        request->done.WaitForNotification();
        if (request->status.ok()) {
          cuda.Expect(*request);
        } else {
          EXPECT_EQ(request->status.code(), absl::StatusCode::kUnavailable)
              << request->status;
        }
      }
    }
    EXPECT_THAT(cuda.api().violations(), IsEmpty());
  }
}

// Programs alone, without node.
class CudaProgramsTest : public ::testing::Test {
 protected:
  CudaProgramsTest() : device_(seed_), random_(seed_) {}
  void Make(DevicePrograms::Options options) {
    options.max_rows = kMaxRows;
    options.workspace_bytes = 256;
    model_ = StepModel();
    const auto part = runtime::Part::Hn(model_->graph, *model_->plan);
    auto programs = DevicePrograms::Create(
        model_->graph, part, model_->weights,
        {.model = "steps", .device = "cuda:0", .compile = {}}, options);
    ASSERT_TRUE(programs.ok()) << programs.status();
    programs_ = *std::move(programs);
    for (int i = 0; i < options.instances; ++i) {
      auto instance = Instance::Create(device_, programs_->first().program,
                                       programs_->first().weights,
                                       programs_->instance_options());
      ASSERT_TRUE(instance.ok()) << instance.status().ToString();
      instances_.push_back(*std::move(instance));
      ASSERT_TRUE(instances_.back()->Load().ok());
    }
  }

  const unsigned seed_ = base::RandomSeed();
  CheckedDevice device_;
  std::mt19937 random_;
  std::shared_ptr<models::LoadedModel> model_;
  std::unique_ptr<DevicePrograms> programs_;
  std::vector<std::unique_ptr<Instance>> instances_;
};

TEST_F(CudaProgramsTest, SoManyAreKeptThoseUsedLast) {
  Make({.max_programs = 3});
  Instance& instance = *instances_[0];
  std::vector<int64_t> recent;  // sizes, the last one used at the end
  for (int i = 0; i < 300; ++i) {
    const auto steps = static_cast<int64_t>(1 + random_() % 6);
    const auto known = std::find(recent.begin(), recent.end(), steps);
    const auto use = programs_->At({steps}, 0, instance);
    ASSERT_TRUE(use.ok()) << use.status();
    EXPECT_GE(use->max_rows, 1);
    EXPECT_TRUE(use->by_rows);
    const runtime::cuda::DeviceProgram& program = use->translation->program;
    EXPECT_EQ(program.value(program.inputs[0]).rows.per_item *
                  program.value(program.inputs[0]).cols,
              steps * kWidth);
    if (known != recent.end()) recent.erase(known);
    recent.push_back(steps);
    if (recent.size() > 3) recent.erase(recent.begin());
    EXPECT_EQ(programs_->size(), recent.size() + 1);
    // Kept programs are not made again: their ids stay.
    for (const int64_t kept : recent) {
      const auto again = programs_->At({kept}, 0, instance);
      ASSERT_TRUE(again.ok());
      EXPECT_GT(instance.MaxBatch(again->id), 0);
    }
  }
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(CudaProgramsTest, WhatIsInUseStays) {
  Make({.max_programs = 2});
  Instance& instance = *instances_[0];
  const auto one = programs_->At({1}, 0, instance);
  ASSERT_TRUE(one.ok());
  const auto slot = instance.Acquire(1, one->id);
  ASSERT_TRUE(slot.ok());
  ASSERT_TRUE(programs_->At({2}, 0, instance).ok());
  ASSERT_TRUE(programs_->At({3}, 0, instance).ok());
  EXPECT_GT(instance.MaxBatch(one->id), 0);
  const auto three = programs_->At({3}, 0, instance);
  ASSERT_TRUE(three.ok());
  const auto other = instance.Acquire(1, three->id);
  ASSERT_TRUE(other.ok());
  EXPECT_THAT(std::string(programs_->At({4}, 0, instance).status().message()),
              HasSubstr("2 combinations of sizes are in use"));
  instance.Release(*slot);
  EXPECT_TRUE(programs_->At({4}, 0, instance).ok());
  instance.Release(*other);
}

TEST_F(CudaProgramsTest, EachInstanceHasThemAndLosesThemWithItsMemory) {
  Make({.instances = 2, .max_programs = 4});
  for (int round = 0; round < 20; ++round) {
    const size_t i = random_() % 2;
    const auto steps = static_cast<int64_t>(1 + random_() % 8);
    const auto use = programs_->At({steps}, i, *instances_[i]);
    ASSERT_TRUE(use.ok()) << use.status();
    EXPECT_EQ(instances_[i]->MaxBatch(use->id), use->max_rows);
    if (random_() % 4 == 0) {
      instances_[i]->Unload();
      ASSERT_TRUE(instances_[i]->Load().ok());
    }
  }
  instances_.clear();
  EXPECT_EQ(device_.live(), 0u);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(CudaProgramsTest, SaysWhatItReserves) {
  Make({});
  EXPECT_EQ(programs_->Describe(),
            "T (of input 'history') up to 12, 8 rows at these sizes");
  EXPECT_EQ(programs_->TypicalSizes(), SizeValues{12});
}

// `refract run`.
TEST(CudaSizesTest, RunsWithWhateverSizesARequestHas) {
  const auto model = StepModel(0);
  const auto part = runtime::Part::Hn(model->graph, *model->plan);
  auto device = std::make_shared<CheckedDevice>(1);
  const auto gpu = CompileForCuda(
      device, model->graph, part, model->weights,
      {.model = "steps", .device = "cuda:0", .max_rows = 8, .compile = {}});
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const auto cpu =
      runtime::Program::Compile(model->graph, part, model->weights, {});
  ASSERT_TRUE(cpu.ok());
  std::mt19937 random(1);
  for (const auto& [rows, steps] :
       {std::pair{1, 3}, {2, 3}, {3, 0}, {20, 3}, {3, 2000}, {1, 1}}) {
    const auto request = StepRequest(rows, steps, random);
    std::vector<base::TensorView> inputs;
    for (const base::Tensor& input : request->inputs) {
      inputs.push_back(input.view());
    }
    std::vector<base::TensorView> want, got;
    runtime::RunContext cpu_context(**cpu), gpu_context(**gpu);
    ASSERT_EQ((*cpu)->Run(inputs, {}, cpu_context, want), absl::OkStatus());
    ASSERT_EQ((*gpu)->Run(inputs, {}, gpu_context, got), absl::OkStatus());
    ASSERT_EQ(got.size(), want.size());
    ASSERT_EQ(got[0].dims, want[0].dims);
    for (int64_t i = 0; i < want[0].num_elements(); ++i) {
      const float expected = want[0].as<float>()[i];
      EXPECT_NEAR(got[0].as<float>()[i], expected,
                  1e-5 * std::max(1.0f, std::abs(expected)));
    }
  }
  EXPECT_THAT(device->violations(), IsEmpty());
}

}  // namespace
}  // namespace refract::gpu_node

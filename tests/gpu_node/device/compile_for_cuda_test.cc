// Requests run whole and split with a GPU that exists in this process only,
// beside the same on the CPU.

#include "gpu_node/device/compile_for_cuda.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/split_run.h"
#include "tests/base/random_seed.h"
#include "tests/cpu_node/small_model.h"
#include "tests/runtime/cuda/testing/checked_device.h"

namespace refract::gpu_node {
namespace {

using runtime::RequestRunner;
using runtime::cuda::testing::CheckedDevice;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_models::kDense;
using testing_models::kRows;

class CompileForCudaTest : public ::testing::Test {
 protected:
  CompileForCudaTest() : random_(seed_) {}

  RequestRunner::Compiler OnGpu() {
    return [this](const models::Graph& graph, const runtime::Part& part,
                  std::shared_ptr<const models::WeightStore> weights,
                  const runtime::CompileOptions& compile) {
      return CompileForCuda(device_, graph, part, std::move(weights),
                            {.model = "small",
                             .device = "cuda:0",
                             .max_rows = 8,
                             .compile = compile});
    };
  }
  std::vector<base::Tensor> Request(int64_t rows) {
    std::vector<base::Tensor> inputs;
    inputs.push_back(
        *base::Tensor::Allocate(base::DType::kFloat32, {rows, kDense}));
    std::uniform_real_distribution<float> values(-1, 1);
    for (float& value : inputs[0].as<float>()) value = values(random_);
    inputs.push_back(*base::Tensor::Allocate(base::DType::kInt64, {rows}));
    for (int64_t& id : inputs[1].as<int64_t>()) {
      id = static_cast<int64_t>(random_() % kRows);
    }
    return inputs;
  }
  static std::vector<base::TensorView> ViewsOf(
      const std::vector<base::Tensor>& tensors) {
    std::vector<base::TensorView> views;
    for (const base::Tensor& tensor : tensors) views.push_back(tensor.view());
    return views;
  }
  void ExpectSame(RequestRunner& cpu, RequestRunner& gpu) {
    for (const int64_t rows : {1, 3, 8, 9, 30}) {
      SCOPED_TRACE(rows);
      const std::vector<base::Tensor> inputs = Request(rows);
      const auto want = cpu.Run(ViewsOf(inputs));
      const auto got = gpu.Run(ViewsOf(inputs));
      ASSERT_TRUE(want.ok()) << want.status();
      ASSERT_TRUE(got.ok()) << got.status();
      ASSERT_EQ(got->size(), want->size());
      for (size_t i = 0; i < want->size(); ++i) {
        const auto a = (*got)[i].view().as<float>();
        const auto b = (*want)[i].view().as<float>();
        ASSERT_EQ((*got)[i].view().dims, (*want)[i].view().dims);
        for (size_t e = 0; e < b.size(); ++e) EXPECT_NEAR(a[e], b[e], 1e-5);
      }
    }
    EXPECT_THAT(device_->violations(), IsEmpty());
  }

  const unsigned seed_ = base::RandomSeed();
  std::mt19937 random_;
  std::shared_ptr<CheckedDevice> device_ =
      std::make_shared<CheckedDevice>(seed_);
  models::LoadedModel model_ = *testing_models::MakeSmallModel({});
};

TEST_F(CompileForCudaTest, AWholeModelAndAnHnPart) {
  auto cpu = RequestRunner::Whole(model_.graph, model_.weights, {});
  auto gpu = RequestRunner::Whole(model_.graph, model_.weights, {}, OnGpu());
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  ExpectSame(**cpu, **gpu);
  EXPECT_THAT((*gpu)->programs()[0]->Describe(), ::testing::Not(IsEmpty()));
  EXPECT_GT(device_->graph_launches(), 0);
  auto split = RequestRunner::Split(model_.graph, *model_.plan, model_.weights,
                                    {}, OnGpu());
  ASSERT_TRUE(split.ok()) << split.status();
  ExpectSame(**cpu, **split);
}

TEST_F(CompileForCudaTest, ABadIdIsTheRequestsFault) {
  auto gpu = RequestRunner::Whole(model_.graph, model_.weights, {}, OnGpu());
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  std::vector<base::Tensor> inputs = Request(20);
  inputs[1].as<int64_t>()[13] = kRows;
  const auto result = (*gpu)->Run(ViewsOf(inputs));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("1 ids are outside their tables"));
  EXPECT_TRUE((*gpu)->Run(ViewsOf(Request(20))).ok());
}

TEST_F(CompileForCudaTest, RowsThatDependOnEachOtherHaveAProgramPerBatch) {
  // The mean over all rows of the request.
  models::Graph& graph = model_.graph;
  graph.nodes[5].op = "aten.mean.dim";
  graph.nodes[5].args = {{"self", models::ValueRef{graph.FindValue("rows")}},
                         {"dim", models::IntList{{.literal = 0}}},
                         {"keepdim", true}};
  graph.values[graph.FindValue("twice")].shape[0] = models::SymExpr(1);
  auto cpu = RequestRunner::Whole(graph, model_.weights, {});
  auto gpu = RequestRunner::Whole(graph, model_.weights, {}, OnGpu());
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  for (const int64_t rows : {1, 5, 8, 5, 30}) {
    const std::vector<base::Tensor> inputs = Request(rows);
    const auto want = (*cpu)->Run(ViewsOf(inputs));
    const auto got = (*gpu)->Run(ViewsOf(inputs));
    ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
    const auto a = (*got)[2].view().as<float>();
    const auto b = (*want)[2].view().as<float>();
    ASSERT_EQ(a.size(), b.size());
    for (size_t e = 0; e < b.size(); ++e) EXPECT_NEAR(a[e], b[e], 1e-5);
  }
  EXPECT_THAT(device_->violations(), IsEmpty());
}

// Entries that grow with the rows, in bags that count from a request's first
// one and whose last end is the request's: such a request is not cut.
TEST_F(CompileForCudaTest, OffsetsThatCannotBeMoved) {
  constexpr int64_t kEach = 2;
  const auto batch = models::SymExpr::Symbol("B");
  models::Graph graph;
  graph.batch_symbol = "B";
  graph.symbols = {{.symbol = "B", .min = 1, .max = 100000}};
  using testing_models::AddValue;
  const auto ids = AddValue(graph, "ids", base::DType::kInt64,
                            {batch * models::SymExpr(kEach)});
  const auto offsets = AddValue(graph, "offsets", base::DType::kInt64, {batch});
  const auto table = AddValue(graph, "table", base::DType::kFloat32,
                              {kRows, testing_models::kDim}, "table");
  const auto sums = AddValue(graph, "sums", base::DType::kFloat32,
                             {batch, testing_models::kDim});
  graph.inputs = {ids, offsets};
  testing_models::AddNode(graph, "aten.embedding_bag.default",
                          {{"weight", models::ValueRef{table}},
                           {"indices", models::ValueRef{ids}},
                           {"offsets", models::ValueRef{offsets}},
                           {"mode", int64_t{0}}},
                          sums);
  graph.outputs = {sums};
  graph.output_names = {"sums"};
  auto cpu = RequestRunner::Whole(graph, model_.weights, {});
  auto gpu = RequestRunner::Whole(graph, model_.weights, {}, OnGpu());
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  for (const int64_t rows : {1, 4, 8, 9, 20}) {
    SCOPED_TRACE(rows);
    std::vector<base::Tensor> inputs;
    inputs.push_back(
        *base::Tensor::Allocate(base::DType::kInt64, {rows * kEach}));
    for (int64_t& id : inputs[0].as<int64_t>()) {
      id = static_cast<int64_t>(random_() % kRows);
    }
    // As many ids in all, in bags of other sizes.
    inputs.push_back(*base::Tensor::Allocate(base::DType::kInt64, {rows}));
    for (int64_t row = 0; row < rows; ++row) {
      inputs[1].as<int64_t>()[static_cast<size_t>(row)] = row * kEach + row % 2;
    }
    const auto got = (*gpu)->Run(ViewsOf(inputs));
    if (rows > 8) {
      EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(got.status().message()),
                  HasSubstr("cannot be run in pieces"));
      continue;
    }
    const auto want = (*cpu)->Run(ViewsOf(inputs));
    ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
    const auto a = (*got)[0].view().as<float>();
    const auto b = (*want)[0].view().as<float>();
    ASSERT_EQ(a.size(), b.size());
    for (size_t e = 0; e < b.size(); ++e) EXPECT_NEAR(a[e], b[e], 1e-5);
  }
  EXPECT_THAT(device_->violations(), IsEmpty());
}

TEST_F(CompileForCudaTest, WhatCannotRunThereIsNamed) {
  model_.graph.nodes[3].op = "aten.sinc.default";
  const auto gpu =
      RequestRunner::Whole(model_.graph, model_.weights, {}, OnGpu());
  EXPECT_EQ(gpu.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(gpu.status().message()),
              HasSubstr("operator aten.sinc.default (node node_score) of model "
                        "small cannot run on cuda:0"));
  device_ = std::make_shared<CheckedDevice>(seed_, 1000);
  model_.graph.nodes[3].op = "aten.sigmoid.default";
  EXPECT_THAT(std::string(RequestRunner::Whole(model_.graph, model_.weights, {},
                                               OnGpu())
                              .status()
                              .message()),
              HasSubstr("1000 of 1000 on the device are free"));
}

}  // namespace
}  // namespace refract::gpu_node

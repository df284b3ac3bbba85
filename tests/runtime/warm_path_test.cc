// A warm context allocates nothing for native kernels: counted by replacing the
// allocation functions of this program.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "tests/runtime/testing/run.h"

namespace {
std::atomic<bool> counting = false;
std::atomic<int> allocations = 0;

void* Allocate(std::size_t size) {
  if (counting) ++allocations;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }
void* operator new[](std::size_t size) { return Allocate(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return Allocate(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return Allocate(size);
}
// The allocator of aligned buffers.
extern "C" int posix_memalign(void** memory, std::size_t alignment,
                              std::size_t size) noexcept {
  if (counting) ++allocations;
  *memory = std::aligned_alloc(alignment,
                               (size + alignment - 1) / alignment * alignment);
  return *memory == nullptr ? ENOMEM : 0;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace refract::runtime {
namespace {

using base::DType;
using base::TensorView;
using models::SymExpr;
using testing::Bool;
using testing::Float;
using testing::GraphBuilder;
using testing::Int;
using testing::Ints;
using testing::List;
using testing::MakeTensor;
using testing::Must;
using testing::MustBeOk;
using testing::Ref;
using testing::Sym;

// Every family of native kernel, views and sizes; nothing for LibTorch.
void BuildNativeGraph(GraphBuilder& builder) {
  const SymExpr b = Sym("b");
  const auto table =
      builder.Weight<float>("t", {8, 4}, std::vector<float>(32, 1.0f));
  const auto dense = builder.Input("dense", DType::kFloat32, {b, 4});
  const auto ids = builder.Input("ids", DType::kInt64, {Sym("n")});
  const auto offsets =
      builder.Input("offsets", DType::kInt64, {b + SymExpr(1)});
  const auto one = builder.Input("one", DType::kInt64, {b});
  const GraphBuilder::Result rows = {DType::kFloat32, {b, 4}};
  const auto bag =
      builder.Node("aten.embedding_bag.default",
                   {Ref("weight", table), Ref("indices", ids),
                    Ref("offsets", offsets), Bool("include_last_offset", true)},
                   rows);
  builder.graph().nodes[0].outputs.resize(4, models::kNoValue);
  const auto row =
      builder.Node("aten.embedding.default",
                   {Ref("weight", table), Ref("indices", one)}, rows);
  const auto joined = builder.Node(
      "aten.cat.default", {List("tensors", {dense, bag, row}), Int("dim", 1)},
      {DType::kFloat32, {b, 12}});
  const auto turned = builder.Node("aten.permute.default",
                                   {Ref("self", joined), Ints("dims", {1, 0})},
                                   {DType::kFloat32, {12, b}});
  const auto count =
      builder.Node("aten.sym_size.int", {Ref("self", dense), Int("dim", 0)},
                   {DType::kInt64, {}, models::ValueKind::kSymInt});
  const auto twice =
      builder.Node("py.mul", {Ref("a", count), Int("b", 2)},
                   {DType::kInt64, {}, models::ValueKind::kSymInt});
  const auto flat = builder.Node(
      "aten.view.default",
      {Ref("self", turned),
       {"size", models::IntList{{6, models::kNoValue}, {0, twice}}}},
      {DType::kFloat32, {6, SymExpr(2) * b}});
  const auto scaled =
      builder.Node("aten.mul.Tensor", {Ref("self", flat), Float("other", 0.5)},
                   {DType::kFloat32, {6, SymExpr(2) * b}});
  builder.Output(builder.Node("aten.relu.default", {Ref("self", scaled)},
                              {DType::kFloat32, {6, SymExpr(2) * b}}));
  builder.Output(twice);
  // A product with fused neighbours: gathered and computed columns, a row
  // shared by all, and a function of the sums.
  const auto columns = builder.Input("columns", DType::kFloat32, {b, 100});
  const auto all =
      builder.Weight<float>("all", {1, 3}, std::vector<float>(3, 0.25f));
  const auto expanded = builder.Node(
      "aten.expand.default",
      {Ref("self", all), {"size", models::IntList{{0, count}, {3}}}},
      {DType::kFloat32, {b, 3}});
  const auto halved = builder.Node(
      "aten.mul.Tensor", {Ref("self", bag), Float("other", 0.5)}, rows);
  const auto features = builder.Node(
      "aten.cat.default",
      {List("tensors", {expanded, columns, row, halved}), Int("dim", 1)},
      {DType::kFloat32, {b, 111}});
  const auto wide =
      builder.Weight<float>("wide", {20, 111}, std::vector<float>(2220, 0.1f));
  const GraphBuilder::Result narrow = {DType::kFloat32, {b, 20}};
  const auto mixed =
      builder.Node("aten.linear.default",
                   {Ref("input", features), Ref("weight", wide)}, narrow);
  builder.Output(
      builder.Node("aten.sigmoid.default", {Ref("self", mixed)}, narrow));
  // A product with weights, and one without, whose rows alias in the cache.
  const auto weight =
      builder.Weight<float>("w", {256, 4}, std::vector<float>(1024, 0.5f));
  const auto layer = builder.Node("aten.linear.default",
                                  {Ref("input", dense), Ref("weight", weight)},
                                  {DType::kFloat32, {b, 256}});
  const auto square = builder.Node("aten.permute.default",
                                   {Ref("self", layer), Ints("dims", {1, 0})},
                                   {DType::kFloat32, {256, b}});
  const auto products =
      builder.Node("aten.mm.default", {Ref("self", layer), Ref("mat2", square)},
                   {DType::kFloat32, {b, b}});
  const auto soft =
      builder.Node("aten.softmax.int", {Ref("self", products), Int("dim", 1)},
                   {DType::kFloat32, {b, b}});
  builder.Output(builder.Node("aten.sigmoid.default", {Ref("self", soft)},
                              {DType::kFloat32, {b, b}}));
  // A recurrence over columns as steps.
  const auto steps = builder.Node(
      "aten.view.default", {Ref("self", columns), Ints("size", {-1, 25, 4})},
      {DType::kFloat32, {b, 25, 4}});
  const auto state = builder.Node(
      "aten.view.default", {Ref("self", dense), Ints("size", {1, -1, 4})},
      {DType::kFloat32, {1, b, 4}});
  const auto gates =
      builder.Weight<float>("gates", {12, 4}, std::vector<float>(48, 0.5f));
  builder.Output(builder.Nodes(
      "aten.gru.input",
      {Ref("input", steps), Ref("hx", state), List("params", {gates, gates}),
       Bool("has_biases", false), Int("num_layers", 1), Float("dropout", 0),
       Bool("train", false), Bool("bidirectional", false),
       Bool("batch_first", true)},
      {{DType::kFloat32, {b, 25, 4}}, {DType::kFloat32, {1, b, 4}}})[0]);
  // Batches that broadcast: one per product, and one over all rows.
  for (const int64_t batch : {1, 25}) {
    const auto matrices = builder.Weight<float>(
        absl::StrCat("matrices", batch), {batch, 4, 7},
        std::vector<float>(static_cast<size_t>(batch) * 28, 0.5f));
    const auto vectors =
        builder.Node("aten.view.default",
                     {Ref("self", columns), Ints("size", {-1, 25, 1, 4})},
                     {DType::kFloat32, {b, 25, 1, 4}});
    builder.Output(builder.Node("aten.matmul.default",
                                {Ref("self", vectors), Ref("other", matrices)},
                                {DType::kFloat32, {b, 25, 1, 7}}));
  }
  builder.graph().batch_symbol = "b";
}

std::vector<base::Tensor> Request(int64_t batch) {
  std::vector<base::Tensor> inputs;
  inputs.push_back(
      MakeTensor<float>({batch, 4}, std::vector<float>(batch * 4, 2.0f)));
  inputs.push_back(
      MakeTensor<int64_t>({batch}, std::vector<int64_t>(batch, 3)));
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i <= batch; ++i) offsets.push_back(i);
  inputs.push_back(MakeTensor<int64_t>({batch + 1}, offsets));
  inputs.push_back(
      MakeTensor<int64_t>({batch}, std::vector<int64_t>(batch, 7)));
  inputs.push_back(
      MakeTensor<float>({batch, 100}, std::vector<float>(batch * 100, 0.5f)));
  return inputs;
}

TEST(WarmPathTest, AllocatesNothingForNativeKernels) {
  GraphBuilder builder;
  BuildNativeGraph(builder);
  for (const std::string& kernel : testing::KernelsOf(builder)) {
    ASSERT_NE(kernel, "libtorch");
  }
  const models::Graph& graph = builder.graph();
  const auto program =
      Must(Program::Compile(graph, Part::Whole(graph), builder.Weights(), {}));
  RunContext context(*program);
  allocations = 0;
  std::vector<TensorView> outputs;
  const auto large = Request(100);
  const auto small = Request(65);
  const auto huge = Request(300);
  const auto large_views = testing::Views(large);
  const auto small_views = testing::Views(small);
  base::AlignedBuffer place(100 * 12 * sizeof(float));
  const std::vector<std::byte*> destinations = {place.data(), nullptr};
  MustBeOk(program->Run(large_views, {}, context, outputs));
  const uint64_t growths = context.buffer_growths();
  EXPECT_GT(growths, 0);

  counting = true;
  const bool ok =
      program->Run(large_views, {}, context, outputs).ok() &&
      program->Run(small_views, {}, context, outputs).ok() &&
      program->Run(large_views, destinations, context, outputs).ok();
  counting = false;
  EXPECT_TRUE(ok);
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(context.buffer_growths(), growths);
  EXPECT_EQ(outputs[0].data, place.data());
  for (float value : outputs[0].as<float>()) {
    ASSERT_TRUE(value == 1.0f || value == 0.5f);
  }

  MustBeOk(program->Run(testing::Views(huge), {}, context, outputs));
  EXPECT_GT(context.buffer_growths(), growths);
}

// A product of one item skips zeros, whose number changes.
TEST(WarmPathTest, AllocatesNothingHoweverManyZerosThereAre) {
  constexpr int64_t kTerms = 4096;
  constexpr int64_t kColumns = 128;
  GraphBuilder builder;
  builder.graph().batch_symbol = "b";
  const auto x = builder.Input("x", DType::kFloat32, {Sym("b"), kTerms});
  const auto w = builder.Weight<float>(
      "w", {kColumns, kTerms}, std::vector<float>(kColumns * kTerms, 0.5f));
  builder.Output(builder.Node("aten.linear.default",
                              {Ref("input", x), Ref("weight", w)},
                              {DType::kFloat32, {Sym("b"), kColumns}}));
  const models::Graph& graph = builder.graph();
  const auto program =
      Must(Program::Compile(graph, Part::Whole(graph), builder.Weights(), {}));
  const auto run = [&] {
    RunContext context(*program);
    std::vector<TensorView> outputs;
    for (const int64_t ones : {4096, 10, 3000, 200, 2500, 0}) {
      std::vector<float> values(kTerms, 0.0f);
      std::fill_n(values.begin(), ones, 1.0f);
      std::vector<base::Tensor> inputs;
      inputs.push_back(MakeTensor<float>({1, kTerms}, values));
      const auto views = testing::Views(inputs);
      counting = ones != kTerms;  // the first request warms
      const bool ok = program->Run(views, {}, context, outputs).ok();
      counting = false;
      ASSERT_TRUE(ok);
      for (const float sum : outputs[0].as<float>()) {
        ASSERT_EQ(sum, 0.5f * static_cast<float>(ones));
      }
    }
  };
  allocations = 0;
  // Another test may have warmed this thread.
  std::thread(run).join();
  EXPECT_EQ(allocations, 0);
}

}  // namespace
}  // namespace refract::runtime

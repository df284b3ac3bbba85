#include "runtime/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/split_run.h"
#include "tests/base/limited_memory.h"
#include "tests/runtime/testing/run.h"
#include "tests/runtime/testing/small_dlrm.h"

namespace refract::runtime {
namespace {

using base::DType;
using base::TensorView;
using ::testing::ElementsAre;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Int;
using testing::Ints;
using testing::MakeTensor;
using testing::Must;
using testing::MustBeOk;
using testing::Ref;
using testing::SmallDlrm;
using testing::Sym;
using testing::Views;

std::unique_ptr<const Program> CompileWhole(
    GraphBuilder& builder, const CompileOptions& options = {}) {
  const models::Graph& graph = builder.graph();
  return Must(
      Program::Compile(graph, Part::Whole(graph), builder.Weights(), options));
}

void ExpectNear(const base::Tensor& actual, const std::vector<double>& wanted,
                double tolerance) {
  const auto values = actual.view().as<float>();
  ASSERT_EQ(values.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(values[i], wanted[i], tolerance) << i;
  }
}

TEST(ProgramTest, WholeMatchesTheDefinitionAndSplitMatchesWholeBitForBit) {
  SmallDlrm dlrm;
  const auto weights = dlrm.builder().Weights();
  const models::Graph& graph = dlrm.builder().graph();
  const models::SplitPlan plan = dlrm.Plan();
  EXPECT_TRUE(plan.uses_hn());
  auto whole = Must(RequestRunner::Whole(graph, weights, {}));
  auto split = Must(RequestRunner::Split(graph, plan, weights, {}));
  for (int64_t batch : {1, 2, 33, 270, 7}) {
    SCOPED_TRACE(batch);
    const auto request = dlrm.Request(batch);
    const auto one = Must(whole->Run(Views(request)));
    const auto expected = dlrm.Reference(request);
    ExpectNear(one[0], expected.squeezed, 1e-5);
    ExpectNear(one[1], expected.scaled, 1e-5);
    EXPECT_TRUE(testing::SameBits(one[2], request[0]));
    ExpectNear(one[3], expected.bag0, 1e-5);
    EXPECT_EQ(one[4].dims(), base::Dims({1, SmallDlrm::kDim + 9}));
    const auto other = Must(split->Run(Views(request)));
    ASSERT_EQ(other.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(testing::SameBits(one[i], other[i])) << "output " << i;
    }
  }
}

TEST(ProgramTest, PlanWithoutHnRuns) {
  SmallDlrm dlrm;
  const auto weights = dlrm.builder().Weights();
  const models::Graph& graph = dlrm.builder().graph();
  const auto request = dlrm.Request(5);
  const auto whole =
      Must(Must(RequestRunner::Whole(graph, weights, {}))->Run(Views(request)));
  for (int last_stage : {0, 2}) {
    std::vector<int> stages(graph.nodes.size(), 0);
    for (size_t i = 9; i < stages.size(); ++i) stages[i] = last_stage;
    const auto plan = testing::PlanOf(graph, stages);
    auto split = Must(RequestRunner::Split(graph, plan, weights, {}));
    const auto out = Must(split->Run(Views(request)));
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(testing::SameBits(whole[i], out[i])) << "output " << i;
    }
  }
}

TEST(PartTest, CnPreHandsWhatCnPostReadsBehindWhatCrosses) {
  SmallDlrm dlrm;
  const models::Graph& graph = dlrm.builder().graph();
  const models::SplitPlan plan = dlrm.Plan();
  const auto names = [&](const std::vector<models::ValueId>& ids) {
    std::vector<std::string> result;
    for (models::ValueId id : ids) result.push_back(graph.value(id).name);
    return result;
  };
  const Part pre = Part::CnPre(graph, plan);
  EXPECT_THAT(names(pre.inputs),
              ElementsAre("dense", "ids_0", "ids_1", "offsets_0", "offsets_1"));
  // Up: dense and both bags; kept on the CN: dense and the first bag.
  EXPECT_THAT(names(pre.outputs),
              ElementsAre("dense", "v0_0", "v1_0", "dense", "v0_0"));
  const Part hn = Part::Hn(graph, plan);
  EXPECT_EQ(hn.inputs, plan.up);
  EXPECT_THAT(names(hn.outputs), ElementsAre("v11_0"));
  const Part post = Part::CnPost(graph, plan);
  EXPECT_THAT(names(post.inputs), ElementsAre("dense", "v0_0", "v11_0"));
  EXPECT_EQ(post.outputs, graph.outputs);
}

TEST(ProgramTest, WritesIntoDestinations) {
  SmallDlrm dlrm;
  const auto program = CompileWhole(dlrm.builder());
  RunContext context(*program);
  const auto request = dlrm.Request(9);
  std::vector<TensorView> plain;
  MustBeOk(program->Run(Views(request), {}, context, plain));
  std::vector<base::Tensor> expected;
  for (const TensorView& view : plain) {
    expected.push_back(Must(base::Tensor::CopyOf(view)));
  }
  const auto specs = Must(program->OutputSpecs(Views(request)));
  std::vector<base::Tensor> targets;
  std::vector<std::byte*> destinations;
  for (const auto& spec : specs) {
    ASSERT_TRUE(spec.has_value());
    targets.push_back(Must(base::Tensor::Allocate(spec->dtype, spec->dims)));
    destinations.push_back(targets.back().data());
  }
  destinations[1] = nullptr;
  std::vector<TensorView> outputs;
  MustBeOk(program->Run(Views(request), destinations, context, outputs));
  for (size_t i = 0; i < outputs.size(); ++i) {
    SCOPED_TRACE(i);
    if (i != 1) {
      EXPECT_EQ(outputs[i].data, destinations[i]);
    }
    EXPECT_EQ(outputs[i].dims, specs[i]->dims);
    ASSERT_EQ(outputs[i].bytes, expected[i].bytes());
    EXPECT_EQ(
        std::memcmp(outputs[i].data, expected[i].data(), outputs[i].bytes), 0);
  }
}

TEST(ProgramTest, MisalignedInputsGiveTheSameBits) {
  SmallDlrm dlrm;
  const auto program = CompileWhole(dlrm.builder());
  RunContext context(*program);
  const auto request = dlrm.Request(6);
  std::vector<TensorView> aligned;
  MustBeOk(program->Run(Views(request), {}, context, aligned));
  const auto expected = Must(base::Tensor::CopyOf(aligned[0]));
  std::vector<base::AlignedBuffer> moved;
  std::vector<TensorView> views = Views(request);
  for (TensorView& view : views) {
    moved.emplace_back(view.bytes + 8);
    std::memcpy(moved.back().data() + 8, view.data, view.bytes);
    view.data = moved.back().data() + 8;
  }
  std::vector<TensorView> outputs;
  MustBeOk(program->Run(views, {}, context, outputs));
  EXPECT_EQ(std::memcmp(outputs[0].data, expected.data(), expected.bytes()), 0);
  // An output that is an input is copied into the context's memory.
  EXPECT_NE(outputs[2].data, views[0].data);
}

TEST(ProgramTest, FoldsWhatDependsOnWeightsAlone) {
  SmallDlrm dlrm;
  const auto lines = CompileWhole(dlrm.builder())->Describe();
  // addmm and relu are one step; so are both bags, bmm with the transpose that
  // it reads, and the last layer with its cat and its sigmoid.
  EXPECT_EQ(lines.size(), dlrm.builder().graph().nodes.size() - 6);
  for (const std::string& line : lines) {
    EXPECT_THAT(line, ::testing::Not(HasSubstr("aten.permute")));
  }
  // A weight too large to fold: addmm reads it with its strides, to the same
  // bits.
  CompileOptions options;
  options.max_folded_bytes = 8;
  const auto request = dlrm.Request(3);
  EXPECT_EQ(CompileWhole(dlrm.builder(), options)->Describe().size(),
            dlrm.builder().graph().nodes.size() - 6);
  EXPECT_TRUE(testing::SameBits(
      Must(testing::RunWhole(dlrm.builder(), request))[0],
      Must(testing::RunWhole(dlrm.builder(), request, options))[0]));
}

// Resident kilobytes of mapped weight files in this process.
int64_t ResidentWeightKilobytes() {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool ours = false;
  int64_t total = 0;
  while (std::getline(maps, line)) {
    if (line.find('-') < line.find(' ')) ours = line.ends_with("/weights.bin");
    if (ours && line.starts_with("Rss:")) total += std::stoll(line.substr(4));
  }
  return total;
}

// A packed weight is held once; a table stays mapped, because requests read it.
TEST(ProgramTest, WeightsThatArePackedAreNotHeldTwice) {
  GraphBuilder builder;
  std::mt19937 random(3);
  const auto b = testing::Sym("b");
  const auto table = builder.Weight<float>(
      "table", {4096, 64}, testing::RandomFloats(4096 * 64, random));
  const auto first = builder.Weight<float>(
      "first", {2048, 64}, testing::RandomFloats(2048 * 64, random));
  const auto second = builder.Weight<float>(
      "second", {2048, 2048}, testing::RandomFloats(2048 * 2048, random));
  const auto ids = builder.Input("ids", DType::kInt64, {b});
  const auto rows = builder.Node("aten.embedding.default",
                                 {Ref("weight", table), Ref("indices", ids)},
                                 {DType::kFloat32, {b, 64}});
  const auto hidden = builder.Node("aten.linear.default",
                                   {Ref("input", rows), Ref("weight", first)},
                                   {DType::kFloat32, {b, 2048}});
  builder.Output(builder.Node("aten.mm.default",
                              {Ref("self", hidden), Ref("mat2", second)},
                              {DType::kFloat32, {b, 2048}}));
  builder.graph().batch_symbol = "b";
  const auto weights = builder.Weights();
  const models::Graph& graph = builder.graph();
  uint64_t sum = 0;
  for (const auto& entry : weights->table().entries) {
    const auto view = Must(weights->Get(entry.name));
    for (size_t at = 0; at < entry.bytes; at += 512) {
      sum += static_cast<uint64_t>(view.data[at]);
    }
  }
  ASSERT_NE(sum, 0);
  const int64_t all = (4096 * 64 + 2048 * 64 + 2048 * 2048) * 4 / 1024;
  ASSERT_GE(ResidentWeightKilobytes(), all);
  const auto program =
      Must(Program::Compile(graph, Part::Whole(graph), weights, {}));
  // The table is a 17th of the file. The system may map 2 MiB at once, and so
  // keep the table's neighbours, or drop the table until it is read.
  EXPECT_LE(ResidentWeightKilobytes(), all / 4);
  EXPECT_GE(program->packed_weight_bytes(), (2048 * 64 + 2048 * 2048) * 4);
  std::vector<base::Tensor> inputs;
  inputs.push_back(testing::MakeTensor<int64_t>({3}, {0, 4095, 77}));
  RunContext context(*program);
  std::vector<TensorView> outputs;
  MustBeOk(program->Run(Views(inputs), {}, context, outputs));
  EXPECT_LE(ResidentWeightKilobytes(), all / 4);
  const auto torch = Must(testing::RunByLibTorch(builder, inputs));
  const auto expected = torch[0].view().as<float>();
  const auto got = outputs[0].as<float>();
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], 1e-3f) << i;
  }
}

TEST(ProgramTest, NeverFoldsRandomNumbers) {
  GraphBuilder builder;
  const auto weight = builder.Weight<float>("w", {4}, {1, 2, 3, 4});
  builder.Output(builder.Node("aten.rand_like.default", {Ref("self", weight)},
                              {DType::kFloat32, {4}}));
  EXPECT_EQ(CompileWhole(builder)->Describe().size(), 1);
}

TEST(ProgramTest, ReadsStridedWeights) {
  // A column-major matrix.
  GraphBuilder builder;
  const std::vector<float> stored = {1, 2, 3, 4, 5, 6};
  const auto weight = builder.RawWeight("w", DType::kFloat32, {2, 3},
                                        stored.data(), 24, {1, 2});
  const auto x = builder.Input("x", DType::kFloat32, {Sym("b"), 3});
  builder.Output(builder.Node("aten.linear.default",
                              {Ref("input", x), Ref("weight", weight)},
                              {DType::kFloat32, {Sym("b"), 2}}));
  builder.Output(weight);
  for (size_t limit : {size_t{1} << 20, size_t{0}}) {
    CompileOptions options;
    options.max_folded_bytes = limit;
    std::vector<base::Tensor> in;
    in.push_back(MakeTensor<float>({1, 3}, {1, 10, 100}));
    const auto out = testing::RunWhole(builder, in, options);
    if (limit == 0) {
      // An output must be dense, and this weight may not be copied.
      EXPECT_EQ(out.status().code(), absl::StatusCode::kUnimplemented);
      continue;
    }
    EXPECT_THAT(testing::ValuesOf<float>((*out)[0].view()),
                ElementsAre(531, 642));
    EXPECT_THAT(testing::ValuesOf<float>((*out)[1].view()),
                ElementsAre(1, 3, 5, 2, 4, 6));
  }
}

TEST(ProgramTest, ComputesWithSizes) {
  GraphBuilder builder;
  const auto x = builder.Input("x", DType::kFloat32, {Sym("b"), 4});
  const GraphBuilder::Result size = {
      DType::kInt64, {}, models::ValueKind::kSymInt};
  const auto rows =
      builder.Node("aten.sym_size.int", {Ref("self", x), Int("dim", 0)}, size);
  const auto half =
      builder.Node("py.floordiv", {Ref("a", rows), Int("b", 2)}, size);
  builder.Output(builder.Node(
      "aten.slice.Tensor",
      {Ref("self", x), Int("dim", 0), Int("start", 0), Ref("end", half)},
      {DType::kFloat32, {Sym("u"), 4}}));
  builder.Output(builder.Node(
      "aten.view.default",
      {Ref("self", x),
       {"size", models::IntList{{4, models::kNoValue}, {0, rows}}}},
      {DType::kFloat32, {4, Sym("b")}}));
  builder.Output(half);
  std::vector<base::Tensor> in;
  in.push_back(
      MakeTensor<float>({3, 4}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  const auto out = Must(testing::RunWhole(builder, in));
  EXPECT_EQ(out[0].dims(), base::Dims({1, 4}));
  EXPECT_THAT(testing::ValuesOf<float>(out[0].view()), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(out[1].dims(), base::Dims({4, 3}));
  EXPECT_THAT(testing::ValuesOf<int64_t>(out[2].view()), ElementsAre(1));
  // A size that depends on data has no spec and no preallocated output.
  const auto program = CompileWhole(builder);
  const auto specs = Must(program->OutputSpecs(Views(in)));
  EXPECT_FALSE(specs[0].has_value());
  EXPECT_TRUE(specs[1].has_value());
  RunContext context(*program);
  std::vector<TensorView> outputs;
  base::AlignedBuffer place(64);
  const auto status = program->Run(Views(in), {place.data()}, context, outputs);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(ProgramTest, SizesAreInputsAndOutputsOfParts) {
  GraphBuilder builder;
  const auto x = builder.Input("x", DType::kFloat32, {Sym("b"), 2});
  const auto rows =
      builder.Node("aten.sym_size.int", {Ref("self", x), Int("dim", 0)},
                   {DType::kInt64, {}, models::ValueKind::kSymInt});
  builder.graph().values[rows].sym_value = Sym("b");
  const auto y =
      builder.Node("aten.mul.Tensor", {Ref("self", x), Ref("other", rows)},
                   {DType::kFloat32, {Sym("b"), 2}});
  builder.Output(y);
  const models::Graph& graph = builder.graph();
  const auto plan = testing::PlanOf(graph, {0, 1});
  EXPECT_EQ(plan.up, (std::vector<models::ValueId>{x, rows}));
  auto split = Must(RequestRunner::Split(graph, plan, builder.Weights(), {}));
  std::vector<base::Tensor> in;
  in.push_back(MakeTensor<float>({3, 2}, {1, 2, 3, 4, 5, 6}));
  EXPECT_THAT(testing::ValuesOf<float>(Must(split->Run(Views(in)))[0].view()),
              ElementsAre(3, 6, 9, 12, 15, 18));
  // The HN finds a size that contradicts the tensor.
  const auto hn = Must(
      Program::Compile(graph, Part::Hn(graph, plan), builder.Weights(), {}));
  RunContext context(*hn);
  std::vector<TensorView> outputs;
  in.push_back(MakeTensor<int64_t>({}, {4}));
  EXPECT_THAT(std::string(hn->Run(Views(in), {}, context, outputs).message()),
              HasSubstr("expected 3"));
}

TEST(ProgramTest, ChecksThatAPartIsClosed) {
  SmallDlrm dlrm;
  const models::Graph& graph = dlrm.builder().graph();
  const auto weights = dlrm.builder().Weights();
  const auto error = [&](const Part& part) {
    const auto program = Program::Compile(graph, part, weights, {});
    EXPECT_EQ(program.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(program.status().message());
  };
  Part part = Part::Whole(graph);
  part.nodes.erase(part.nodes.begin() + 4);
  EXPECT_EQ(error(part),
            "part: node n5 reads 'v4_0', which is neither an input nor "
            "computed by an earlier node");
  part = Part::Whole(graph);
  part.nodes.pop_back();
  EXPECT_THAT(error(part), HasSubstr("an output reads 'v14_0'"));
  part = Part::Whole(graph);
  std::swap(part.nodes[0], part.nodes[1]);
  EXPECT_THAT(error(part), HasSubstr("out of the graph's order"));
  part = Part::Whole(graph);
  part.inputs.push_back(part.inputs[0]);
  EXPECT_THAT(error(part), HasSubstr("'dense' is listed twice"));
}

TEST(ProgramTest, NamesAnOperatorThatNobodyHas) {
  GraphBuilder builder;
  const auto x = builder.Input("x", DType::kFloat32, {Sym("b")});
  builder.Output(builder.Node("acme.mystery.default", {Ref("self", x)},
                              {DType::kFloat32, {Sym("b")}}));
  const models::Graph& graph = builder.graph();
  const auto program =
      Program::Compile(graph, Part::Whole(graph), builder.Weights(), {});
  EXPECT_EQ(program.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(program.status().message()),
              HasSubstr("acme.mystery.default"));
}

TEST(ProgramTest, SaysThatThereIsNoMemoryForItsWeights) {
  if (!base::LimitedMemory::kWorks) {
    GTEST_SKIP() << "a sanitizer ends the process when memory runs short";
  }
  constexpr int64_t kWidth = 4096;
  GraphBuilder builder;
  const auto x = builder.Input("x", DType::kFloat32, {Sym("b"), kWidth});
  const auto weight = builder.Weight<float>(
      "w", {kWidth, kWidth}, std::vector<float>(kWidth * kWidth, 0.5f));
  builder.Output(builder.Node("aten.linear.default",
                              {Ref("input", x), Ref("weight", weight)},
                              {DType::kFloat32, {Sym("b"), kWidth}}));
  const models::Graph& graph = builder.graph();
  const auto weights = builder.Weights();
  const base::LimitedMemory limited(8 << 20);
  const auto program = Program::Compile(graph, Part::Whole(graph), weights, {});
  EXPECT_EQ(program.status().code(), absl::StatusCode::kResourceExhausted)
      << program.status();
}

TEST(ProgramTest, AliasesThatLibTorchReturnsSurviveReuse) {
  // tensor_split is computed by LibTorch and returns views of its operand,
  // whose buffer a later step reuses.
  GraphBuilder builder;
  const auto x = builder.Input("x", DType::kFloat32, {Sym("b"), 16});
  const GraphBuilder::Result like = {DType::kFloat32, {Sym("b"), 16}};
  const auto doubled =
      builder.Node("aten.add.Tensor", {Ref("self", x), Ref("other", x)}, like);
  const GraphBuilder::Result piece = {DType::kFloat32, {Sym("u"), 16}};
  const auto pieces =
      builder.Nodes("aten.tensor_split.sections",
                    {Ref("self", doubled), Int("sections", 2), Int("dim", 0)},
                    {piece, piece});
  builder.graph().nodes.back().output_is_list = true;
  models::ValueId noise = x;
  for (int i = 0; i < 3; ++i) {
    noise =
        builder.Node("aten.mul.Tensor",
                     {Ref("self", noise), testing::Float("other", 7.0)}, like);
  }
  builder.Output(builder.Node("aten.cat.default",
                              {testing::List("tensors", pieces)}, like));
  builder.Output(noise);
  std::mt19937 random(1);
  std::vector<base::Tensor> in;
  const auto values = testing::RandomFloats(64, random);
  in.push_back(MakeTensor<float>({4, 16}, values));
  const auto out = Must(testing::RunWhole(builder, in));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(out[0].view().as<float>()[i], 2 * values[i]);
  }
}

TEST(ProgramTest, GraphThatLiesAboutATypeIsFound) {
  GraphBuilder builder;
  const auto x = builder.Input("x", DType::kFloat32, {Sym("b")});
  // argmax gives int64.
  builder.Output(builder.Node("aten.argmax.default",
                              {Ref("self", x), Int("dim", 0)},
                              {DType::kFloat32, {}}));
  std::vector<base::Tensor> in;
  in.push_back(MakeTensor<float>({2}, {1, 2}));
  EXPECT_EQ(testing::RunWhole(builder, in).status().code(),
            absl::StatusCode::kInternal);
}

TEST(ProgramTest, ErrorsLeaveTheContextUsable) {
  SmallDlrm dlrm;
  const auto program = CompileWhole(dlrm.builder());
  RunContext context(*program);
  auto request = dlrm.Request(4);
  std::vector<TensorView> outputs;
  MustBeOk(program->Run(Views(request), {}, context, outputs));
  const auto expected = Must(base::Tensor::CopyOf(outputs[0]));
  auto bad = dlrm.Request(40);
  ASSERT_GT(bad[2].bytes(), 0);
  bad[2].as<int64_t>()[0] = 99;
  EXPECT_EQ(program->Run(Views(bad), {}, context, outputs).message(),
            "table 'tables.1.weight': id 99 at position 0 is outside [0, 7)");
  MustBeOk(program->Run(Views(request), {}, context, outputs));
  EXPECT_EQ(std::memcmp(outputs[0].data, expected.data(), expected.bytes()), 0);
}

TEST(ProgramTest, ThreadsShareOneProgram) {
  SmallDlrm dlrm;
  const auto program = CompileWhole(dlrm.builder());
  struct Case {
    std::vector<base::Tensor> request;
    std::vector<base::Tensor> expected;
  };
  std::vector<Case> cases;
  {
    RunContext context(*program);
    for (int64_t batch : {1, 3, 17, 64, 2, 130}) {
      Case c;
      c.request = dlrm.Request(batch);
      std::vector<TensorView> outputs;
      MustBeOk(program->Run(Views(c.request), {}, context, outputs));
      for (const TensorView& view : outputs) {
        c.expected.push_back(Must(base::Tensor::CopyOf(view)));
      }
      cases.push_back(std::move(c));
    }
  }
  ContextPool pool(*program);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<TensorView> outputs;
      for (size_t i = 0; i < 200; ++i) {
        const Case& c = cases[(t + i) % cases.size()];
        auto context = pool.Acquire();
        if (!program->Run(Views(c.request), {}, *context, outputs).ok()) {
          ++wrong;
          continue;
        }
        for (size_t o = 0; o < outputs.size(); ++o) {
          wrong += std::memcmp(outputs[o].data, c.expected[o].data(),
                               c.expected[o].bytes()) != 0;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace refract::runtime

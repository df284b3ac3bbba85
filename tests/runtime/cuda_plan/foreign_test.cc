// Foreign operators, run by LibTorch on the checked device (whose memory is the
// host's): the code of a GPU apart from its streams. With REFRACT_TEST_GPU=N
// LibTorch's CUDA kernels run on GPU N.

#include "runtime/cuda_plan/foreign.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/cuda_aten/indices.h"
#include "runtime/cuda_aten/operators.h"
#include "runtime/cuda_aten/streams.h"
#include "tests/runtime/cuda_plan/expect_same.h"

namespace refract::runtime::cuda_plan {
namespace {

using base::DType;
using models::ValueId;
using runtime::testing::Bool;
using runtime::testing::Float;
using runtime::testing::Int;
using runtime::testing::Ints;
using runtime::testing::List;
using runtime::testing::Must;
using runtime::testing::Ref;
using runtime::testing::Sym;
using runtime::testing::Views;
using testing::ExpectRefused;
using testing::ExpectSame;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kPrecisions;
using testing::Model;
using testing::OnDevice;
using testing::OptionsFor;

#ifdef REFRACT_CUDA_ATEN_MODULE
absl::StatusOr<cuda_aten::Streams*> LoadStreams() {
  void* const library = dlopen(REFRACT_CUDA_ATEN_MODULE, RTLD_NOW | RTLD_LOCAL);
  void* const streams = library == nullptr
                            ? nullptr
                            : dlsym(library, cuda_aten::kStreamsFunction);
  if (streams == nullptr) return absl::UnavailableError(dlerror());
  return reinterpret_cast<cuda_aten::StreamsFunction*>(streams)();
}
#endif

std::unique_ptr<ForeignOperators> Operators() {
  cuda_aten::Options options;
#ifdef REFRACT_CUDA_ATEN_MODULE
  options = {.gpu = cuda::testing::TestGpu(), .load = LoadStreams};
#endif
  return cuda_aten::MakeOperators(std::move(options));
}

int CountForeign(const cuda::DeviceProgram& program) {
  int count = 0;
  for (const cuda::Op& op : program.ops) {
    count += std::holds_alternative<cuda::ForeignOp>(op.kind);
  }
  return count;
}

TEST(ForeignOperatorsTest, StandBetweenOurOwnInEveryType) {
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(Name(precision));
    Model m;
    const ValueId x = m.In("x", {6});
    const ValueId h = m.Layer(x, 6, 5, {}, "aten.relu.default");
    const ValueId sums =
        m.Op("aten.cumsum.default", {Ref("self", h), Int("dim", 1)}, {5});
    m.Output(m.Layer(sums, 5, 3, {}, "aten.sigmoid.default"));
    m.Output(sums);
    const auto operators = Operators();
    cuda::DeviceProgram program;
    ExpectSame(m, precision, &program, operators.get());
    EXPECT_EQ(CountForeign(program), 1);
  }
}

TEST(ForeignOperatorsTest, SeveralResultsSomeOfThemUnread) {
  Model m;
  const ValueId x = m.In("x", {7});
  const auto sorted = m.Nodes(
      "aten.topk.default", {Ref("self", x), Int("k", 3)},
      {{DType::kFloat32, {Sym("b"), 3}}, {DType::kInt64, {Sym("b"), 3}}});
  m.Output(m.Layer(sorted[0], 3, 2, {}));
  m.Output(sorted[1]);
  const auto values = m.Nodes(
      "aten.sort.default", {Ref("self", x), Int("dim", 1)},
      {{DType::kFloat32, {Sym("b"), 7}}, {DType::kInt64, {Sym("b"), 7}}});
  m.Output(values[0]);
  const auto operators = Operators();
  cuda::DeviceProgram program;
  ExpectSame(m, Precision::kFloat32, &program, operators.get());
  EXPECT_EQ(CountForeign(program), 2);
}

TEST(ForeignOperatorsTest, IntegersListsConstantsAndSizes) {
  Model m;
  const ValueId ids = m.In("ids", {4}, DType::kInt64);
  const ValueId x = m.In("x", {4});
  const ValueId shift =
      m.Weight<int64_t>("shift", {4}, std::vector<int64_t>{5, 0, -2, 9});
  const ValueId sum =
      m.Op("aten.add.Tensor",
           {Ref("self", ids), Ref("other", shift), Int("alpha", 2)}, {4},
           DType::kInt64);
  m.Output(sum);
  const ValueId both =
      m.Op("aten.cat.default", {List("tensors", {ids, sum}), Int("dim", 1)},
           {8}, DType::kInt64);
  m.Output(both);
  // Strided operands are LibTorch views.
  const ValueId turned = m.Op(
      "aten.view.default", {Ref("self", x), Ints("size", {-1, 2, 2})}, {2, 2});
  const ValueId swapped =
      m.Op("aten.transpose.int",
           {Ref("self", turned), Int("dim0", 1), Int("dim1", 2)}, {2, 2});
  m.Output(m.Op("aten.flip.default", {Ref("self", swapped), Ints("dims", {1})},
                {2, 2}));
  m.Output(m.Op("aten.constant_pad_nd.default",
                {Ref("self", x), Ints("pad", {1, 2}), Float("value", 7)}, {7}));
  const auto operators = Operators();
  cuda::DeviceProgram program;
  ExpectSame(m, Precision::kFloat32, &program, operators.get());
  EXPECT_EQ(CountForeign(program), 3);
}

TEST(ForeignOperatorsTest, MayLookAtAllRowsOfTheRequest) {
  Model m;
  const ValueId x = m.In("x", {4});
  const ValueId mean =
      m.Node("aten.mean.dim",
             {Ref("self", x), Ints("dim", {0}), Bool("keepdim", true)},
             {DType::kFloat32, {1, 4}});
  m.Output(m.Op("aten.sub.Tensor", {Ref("self", x), Ref("other", mean)}, {4}));
  const auto operators = Operators();
  ExpectSame(m, Precision::kFloat32, nullptr, operators.get());
}

// The result for `ids`, at most 3 of 4 rows long, that index `x`.
absl::StatusOr<std::vector<std::vector<std::byte>>> Gathered(
    OnDevice& device, std::vector<int64_t> ids) {
  const auto batch = static_cast<int64_t>(ids.size()) / 2;
  base::Tensor x = Must(base::Tensor::Allocate(DType::kFloat32, {batch, 5}));
  for (int64_t i = 0; i < batch * 5; ++i) {
    x.as<float>()[static_cast<size_t>(i)] = static_cast<float>(i);
  }
  base::Tensor index = Must(base::Tensor::Allocate(DType::kInt64, {batch, 2}));
  std::copy(ids.begin(), ids.end(), index.as<int64_t>().begin());
  return device.Run({x.view(), index.view()}, batch);
}

TEST(ForeignOperatorsTest, IndicesThatNameNothingFailTheirRequestAlone) {
  Model m;
  const ValueId x = m.In("x", {5});
  const ValueId ids = m.In("ids", {2}, DType::kInt64);
  // On integers: computed by LibTorch.
  const ValueId whole =
      m.Op("aten.to.dtype", {Ref("self", x), {"dtype", DType::kInt64}}, {5},
           DType::kInt64);
  const ValueId gathered =
      m.Op("aten.gather.default",
           {Ref("self", whole), Int("dim", 1), Ref("index", ids)}, {2},
           DType::kInt64);
  m.Output(m.Op("aten.to.dtype",
                {Ref("self", gathered), {"dtype", DType::kFloat32}}, {2}));
  m.graph().batch_symbol = "b";
  const auto operators = Operators();
  TranslateOptions options = OptionsFor(Precision::kFloat32);
  options.foreign = operators.get();
  auto translation =
      Must(Translate(m.graph(), Part::Whole(m.graph()), m.Weights(), options));
  auto device = Must(OnDevice::Load(std::move(translation), 4, 1));
  const auto good = Gathered(*device, {4, 0, 1, 1, 2, 3});
  ASSERT_TRUE(good.ok()) << good.status();
  float values[6];
  ASSERT_EQ((*good)[0].size(), sizeof(values));
  std::memcpy(values, (*good)[0].data(), sizeof(values));
  EXPECT_THAT(values, ::testing::ElementsAre(4, 0, 6, 6, 12, 13));
  for (const int64_t wrong : {int64_t{5}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    const auto bad = Gathered(*device, {4, 0, wrong, 1, 2, wrong});
    EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(bad.status().message()),
                HasSubstr("2 ids are outside their tables"));
    // Now the wrong ids are in unused rows of the bucket.
    EXPECT_TRUE(Gathered(*device, {4, 0}).ok());
    EXPECT_TRUE(Gathered(*device, {0, 1, 2, 3, 4, 0}).ok());
  }
  EXPECT_THAT(device->violations(), IsEmpty());
}

TEST(ForeignOperatorsTest, EveryKindOfIndexIsChecked) {
  for (const int64_t wrong : {0, 100}) {
    // One after the other: each of them sees the same ids.
    for (int c = 0; c < 4; ++c) {
      Model m;
      const ValueId ids = m.In("ids", {2}, DType::kInt64);
      const ValueId table = m.Floats("table", {3, 4});
      const ValueId flat = m.Floats("flat", {9});
      switch (c) {
        case 0:
          m.Output(m.Node("aten.index.Tensor",
                          {Ref("self", table), List("indices", {ids})},
                          {DType::kFloat32, {Sym("b"), 2, 4}}));
          break;
        case 1:
          m.Output(m.Op("aten.take.default",
                        {Ref("self", flat), Ref("index", ids)}, {2}));
          break;
        case 2:
          m.Output(m.Op("aten.one_hot.default",
                        {Ref("self", ids), Int("num_classes", 3)}, {2, 3},
                        DType::kInt64));
          break;
        default: {
          const ValueId x = m.In("x", {4});
          m.Output(m.Op("aten.scatter.value",
                        {Ref("self", x), Int("dim", 1), Ref("index", ids),
                         Float("value", 2.5)},
                        {4}));
        }
      }
      m.graph().batch_symbol = "b";
      const auto operators = Operators();
      TranslateOptions options = OptionsFor(Precision::kFloat32);
      options.foreign = operators.get();
      auto translation =
          Translate(m.graph(), Part::Whole(m.graph()), m.Weights(), options);
      ASSERT_TRUE(translation.ok()) << c << ": " << translation.status();
      auto device = Must(OnDevice::Load(*std::move(translation), 4, 1));
      std::vector<base::Tensor> inputs;
      inputs.push_back(Must(base::Tensor::Allocate(DType::kInt64, {3, 2})));
      for (int64_t& id : inputs[0].as<int64_t>()) id = 2;
      inputs[0].as<int64_t>()[3] += wrong;
      if (c == 3) {
        inputs.push_back(Must(base::Tensor::Allocate(DType::kFloat32, {3, 4})));
      }
      const auto result = device->Run(Views(inputs), 3);
      EXPECT_EQ(result.ok(), wrong == 0) << c << ": " << result.status();
    }
  }
}

TEST(ForeignOperatorsTest, RefuseByNameWhatMayHarmTheDevice) {
  const auto operators = Operators();
  {
    Model m;
    const ValueId ids = m.In("ids", {2}, DType::kInt64);
    m.Output(m.Op("aten.repeat_interleave.self_int",
                  {Ref("self", ids), Int("repeats", 2), Int("dim", 1)}, {4},
                  DType::kInt64));
    ExpectRefused(
        m,
        "operator aten.repeat_interleave.self_int (node n0) of model "
        "m cannot run on cuda:0: the CUDA runtime has no kernel for it; by "
        "LibTorch: it reads integers of the request",
        operators.get());
  }
  {
    Model m;
    m.Output(
        m.Op("aten.bernoulli.default", {Ref("self", m.In("x", {4}))}, {4}));
    ExpectRefused(m, "it draws random numbers", operators.get());
  }
  {
    Model m;
    m.Output(m.Op("aten.cumsum.default",
                  {Ref("self", m.In("x", {4}, DType::kInt64)), Int("dim", 1)},
                  {4}, DType::kInt64));
    // Without LibTorch's CUDA library the reason is in the message.
    const auto missing = cuda_aten::MakeOperators(
        {.gpu = 0, .load = []() -> absl::StatusOr<cuda_aten::Streams*> {
           return absl::UnavailableError("libtorch_cuda.so is missing");
         }});
    ExpectRefused(m, "libtorch_cuda.so is missing", missing.get());
  }
}

TEST(ForeignOperatorsTest, SizesThatLibTorchDoesNotCheckAreChecked) {
  for (const int64_t lengths : {4, 3}) {
    Model m;
    m.Output(m.Op("aten._weight_norm.default",
                  {Ref("v", m.In("x", {4})),
                   Ref("g", m.Floats("g", {1, lengths})), Int("dim", 1)},
                  {4}));
    m.graph().batch_symbol = "b";
    const auto operators = Operators();
    TranslateOptions options = OptionsFor(Precision::kFloat32);
    options.foreign = operators.get();
    auto translation = Must(
        Translate(m.graph(), Part::Whole(m.graph()), m.Weights(), options));
    // Each bucket is run when the model is loaded.
    const auto device = OnDevice::Load(std::move(translation), 4, 1);
    if (lengths == 4) {
      EXPECT_TRUE(device.ok()) << device.status();
      continue;
    }
    EXPECT_THAT(device.status().ToString(),
                HasSubstr("weight_norm of [1, 4] along dimension 1 with "
                          "lengths of [1, 3]"));
  }
}

TEST(ForeignOperatorsTest, RulesNameArgumentsThatOperatorsHave) {
  EXPECT_EQ(cuda_aten::FindIndexRule("aten.sort.default"), nullptr);
  ASSERT_NE(cuda_aten::FindIndexRule("aten.gather.default"), nullptr);
  EXPECT_TRUE(cuda_aten::IntegersAreNumbers("aten.max.dim"));
  EXPECT_FALSE(cuda_aten::IntegersAreNumbers("aten.embedding_bag.default"));
}

#ifdef REFRACT_CUDA_ATEN_MODULE
// The module itself, without a GPU: it loads, and brings kernels for CUDA.
TEST(ForeignOperatorsTest, TheModuleBringsLibTorchsCudaKernels) {
  Model m;
  const ValueId sums = m.Op("aten.cumsum.default",
                            {Ref("self", m.In("x", {4})), Int("dim", 1)}, {4});
  m.Output(sums);
  m.graph().batch_symbol = "b";
  int loaded = 0;
  const auto operators = cuda_aten::MakeOperators(
      {.gpu = 0, .load = [&]() -> absl::StatusOr<cuda_aten::Streams*> {
         ++loaded;
         return LoadStreams();
       }});
  TranslateOptions options = OptionsFor(Precision::kFloat32);
  options.foreign = operators.get();
  const auto translation =
      Translate(m.graph(), Part::Whole(m.graph()), m.Weights(), options);
  ASSERT_TRUE(translation.ok()) << translation.status();
  EXPECT_EQ(CountForeign(translation->program), 1);
  EXPECT_EQ(loaded, 1);
}
#endif

}  // namespace
}  // namespace refract::runtime::cuda_plan

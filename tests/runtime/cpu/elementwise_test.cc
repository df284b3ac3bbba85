// Element-wise kernels and casts: LibTorch's bits over odd shapes, and the
// headers' statements on bad input.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cpu/one_node.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::NamedArgument;
using models::ValueId;
using ::testing::ElementsAre;
using testing::ExpectLikeLibTorch;
using testing::Float;
using testing::Ids;
using testing::Int;
using testing::MakeTensor;
using testing::Must;
using testing::OneNode;
using testing::RandomTensors;
using testing::Ref;

TEST(IntegerTest, IsLibTorchs) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const std::vector<std::pair<base::Dims, base::Dims>> shapes = {
      {{33}, {33}},
      {{7, 13}, {13}},
      {{7, 13}, {7, 1}},
      {{1, 5}, {4, 1}},
      {{3, 1, 4}, {2, 1}},
      {{}, {6}},
      {{2, 3, 5}, {}},
      {{0, 4}, {4}},
      {{4, 1, 1}, {1, 3, 9}},
      {{1, 1}, {1}},
      {{2, 3, 4, 5}, {3, 1, 5}}};
  const auto tensor = [&](const base::Dims& dims) {
    base::Tensor result = Must(base::Tensor::Allocate(DType::kInt64, dims));
    for (int64_t& value : result.as<int64_t>()) {
      // Few distinct values, so that some are equal; some so large that sums
      // wrap.
      value = static_cast<int64_t>(random() % 5) - 2;
      if (random() % 4 == 0) value = static_cast<int64_t>(random());
    }
    return result;
  };
  for (const char* name :
       {"add.Tensor", "sub.Tensor", "mul.Tensor", "minimum.default",
        "maximum.default", "eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor",
        "gt.Tensor", "ge.Tensor"}) {
    const std::string op = absl::StrCat("aten.", name);
    const bool truth = op.size() == std::string("aten.eq.Tensor").size();
    const auto run = [&](const std::vector<base::Tensor>& in,
                         const std::vector<NamedArgument>& more) {
      SCOPED_TRACE(op);
      OneNode node(op, in, [&](const Ids& ids) {
        std::vector<NamedArgument> args = {Ref("self", ids[0])};
        if (ids.size() > 1) args.push_back(Ref("other", ids[1]));
        args.insert(args.end(), more.begin(), more.end());
        return args;
      });
      if (truth) {
        const ValueId out = node.builder.graph().nodes[0].outputs[0];
        node.builder.graph().values[out].dtype = DType::kBool;
      }
      ExpectLikeLibTorch(node, in);
    };
    for (const auto& [a, b] : shapes) {
      SCOPED_TRACE(
          absl::StrCat(base::DimsToString(a), " ", base::DimsToString(b)));
      std::vector<base::Tensor> in;
      in.push_back(tensor(a));
      in.push_back(tensor(b));
      run(in, {});
    }
    if (!absl::StrContains(op, "imum")) {
      std::vector<base::Tensor> in;
      in.push_back(tensor({3, 7}));
      run(in, {Int("other", 2)});
      run(in, {Int("other", -(int64_t{1} << 40))});
    }
  }
}

TEST(IntegerTest, LeavesOtherNumbersToLibTorch) {
  std::vector<base::Tensor> in;
  in.push_back(MakeTensor<int64_t>({3}, {1, 2, 3}));
  const auto kernels = [&](const std::vector<NamedArgument>& more,
                           DType result) {
    OneNode node("aten.add.Tensor", in, [&](const Ids& ids) {
      std::vector<NamedArgument> args = {Ref("self", ids[0])};
      args.insert(args.end(), more.begin(), more.end());
      return args;
    });
    const ValueId out = node.builder.graph().nodes[0].outputs[0];
    node.builder.graph().values[out].dtype = result;
    return testing::KernelsOf(node.builder);
  };
  EXPECT_THAT(kernels({Float("other", 0.5)}, DType::kFloat32),
              ElementsAre("libtorch"));
  EXPECT_THAT(kernels({Int("other", 5), Int("alpha", 3)}, DType::kInt64),
              ElementsAre("libtorch"));
  EXPECT_THAT(kernels({Int("other", 5)}, DType::kInt64),
              ElementsAre("int_add"));
}

TEST(CastTest, ConvertsLikeLibTorch) {
  const std::vector<float> floats = {0.0f,
                                     -0.0f,
                                     0.5f,
                                     -0.5f,
                                     1.0f,
                                     -1.5f,
                                     2.999f,
                                     1e-30f,
                                     123456.7f,
                                     2147483648.0f,
                                     -2147483648.0f,
                                     -2147483904.0f,
                                     1e18f,
                                     1e20f,
                                     -1e20f,
                                     std::numeric_limits<float>::infinity(),
                                     -std::numeric_limits<float>::infinity(),
                                     std::numeric_limits<float>::quiet_NaN(),
                                     3.4e38f};
  const std::vector<int64_t> integers = {0,
                                         1,
                                         -1,
                                         7,
                                         255,
                                         256,
                                         int64_t{1} << 31,
                                         -(int64_t{1} << 31) - 1,
                                         (int64_t{1} << 24) + 1,
                                         int64_t{1} << 40,
                                         std::numeric_limits<int64_t>::max(),
                                         std::numeric_limits<int64_t>::min()};
  const DType dtypes[] = {DType::kBool, DType::kInt32, DType::kInt64,
                          DType::kFloat32};
  const auto tensor_of = [&](DType dtype) {
    if (dtype == DType::kFloat32) {
      return MakeTensor<float>({static_cast<int64_t>(floats.size())}, floats);
    }
    const auto count = static_cast<int64_t>(integers.size());
    if (dtype == DType::kInt64) return MakeTensor<int64_t>({count}, integers);
    base::Tensor tensor = Must(base::Tensor::Allocate(dtype, {count}));
    for (size_t i = 0; i < integers.size(); ++i) {
      if (dtype == DType::kInt32) {
        tensor.as<int32_t>()[i] = static_cast<int32_t>(integers[i]);
      } else {
        tensor.data()[i] = std::byte{i % 3 == 0};
      }
    }
    return tensor;
  };
  for (const DType from : dtypes) {
    for (const DType to : dtypes) {
      if (from == to) continue;
      SCOPED_TRACE(absl::StrCat(base::Name(from), " to ", base::Name(to)));
      std::vector<base::Tensor> in;
      in.push_back(tensor_of(from));
      for (const bool copies : {false, true}) {
        OneNode node(copies ? "aten._to_copy.default" : "aten.to.dtype", in,
                     [&](const Ids& ids) {
                       return std::vector<NamedArgument>{
                           Ref("self", ids[0]), NamedArgument{"dtype", to}};
                     });
        const ValueId out = node.builder.graph().nodes[0].outputs[0];
        node.builder.graph().values[out].dtype = to;
        ExpectLikeLibTorch(node, in);
      }
    }
  }
}

TEST(ElementwiseTest, IsBitIdenticalToLibTorch) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::vector<std::pair<base::Dims, base::Dims>> shapes = {
      {{33}, {33}},           {{7, 13}, {13}},
      {{7, 13}, {7, 1}},      {{1, 5}, {4, 1}},
      {{3, 1, 4}, {2, 1}},    {{}, {6}},
      {{2, 3, 5}, {}},        {{0, 4}, {4}},
      {{4, 1, 1}, {1, 3, 9}}, {{2, 3, 4, 5}, {3, 1, 5}},
  };
  for (const char* op : {"aten.add.Tensor", "aten.sub.Tensor",
                         "aten.mul.Tensor", "aten.div.Tensor"}) {
    for (const auto& [a, b] : shapes) {
      SCOPED_TRACE(absl::StrCat(op, " ", base::DimsToString(a), " ",
                                base::DimsToString(b)));
      const auto in = RandomTensors({a, b}, random);
      OneNode node(op, in, [](const Ids& ids) {
        return std::vector<NamedArgument>{Ref("self", ids[0]),
                                          Ref("other", ids[1])};
      });
      ExpectLikeLibTorch(node, in);
    }
    for (const NamedArgument& number :
         {Float("other", 0.1), Float("other", 1e-40), Int("other", 3),
          Int("other", 16777217)}) {
      SCOPED_TRACE(op);
      const auto in = RandomTensors({{5, 7}}, random);
      OneNode node(op, in, [&](const Ids& ids) {
        return std::vector<NamedArgument>{Ref("self", ids[0]), number};
      });
      ExpectLikeLibTorch(node, in);
    }
  }
}

TEST(ElementwiseTest, KeepsSpecialValuesAsLibTorchDoes) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {0.0f, -0.0f, inf,    -inf,   std::nanf(""),
                               1.0f, -1.0f, 1e-40f, -1e-40f};
  // Longer than a vector register, so that LibTorch's main loop and its
  // remainder both run.
  for (int i = 0; i < 3; ++i) {
    const std::vector<float> copy = values;
    values.insert(values.end(), copy.begin(), copy.end());
  }
  const auto count = static_cast<int64_t>(values.size());
  std::vector<base::Tensor> in;
  in.push_back(MakeTensor<float>({count}, values));
  OneNode relu("aten.relu.default", in, [](const Ids& ids) {
    return std::vector<NamedArgument>{Ref("self", ids[0])};
  });
  ExpectLikeLibTorch(relu, in);
  in.push_back(MakeTensor<float>({count}, values));
  std::reverse(in[1].as<float>().begin(), in[1].as<float>().end());
  OneNode mul("aten.mul.Tensor", in, [](const Ids& ids) {
    return std::vector<NamedArgument>{Ref("self", ids[0]),
                                      Ref("other", ids[1])};
  });
  const auto own = Must(testing::RunWhole(mul.builder, in));
  const auto torch = Must(testing::RunByLibTorch(mul.builder, in));
  for (int64_t i = 0; i < count; ++i) {
    const float x = own[0].view().as<float>()[i];
    const float y = torch[0].view().as<float>()[i];
    // The sign of a NaN is unspecified.
    if (std::isnan(y)) {
      EXPECT_TRUE(std::isnan(x)) << i;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(x), std::bit_cast<uint32_t>(y)) << i;
    }
  }
}

TEST(ElementwiseTest, LeavesWhatIsRoundedToLibTorch) {
  std::mt19937 random(4);
  const auto in = RandomTensors({{5}, {5}}, random);
  OneNode floor("aten.div.Tensor_mode", in, [](const Ids& ids) {
    return std::vector<NamedArgument>{Ref("self", ids[0]),
                                      Ref("other", ids[1]),
                                      {"rounding_mode", std::string("floor")}};
  });
  EXPECT_THAT(testing::KernelsOf(floor.builder), ElementsAre("libtorch"));
  EXPECT_TRUE(
      testing::SameBits(Must(testing::RunWhole(floor.builder, in))[0],
                        Must(testing::RunByLibTorch(floor.builder, in))[0]));
}

TEST(ElementwiseTest, RefusesShapesThatDoNotBroadcast) {
  std::mt19937 random(5);
  const auto in = RandomTensors({{2, 3}, {4}}, random);
  OneNode node("aten.add.Tensor", in, [](const Ids& ids) {
    return std::vector<NamedArgument>{Ref("self", ids[0]),
                                      Ref("other", ids[1])};
  });
  EXPECT_EQ(testing::RunWhole(node.builder, in).status().message(),
            "n0: shapes [2, 3] and [4] do not broadcast");
}

}  // namespace
}  // namespace refract::runtime

// Operators that LibTorch calls without checking sizes. Before the guards, each
// bad call here read or wrote past the end of a tensor; now such calls are
// refused, and good calls are unchanged.

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/torch/caller.h"

namespace refract::runtime::aten {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

base::Tensor Ints(const std::vector<int64_t>& values) {
  base::Tensor tensor = *base::Tensor::Allocate(
      base::DType::kInt64, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.as<int64_t>().begin());
  return tensor;
}

base::Tensor Filled(const base::Dims& dims, float value = 0.5F) {
  base::Tensor tensor = *base::Tensor::Allocate(base::DType::kFloat32, dims);
  std::fill(tensor.as<float>().begin(), tensor.as<float>().end(), value);
  return tensor;
}

// A node whose operands are numbered in the order in which they are added.
class Call {
 public:
  explicit Call(std::string op, int outputs = 1) {
    node_.name = "node";
    node_.op = std::move(op);
    for (int i = 0; i < outputs; ++i) node_.outputs.push_back(100 + i);
  }
  Call& With(std::string name, base::Tensor tensor) {
    node_.args.push_back(
        {std::move(name), models::ValueRef{Add(std::move(tensor))}});
    return *this;
  }
  Call& WithList(std::string name, std::vector<base::Tensor> tensors) {
    models::ValueList list;
    for (base::Tensor& tensor : tensors) list.push_back(Add(std::move(tensor)));
    node_.args.push_back({std::move(name), std::move(list)});
    return *this;
  }
  Call& With(std::string name, models::Argument value) {
    node_.args.push_back({std::move(name), std::move(value)});
    return *this;
  }

  // The shapes of the results.
  absl::StatusOr<std::vector<base::Dims>> Run() const {
    auto caller = Caller::Create(node_);
    if (!caller.ok()) return caller.status();
    std::vector<Operand> operands;
    for (const base::Tensor& tensor : tensors_) {
      operands.emplace_back();
      operands.back().kind = Operand::Kind::kTensor;
      operands.back().tensor = tensor.view();
    }
    std::vector<Result> results;
    const absl::Status status = (*caller)->Call(operands, results);
    if (!status.ok()) return status;
    std::vector<base::Dims> shapes;
    for (const Result& result : results) {
      shapes.push_back(result.operand.tensor.dims);
    }
    return shapes;
  }

 private:
  models::ValueId Add(base::Tensor tensor) {
    tensors_.push_back(std::move(tensor));
    return static_cast<models::ValueId>(tensors_.size()) - 1;
  }
  models::Node node_;
  std::vector<base::Tensor> tensors_;
};

void ExpectRefused(const Call& call, const std::string& text) {
  const auto results = call.Run();
  EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument)
      << results.status();
  EXPECT_THAT(std::string(results.status().message()), HasSubstr(text));
}

constexpr int64_t kInputs = 5;
constexpr int64_t kUnits = 4;

struct LayerSizes {
  base::Dims input = {3, 6, kInputs};
  base::Dims state = {1, 3, kUnits};
  int64_t weight_inputs = kInputs;
  int64_t weight_units = kUnits;
  int64_t layers = 1;
  bool batch_first = true;
};

std::vector<base::Tensor> Weights(int64_t gates, const LayerSizes& sizes) {
  std::vector<base::Tensor> weights;
  weights.push_back(Filled({gates * sizes.weight_units, sizes.weight_inputs}));
  weights.push_back(Filled({gates * sizes.weight_units, sizes.weight_units}));
  weights.push_back(Filled({gates * sizes.weight_units}));
  weights.push_back(Filled({gates * sizes.weight_units}));
  return weights;
}

Call Layer(const std::string& op, int64_t gates, const LayerSizes& sizes) {
  Call call(op, gates == 4 ? 3 : 2);
  call.With("input", Filled(sizes.input));
  if (gates == 4) {
    std::vector<base::Tensor> states;
    states.push_back(Filled(sizes.state));
    states.push_back(Filled(sizes.state));
    call.WithList("hx", std::move(states));
  } else {
    call.With("hx", Filled(sizes.state));
  }
  call.WithList("params", Weights(gates, sizes))
      .With("has_biases", true)
      .With("num_layers", sizes.layers)
      .With("dropout", 0.0)
      .With("train", false)
      .With("bidirectional", false)
      .With("batch_first", sizes.batch_first);
  return call;
}

struct LayerOp {
  std::string op;
  int64_t gates = 0;
};

class LayerGuardTest : public ::testing::TestWithParam<LayerOp> {};

TEST_P(LayerGuardTest, StatesAndWeightsMustFitTheInput) {
  const auto& [op, gates] = GetParam();
  const auto good = Layer(op, gates, {}).Run();
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_THAT((*good)[0], ElementsAre(3, 6, kUnits));
  const auto time_first =
      Layer(op, gates, {.state = {1, 6, kUnits}, .batch_first = false}).Run();
  ASSERT_TRUE(time_first.ok()) << time_first.status();

  ExpectRefused(Layer(op, gates, {.batch_first = false}),
                "states of [1, 3, 4] where the input wants [1, 6");
  ExpectRefused(Layer(op, gates, {.input = {4, 6, kInputs}}), "states of");
  ExpectRefused(Layer(op, gates, {.state = {1, 2, kUnits}}), "states of");
  ExpectRefused(Layer(op, gates, {.state = {2, 3, kUnits}}), "states of");
  ExpectRefused(Layer(op, gates, {.state = {1, 3, kUnits + 1}}),
                "where the weights want 4");
  ExpectRefused(Layer(op, gates, {.input = {3, 6, kInputs + 3}}),
                "inputs of 8 numbers where the weights want 5");
  ExpectRefused(Layer(op, gates, {.state = {2, 3, kUnits}, .layers = 2}),
                "4 weights of a recurrent layer where 8 are wanted");
  ExpectRefused(Layer(op, gates, {.input = {3, kInputs}}),
                "wants three dimensions");
}

INSTANTIATE_TEST_SUITE_P(Layers, LayerGuardTest,
                         ::testing::Values(LayerOp{"aten.lstm.input", 4},
                                           LayerOp{"aten.gru.input", 3},
                                           LayerOp{"aten.rnn_tanh.input", 1},
                                           LayerOp{"aten.rnn_relu.input", 1}));

Call Packed(const std::vector<int64_t>& batch_sizes, int64_t rows,
            int64_t batch) {
  Call call("aten.lstm.data", 3);
  std::vector<base::Tensor> states;
  states.push_back(Filled({1, batch, kUnits}));
  states.push_back(Filled({1, batch, kUnits}));
  call.With("data", Filled({rows, kInputs}))
      .With("batch_sizes", Ints(batch_sizes))
      .WithList("hx", std::move(states))
      .WithList("params", Weights(4, {}))
      .With("has_biases", true)
      .With("num_layers", int64_t{1})
      .With("dropout", 0.0)
      .With("train", false)
      .With("bidirectional", false);
  return call;
}

TEST(GuardsTest, PackedSequencesMustHaveTheirRows) {
  const auto good = Packed({3, 2, 1}, 6, 3).Run();
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_THAT((*good)[0], ElementsAre(6, kUnits));
  ExpectRefused(Packed({3, 2, 1}, 5, 3), "packed sequences of");
  ExpectRefused(Packed({3, 2, 1}, 7, 3), "7 rows, but whose time steps have 6");
  ExpectRefused(Packed({1, 2, 3}, 6, 3),
                "a time step of 2 rows after a time step of 1");
  ExpectRefused(Packed({3, 2, -1}, 4, 3), "a time step of -1 rows");
  ExpectRefused(Packed({3, 2, 1}, 6, 2), "states of");
}

Call Bags(const std::vector<int64_t>& ids, const std::vector<int64_t>& offsets,
          int64_t mode, bool include_last) {
  Call call("aten.embedding_bag.padding_idx", 4);
  call.With("weight", Filled({10, 4}))
      .With("indices", Ints(ids))
      .With("offsets", Ints(offsets))
      .With("scale_grad_by_freq", false)
      .With("mode", mode)
      .With("sparse", false)
      .With("per_sample_weights", models::None{})
      .With("include_last_offset", include_last)
      .With("padding_idx", int64_t{3});
  return call;
}

TEST(GuardsTest, OffsetsOfBagsMustBeWithinTheIds) {
  for (const int64_t mode : {0, 1, 2}) {
    const auto good = Bags({1, 2, 3, 4}, {0, 2, 2}, mode, false).Run();
    ASSERT_TRUE(good.ok()) << good.status();
    EXPECT_THAT((*good)[0], ElementsAre(3, 4));
    ExpectRefused(Bags({1, 2, 3, 4}, {0, 3, 2}, mode, false), "offset 2 after");
    ExpectRefused(Bags({1, 2, 3, 4}, {0, 2, 5}, mode, false), "offset 5 of 4");
    ExpectRefused(Bags({1, 2, 3, 4}, {1, 2}, mode, false), "begin with 0");
    ExpectRefused(Bags({1, 2, 3, 4}, {0, -9}, mode, false), "offset -9 after");
    ExpectRefused(Bags({1, 2, 3, 4}, {}, mode, true), "without an offset");
    // Ids outside all bags are ignored in every mode.
    const auto spare = Bags({1, 2, 3, 4}, {0, 2, 3}, mode, true).Run();
    ASSERT_TRUE(spare.ok()) << spare.status();
    EXPECT_THAT((*spare)[0], ElementsAre(2, 4));
  }
  ExpectRefused(Bags({1, 2}, {0, 1}, 7, false), "no mode 7");
}

Call Attention(const base::Dims& query, const base::Dims& key,
               const base::Dims& value) {
  Call call("aten.scaled_dot_product_attention.default");
  call.With("query", Filled(query))
      .With("key", Filled(key))
      .With("value", Filled(value));
  return call;
}

TEST(GuardsTest, AttentionWantsAsManyValuesAsKeys) {
  const auto good = Attention({3, 2, 6, 8}, {3, 2, 4, 8}, {3, 2, 4, 8}).Run();
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_THAT((*good)[0], ElementsAre(3, 2, 6, 8));
  ExpectRefused(Attention({3, 2, 6, 8}, {3, 2, 40, 8}, {3, 2, 6, 8}),
                "keys of [3, 2, 40, 8] and values of [3, 2, 6, 8]");
  ExpectRefused(Attention({3, 2, 6, 8}, {3, 2, 6, 8}, {3, 2, 4, 8}), "keys of");

  Call flash("aten._scaled_dot_product_flash_attention_for_cpu.default", 2);
  flash.With("query", Filled({3, 2, 6, 8}))
      .With("key", Filled({1, 2, 6, 8}))
      .With("value", Filled({1, 2, 6, 8}));
  ExpectRefused(flash, "attention with queries of");
}

TEST(GuardsTest, BatchNormWantsFiguresOfEveryChannel) {
  const auto call = [](int64_t channels, int64_t means) {
    Call call("aten._native_batch_norm_legit_no_training.default", 3);
    call.With("input", Filled({5, channels, 3}))
        .With("weight", Filled({4}))
        .With("bias", Filled({4}))
        .With("running_mean", Filled({means}))
        .With("running_var", Filled({4}))
        .With("momentum", 0.1)
        .With("eps", 1e-5);
    return call;
  };
  EXPECT_TRUE(call(4, 4).Run().ok());
  ExpectRefused(call(64, 4), "for 64 channels");
  ExpectRefused(call(4, 1), "a mean of [1] for 4 channels");
}

TEST(GuardsTest, WeightNormWantsOneLengthForEachSlice) {
  const auto call = [](const base::Dims& lengths, int64_t dim) {
    Call call("aten._weight_norm.default");
    call.With("v", Filled({4, 5})).With("g", Filled(lengths)).With("dim", dim);
    return call;
  };
  EXPECT_TRUE(call({4, 1}, 0).Run().ok());
  EXPECT_TRUE(call({1, 5}, 1).Run().ok());
  ExpectRefused(call({1}, 0), "lengths of [1]");
  ExpectRefused(call({4, 1}, 1), "lengths of [4, 1]");
}

TEST(GuardsTest, IntegersThatTheProcessorCannotDivideAreRefused) {
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  const auto divided = [](const std::vector<int64_t>& by,
                          const std::string& mode) {
    Call call("aten.div.Tensor_mode");
    call.With("self", Ints({kLowest, 7}))
        .With("other", Ints(by))
        .With("rounding_mode", mode);
    return call;
  };
  EXPECT_TRUE(divided({1, -1}, "floor").Run().ok());
  EXPECT_TRUE(divided({1, 2}, "trunc").Run().ok());
  ExpectRefused(divided({-1, 2}, "trunc"), "lowest integer divided by -1");
  const auto by_number = [](int64_t number) {
    Call call("aten.div.Scalar_mode");
    call.With("self", Ints({kLowest, 7}))
        .With("other", number)
        .With("rounding_mode", std::string("trunc"));
    return call;
  };
  EXPECT_TRUE(by_number(2).Run().ok());
  ExpectRefused(by_number(-1), "lowest integer divided by -1");
}

TEST(GuardsTest, OperatorsThatTrustOthersAreNotRun) {
  Call call("aten.linalg_ldl_solve.default");
  call.With("LD", Filled({3, 3}))
      .With("pivots", Ints({1, 2, 3}))
      .With("B", Filled({3, 1}));
  ExpectRefused(call, "is not run: it does not check its pivots");
  Call segments("aten.segment_reduce.default");
  segments.With("data", Filled({8, 3}))
      .With("reduce", std::string("sum"))
      .With("lengths", Ints({2, 3, 3}));
  ExpectRefused(segments,
                "aten.segment_reduce.default is not run: it does not check");
  Call steps("aten.special_legendre_polynomial_p.default");
  steps.With("x", Filled({3})).With("n", Ints({1, 2, int64_t{1} << 62}));
  ExpectRefused(steps, "grows without bound with its degrees");
}

}  // namespace
}  // namespace refract::runtime::aten

#ifndef REFRACT_TESTS_RUNTIME_TESTING_SMALL_DLRM_H_
#define REFRACT_TESTS_RUNTIME_TESTING_SMALL_DLRM_H_

// A DLRM of two tables with a by-pass of the HN: the cases of a split in one
// small graph.

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/runtime/testing/graph_builder.h"

namespace refract::runtime::testing {

// Nodes in order, with the stage that a split gives them.
//   0 bags of table 0, 1 bags of table 1                        CN-pre
//   2 transpose of a weight, 3 addmm, 4 relu: bottom MLP        HN
//   5 stack, 6 transpose, 7 bmm, 8 view, 9 cat: interaction     HN
//   10 linear, 11 sigmoid                                       HN
//   12 squeeze, 13 rows = sym_size(dense), 14 scale by a size   CN-post
class SmallDlrm {
 public:
  static constexpr int64_t kDim = 4;
  static constexpr int64_t kDense = 3;
  static constexpr int64_t kRows[2] = {11, 7};

  explicit SmallDlrm(unsigned seed = 1) : random_(seed) {
    const SymExpr b = Sym("b");
    const auto f32 = DType::kFloat32;
    const ValueId dense = builder_.Input("dense", f32, {b, kDense});
    std::vector<ValueId> ids;
    std::vector<ValueId> offsets;
    for (int t = 0; t < 2; ++t) {
      ids.push_back(builder_.Input(absl::StrCat("ids_", t), DType::kInt64,
                                   {Sym(absl::StrCat("n", t))}));
    }
    for (int t = 0; t < 2; ++t) {
      offsets.push_back(builder_.Input(absl::StrCat("offsets_", t),
                                       DType::kInt64, {b + SymExpr(1)}));
    }
    std::vector<ValueId> features;
    for (int t = 0; t < 2; ++t) {
      const ValueId table =
          FloatWeight(absl::StrCat("tables.", t, ".weight"), {kRows[t], kDim});
      features.push_back(builder_.Node("aten.embedding_bag.padding_idx",
                                       {Ref("weight", table),
                                        Ref("indices", ids[t]),
                                        Ref("offsets", offsets[t]),
                                        Bool("include_last_offset", true),
                                        {"padding_idx", models::None{}}},
                                       {f32, {b, kDim}}));
      // The other three results, which have no readers.
      auto& outputs = builder_.graph().nodes.back().outputs;
      outputs.resize(4, models::kNoValue);
    }
    const ValueId weight_t = builder_.Node(
        "aten.permute.default",
        {Ref("self", FloatWeight("bottom.weight", {kDim, kDense})),
         Ints("dims", {1, 0})},
        {f32, {kDense, kDim}});
    const ValueId bottom =
        builder_.Node("aten.addmm.default",
                      {Ref("self", FloatWeight("bottom.bias", {kDim})),
                       Ref("mat1", dense), Ref("mat2", weight_t)},
                      {f32, {b, kDim}});
    const ValueId active = builder_.Node(
        "aten.relu.default", {Ref("self", bottom)}, {f32, {b, kDim}});
    features.insert(features.begin(), active);
    const ValueId stacked = builder_.Node(
        "aten.stack.default", {List("tensors", features), Int("dim", 1)},
        {f32, {b, 3, kDim}});
    const ValueId turned =
        builder_.Node("aten.transpose.int",
                      {Ref("self", stacked), Int("dim0", 1), Int("dim1", 2)},
                      {f32, {b, kDim, 3}});
    const ValueId products = builder_.Node(
        "aten.bmm.default", {Ref("self", stacked), Ref("mat2", turned)},
        {f32, {b, 3, 3}});
    const ValueId flat = builder_.Node(
        "aten.view.default", {Ref("self", products), Ints("size", {-1, 9})},
        {f32, {b, 9}});
    const ValueId joined = builder_.Node(
        "aten.cat.default", {List("tensors", {active, flat}), Int("dim", 1)},
        {f32, {b, kDim + 9}});
    const ValueId logit =
        builder_.Node("aten.linear.default",
                      {Ref("input", joined),
                       Ref("weight", FloatWeight("top.weight", {1, kDim + 9})),
                       Ref("bias", FloatWeight("top.bias", {1}))},
                      {f32, {b, 1}});
    const ValueId score = builder_.Node("aten.sigmoid.default",
                                        {Ref("self", logit)}, {f32, {b, 1}});
    const ValueId squeezed = builder_.Node(
        "aten.squeeze.dim", {Ref("self", score), Int("dim", 1)}, {f32, {b}});
    const ValueId rows =
        builder_.Node("aten.sym_size.int", {Ref("self", dense), Int("dim", 0)},
                      {DType::kInt64, {}, models::ValueKind::kSymInt});
    builder_.graph().values[rows].sym_value = b;
    const ValueId scaled =
        builder_.Node("aten.div.Tensor",
                      {Ref("self", squeezed), Ref("other", rows)}, {f32, {b}});
    builder_.Output(squeezed);
    builder_.Output(scaled);
    builder_.Output(dense);        // an input as it came
    builder_.Output(features[1]);  // made in CN-pre
    builder_.Output(builder_.graph().FindValue("p_top.weight"));
    builder_.graph().batch_symbol = "b";
  }

  GraphBuilder& builder() { return builder_; }
  models::SplitPlan Plan() {
    return PlanOf(builder_.graph(),
                  {0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2});
  }

  // dense, ids_0, ids_1, offsets_0, offsets_1; bags of 0 to 3 ids.
  std::vector<base::Tensor> Request(int64_t batch) {
    std::vector<base::Tensor> inputs;
    inputs.push_back(MakeTensor<float>(
        {batch, kDense},
        RandomFloats(static_cast<size_t>(batch * kDense), random_)));
    std::vector<base::Tensor> offsets;
    for (int t = 0; t < 2; ++t) {
      std::vector<int64_t> ids;
      std::vector<int64_t> ends = {0};
      for (int64_t row = 0; row < batch; ++row) {
        for (size_t i = random_() % 4; i > 0; --i) {
          ids.push_back(static_cast<int64_t>(random_() % kRows[t]));
        }
        ends.push_back(static_cast<int64_t>(ids.size()));
      }
      inputs.push_back(
          MakeTensor<int64_t>({static_cast<int64_t>(ids.size())}, ids));
      offsets.push_back(MakeTensor<int64_t>({batch + 1}, ends));
    }
    for (base::Tensor& tensor : offsets) inputs.push_back(std::move(tensor));
    return inputs;
  }

  // The expected result in double precision, from the model's definition.
  struct Scores {
    std::vector<double> squeezed;
    std::vector<double> scaled;
    std::vector<double> bag0;
  };
  Scores Reference(const std::vector<base::Tensor>& in) const {
    const auto dense = in[0].view().as<float>();
    const auto batch = static_cast<size_t>(in[0].dims()[0]);
    Scores scores;
    for (size_t row = 0; row < batch; ++row) {
      std::vector<std::vector<double>> features(3, std::vector<double>(kDim));
      for (int64_t d = 0; d < kDim; ++d) {
        double sum = Value("bottom.bias", d);
        for (int64_t k = 0; k < kDense; ++k) {
          sum +=
              Value("bottom.weight", d * kDense + k) * dense[row * kDense + k];
        }
        features[0][d] = sum < 0 ? 0 : sum;
      }
      for (int t = 0; t < 2; ++t) {
        const auto ids = in[1 + t].view().as<int64_t>();
        const auto offsets = in[3 + t].view().as<int64_t>();
        for (int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
          for (int64_t d = 0; d < kDim; ++d) {
            features[1 + t][d] +=
                Value(absl::StrCat("tables.", t, ".weight"), ids[i] * kDim + d);
          }
        }
      }
      std::vector<double> joined = features[0];
      for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 3; ++j) {
          double dot = 0;
          for (int64_t d = 0; d < kDim; ++d) {
            dot += features[i][d] * features[j][d];
          }
          joined.push_back(dot);
        }
      }
      double logit = Value("top.bias", 0);
      for (size_t i = 0; i < joined.size(); ++i) {
        logit += joined[i] * Value("top.weight", static_cast<int64_t>(i));
      }
      const double score = 1 / (1 + std::exp(-logit));
      scores.squeezed.push_back(score);
      scores.scaled.push_back(score / static_cast<double>(batch));
      scores.bag0.insert(scores.bag0.end(), features[1].begin(),
                         features[1].end());
    }
    return scores;
  }

 private:
  ValueId FloatWeight(const std::string& name, std::vector<int64_t> dims) {
    int64_t count = 1;
    for (int64_t dim : dims) count *= dim;
    const auto values = RandomFloats(static_cast<size_t>(count), random_);
    values_[name] = values;
    return builder_.Weight(name, std::move(dims), values);
  }
  double Value(const std::string& name, int64_t i) const {
    return values_.at(name)[static_cast<size_t>(i)];
  }

  std::mt19937 random_;
  GraphBuilder builder_;
  absl::flat_hash_map<std::string, std::vector<float>> values_;
};

}  // namespace refract::runtime::testing

#endif  // REFRACT_TESTS_RUNTIME_TESTING_SMALL_DLRM_H_

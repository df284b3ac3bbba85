#include "runtime/unique_part.h"

#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/testing/graph_builder.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::SymExpr;
using models::ValueId;
using models::WireForm;
using models::WireType;
using testing::Bool;
using ::testing::HasSubstr;
using testing::Int;
using testing::Ints;
using testing::List;
using testing::Must;
using testing::MustBeOk;
using testing::Ref;
using testing::Sym;

constexpr int64_t kRows = 50;
constexpr int64_t kDim = 8;
constexpr int64_t kSequence = 3;

// A user's id (a column of a matrix), a bag of ids, an un-pooled sequence and
// dense features, which cross with unique rows, and an item's id, which does
// not. The GPU node joins them.
class UniquePartTest : public ::testing::Test {
 protected:
  void Build(WireType type, bool last_offset = false, bool weighted = false,
             bool read_by_post = false) {
    const SymExpr batch = Sym("B");
    const std::vector<float> table =
        testing::RandomFloats(kRows * kDim, random_);
    const ValueId t1 = graph_.Weight<float>("t1", {kRows, kDim}, table);
    const ValueId t2 = graph_.Weight<float>("t2", {kRows, kDim}, table);
    const ValueId users = graph_.Input("users", DType::kInt64, {batch, 2});
    const ValueId ids = graph_.Input("ids", DType::kInt64, {Sym("L")});
    const ValueId offsets = graph_.Input("offsets", DType::kInt32,
                                         {last_offset ? batch + 1 : batch});
    const ValueId sequence =
        graph_.Input("sequence", DType::kInt64, {batch, kSequence});
    const ValueId dense = graph_.Input("dense", DType::kFloat32, {batch, 2});
    const ValueId items = graph_.Input("items", DType::kInt64, {batch});
    const ValueId user = graph_.Node(
        "aten.select.int", {Ref("self", users), Int("dim", 1), Int("index", 1)},
        {DType::kInt64, {batch}});
    const ValueId by_id = graph_.Node("aten.embedding.default",
                                      {Ref("weight", t1), Ref("indices", user)},
                                      {DType::kFloat32, {batch, kDim}});
    std::vector<models::NamedArgument> bag = {
        Ref("weight", t2), Ref("indices", ids), Ref("offsets", offsets),
        Int("mode", 0), Bool("include_last_offset", last_offset)};
    if (weighted) {
      bag.push_back(Ref("per_sample_weights",
                        graph_.Input("weights", DType::kFloat32, {Sym("L")})));
    }
    const ValueId by_bag =
        graph_.Nodes("aten.embedding_bag.default", std::move(bag),
                     {{DType::kFloat32, {batch, kDim}},
                      {DType::kInt64, {Sym("L")}},
                      {DType::kInt64, {batch}},
                      {DType::kInt64, {batch}}})[0];
    const ValueId by_sequence = graph_.Node(
        "aten.embedding.default", {Ref("weight", t1), Ref("indices", sequence)},
        {DType::kFloat32, {batch, kSequence, kDim}});
    const ValueId by_item = graph_.Node(
        "aten.embedding.default", {Ref("weight", t2), Ref("indices", items)},
        {DType::kFloat32, {batch, kDim}});
    const ValueId all = graph_.Node(
        "aten.cat.default",
        {List("tensors", {by_id, by_bag, dense, by_item}), Int("dim", 1)},
        {DType::kFloat32, {batch, 3 * kDim + 2}});
    const ValueId sum = graph_.Node(
        "aten.sum.dim_IntList", {Ref("self", by_sequence), Ints("dim", {1})},
        {DType::kFloat32, {batch, kDim}});
    graph_.Output(all);
    graph_.Output(sum);
    std::vector<int> stages = {0, 0, 0, 0, 0, 1, 1};
    if (read_by_post) {
      graph_.Output(graph_.Node("aten.neg.default", {Ref("self", by_id)},
                                {DType::kFloat32, {batch, kDim}}));
      stages.push_back(2);
    }
    graph_.graph().batch_symbol = "B";
    plan_ = testing::PlanOf(graph_.graph(), stages);
    for (const ValueId id : plan_.up) {
      const bool unique =
          id == by_id || id == by_bag || id == by_sequence || id == dense;
      plan_.up_forms.push_back(
          {graph_.graph().value(id).dtype == DType::kFloat32 ? type
                                                             : WireType::kAsIs,
           unique});
    }
    weights_ = graph_.Weights();
    part_ = Must(UniquePart::Create(graph_.graph(), plan_, weights_, options_));
  }

  // Request of `rows` rows in which ids are of `values` distinct ones.
  std::vector<base::Tensor> MakeRequest(int64_t rows, int64_t values,
                                        bool last_offset, bool user_sorted) {
    const auto ids = [&](int64_t count) {
      std::vector<int64_t> drawn(count);
      for (int64_t& id : drawn) id = random_() % values;
      return drawn;
    };
    std::vector<base::Tensor> request;
    std::vector<int64_t> users = ids(2 * rows);
    if (user_sorted) std::fill(users.begin(), users.end(), users[0]);
    request.push_back(testing::MakeTensor<int64_t>({rows, 2}, users));
    std::vector<int32_t> offsets;
    int32_t count = 0;
    for (int64_t row = 0; row < rows; ++row) {
      offsets.push_back(count);
      count += static_cast<int32_t>(random_() % 3);  // bags may be empty
    }
    if (last_offset) offsets.push_back(count);
    request.push_back(testing::MakeTensor<int64_t>({count}, ids(count)));
    request.push_back(testing::MakeTensor<int32_t>(
        {static_cast<int64_t>(offsets.size())}, offsets));
    request.push_back(
        testing::MakeTensor<int64_t>({rows, kSequence}, ids(rows * kSequence)));
    std::vector<float> dense;
    for (const int64_t value : ids(2 * rows)) {
      dense.push_back(value % 2 == 0 ? 0.0f : -0.0f);
    }
    request.push_back(testing::MakeTensor<float>({rows, 2}, dense));
    request.push_back(testing::MakeTensor<int64_t>({rows}, ids(rows)));
    return request;
  }

  // The values that the receiver has, of CN-pre with all rows or with distinct
  // rows, and the bytes of the message.
  struct Sent {
    std::vector<std::vector<std::byte>> values;
    std::vector<base::Dims> dims;
    size_t bytes = 0;
  };
  Sent Send(const Program& program, absl::Span<const base::TensorView> inputs,
            std::optional<absl::Span<const wire::UniqueRows* const>> indexes) {
    const wire::Codec codec(graph_.graph(), plan_.up, plan_.up_forms);
    wire::Encoder encoder(codec);
    RunContext context(program);
    std::vector<base::TensorView> outputs;
    MustBeOk(program.Run(inputs, {}, context, outputs));
    outputs.resize(plan_.up.size());
    std::vector<base::Tensor> message;
    std::vector<base::TensorView> views;
    Sent sent;
    for (const base::TensorSpec& spec :
         Must(indexes ? encoder.Prepare(outputs, *indexes)
                      : encoder.Prepare(outputs))) {
      message.push_back(Must(base::Tensor::Allocate(spec.dtype, spec.dims)));
      views.push_back(message.back().view());
      sent.bytes += views.back().bytes;
    }
    encoder.WriteTo([&](size_t i) { return message[i].data(); });
    wire::Decoder decoder(codec);
    for (const base::TensorView& value : Must(decoder.Decode(views))) {
      sent.values.emplace_back(value.data, value.data + value.bytes);
      sent.dims.push_back(value.dims);
    }
    return sent;
  }

  static std::vector<base::TensorView> Views(
      const std::vector<base::Tensor>& tensors) {
    std::vector<base::TensorView> views;
    for (const base::Tensor& tensor : tensors) views.push_back(tensor.view());
    return views;
  }

  const uint64_t seed_ = base::RandomSeed();
  std::mt19937 random_{static_cast<std::mt19937::result_type>(seed_)};
  testing::GraphBuilder graph_;
  CompileOptions options_;
  models::SplitPlan plan_;
  std::shared_ptr<const models::WeightStore> weights_;
  std::unique_ptr<const UniquePart> part_;
};

// The oracle is CN-pre with all rows, whose rows the encoder compares.
class UniquePartFormsTest
    : public UniquePartTest,
      public ::testing::WithParamInterface<std::tuple<WireType, bool>> {};

TEST_P(UniquePartFormsTest, TheReceiverHasTheSameValues) {
  SCOPED_TRACE(seed_);
  const auto [type, last_offset] = GetParam();
  Build(type, last_offset);
  ASSERT_NE(part_, nullptr);
  const auto whole = Must(Program::Compile(
      graph_.graph(), Part::CnPre(graph_.graph(), plan_), weights_, {}));
  const auto distinct =
      Must(Program::Compile(part_->graph(), part_->part(), weights_, {}));
  const auto memory = part_->Acquire();
  bool any = false;
  bool none = false;
  for (const int64_t rows : {1, 2, 7, 100, 300}) {
    for (const int64_t values : {1, 2, 40}) {
      for (const bool sorted : {false, true}) {
        const auto request = MakeRequest(rows, values, last_offset, sorted);
        const Sent wanted = Send(*whole, Views(request), std::nullopt);
        for (const bool only_distinct : {true, false}) {
          std::vector<base::TensorView> inputs = Views(request);
          MustBeOk(part_->AddInputs(only_distinct, *memory, inputs));
          any = any || memory->has_index();
          none = none || !memory->has_index();
          const Sent found = Send(*distinct, inputs, memory->indexes());
          EXPECT_EQ(found.dims, wanted.dims);
          EXPECT_EQ(found.values, wanted.values) << rows << " " << values;
          // Rows of different ids may be equal, which only the encoder sees.
          if (only_distinct) {
            EXPECT_GE(found.bytes, wanted.bytes);
            if (values == 1 && sorted) {
              EXPECT_LE(found.bytes, wanted.bytes + 64);
            }
          }
        }
      }
    }
  }
  EXPECT_TRUE(any);
  EXPECT_TRUE(none);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, UniquePartFormsTest,
    ::testing::Combine(::testing::Values(WireType::kAsIs, WireType::kFloat16,
                                         WireType::kInt8),
                       ::testing::Bool()));

TEST_F(UniquePartTest, LooksEachDistinctRowUpOnce) {
  Build(WireType::kAsIs);
  const auto request = MakeRequest(100, 40, false, /*user_sorted=*/true);
  const auto memory = part_->Acquire();
  std::vector<base::TensorView> inputs = Views(request);
  MustBeOk(part_->AddInputs(true, *memory, inputs));
  const auto distinct =
      Must(Program::Compile(part_->graph(), part_->part(), weights_, {}));
  const auto specs = Must(distinct->OutputSpecs(inputs));
  std::set<std::string> one_row;
  for (size_t i = 0; i < plan_.up.size(); ++i) {
    ASSERT_TRUE(specs[i].has_value());
    if (specs[i]->dims[0] == 1)
      one_row.insert(graph_.graph().value(plan_.up[i]).name);
  }
  EXPECT_THAT(one_row, ::testing::ElementsAre("v1_0"));  // of the user's id
}

TEST_F(UniquePartTest, WrongOffsetsAreLeftToTheLookUp) {
  Build(WireType::kAsIs);
  auto request = MakeRequest(100, 1, false, true);
  request[2].as<int32_t>()[5] = -1;
  const auto memory = part_->Acquire();
  std::vector<base::TensorView> inputs = Views(request);
  MustBeOk(part_->AddInputs(true, *memory, inputs));
  const auto distinct =
      Must(Program::Compile(part_->graph(), part_->part(), weights_, {}));
  RunContext context(*distinct);
  std::vector<base::TensorView> outputs;
  const absl::Status status = distinct->Run(inputs, {}, context, outputs);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("offsets 'offsets': -1 at position 5"));
}

TEST_F(UniquePartTest, CountsReplacedIdsAsWithAllRows) {
  SCOPED_TRACE(seed_);
  options_.config.default_id_policy = models::IdPolicy::kZeroRow;
  Build(WireType::kAsIs);
  const auto whole = Must(Program::Compile(
      graph_.graph(), Part::CnPre(graph_.graph(), plan_), weights_, options_));
  const auto distinct =
      Must(Program::Compile(part_->graph(), part_->part(), weights_, options_));
  auto request = MakeRequest(100, 3, false, /*user_sorted=*/true);
  // The user's id, and a third of the other ids, have no row.
  for (const size_t input : {0, 1, 3, 5}) {
    for (int64_t& id : request[input].as<int64_t>()) {
      if (input == 0 || id == 1) id += kRows;
    }
  }
  const auto memory = part_->Acquire();
  std::vector<base::TensorView> inputs = Views(request);
  std::vector<base::TensorView> outputs;
  RunStats wanted;
  RunContext context(*whole);
  MustBeOk(whole->Run(inputs, {}, context, outputs, &wanted));
  MustBeOk(part_->AddInputs(/*distinct=*/true, *memory, inputs));
  RunStats found;
  RunContext distinct_context(*distinct);
  MustBeOk(distinct->Run(inputs, {}, distinct_context, outputs, &found));
  EXPECT_LT(found.replaced_ids, wanted.replaced_ids);
  MustBeOk(part_->CountAllIds(0, *memory, inputs, found));
  EXPECT_EQ(found.replaced_ids, wanted.replaced_ids);
}

TEST_F(UniquePartTest, NeedsAllRowsOfWeightedBags) {
  Build(WireType::kAsIs, false, /*weighted=*/true);
  EXPECT_EQ(part_, nullptr);
}

TEST_F(UniquePartTest, NeedsAllRowsThatCnPostReads) {
  Build(WireType::kAsIs, false, false, /*read_by_post=*/true);
  EXPECT_EQ(part_, nullptr);
}

}  // namespace
}  // namespace refract::runtime

// Requests with bags of ids, whose look-up is on the GPU node: executed
// together and in steps they answer what plain loops say.
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_node/model/device_model.h"
#include "gpu_node/model/warm_up.h"
#include "gtest/gtest.h"
#include "models/repository/split_plan.h"
#include "runtime/compile/bag_inputs.h"
#include "tests/base/random_seed.h"
#include "tests/cpu_node/small_model.h"
#include "tests/gpu_node/slot_call.h"

namespace refract::gpu_node {
namespace {

using models::SymExpr;
using models::ValueRef;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_models::AddNode;
using testing_models::AddValue;
using testing_models::kDim;
using testing_models::kRows;

constexpr auto kFloat = base::DType::kFloat32;
constexpr auto kInt = base::DType::kInt64;

struct BagModel {
  bool include_last = false;
  bool weighted = false;
  // A second reader of the ids, which forbids bags by rows.
  bool ids_are_read = false;
};

// sums[b] = Σ of the bag's rows of the table, times their weights.
std::shared_ptr<const models::LoadedModel> MakeBagModel(const BagModel& how) {
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({.name = "bags"}));
  const SymExpr batch = SymExpr::Symbol("B");
  const SymExpr entries = SymExpr::Symbol("N");
  models::Graph graph;
  graph.batch_symbol.push_back('B');
  graph.symbols = {{.symbol = "B", .min = 1, .max = 100000},
                   {.symbol = "N", .min = 0, .max = 1000000}};
  const auto ids = AddValue(graph, "ids", kInt, {entries});
  const auto offsets =
      AddValue(graph, "offsets", kInt,
               {how.include_last ? batch + SymExpr(int64_t{1}) : batch});
  const auto weights = AddValue(graph, "weights", kFloat, {entries});
  const auto table = AddValue(graph, "table", kFloat, {kRows, kDim}, "table");
  const auto sums = AddValue(graph, "sums", kFloat, {batch, kDim});
  graph.inputs = {ids, offsets};
  std::vector<models::NamedArgument> args = {
      {"weight", ValueRef{table}},
      {"indices", ValueRef{ids}},
      {"offsets", ValueRef{offsets}},
      {"mode", int64_t{0}},
      {"include_last_offset", how.include_last}};
  if (how.weighted) {
    graph.inputs.push_back(weights);
    args.push_back({"per_sample_weights", ValueRef{weights}});
  }
  AddNode(graph, "aten.embedding_bag.default", std::move(args), sums);
  graph.outputs = {sums};
  graph.output_names = {"sums"};
  if (how.ids_are_read) {
    const auto twice = AddValue(graph, "twice", kInt, {entries});
    AddNode(graph, "aten.add.Tensor",
            {{"self", ValueRef{ids}}, {"other", ValueRef{ids}}}, twice);
    graph.outputs.push_back(twice);
    graph.output_names.emplace_back("twice");
  }
  models::SplitPlan plan;
  plan.model = model->digest;
  plan.stages.assign(graph.nodes.size(), models::Stage::kHn);
  model->graph = std::move(graph);
  models::ComputeCrossings(model->graph, plan);
  model->plan = std::move(plan);
  return model;
}

struct BagRequest {
  int64_t rows = 1;
  base::Tensor ids, offsets, weights;
  std::vector<base::TensorView> views;  // in the part's order
};

class BagRowsTest : public ::testing::TestWithParam<BagModel> {
 protected:
  void SetUp() override {
    auto model = DeviceModel::Create(MakeBagModel(GetParam()));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    ASSERT_EQ(model_->layout().why_not(), "");
  }

  std::unique_ptr<BagRequest> Make(const std::vector<int64_t>& sizes) {
    auto request = std::make_unique<BagRequest>();
    request->rows = static_cast<int64_t>(sizes.size());
    int64_t entries = 0;
    for (const int64_t size : sizes) entries += size;
    request->ids = *base::Tensor::Allocate(kInt, {entries});
    for (int64_t& id : request->ids.as<int64_t>()) {
      id = static_cast<int64_t>(random_() % kRows);
    }
    request->weights = *base::Tensor::Allocate(kFloat, {entries});
    for (float& weight : request->weights.as<float>()) {
      weight = static_cast<float>(random_() % 16) / 8.0f - 1.0f;
    }
    request->offsets = *base::Tensor::Allocate(
        kInt, {request->rows + (GetParam().include_last ? 1 : 0)});
    int64_t at = 0;
    for (size_t row = 0; row < sizes.size(); ++row) {
      request->offsets.as<int64_t>()[row] = at;
      at += sizes[row];
    }
    if (GetParam().include_last) {
      request->offsets.as<int64_t>()[request->rows] = entries;
    }
    for (const models::ValueId id : model_->program().part().inputs) {
      const std::string& name = model_->model().graph.value(id).name;
      request->views.push_back(name == "ids"       ? request->ids.view()
                               : name == "offsets" ? request->offsets.view()
                                                   : request->weights.view());
    }
    return request;
  }

  Batch Run(const std::vector<const BagRequest*>& requests, int64_t max_rows) {
    Batch batch;
    for (const BagRequest* request : requests) {
      BatchMember& member = batch.members.emplace_back();
      member.rows = request->rows;
      member.call = std::make_unique<SlotCall>(request->views, memory_, true);
      batch.rows += member.rows;
    }
    runtime::RowBuffers buffers;
    ExecuteInSteps(*model_, batch, max_rows, buffers);
    return batch;
  }

  // The oracle: loops over the bags.
  void ExpectRight(const BagRequest& request, const std::vector<int64_t>& sizes,
                   const BatchMember& member) {
    ASSERT_TRUE(member.status.ok()) << member.status;
    const auto* const sums =
        reinterpret_cast<const float*>(member.reply.data(0));
    const absl::Span<const int64_t> ids = request.ids.view().as<int64_t>();
    const absl::Span<const float> weights = request.weights.view().as<float>();
    size_t entry = 0;
    for (int64_t row = 0; row < request.rows; ++row) {
      double sum[kDim] = {};
      for (int64_t k = 0; k < sizes[row]; ++k, ++entry) {
        for (int64_t d = 0; d < kDim; ++d) {
          sum[d] += (GetParam().weighted ? weights[entry] : 1.0f) *
                    testing_models::WeightValue(ids[entry] * kDim + d, 0);
        }
      }
      for (int64_t d = 0; d < kDim; ++d) {
        EXPECT_NEAR(sums[row * kDim + d], sum[d], 1e-5) << row << ", " << d;
      }
    }
  }

  std::vector<int64_t> RandomSizes(int64_t rows) {
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < rows; ++i) {
      // Empty ones at the ends, too.
      sizes.push_back(static_cast<int64_t>(random_() % 4));
    }
    return sizes;
  }

  std::mt19937 random_{base::RandomSeed()};
  std::unique_ptr<DeviceModel> model_;
  const std::shared_ptr<transport::LinkMemory> memory_ = NewSlotMemory();
};

TEST_P(BagRowsTest, TogetherAndInStepsAsAlone) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  random_.seed(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<int64_t>> sizes;
    std::vector<std::unique_ptr<BagRequest>> requests;
    std::vector<const BagRequest*> together;
    const size_t count = 1 + random_() % 4;
    for (size_t i = 0; i < count; ++i) {
      sizes.push_back(RandomSizes(1 + static_cast<int64_t>(random_() % 9)));
      requests.push_back(Make(sizes.back()));
      together.push_back(requests.back().get());
    }
    const Batch batch = Run(together, 1000);
    for (size_t i = 0; i < count; ++i) {
      ExpectRight(*requests[i], sizes[i], batch.members[i]);
      const int64_t step = 1 + static_cast<int64_t>(random_() % 4);
      ExpectRight(*requests[i], sizes[i], Run({together[i]}, step).members[0]);
    }
  }
}

TEST_P(BagRowsTest, KeysAreEqualWhateverTheBags) {
  const auto key = [&](const std::vector<int64_t>& sizes) {
    return model_->layout().MergeKey(Make(sizes)->views);
  };
  EXPECT_NE(key({1, 2}), "");
  EXPECT_EQ(key({1, 2}), key({0, 0, 5}));
  EXPECT_EQ(model_->layout().Rows(Make({3, 0, 1})->views), 3);
}

TEST_P(BagRowsTest, OffsetsOfAnotherTypeAreNone) {
  const auto request = Make({1, 2, 3});
  const std::vector<base::TensorView> good = request->views;
  for (const base::DType dtype :
       {base::DType::kUInt8, base::DType::kFloat32, base::DType::kFloat64}) {
    for (base::TensorView& view : request->views) {
      if (view.data != request->offsets.data()) continue;
      view.dtype = dtype;
      view.bytes = static_cast<size_t>(view.dims[0]) * base::SizeOf(dtype);
    }
    EXPECT_EQ(model_->layout().Rows(request->views), std::nullopt);
    EXPECT_EQ(model_->layout().MergeKey(request->views), "");
    const Batch batch = Run({request.get(), request.get()}, 1);
    EXPECT_FALSE(batch.members[0].status.ok());
    EXPECT_FALSE(Run({request.get()}, 1).members[0].status.ok());
    request->views = good;
  }
}

// Offsets of one request that reach for another's entries.
TEST_P(BagRowsTest, BadOffsetsHarmNobodyElse) {
  const std::vector<int64_t> sizes = {2, 0, 3};
  const std::vector<int64_t> spoilt[] = {{1, 2, 2},         {-1, 2, 2},
                                         {0, 3, 2},         {0, 2, 6},
                                         {0, 2, INT64_MAX}, {INT64_MIN, 0, 0}};
  for (const std::vector<int64_t>& values : spoilt) {
    SCOPED_TRACE(::testing::PrintToString(values));
    const auto before = Make(sizes);
    const auto bad = Make(sizes);
    const auto after = Make(sizes);
    std::memcpy(bad->offsets.data(), values.data(),
                values.size() * sizeof(int64_t));
    const Batch batch = Run({before.get(), bad.get(), after.get()}, 1000);
    ExpectRight(*before, sizes, batch.members[0]);
    EXPECT_EQ(batch.members[1].status.code(),
              absl::StatusCode::kInvalidArgument)
        << batch.members[1].status;
    ExpectRight(*after, sizes, batch.members[2]);
    EXPECT_FALSE(Run({bad.get()}, 1).members[0].status.ok());
  }
}

TEST_P(BagRowsTest, TheCheckAtLoadMergesThem) {
  double difference = 1;
  EXPECT_EQ(VerifyRows(model_->model().graph, model_->program(),
                       model_->layout(), model_->least_integer(), &difference),
            absl::OkStatus());
  EXPECT_LT(difference, 1e-6);
  EXPECT_EQ(model_->row_difference(), difference);
  EXPECT_FALSE(WarmUp(*model_, {.max_rows = 16}).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Forms, BagRowsTest,
    testing::Values(BagModel{}, BagModel{true, false}, BagModel{false, true},
                    BagModel{true, true}),
    [](const auto& info) {
      return std::string(info.param.include_last ? "LastOffset" : "Offsets") +
             (info.param.weighted ? "Weighted" : "");
    });

TEST(BagInputsTest, ThatAreAlsoReadOtherwiseAreNotMerged) {
  const auto model = MakeBagModel({.ids_are_read = true});
  const runtime::Part part = runtime::Part::Hn(model->graph, *model->plan);
  const runtime::FoundBags found = runtime::FindBagInputs(model->graph, part);
  EXPECT_THAT(
      found.why_not,
      HasSubstr("'ids' holds entries or offsets of bags and is also read by"));
}

TEST(BagInputsTest, RowsAreNone) {
  const auto model = testing_models::MakeSmallModel({});
  const runtime::FoundBags found = runtime::FindBagInputs(
      model->graph, runtime::Part::Hn(model->graph, *model->plan));
  EXPECT_EQ(found.why_not, "");
  EXPECT_THAT(found.bags, IsEmpty());
}

}  // namespace
}  // namespace refract::gpu_node

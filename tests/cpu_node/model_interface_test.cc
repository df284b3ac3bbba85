#include "cpu_node/model_interface.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::cpu_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

models::ValueId AddTensor(models::Graph& graph, const std::string& name,
                          base::DType dtype,
                          std::vector<models::SymExpr> shape) {
  models::Value value;
  value.name = name;
  value.dtype = dtype;
  value.has_shape = true;
  value.shape = std::move(shape);
  return graph.AddValue(std::move(value));
}

// dense: FP32[B, 13]; ids: INT64[N]; offsets: INT64[B + 1] → score: FP32[B].
models::Graph MakeGraph() {
  models::Graph graph;
  const models::SymExpr batch = models::SymExpr::Symbol("B");
  const models::SymExpr lookups = models::SymExpr::Symbol("N");
  graph.inputs = {AddTensor(graph, "offsets", base::DType::kInt64, {batch + 1}),
                  AddTensor(graph, "dense", base::DType::kFloat32, {batch, 13}),
                  AddTensor(graph, "ids", base::DType::kInt64, {lookups})};
  graph.outputs = {AddTensor(graph, "v7", base::DType::kFloat32, {batch}),
                   AddTensor(graph, "v8", base::DType::kFloat32, {batch, 2})};
  graph.output_names = {"score", "logits"};
  graph.batch_symbol = "B";
  return graph;
}

InputTensor Input(const std::string& name, base::DType dtype,
                  std::vector<int64_t> dims) {
  return {name, *base::Tensor::Allocate(dtype, dims)};
}

InferRequest GoodRequest(int64_t batch = 2, int64_t lookups = 5) {
  InferRequest request;
  request.inputs.push_back(Input("dense", base::DType::kFloat32, {batch, 13}));
  request.inputs.push_back(Input("ids", base::DType::kInt64, {lookups}));
  request.inputs.push_back(Input("offsets", base::DType::kInt64, {batch + 1}));
  return request;
}

absl::StatusOr<BoundRequest> Bound(const ModelInterface& interface,
                                   const InferRequest& request) {
  // Used before, by something larger, as the engine's are.
  BoundRequest bound;
  bound.inputs.resize(7);
  bound.outputs = {5, 6};
  bound.batch = 9;
  const absl::Status status = interface.Bind(request, bound);
  if (!status.ok()) return status;
  return bound;
}

class ModelInterfaceTest : public ::testing::Test {
 protected:
  const ModelInterface interface_ = *ModelInterface::Of(MakeGraph());
};

TEST_F(ModelInterfaceTest, ShowsVariableSizesAsMinusOne) {
  ASSERT_EQ(interface_.inputs().size(), 3);
  EXPECT_EQ(interface_.inputs()[0].name, "offsets");
  EXPECT_THAT(interface_.inputs()[0].dims, ElementsAre(-1));
  EXPECT_THAT(interface_.inputs()[1].dims, ElementsAre(-1, 13));
  EXPECT_EQ(interface_.outputs()[0].name, "score");
  EXPECT_THAT(interface_.outputs()[1].dims, ElementsAre(-1, 2));
}

TEST_F(ModelInterfaceTest, BindsInputsInTheGraphsOrder) {
  const InferRequest request = GoodRequest(/*batch=*/3, /*lookups=*/0);
  const absl::StatusOr<BoundRequest> bound = Bound(interface_, request);
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(bound->inputs[0].data, request.inputs[2].tensor.data());
  EXPECT_EQ(bound->inputs[1].data, request.inputs[0].tensor.data());
  EXPECT_EQ(bound->inputs[2].data, request.inputs[1].tensor.data());
  EXPECT_EQ(bound->batch, 3);
  EXPECT_THAT(bound->outputs, ElementsAre(0, 1));
}

TEST_F(ModelInterfaceTest, GivesRequestedOutputsInTheirOrder) {
  InferRequest request = GoodRequest();
  request.outputs = {"logits", "score"};
  EXPECT_THAT(Bound(interface_, request)->outputs, ElementsAre(1, 0));
  request.outputs = {"logits"};
  EXPECT_THAT(Bound(interface_, request)->outputs, ElementsAre(1));
}

TEST_F(ModelInterfaceTest, NamesWhatIsWrong) {
  struct Case {
    const char* what;
    void (*spoil)(InferRequest&);
    std::vector<const char*> words;
  };
  const Case cases[] = {
      {"missing",
       [](InferRequest& r) { r.inputs.pop_back(); },
       {"'offsets'", "missing"}},
      {"misnamed",
       [](InferRequest& r) { r.inputs[0].name = "Dense"; },
       {"'Dense'", "no input", "'dense'"}},
      {"extra",
       [](InferRequest& r) {
         r.inputs.push_back(Input("more", base::DType::kFloat32, {1}));
       },
       {"'more'", "no input"}},
      {"twice",
       [](InferRequest& r) {
         r.inputs.push_back(Input("ids", base::DType::kInt64, {5}));
       },
       {"'ids'", "twice"}},
      {"dtype",
       [](InferRequest& r) {
         r.inputs[1] = Input("ids", base::DType::kInt32, {5});
       },
       {"'ids'", "INT32", "INT64"}},
      {"rank",
       [](InferRequest& r) {
         r.inputs[1] = Input("ids", base::DType::kInt64, {5, 1});
       },
       {"'ids'", "[5, 1]", "[-1]"}},
      {"fixed size",
       [](InferRequest& r) {
         r.inputs[0] = Input("dense", base::DType::kFloat32, {2, 12});
       },
       {"'dense'", "[2, 12]", "[-1, 13]"}},
      {"batch 0",
       [](InferRequest& r) {
         r.inputs[0] = Input("dense", base::DType::kFloat32, {0, 13});
       },
       {"'dense'", "batch of 0"}},
      {"unknown output",
       [](InferRequest& r) { r.outputs = {"scores"}; },
       {"'scores'", "no output", "'score'", "'logits'"}},
      {"output twice",
       [](InferRequest& r) {
         r.outputs = {"score", "score"};
       },
       {"'score'", "twice"}},
  };
  for (const Case& c : cases) {
    InferRequest request = GoodRequest();
    c.spoil(request);
    const absl::Status status = Bound(interface_, request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.what;
    for (const char* word : c.words) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(word)) << c.what;
    }
  }
}

TEST_F(ModelInterfaceTest, CountsOneRowWithoutABatchDimension) {
  models::Graph graph = MakeGraph();
  graph.batch_symbol.clear();
  const ModelInterface interface = *ModelInterface::Of(graph);
  EXPECT_EQ(Bound(interface, GoodRequest(/*batch=*/4))->batch, 1);
}

TEST(SignatureOfTest, RefusesInputsThatCannotBeChecked) {
  models::Graph graph = MakeGraph();
  graph.values[graph.inputs[2]].has_shape = false;
  const absl::Status status = ModelInterface::Of(graph).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'ids'"));
}

}  // namespace
}  // namespace refract::cpu_node

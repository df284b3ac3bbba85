#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/graph/control_region.h"
#include "models/graph/script_region.h"
#include "models/torch_export/import.h"
#include "tests/models/testing/pt2_archive.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using testing::FindNode;
using ::testing::HasSubstr;
using testing::Json;
using testing::Pt2Archive;
using testing::TempDir;

absl::StatusOr<ImportedModel> Import(const Pt2Archive& archive) {
  const TempDir dir;
  return ImportTorchExport(dir.Write("m.pt2", archive.Bytes()));
}

Json Tensor(const std::string& name) {
  return {{"as_tensor", {{"name", name}}}};
}
Json Arg(Json value) { return {{"name", ""}, {"arg", std::move(value)}}; }

// One operator: y = OP(x), with names of the subgraph's own.
Json Subgraph(const std::string& target, int dtype = 7) {
  return {{"as_graph",
           {{"name", "sub"},
            {"graph",
             {{"inputs", {Tensor("x")}},
              {"outputs", {Tensor("y")}},
              {"nodes",
               {{{"target", target},
                 {"inputs", {{{"name", "self"}, {"arg", Tensor("x")}}}},
                 {"outputs", {Tensor("y")}},
                 {"name", "y"}}}},
              {"tensor_values",
               {{"x", {{"dtype", 7}, {"sizes", Json::array()}}},
                {"y", {{"dtype", dtype}, {"sizes", Json::array()}}}}}}}}}};
}

// The model's sigmoid becomes the higher-order operator `op`, whose arguments
// are `arguments`.
Pt2Archive With(const std::string& op, const std::vector<Json>& arguments) {
  Pt2Archive archive;
  Json& node = archive.node(4);
  node["target"] = "torch.ops.higher_order." + op;
  node["inputs"] = Json::array();
  for (const Json& argument : arguments) {
    node["inputs"].push_back(Arg(argument));
  }
  return archive;
}

Pt2Archive Autocast(Json device, Json dtype, bool enabled, Json subgraph) {
  return With("wrap_with_autocast", {{{"as_string", device}},
                                     std::move(dtype),
                                     {{"as_bool", enabled}},
                                     {{"as_bool", true}},
                                     std::move(subgraph),
                                     Tensor("relu_")});
}

const Json kBFloat16 = {{"as_scalar_type", 13}};

TEST(HigherOrderTest, CondBecomesAControlRegion) {
  const auto model =
      Import(With("cond", {Tensor("c_k"),
                           Subgraph("torch.ops.aten.sin.default"),
                           Subgraph("torch.ops.aten.cos_.default"),
                           {{"as_tensors", {{{"name", "relu_"}}}}}}));
  ASSERT_TRUE(model.ok()) << model.status();
  const Node* node = FindNode(model->graph, kControlRegionOp);
  ASSERT_NE(node, nullptr);
  EXPECT_TRUE(IsRegion(*node));
  const auto region = ReadControlRegion(*node);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(region->kind, ControlKind::kCond);
  ASSERT_EQ(region->graphs.size(), 2);
  EXPECT_NE(FindNode(region->graphs[0], "aten.sin.default"), nullptr);
  EXPECT_NE(FindNode(region->graphs[1], "aten.cos.default"), nullptr)
      << "graphs of a region are functional, too";
  EXPECT_THAT(std::get<StringList>(*node->FindArg(kRegionOperatorsArg)),
              ElementsAre("aten::cos", "aten::sin"));
}

TEST(HigherOrderTest, ScanTellsWhatIsCarriedFromWhatIsMapped) {
  Json body = Subgraph("torch.ops.mylib.step.default");
  Json& graph = body["as_graph"]["graph"];
  graph["inputs"].push_back(Tensor("t"));
  graph["outputs"].push_back(Tensor("x"));
  Pt2Archive archive = With("scan", {body,
                                     {{"as_tensors", {{{"name", "relu_"}}}}},
                                     {{"as_tensors", {{{"name", "dense"}}}}},
                                     {{"as_tensors", Json::array()}}});
  archive.node(4)["outputs"].push_back(Tensor("stacked"));
  const auto model = Import(archive);
  ASSERT_TRUE(model.ok()) << model.status();
  const Node* node = FindNode(model->graph, kControlRegionOp);
  ASSERT_NE(node, nullptr);
  const auto region = ReadControlRegion(*node);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(region->carried, 1);
  EXPECT_EQ(region->mapped, 1);
  EXPECT_THAT(std::get<StringList>(*node->FindArg(kRegionOperatorsArg)),
              ElementsAre("mylib::step"))
      << "so that --op-library is asked for";
}

TEST(HigherOrderTest, AutocastWritesItsCastsDown) {
  Json lower = Subgraph("torch.ops.aten.prelu.default", 13);
  const auto model = Import(Autocast("cpu", kBFloat16, true, lower));
  ASSERT_TRUE(model.ok()) << model.status();
  const Node* cast = FindNode(model->graph, "aten._to_copy.default");
  const Node* prelu = FindNode(model->graph, "aten.prelu.default");
  ASSERT_NE(cast, nullptr);
  ASSERT_NE(prelu, nullptr);
  EXPECT_EQ(std::get<ValueRef>(*prelu->FindArg("self")).id, cast->outputs[0]);
  EXPECT_EQ(std::get<base::DType>(*cast->FindArg("dtype")),
            base::DType::kBFloat16);
}

TEST(HigherOrderTest, AutocastLeavesAloneWhatItDoesNotCast) {
  const std::string sigmoid = "torch.ops.aten.sigmoid.default";
  const std::string prelu = "torch.ops.aten.prelu.default";
  for (const Pt2Archive& archive :
       {Autocast("cpu", kBFloat16, true, Subgraph(sigmoid)),
        Autocast("cpu", {{"as_none", true}}, false, Subgraph(prelu)),
        // An autocast of GPUs has no effect on a CPU.
        Autocast("cuda", {{"as_scalar_type", 6}}, true, Subgraph(prelu))}) {
    const auto model = Import(archive);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(FindNode(model->graph, "aten._to_copy.default"), nullptr);
  }
}

TEST(HigherOrderTest, AutocastFollowsTheRecordedDTypeOfComposites) {
  // One operand: a sum. Two: a product of matrices, in bfloat16.
  const std::string einsum = "torch.ops.aten.einsum.default";
  for (const int dtype : {7, 13}) {
    const auto model =
        Import(Autocast("cpu", kBFloat16, true, Subgraph(einsum, dtype)));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(FindNode(model->graph, "aten._to_copy.default") != nullptr,
              dtype == 13);
  }
}

TEST(HigherOrderTest, RefusesByName) {
  const Json cond = Subgraph("torch.ops.aten.sin.default");
  const Json list = {{"as_tensors", {{{"name", "relu_"}}}}};
  Json on_gpu = Subgraph("torch.ops.aten.mm.default");
  on_gpu["as_graph"]["graph"]["tensor_values"]["x"]["device"] = {
      {"type", "cuda"}};
  Json text = Subgraph("torch.ops.aten.sin.default");
  text["as_graph"]["graph"]["outputs"] = {{{"as_string", "y"}}};
  const std::vector<std::pair<Pt2Archive, std::string>> cases = {
      {With("flex_attention", {cond}), "not supported"},
      {With("cond", {Tensor("c_k"), cond, list}), "has 1 graphs"},
      {With("cond", {Tensor("c_k"), cond, cond}), "not 0 and 1"},
      {With("cond", {Tensor("nowhere"), cond, cond, list}), "nowhere"},
      {With("cond", {Tensor("c_k"), cond, text, list}), "an output"},
      {With("cond", {Tensor("c_k"), cond, cond, {{"as_string", "s"}}}),
       "neither a tensor nor a number"},
      {With("cond", {Tensor("c_k"), cond,
                     Subgraph("torch.ops.aten.bernoulli.default"), list}),
       "aten.bernoulli.default"},
      {With("map_impl", {cond}), "0 inputs"},
      {With("wrap_with_autocast", {cond, Tensor("relu_")}), "malformed"},
      {With("wrap_with_set_grad_enabled", {{{"as_bool", true}}}), "malformed"},
      {Autocast("cuda", kBFloat16, true, on_gpu), "run_decompositions()"},
      {Autocast("cpu", kBFloat16, true,
                Subgraph("torch.ops.aten.lstm.input", 13)),
       "run_decompositions()"},
      {Autocast("cpu", kBFloat16, true,
                Subgraph("torch.ops.mylib.attention.default", 13)),
       "run_decompositions()"},
  };
  for (const auto& [archive, expected] : cases) {
    const auto model = Import(archive);
    ASSERT_FALSE(model.ok()) << expected;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(expected));
    EXPECT_THAT(std::string(model.status().message()),
                HasSubstr("node sigmoid (torch.ops.higher_order."));
  }
}

}  // namespace
}  // namespace refract::models

#ifndef REFRACT_TESTS_MODELS_TESTING_PT2_ARCHIVE_H_
#define REFRACT_TESTS_MODELS_TESTING_PT2_ARCHIVE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"
#include "nlohmann/json.hpp"
#include "tests/models/testing/zip_writer.h"

namespace refract::models::testing {

using Json = nlohmann::json;

// A .pt2 archive in pieces that a test may change before Bytes(). Shortened
// from what torch.export.save of torch 2.11 writes for
//
//   def forward(self, dense, ids, off):        # [B, 4], [N], [B]
//     v = self.e(ids, off)                     # EmbeddingBag(10, 4)
//     y = self.l(torch.cat([dense, v], 1)).relu_()
//     return torch.sigmoid(y) * self.k         # k: a constant
struct Pt2Archive {
  Json program = Json::parse(R"JSON({
    "graph_module": {
      "graph": {
        "inputs": [], "outputs": [],
        "nodes": [
          {"target": "torch.ops.aten.embedding_bag.padding_idx",
           "inputs": [
             {"name": "weight", "arg": {"as_tensor": {"name": "p_e_weight"}},
              "kind": 1},
             {"name": "indices", "arg": {"as_tensor": {"name": "ids"}},
              "kind": 1},
             {"name": "offsets", "arg": {"as_tensor": {"name": "off"}},
              "kind": 1},
             {"name": "mode", "arg": {"as_int": 0}, "kind": 1},
             {"name": "sparse", "arg": {"as_bool": false}, "kind": 1},
             {"name": "padding_idx", "arg": {"as_none": true}, "kind": 1}],
           "outputs": [
             {"as_tensor": {"name": "getitem"}},
             {"as_tensor": {"name": "embedding_bag_unused_1"}},
             {"as_tensor": {"name": "embedding_bag_unused_2"}},
             {"as_tensor": {"name": "embedding_bag_unused_3"}}],
           "metadata": {"stack_trace": "…"}, "name": "embedding_bag"},
          {"target": "torch.ops.aten.cat.default",
           "inputs": [
             {"name": "tensors",
              "arg": {"as_tensors": [{"name": "dense"}, {"name": "getitem"}]},
              "kind": 1},
             {"name": "dim", "arg": {"as_int": 1}, "kind": 1}],
           "outputs": [{"as_tensor": {"name": "cat"}}],
           "metadata": {}, "name": "cat"},
          {"target": "torch.ops.aten.linear.default",
           "inputs": [
             {"name": "input", "arg": {"as_tensor": {"name": "cat"}},
              "kind": 1},
             {"name": "weight", "arg": {"as_tensor": {"name": "p_l_weight"}},
              "kind": 1},
             {"name": "bias", "arg": {"as_tensor": {"name": "p_l_bias"}},
              "kind": 1}],
           "outputs": [{"as_tensor": {"name": "linear"}}],
           "metadata": {}, "name": "linear"},
          {"target": "torch.ops.aten.relu_.default",
           "inputs": [
             {"name": "self", "arg": {"as_tensor": {"name": "linear"}},
              "kind": 1}],
           "outputs": [{"as_tensor": {"name": "relu_"}}],
           "metadata": {}, "name": "relu_"},
          {"target": "torch.ops.aten.sigmoid.default",
           "inputs": [
             {"name": "self", "arg": {"as_tensor": {"name": "relu_"}},
              "kind": 1}],
           "outputs": [{"as_tensor": {"name": "sigmoid"}}],
           "metadata": {}, "name": "sigmoid"},
          {"target": "torch.ops.aten.mul.Tensor",
           "inputs": [
             {"name": "self", "arg": {"as_tensor": {"name": "sigmoid"}},
              "kind": 1},
             {"name": "other", "arg": {"as_tensor": {"name": "c_k"}},
              "kind": 1}],
           "outputs": [{"as_tensor": {"name": "mul"}}],
           "metadata": {}, "name": "mul"}],
        "tensor_values": {},
        "sym_int_values": {}, "sym_bool_values": {}, "sym_float_values": {},
        "is_single_tensor_return": false, "custom_obj_values": {}},
      "signature": {
        "input_specs": [
          {"parameter": {"arg": {"name": "p_e_weight"},
                         "parameter_name": "e.weight"}},
          {"parameter": {"arg": {"name": "p_l_weight"},
                         "parameter_name": "l.weight"}},
          {"buffer": {"arg": {"name": "p_l_bias"}, "buffer_name": "l.bias",
                      "persistent": true}},
          {"tensor_constant": {"arg": {"name": "c_k"},
                               "tensor_constant_name": "k"}},
          {"user_input": {"arg": {"as_tensor": {"name": "dense"}}}},
          {"user_input": {"arg": {"as_tensor": {"name": "ids"}}}},
          {"user_input": {"arg": {"as_tensor": {"name": "off"}}}},
          {"constant_input": {"name": "opt", "value": {"as_none": true}}}],
        "output_specs": [
          {"user_output": {"arg": {"as_tensor": {"name": "mul"}}}}]},
      "module_call_graph": [], "metadata": {}},
    "opset_version": {"aten": 10},
    "range_constraints": {"s36": {"min_val": 0, "max_val": 4096},
                          "s23": {"min_val": 0, "max_val": null}},
    "schema_version": {"major": 8, "minor": 17},
    "torch_version": "2.11.0", "guards_code": []})JSON");
  Json weights = Json::parse(R"({"config": {}})");
  Json constants = Json::parse(R"({"config": {}})");

  Pt2Archive() {
    for (const char* name : {"getitem", "dense"}) {
      SetTensor(name, 7, {Symbol("s36"), Size(4)});
    }
    SetTensor("cat", 7, {Symbol("s36"), Size(8)});
    for (const char* name : {"linear", "relu_", "sigmoid", "mul"}) {
      SetTensor(name, 7, {Symbol("s36"), Size(1)});
    }
    SetTensor("ids", 5, {Symbol("s23")});
    SetTensor("off", 5, {Symbol("s36")});
    SetTensor("p_e_weight", 7, {Size(10), Size(4)});
    SetTensor("p_l_weight", 7, {Size(1), Size(8)});
    SetTensor("p_l_bias", 7, {Size(1)});
    SetTensor("c_k", 7, {});
    weights["config"]["e.weight"] = Payload("weight_0", {10, 4}, {4, 1}, 0);
    // Both in one entry, as tensors that share storage are.
    weights["config"]["l.weight"] = Payload("weight_1", {1, 8}, {8, 1}, 0);
    weights["config"]["l.bias"] = Payload("weight_1", {1}, {1}, 8);
    constants["config"]["k"] = Payload("tensor_0", {}, {}, 0);
  }

  static Json Size(int64_t size) { return {{"as_int", size}}; }
  static Json Symbol(absl::string_view name) {
    return {{"as_expr",
             {{"expr_str", absl::StrCat("Symbol('", name,
                                        "', positive=True, integer=True)")},
              {"hint", {{"as_int", 6}}}}}};
  }
  static Json Payload(absl::string_view file, const std::vector<int64_t>& sizes,
                      const std::vector<int64_t>& strides,
                      int64_t storage_offset) {
    Json meta = {{"dtype", 7},
                 {"sizes", Json::array()},
                 {"strides", Json::array()},
                 {"storage_offset", Size(storage_offset)},
                 {"layout", 7}};
    for (int64_t size : sizes) meta["sizes"].push_back(Size(size));
    for (int64_t stride : strides) meta["strides"].push_back(Size(stride));
    return {{"path_name", std::string(file)},
            {"is_param", true},
            {"use_pickle", false},
            {"tensor_meta", meta}};
  }

  Json& graph() { return program["graph_module"]["graph"]; }
  Json& signature() { return program["graph_module"]["signature"]; }
  Json& node(int i) { return graph()["nodes"][i]; }

  void SetTensor(const std::string& name, int dtype,
                 const std::vector<Json>& sizes) {
    graph()["tensor_values"][name] = {{"dtype", dtype}, {"sizes", sizes}};
  }

  std::string Bytes() const {
    return ZipWriter()
        .Add("m/data/weights/weight_0", std::string(160, '\1'))
        .Add("m/data/weights/weight_1", std::string(36, '\2'))
        .Add("m/data/weights/model_weights_config.json", weights.dump())
        .Add("m/data/constants/tensor_0", std::string(4, '\3'))
        .Add("m/data/constants/model_constants_config.json", constants.dump())
        .Add("m/models/model.json", program.dump())
        .Add("m/byteorder", "little")
        .Finish();
  }
};

// The first node of operator `op`; null without one.
inline const Node* FindNode(const Graph& graph, absl::string_view op) {
  for (const Node& node : graph.nodes) {
    if (node.op == op) return &node;
  }
  return nullptr;
}

}  // namespace refract::models::testing

#endif  // REFRACT_TESTS_MODELS_TESTING_PT2_ARCHIVE_H_

#include "models/passes/nested_tensors.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "models/passes/node_appender.h"

namespace refract::models {
namespace {

constexpr absl::string_view kFromMask = "aten._nested_tensor_from_mask.default";
constexpr absl::string_view kLayer =
    "aten._transformer_encoder_layer_fwd.default";
constexpr absl::string_view kToPadded = "aten.to_padded_tensor.default";
// Of kLayer: its mask has a row of steps for each item, true for padding
// (ATen/native/transformers/attention.cpp).
constexpr int64_t kPaddingMask = 1;

bool IsGiven(const Node& node, absl::string_view name) {
  const Argument* arg = node.FindArg(name);
  return arg != nullptr && !std::holds_alternative<None>(*arg);
}

struct Padded {
  ValueId tensor = kNoValue;
  ValueId padding = kNoValue;  // [rows, steps], true for padding
};

class Padder {
 public:
  explicit Padder(Graph& graph) : graph_(graph), nodes_(graph) {}

  absl::Status Run() {
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (Node& node : nodes) {
      const std::vector<ValueId> inputs = InputsOf(node);
      const auto nested =
          std::find_if(inputs.begin(), inputs.end(),
                       [this](ValueId id) { return padded_.contains(id); });
      if (node.op == kFromMask) {
        padded_[node.outputs[0]] = {node.ValueArg("t"), PaddingOf(node)};
      } else if (nested == inputs.end()) {
        nodes_.Append(std::move(node));
      } else if (const Padded from = padded_.at(*nested);
                 node.op == kLayer && !IsGiven(node, "mask")) {
        std::erase_if(node.args, [](const NamedArgument& arg) {
          return arg.name == "src" || arg.name == "mask" ||
                 arg.name == "mask_type";
        });
        node.args.insert(node.args.end(), {{"src", ValueRef{from.tensor}},
                                           {"mask", ValueRef{from.padding}},
                                           {"mask_type", kPaddingMask}});
        padded_[node.outputs[0]] = {node.outputs[0], from.padding};
        nodes_.Append(std::move(node));
      } else if (node.op == kToPadded && IsGiven(node, "output_size")) {
        Fill(std::move(node), from);
      } else {
        return Refused(absl::StrCat(node.name, " (", node.op, ")"));
      }
    }
    for (const ValueId output : graph_.outputs) {
      if (padded_.contains(output)) return Refused("the model's caller");
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Refused(absl::string_view reader) {
    return absl::UnimplementedError(absl::StrCat(
        reader,
        " reads a nested tensor, which only layers of TransformerEncoder may; "
        "make the encoder with enable_nested_tensor=False"));
  }

  // A nested tensor has the first n steps of a row, where n is the number of
  // ones in the row's mask: sorting moves the ones to these steps.
  ValueId PaddingOf(const Node& node) {
    Value order;
    order.name = nodes_.Unique(absl::StrCat(node.name, "_order"));
    order.dtype = base::DType::kInt64;
    Node sort;
    sort.name = nodes_.Unique(absl::StrCat(node.name, "_steps"));
    sort.op = "aten.sort.default";
    sort.args = {{"self", ValueRef{node.ValueArg("mask")}},
                 {"dim", int64_t{1}},
                 {"descending", true}};
    Value steps = Mask();
    steps.name = sort.name;
    sort.outputs = {graph_.AddValue(std::move(steps)),
                    graph_.AddValue(std::move(order))};
    const ValueId first = sort.outputs[0];
    nodes_.Append(std::move(sort));
    return nodes_.Emit(absl::StrCat(node.name, "_padding"),
                       "aten.logical_not.default", {{"self", ValueRef{first}}},
                       Mask());
  }

  void Fill(Node node, const Padded& from) {
    const ValueId padding = nodes_.Emit(
        absl::StrCat(node.name, "_padding"), "aten.unsqueeze.default",
        {{"self", ValueRef{from.padding}}, {"dim", int64_t{-1}}}, Mask());
    const Argument value = *node.FindArg("padding");
    node.op = "aten.masked_fill.Scalar";
    node.args = {{"self", ValueRef{from.tensor}},
                 {"mask", ValueRef{padding}},
                 {"value", value}};
    nodes_.Append(std::move(node));
  }

  static Value Mask() {
    Value mask;
    mask.dtype = base::DType::kBool;
    return mask;
  }

  Graph& graph_;
  absl::flat_hash_map<ValueId, Padded> padded_;  // by nested tensor
  NodeAppender nodes_;
};

}  // namespace

absl::Status PadNestedTensors(Graph& graph) {
  const bool nested =
      std::any_of(graph.nodes.begin(), graph.nodes.end(),
                  [](const Node& node) { return node.op == kFromMask; });
  return nested ? Padder(graph).Run() : absl::OkStatus();
}

}  // namespace refract::models

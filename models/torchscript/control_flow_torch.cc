// Branches, loops and ranges of a TorchScript graph, unrolled at import.

#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "models/torchscript/converter_torch.h"
#include "models/torchscript/items_torch.h"

namespace refract::models::torchscript {
namespace {

// Loops of a model count layers, fields or steps: hundreds at most. A longer
// loop becomes a region, so that the flat graph stays small.
constexpr int64_t kMaxIterations = 10'000;

// Whether a branch raises an exception.
bool Raises(const JitBlock& block) {
  for (const JitNode* node : block.nodes()) {
    if (node->kind() == c10::prim::RaiseException) return true;
  }
  return false;
}

}  // namespace

absl::Status Converter::ConvertIf(const JitNode& node) {
  const Item& condition = Input(node, 0);
  if (condition.kind != Item::Kind::kLiteral || !condition.literal.isBool()) {
    // A check that raises is assumed to pass for every request.
    const bool first_raises = Raises(*node.blocks()[0]);
    if (first_raises != Raises(*node.blocks()[1])) {
      return TakeBlock(node, *node.blocks()[first_raises ? 1 : 0]);
    }
    return absl::UnimplementedError(
        "the condition of this branch depends on a request's tensors, so no "
        "part of the graph can stand for the branch");
  }
  return TakeBlock(node, *node.blocks()[condition.literal.toBool() ? 0 : 1]);
}

absl::Status Converter::TakeBlock(const JitNode& node, const JitBlock& block) {
  REFRACT_RETURN_IF_ERROR(ConvertBlock(block));
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    items_[node.output(i)] = ItemOf(block.outputs()[i]);
    if (traced_.graph != nullptr) {
      flat_of_[node.output(i)] = flat_of_.at(block.outputs()[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status Converter::ConvertLoop(const JitNode& node) {
  const absl::Status no_form = absl::UnimplementedError(
      "the number of rounds of this loop depends on a request's tensors or is "
      "too large, so the loop cannot be unrolled into the graph");
  // Only Trace() unrolls loops. In the flat graph, loops are in regions.
  if (traced_.graph == nullptr || whole_loops_->contains(&node)) {
    return no_form;
  }
  const JitBlock& body = *node.blocks()[0];
  const auto rounds = KnownNumber(Input(node, 0), /*constants=*/true);
  std::vector<Item> carried = Inputs(node);
  carried.erase(carried.begin());
  std::vector<JitValue*> flat;
  for (const JitValue* input : node.inputs().slice(1)) {
    flat.push_back(flat_of_.at(input));
  }
  for (int64_t i = 0;; ++i) {
    // carried[0] is the condition, carried[k] belongs to body.inputs()[k] and
    // to node.output(k - 1). `flat` has the same order in the flat graph.
    const Item& goes_on = carried.front();
    const bool decided =
        rounds && rounds->kind == runtime::aten::Operand::Kind::kInt &&
        goes_on.kind == Item::Kind::kLiteral && goes_on.literal.isBool();
    if (!decided || (i == kMaxIterations && i < rounds->i)) {
      if (i == 0) return no_form;
      // The flat graph has the first rounds already: walk again without them.
      whole_loops_->insert(&node);
      return absl::AbortedError("begin again");
    }
    if (i >= rounds->i || !goes_on.literal.toBool()) break;
    items_[body.inputs()[0]] = Item::Literal(i);
    flat_of_[body.inputs()[0]] = traced_.graph->insertConstant(i);
    for (size_t k = 1; k < carried.size(); ++k) {
      items_[body.inputs()[k]] = carried[k];
      flat_of_[body.inputs()[k]] = flat[k];
    }
    REFRACT_RETURN_IF_ERROR(ConvertBlock(body));
    for (size_t k = 0; k < carried.size(); ++k) {
      carried[k] = ItemOf(body.outputs()[k]);
      flat[k] = flat_of_.at(body.outputs()[k]);
    }
  }
  for (size_t k = 1; k < carried.size(); ++k) {
    items_[node.output(k - 1)] = carried[k];
    flat_of_[node.output(k - 1)] = flat[k];
  }
  return absl::OkStatus();
}

absl::Status Converter::ConvertRange(const JitNode& node, bool length) {
  std::vector<int64_t> numbers;
  for (const Item& item : Inputs(node)) {
    const auto number = KnownNumber(item, /*constants=*/true);
    if (!number || number->kind != runtime::aten::Operand::Kind::kInt) {
      return absl::UnimplementedError(
          "the bounds or the step of this range() depend on a request's "
          "tensors, so it cannot be unrolled into the graph");
    }
    numbers.push_back(number->i);
  }
  const int64_t first = numbers[0];
  if (!length) {  // index, start, step
    return Set(node, Item::Literal(numbers[1] + first * numbers[2]));
  }
  const int64_t step = numbers[2];
  if (step == 0)
    return absl::InvalidArgumentError(
        "the step of this range() is 0, which Python refuses, too");
  // The length of Python's range(): ceil(span / |step|), 0 for an empty span.
  const int64_t span = step > 0 ? numbers[1] - first : first - numbers[1];
  const int64_t stride = step > 0 ? step : -step;
  return Set(node, Item::Literal(span <= 0 ? int64_t{0}
                                           : (span + stride - 1) / stride));
}

absl::Status Converter::ConvertIs(const JitNode& node, bool is) {
  const bool both_none = Input(node, 0).is_none() && Input(node, 1).is_none();
  if (!Input(node, 0).is_none() && !Input(node, 1).is_none()) {
    // nn.MultiheadAttention asks whether query, key and value are one tensor.
    // Two items of one IR value are one tensor.
    if (Input(node, 0).kind != Item::Kind::kValue ||
        Input(node, 1).kind != Item::Kind::kValue) {
      return absl::UnimplementedError(
          "\"is\" compares a value that is neither a tensor nor None");
    }
    const bool same = Input(node, 0).value == Input(node, 1).value;
    return Set(node, Item::Literal(same == is));
  }
  return Set(node, Item::Literal(both_none == is));
}

}  // namespace refract::models::torchscript

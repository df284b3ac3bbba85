#include "models/torchscript/builder_torch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/torch/size_ops.h"

namespace refract::models::torchscript {

std::string Builder::ConstantName(const std::string& wanted,
                                  const at::Tensor& tensor) {
  std::string name = wanted;
  for (int i = 1;; ++i) {
    const auto [it, inserted] = constants_.emplace(name, tensor);
    const at::Tensor& other = it->second;
    if (inserted || (other.storage().data() == tensor.storage().data() &&
                     other.storage_offset() == tensor.storage_offset() &&
                     other.sizes() == tensor.sizes() &&
                     other.strides() == tensor.strides() &&
                     other.scalar_type() == tensor.scalar_type())) {
      converted_.constants.insert(name);
      return name;
    }
    name = absl::StrCat(wanted, "_", i);
  }
}

absl::StatusOr<ValueId> Builder::WeightOf(const std::string& name,
                                          const at::Tensor& tensor) {
  const auto it = weights_.find(name);
  if (it != weights_.end()) return it->second;
  absl::StatusOr<WeightEntry> entry = archive_.Locate(tensor);
  if (!entry.ok()) {
    return base::Annotate(entry.status(), absl::StrCat("weight ", name));
  }
  entry->name = name;
  const ValueId id = AddValue(name);
  Value& value = converted_.graph.values[id];
  value.weight = name;
  value.dtype = TypeOf(tensor);
  value.has_shape = true;
  value.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  converted_.weights.push_back(*std::move(entry));
  weights_[name] = id;
  return id;
}

Item Builder::SizeOf(const Item& tensor, int64_t dim) {
  Item size = Item::Number(Emit(
      "size", "aten.sym_size.int",
      {{"self", ValueRef{tensor.value}}, {"dim", dim}}, ValueKind::kSymInt));
  const at::Tensor* example = tensor.example_tensor();
  if (example != nullptr && dim < example->dim() && dim >= -example->dim()) {
    size.example = example->size(dim);
  }
  return size;
}

absl::StatusOr<Item> Builder::Compute(const std::string& op,
                                      const std::vector<Item>& operands) {
  std::vector<aten::Operand> known;
  std::vector<aten::Operand> examples;
  std::vector<NamedArgument> args;
  bool fractions = op == "py.truediv" || op == "py.float";
  for (const Item& item : operands) {
    const std::string name = args.empty() ? "a" : "b";
    if (const auto number = KnownNumber(item, /*constants=*/true)) {
      known.push_back(*number);
      examples.push_back(*number);
      fractions |= number->kind == aten::Operand::Kind::kFloat;
      if (number->kind == aten::Operand::Kind::kInt) {
        args.push_back({name, number->i});
      } else if (number->kind == aten::Operand::Kind::kFloat) {
        args.push_back({name, number->f});
      } else {
        args.push_back({name, number->b});
      }
    } else {
      args.push_back({name, ValueRef{item.value}});
      const auto example = KnownNumber(Item::Literal(item.example), false);
      if (example) examples.push_back(*example);
      fractions |=
          converted_.graph.value(item.value).kind == ValueKind::kSymFloat;
    }
  }
  if (known.size() == operands.size()) {
    REFRACT_ASSIGN_OR_RETURN(const aten::Operand result,
                             aten::EvaluateSizeOp(op, known));
    return LiteralOf(result);
  }
  static const auto& gives_bool = *new absl::flat_hash_set<absl::string_view>{
      "py.eq", "py.ne",  "py.lt",   "py.le",   "py.gt",
      "py.ge", "py.or_", "py.and_", "py.not_", "py.bool"};
  static const auto& gives_int = *new absl::flat_hash_set<absl::string_view>{
      "py.int", "py.trunc", "py.floor", "py.ceil"};
  ValueKind kind = fractions ? ValueKind::kSymFloat : ValueKind::kSymInt;
  if (gives_bool.contains(op)) kind = ValueKind::kSymBool;
  if (gives_int.contains(op)) kind = ValueKind::kSymInt;
  Item result = Item::Number(Emit(op.substr(3), op, std::move(args), kind));
  if (examples.size() == operands.size()) {
    const auto example = aten::EvaluateSizeOp(op, examples);
    if (example.ok()) result.example = LiteralOf(*example).literal;
  }
  return result;
}

ValueId Builder::Emit(const std::string& name, std::string op,
                      std::vector<NamedArgument> args, ValueKind kind) {
  Node node;
  node.op = std::move(op);
  node.args = std::move(args);
  const ValueId id = AddNode(name, std::move(node), 1);
  converted_.graph.values[id].kind = kind;
  return id;
}

ValueId Builder::AddNode(const std::string& name, Node node,
                         size_t num_outputs) {
  Graph& graph = converted_.graph;
  node.name = UniqueName(name, node_names_);
  const auto id = static_cast<NodeId>(graph.nodes.size());
  const auto first = static_cast<ValueId>(graph.values.size());
  for (size_t i = 0; i < num_outputs; ++i) {
    const ValueId value = AddValue(
        num_outputs == 1 ? node.name : absl::StrCat(node.name, "_", i));
    graph.values[value].producer = id;
    node.outputs.push_back(value);
  }
  graph.nodes.push_back(std::move(node));
  return first;
}

ValueId Builder::AddValue(const std::string& name) {
  return converted_.graph.AddValue({.name = UniqueName(name, value_names_)});
}

std::string Builder::UniqueName(const std::string& wanted,
                                absl::flat_hash_set<std::string>& names) {
  std::string name = wanted;
  for (int i = 1; !names.insert(name).second; ++i) {
    name = absl::StrCat(wanted, "_", i);
  }
  return name;
}

}  // namespace refract::models::torchscript

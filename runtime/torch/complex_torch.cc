#include "runtime/torch/complex_torch.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/passes/complex_numbers.h"

namespace refract::models::aten {
namespace {

at::Tensor Joined(const at::Tensor& pairs) {
  return at::view_as_complex(pairs);
}

// Conjugates and negatives may be marks that whoever reads the memory misses.
at::Tensor Split(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const at::Tensor plain = tensor.resolve_conj().resolve_neg();
  return plain.is_complex() ? at::view_as_real(plain) : plain;
}

}  // namespace

absl::StatusOr<Bound> BindComplexArguments(const c10::FunctionSchema& schema,
                                           const Node& node,
                                           ComplexArguments& arguments) {
  Node plain = node;
  std::erase_if(plain.args, [](const NamedArgument& arg) {
    return arg.name == kComplexOperandsArg || arg.name == kComplexResultsArg;
  });
  const auto flags = [&](absl::string_view name, size_t count) {
    const Argument* arg = node.FindArg(name);
    const auto* list = arg == nullptr ? nullptr : std::get_if<BoolList>(arg);
    return list != nullptr && list->size() == count
               ? std::optional<BoolList>(*list)
               : std::nullopt;
  };
  auto operands = flags(kComplexOperandsArg, InputsOf(node).size());
  auto results = flags(kComplexResultsArg, node.outputs.size());
  if (!operands || !results) {
    return absl::InvalidArgumentError(
        absl::StrCat(node.op, " does not say what is complex"));
  }
  arguments.operands = *std::move(operands);
  arguments.results = *std::move(results);
  for (const ValueId id : node.outputs) {
    arguments.unread.push_back(id == kNoValue);
  }
  return BindArguments(schema, plain);
}

void JoinPairs(const Slot& slot, const BoolList& complex, c10::IValue& value) {
  switch (slot.kind) {
    case Slot::Kind::kTensor:
      if (complex[slot.operand] && value.isTensor()) {
        value = Joined(value.toTensor());
      }
      return;
    case Slot::Kind::kTensorList: {
      c10::List<at::Tensor> list = value.toTensorList();
      for (size_t i = 0; i < slot.elements.size(); ++i) {
        if (complex[slot.elements[i].operand]) list[i] = Joined(list.get(i));
      }
      return;
    }
    case Slot::Kind::kOptionalTensorList: {
      c10::List<std::optional<at::Tensor>> list = value.toOptionalTensorList();
      for (size_t i = 0; i < slot.elements.size(); ++i) {
        const int32_t operand = slot.elements[i].operand;
        const std::optional<at::Tensor> tensor = list.get(i);
        if (operand >= 0 && complex[operand] && tensor) {
          list.set(i, Joined(*tensor));
        }
      }
      return;
    }
    case Slot::Kind::kConstant:
    case Slot::Kind::kNumber:
    case Slot::Kind::kIntList:
      return;
  }
}

absl::Status SplitPairs(const ComplexArguments& arguments,
                        torch::jit::Stack& results) {
  size_t next = 0;
  bool expected = true;
  const auto split = [&](const at::Tensor& tensor) {
    // A count that differs is found by whoever called.
    if (next < arguments.results.size() && tensor.defined() &&
        !arguments.unread[next]) {
      expected &= tensor.is_complex() == arguments.results[next];
    }
    ++next;
    return Split(tensor);
  };
  for (c10::IValue& value : results) {
    if (value.isTensor()) {
      value = split(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(split(tensor));
      }
      value = std::move(list);
    } else {
      ++next;
    }
  }
  if (expected) return absl::OkStatus();
  return absl::UnimplementedError(
      "gives complex numbers where the import expected real ones, or the "
      "reverse");
}

}  // namespace refract::models::aten

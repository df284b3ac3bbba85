#ifndef REFRACT_MODELS_TORCHSCRIPT_ITEM_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_ITEM_TORCH_H_

// What a TorchScript value is to the importer. Includes LibTorch: for
// *_torch.cc only.

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/torch/caller.h"
#include "models/graph/graph.h"

namespace refract::models::torchscript {

struct Item {
  enum class Kind : uint8_t {
    kLiteral,  // known now: a number, string, dtype, device, None, …
    kValue,    // a tensor or a size of the IR graph
    kList,     // list or tuple of items
    kDict,     // items by key
    kSizes,    // x.size(): its length is not known before shapes are
    kDTypeOf,  // x.dtype
    kModule,   // a submodule, or the module itself
    kOpaque,   // made by a node without a form in the IR, and no plain value
  };
  Kind kind = Kind::kLiteral;
  c10::IValue literal;       // kLiteral; kModule: the object
  ValueId value = kNoValue;  // kValue; the x of kSizes and kDTypeOf
  bool is_number = false;    // kValue: a size, not a tensor
  // kList, kDict. Copies of an item share it, as names share a Python list.
  std::shared_ptr<std::vector<Item>> contents;
  std::shared_ptr<std::vector<c10::IValue>> keys;  // kDict: one per element
  // kModule: "context_tables.0"; kDict: the input that it is, else empty.
  std::string path;
  // kValue: contents of a constant tensor without dimensions. Traces compute
  // sizes with such tensors.
  std::optional<at::Scalar> constant;
  // kValue, kSizes, kDTypeOf, kOpaque: what the tensor or number is for the
  // sample request; None where that is not known. Only what no request changes
  // may be concluded from it: rank, dtype, how many tensors a list has.
  c10::IValue example;

  static Item Literal(c10::IValue literal);
  static Item Tensor(ValueId value);
  static Item Number(ValueId value);
  static Item List(std::vector<Item> elements);
  static Item Dict(std::vector<c10::IValue> keys, std::vector<Item> elements);

  const std::vector<Item>& elements() const { return *contents; }
  // The tensor of the sample request; nullptr when it is not known.
  const at::Tensor* example_tensor() const {
    return example.isTensor() && example.toTensor().defined()
               ? &example.toTensor()
               : nullptr;
  }
  bool is_none() const { return kind == Kind::kLiteral && literal.isNone(); }
};

// A number known now, as an operand; nullopt for anything else. With
// `constants` also what a constant tensor holds.
std::optional<aten::Operand> KnownNumber(const Item& item, bool constants);
Item LiteralOf(const aten::Operand& number);

// The item as an argument of the IR; nullopt for one that the IR drops (device,
// layout, memory format, …). Unimplemented: it has no form in the IR.
absl::StatusOr<std::optional<Argument>> ToArgument(
    const c10::Argument& argument, const Item& item);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_ITEM_TORCH_H_

#ifndef REFRACT_MODELS_TORCHSCRIPT_ITEMS_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_ITEMS_TORCH_H_

// The importer's view of a value of a TorchScript graph, with its value for the
// sample request (Item), and the IR graph that is built from the items
// (Builder). Includes LibTorch: for *_torch.cc only.

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"
#include "models/torchscript/archive_torch.h"
#include "models/torchscript/import.h"
#include "runtime/torch/caller.h"

namespace refract::models::torchscript {

// One value of the TorchScript graph.
struct Item {
  enum class Kind : uint8_t {
    kLiteral,  // known now: a number, string, dtype, device, None, …
    kValue,    // a tensor or a size of the IR graph
    kList,     // list or tuple of items
    kDict,     // items by key
    kSizes,    // x.size(): its length is not known before shapes are
    kDTypeOf,  // x.dtype
    kText,     // a text that is not known now
    kModule,   // a submodule, or the module itself
    kOpaque,   // a container or object that a region makes
  };
  Kind kind = Kind::kLiteral;
  c10::IValue literal;       // kLiteral; kModule: the object
  ValueId value = kNoValue;  // kValue; the x of kSizes and kDTypeOf
  bool is_number = false;    // kValue: a size, not a tensor
  // kList, kDict. Copies of an item share it, as names share a Python list.
  std::shared_ptr<std::vector<Item>> contents;
  std::shared_ptr<std::vector<c10::IValue>> keys;  // kDict: one per element
  // kModule: "context_tables.0"; kDict: the input that it is, or is
  // a copy of, while more keys may be found; else empty.
  std::string path;
  // kValue: contents of a constant tensor without dimensions. Traces compute
  // sizes with such tensors.
  std::optional<at::Scalar> constant;
  // kValue, kSizes, kDTypeOf, kOpaque: the tensor or number for the sample
  // request; None where it is not known. Only properties that no request
  // changes may be read from it: rank, dtype, the number of tensors in a list.
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
// `constants` also the contents of a constant tensor.
std::optional<runtime::aten::Operand> KnownNumber(const Item& item,
                                                  bool constants);
Item LiteralOf(const runtime::aten::Operand& number);

// The item as an argument of the IR; nullopt: the IR drops it (device,
// layout, memory format, …). Unimplemented: it has no form in the IR.
absl::StatusOr<std::optional<Argument>> ToArgument(
    const c10::Argument& argument, const Item& item);

// The item as a value of a TorchScript type for the sample request: lists,
// dictionaries and tuples put together, modules as they are. nullopt when that
// is not known.
std::optional<c10::IValue> ExampleOf(const c10::TypePtr& type,
                                     const Item& item);

// The results of one operator on the examples of its arguments; empty when an
// argument has none, or when the operator refuses them. Writes into examples
// as the operator does.
std::vector<c10::IValue> RunOnExamples(const c10::FunctionSchema& schema,
                                       const std::vector<Item>& arguments);

// A size() of known rank as a list of sizes, a dtype of a known tensor as a
// literal; any other item as it is. `builder` gets the sizes' nodes.
class Builder;
Item Resolved(const Item& item, Builder& builder);

struct Converted {
  Graph graph;  // as written: in-place operators and views are still in it
  // Every parameter and buffer, read or not, and the constants that are read.
  std::vector<WeightEntry> weights;
  // Names of weights that are registered buffers, and of weights that are
  // constants of the code. Freezing makes constants of parameters and buffers.
  absl::flat_hash_set<std::string> buffers;
  absl::flat_hash_set<std::string> constants;
  std::vector<std::string> notes;  // as ImportedModel::notes
};

// One request by input name, or empty.
using Examples = absl::flat_hash_map<std::string, at::Tensor>;

// Puts the IR graph together. Makes names unique by a number at their end.
// `archive` must outlive the builder.
class Builder {
 public:
  explicit Builder(const Archive& archive) : archive_(archive) {
    converted_.graph.source = SourceFormat::kTorchScript;
  }

  Graph& graph() { return converted_.graph; }
  const Graph& graph() const { return converted_.graph; }
  Converted Finish() { return std::move(converted_); }

  ValueId AddValue(const std::string& name);
  // The results are consecutive values; returns the first.
  ValueId AddNode(const std::string& name, Node node, size_t num_outputs);
  // A node of one result.
  ValueId Emit(const std::string& name, std::string op,
               std::vector<NamedArgument> args,
               ValueKind kind = ValueKind::kTensor);
  Item SizeOf(const Item& tensor, int64_t dim);

  // The value of a parameter, buffer or constant: one value per name.
  // Unimplemented as Archive::Locate(), with the name.
  absl::StatusOr<ValueId> WeightOf(const std::string& name,
                                   const at::Tensor& tensor);
  void AddNote(std::string note) {
    converted_.notes.push_back(std::move(note));
  }
  void MarkBuffer(const std::string& name) { converted_.buffers.insert(name); }
  // Two views of one stored constant get two names, equal views get one.
  std::string ConstantName(const std::string& wanted, const at::Tensor& tensor);

  // "py.*" over numbers: a literal when all are known, else a node.
  absl::StatusOr<Item> Compute(const std::string& op,
                               const std::vector<Item>& operands);

 private:
  static std::string UniqueName(const std::string& wanted,
                                absl::flat_hash_set<std::string>& names);

  const Archive& archive_;
  Converted converted_;
  absl::flat_hash_map<std::string, ValueId> weights_;
  absl::flat_hash_map<std::string, at::Tensor> constants_;
  absl::flat_hash_set<std::string> node_names_;
  absl::flat_hash_set<std::string> value_names_;
};

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_ITEMS_TORCH_H_

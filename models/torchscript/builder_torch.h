#ifndef REFRACT_MODELS_TORCHSCRIPT_BUILDER_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_BUILDER_TORCH_H_

// Puts an IR graph together. Includes LibTorch: for *_torch.cc only.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "models/torchscript/archive_torch.h"
#include "models/torchscript/convert_torch.h"
#include "models/torchscript/item_torch.h"

namespace refract::models::torchscript {

// Names are made unique by a number at their end. `archive` must outlive it.
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

  // The value of a parameter, buffer or constant; the same for the same name.
  // Unimplemented as Archive::Locate(), naming it.
  absl::StatusOr<ValueId> WeightOf(const std::string& name,
                                   const at::Tensor& tensor);
  void AddNote(std::string note) {
    converted_.notes.push_back(std::move(note));
  }
  void MarkBuffer(const std::string& name) { converted_.buffers.insert(name); }
  // Two views of one stored constant have two names; the same view has one.
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

#endif  // REFRACT_MODELS_TORCHSCRIPT_BUILDER_TORCH_H_

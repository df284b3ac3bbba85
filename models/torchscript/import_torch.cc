#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "runtime/torch/convert_torch.h"
#include "models/passes/complex_numbers.h"
#include "models/passes/functionalize.h"
#include "models/graph/op_traits.h"
#include "models/graph/script_region.h"
#include "models/torchscript/archive_torch.h"
#include "models/torchscript/convert_torch.h"
#include "models/torchscript/import.h"

namespace refract::models {
namespace {

// The weight that a value is, or shows through views; kNoValue for others.
ValueId WeightBehind(const Graph& graph, ValueId id) {
  while (id != kNoValue && !graph.value(id).is_weight()) {
    const NodeId producer = graph.value(id).producer;
    if (producer == kNoNode) return kNoValue;
    const Node& node = graph.nodes[producer];
    const std::vector<ValueId> inputs = InputsOf(node);
    if (inputs.empty() || ClassOf(node.op) != OpClass::kView) return kNoValue;
    id = inputs.front();
  }
  return id;
}

// Names of the weights that may be tables: what look-ups read, and matrices
// that go into regions, which may look up in them.
absl::flat_hash_set<std::string> TablesOf(const Graph& graph) {
  absl::flat_hash_set<std::string> names;
  const auto add = [&](ValueId id) {
    const ValueId weight = WeightBehind(graph, id);
    if (weight != kNoValue) names.insert(graph.value(weight).weight);
  };
  for (const Node& node : graph.nodes) {
    const absl::string_view arg = EmbeddingArgsOf(node.op).weight;
    const Argument* table = arg.empty() ? nullptr : node.FindArg(arg);
    const auto* ref = table ? std::get_if<ValueRef>(table) : nullptr;
    if (ref != nullptr) add(ref->id);
    if (!IsRegion(node)) continue;
    for (const ValueId id : InputsOf(node)) {
      const Value& value = graph.value(id);
      if (value.has_shape && value.shape.size() == 2) add(id);
    }
  }
  return names;
}

absl::StatusOr<ImportedModel> Import(absl::string_view path,
                                     absl::Span<const NamedTensor> sample,
                                     const KeyLists& keys) {
  REFRACT_ASSIGN_OR_RETURN(const torchscript::Archive archive,
                           torchscript::Archive::Load(path));
  torchscript::Converted converted;
  REFRACT_RETURN_IF_ERROR(aten::Guarded(path, [&]() -> absl::Status {
    torchscript::Examples examples;
    for (const NamedTensor& named : sample) {
      aten::Operand operand;
      operand.kind = aten::Operand::Kind::kTensor;
      operand.tensor = named.tensor;
      REFRACT_ASSIGN_OR_RETURN(examples[named.name], aten::ToTensor(operand));
    }
    auto result = torchscript::Convert(archive, examples, keys);
    if (!result.ok()) return base::Annotate(result.status(), path);
    converted = *std::move(result);
    return absl::OkStatus();
  }));
  ImportedModel model;
  model.graph = std::move(converted.graph);
  model.buffers = std::move(converted.buffers);
  model.notes = std::move(converted.notes);
  model.weights.entries = std::move(converted.weights);
  model.weights.files.push_back({std::string(path),
                                 archive.zip().file()->bytes().size(),
                                 base::Digest{}});
  model.source_path = std::string(path);
  REFRACT_RETURN_IF_ERROR(base::Annotate(Functionalize(model.graph), path));
  REFRACT_RETURN_IF_ERROR(base::Annotate(ComplexToPairs(model.graph), path));
  REFRACT_RETURN_IF_ERROR(base::Annotate(CheckRunnable(model.graph), path));
  // A frozen parameter is a constant like any other: only look-ups tell that it
  // was a table.
  const absl::flat_hash_set<std::string> tables = TablesOf(model.graph);
  for (const std::string& name : converted.constants) {
    if (!tables.contains(name)) model.buffers.insert(name);
  }
  if (model.graph.outputs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the model returns no tensor"));
  }
  // Bounds of every weight, before anyone reads one.
  REFRACT_RETURN_IF_ERROR(
      WeightStore::Open(/*folder=*/"", model.weights).status());
  return model;
}

}  // namespace

absl::StatusOr<ImportedModel> ImportTorchScript(
    absl::string_view path, absl::Span<const NamedTensor> sample,
    const KeyLists& keys) {
  return Import(path, sample, keys);
}

}  // namespace refract::models

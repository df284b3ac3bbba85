#include "models/torch_export/program.h"

#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/torch_export/guards.h"
#include "models/torch_export/json.h"
#include "models/torch_export/nodes.h"
#include "models/torch_export/recorded_shapes.h"
#include "models/torch_export/tree_names.h"

namespace refract::models::torch_export {
namespace {

// torch/_export/serde/schema.py, SCHEMA_VERSION: a new major breaks readers, a
// new minor does not.
constexpr int64_t kSchemaMajor = 8;

absl::Status CheckSchema(const Json& program) {
  const Json* version = Member(program, "schema_version");
  const std::optional<int64_t> major =
      version == nullptr ? std::nullopt : Int(Member(*version, "major"));
  if (!major)
    return absl::InvalidArgumentError("the file has no schema_version.major");
  if (*major != kSchemaMajor) {
    return absl::UnimplementedError(
        absl::StrCat("schema version ", *major, " is not known; this reads ",
                     kSchemaMajor, " (torch 2.11)"));
  }
  return absl::OkStatus();
}

// Reads the signature: which of the graph's inputs are weights, which come with
// a request, and what goes out.
class SignatureReader {
 public:
  SignatureReader(const Json& section, Program& program, NodeReader& nodes,
                  Scope& scope)
      : section_(section), program_(program), nodes_(nodes), scope_(scope) {}

  absl::Status ReadInput(const std::string& kind, const Json& spec) {
    if (kind == "user_input") return ReadUserInput(spec);
    if (kind == "parameter") return ReadWeight(spec, "parameter_name");
    if (kind == "buffer") return ReadBuffer(spec, "buffer_name");
    if (kind == "tensor_constant") {
      return ReadBuffer(spec, "tensor_constant_name");
    }
    // A number, text or None that the export has fixed: no input of the graph.
    if (kind == "constant_input") {
      const std::string* name = String(Member(spec, "name"));
      arguments_.push_back({name == nullptr ? "" : *name, kNoValue});
      const Json* value = Member(spec, "value");
      if (name == nullptr || value == nullptr) return Malformed("input");
      if (Member(*value, "as_none") == nullptr) {
        const auto item = Union(value);
        if (!item) return Malformed(absl::StrCat("input ", *name));
        program_.notes.push_back(absl::StrCat(
            "input ", *name, " is not a tensor; the export fixed it at ",
            item->value->Text()));
      }
      return absl::OkStatus();
    }
    return absl::UnimplementedError(
        absl::StrCat("inputs of kind ", kind, " are not supported"));
  }

  // `position` counts everything that the model returns, `name` is for a
  // tensor; neither applies to arguments that the model writes.
  absl::Status ReadOutput(const std::string& kind, const Json& spec,
                          size_t position, absl::string_view name) {
    if (kind == "user_output") return ReadUserOutput(spec, position, name);
    if (kind == "parameter_mutation" && IsScaledTable(spec)) {
      return absl::OkStatus();
    }
    // No client sees values that a model writes into its arguments.
    if (kind == "user_input_mutation") return absl::OkStatus();
    for (absl::string_view target : {"buffer_name", "parameter_name"}) {
      if (const std::string* written = String(Member(spec, target))) {
        return absl::UnimplementedError(absl::StrCat(
            "the model writes to ", *written, " (", kind,
            "), and a model that changes its state cannot be served; call "
            "model.eval() before the export: batch normalisation counts "
            "batches in training mode"));
      }
    }
    return absl::UnimplementedError(
        absl::StrCat("outputs of kind ", kind, " are not supported"));
  }

  // Gives the inputs the names that forward() has for them.
  void NameInputs(const Json& graph_module) {
    Graph& graph = program_.graph;
    absl::flat_hash_set<std::string> taken;
    for (const Value& value : graph.values) taken.insert(value.name);
    std::vector<std::string> exported;
    for (const Leaf& leaf : arguments_) exported.push_back(leaf.name);
    const std::vector<std::string> names = InputNames(graph_module, exported);
    for (size_t i = 0; i < names.size(); ++i) {
      if (arguments_[i].id == kNoValue || names[i] == exported[i]) continue;
      // Names of values must be unique; an exported name stays where the better
      // name is taken.
      if (!taken.insert(names[i]).second) continue;
      graph.values[arguments_[i].id].name = names[i];
    }
  }

 private:
  // An argument of forward(), in its order: a tensor, or a fixed value.
  struct Leaf {
    std::string name;
    ValueId id = kNoValue;
  };

  absl::Status ReadUserInput(const Json& spec) {
    const Json* arg = Member(spec, "arg");
    const auto item = Union(arg);
    if (!item) return Malformed("input");
    arguments_.emplace_back();
    if (*item->tag == "as_none") return absl::OkStatus();
    if (*item->tag != "as_tensor") {
      const std::string* name = String(Member(*item->value, "as_name"));
      return absl::UnimplementedError(
          absl::StrCat("input ", name == nullptr ? "" : *name, " (", *item->tag,
                       ") is not a tensor, and requests hold tensors only; "
                       "make it a constant of the module, or a tensor"));
    }
    const std::string* name = String(Member(*item->value, "name"));
    if (name == nullptr) return Malformed("input");
    REFRACT_ASSIGN_OR_RETURN(const ValueId id,
                             nodes_.AddTensor(section_, *name, scope_));
    program_.graph.inputs.push_back(id);
    arguments_.back() = {*name, id};
    return absl::OkStatus();
  }

  // Whether the written parameter is a table that max_norm scales;
  // ScaleLookUpsByMaxNorm() removes that write.
  bool IsScaledTable(const Json& spec) const {
    const Json* arg = Member(spec, "arg");
    const std::string* name =
        arg == nullptr ? nullptr : String(Member(*arg, "name"));
    const auto id = name == nullptr ? scope_.end() : scope_.find(*name);
    if (id == scope_.end()) return false;
    const NodeId producer = program_.graph.value(id->second).producer;
    return producer != kNoNode &&
           program_.graph.nodes[producer].op == "aten.embedding_renorm.default";
  }

  absl::Status ReadWeight(const Json& spec, absl::string_view target) {
    const Json* arg = Member(spec, "arg");
    const std::string* name =
        arg == nullptr ? nullptr : String(Member(*arg, "name"));
    const std::string* weight = String(Member(spec, target));
    if (name == nullptr || weight == nullptr || weight->empty()) {
      return Malformed("parameter");
    }
    REFRACT_ASSIGN_OR_RETURN(const ValueId id,
                             nodes_.AddTensor(section_, *name, scope_));
    program_.graph.values[id].weight = *weight;
    return absl::OkStatus();
  }

  absl::Status ReadBuffer(const Json& spec, absl::string_view target) {
    REFRACT_RETURN_IF_ERROR(ReadWeight(spec, target));
    program_.buffers.insert(*String(Member(spec, target)));
    return absl::OkStatus();
  }

  absl::Status ReadUserOutput(const Json& spec, size_t position,
                              absl::string_view name) {
    const auto item = Union(Member(spec, "arg"));
    if (!item) return Malformed("output");
    if (*item->tag == "as_none") return absl::OkStatus();
    if (*item->tag != "as_tensor") {
      program_.notes.push_back(absl::StrCat("result ", position,
                                            " is not a tensor (", *item->tag,
                                            "), so answers leave it out"));
      return absl::OkStatus();
    }
    const std::string* value = String(Member(*item->value, "name"));
    if (value == nullptr) return Malformed("output");
    const auto id = scope_.find(*value);
    if (id == scope_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("output ", *value, " is not computed"));
    }
    Graph& graph = program_.graph;
    graph.outputs.push_back(id->second);
    graph.output_names.push_back(std::string(name));
    return absl::OkStatus();
  }

  const Json& section_;
  Program& program_;
  NodeReader& nodes_;
  Scope& scope_;
  std::vector<Leaf> arguments_;
};

absl::Status ReadSignature(const Json& specs, absl::string_view what,
                           const auto& read) {
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto item = Union(&specs[i]);
    if (!item) return Malformed(absl::StrCat(what, " ", i));
    absl::Status status = read(*item, i);
    if (!status.ok()) {
      return base::Annotate(status, absl::StrCat(what, " ", i));
    }
  }
  return absl::OkStatus();
}

// Keys of a dict where the model returns one, else output_0, output_1, …
// counting the tensors.
class OutputNamer {
 public:
  OutputNamer(const Json& graph_module, size_t outputs)
      : names_(DictOutputNames(graph_module)) {
    if (names_ && names_->size() != outputs) names_.reset();
  }
  std::string Name(size_t position, size_t tensors) const {
    return names_ ? (*names_)[position] : absl::StrCat("output_", tensors);
  }

 private:
  std::optional<std::vector<std::string>> names_;
};

}  // namespace

absl::StatusOr<Program> ParseProgram(absl::string_view text) {
  // The model's call stacks are most of a file, and nothing reads them.
  const std::optional<Json> parsed = Json::Parse(text, "metadata");
  if (!parsed) return absl::InvalidArgumentError("is not valid JSON");
  const Json& json = *parsed;
  REFRACT_RETURN_IF_ERROR(CheckSchema(json));
  const Json* module = Member(json, "graph_module");
  const Json* section = module ? Member(*module, "graph") : nullptr;
  const Json* signature = module ? Member(*module, "signature") : nullptr;
  const Json* inputs =
      signature ? Array(Member(*signature, "input_specs")) : nullptr;
  const Json* outputs =
      signature ? Array(Member(*signature, "output_specs")) : nullptr;
  if (section == nullptr || inputs == nullptr || outputs == nullptr) {
    return Malformed("graph_module");
  }

  Program program;
  Graph& graph = program.graph;
  graph.source = SourceFormat::kTorchExport;
  NodeReader nodes(graph);
  Scope scope;
  SignatureReader reader(*section, program, nodes, scope);
  REFRACT_RETURN_IF_ERROR(
      ReadSignature(*inputs, "input", [&](const Tagged& spec, size_t) {
        return reader.ReadInput(*spec.tag, *spec.value);
      }));
  // Inputs enter the scope first, outputs are looked up in it last.
  REFRACT_RETURN_IF_ERROR(nodes.ReadNodes(*section, scope));
  CorrectRecordedShapes(graph);
  // The export lists buffers that the model writes beside its results.
  const auto returned = std::count_if(
      outputs->begin(), outputs->end(),
      [](const Json& spec) { return Member(spec, "user_output") != nullptr; });
  const OutputNamer namer(*module, static_cast<size_t>(returned));
  size_t position = 0;
  REFRACT_RETURN_IF_ERROR(
      ReadSignature(*outputs, "output", [&](const Tagged& spec, size_t) {
        if (*spec.tag != "user_output") {
          return reader.ReadOutput(*spec.tag, *spec.value, 0, "");
        }
        const size_t i = position++;
        return reader.ReadOutput(*spec.tag, *spec.value, i,
                                 namer.Name(i, graph.outputs.size()));
      }));
  if (graph.outputs.empty()) {
    return absl::InvalidArgumentError("the model returns no tensor");
  }

  // Guards name inputs as forward() does.
  reader.NameInputs(*module);
  if (const Json* ranges = Member(json, "range_constraints")) {
    REFRACT_RETURN_IF_ERROR(ReadRanges(*ranges, graph));
  }
  // Ranges, batch, guards, least batch: each step reads the results of the
  // steps before it.
  ChooseBatchSymbol(graph);
  if (graph.symbols.empty()) {
    program.notes.push_back(
        "every size is fixed, because the export declares no dynamic one; to "
        "serve other batches, export with dynamic_shapes, {0: Dim.AUTO} for "
        "each input that has a batch");
  }
  if (const Json* guards = Member(json, "guards_code")) {
    ApplyGuards(*guards, graph, program.notes);
  }
  SetMinBatch(graph, program.notes);
  return program;
}

}  // namespace refract::models::torch_export

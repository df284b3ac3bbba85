#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/autocast.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inline_fork_wait.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "models/graph/script_region.h"
#include "models/passes/complex_numbers.h"
#include "models/passes/functionalize.h"
#include "models/torchscript/archive_torch.h"
#include "models/torchscript/converter_torch.h"
#include "models/torchscript/import.h"
#include "models/torchscript/items_torch.h"
#include "models/torchscript/regions_torch.h"
#include "runtime/torch/convert_torch.h"

namespace refract::models {
namespace torchscript {
namespace {

void Collect(torch::jit::Block& block, std::vector<torch::jit::Node*>& found) {
  for (torch::jit::Node* node : block.nodes()) {
    if (node->kind() == c10::prim::Enter || node->kind() == c10::prim::Exit) {
      found.push_back(node);
    }
    for (torch::jit::Block* inner : node->blocks()) Collect(*inner, found);
  }
}

std::string ClassName(const torch::jit::Value& object) {
  const auto* type = object.type()->castRaw<c10::ClassType>();
  return type != nullptr && type->name() ? type->name()->qualifiedName()
                                         : object.type()->str();
}

// Removes a context object whose only uses left are writes to its attributes.
void RemoveObject(torch::jit::Value* object) {
  std::vector<torch::jit::Node*> writers;
  for (const torch::jit::Use& use : object->uses()) {
    if (use.user->kind() != c10::prim::SetAttr || use.offset != 0) return;
    writers.push_back(use.user);
  }
  for (torch::jit::Node* writer : writers) writer->destroy();
  if (object->node()->kind() == c10::prim::CreateObject) {
    object->node()->destroy();
  }
}

// Python's `with` in scripted code: takes prim::Enter and prim::Exit out of an
// inlined graph and of the graphs of its branches and loops. A server computes
// no gradients, so torch.no_grad() and its kin change nothing; LibTorch's own
// pass writes down the casts of torch.autocast(). Unimplemented names the class
// of any other context.
absl::Status ResolveContexts(const std::shared_ptr<torch::jit::Graph>& graph) {
  std::vector<torch::jit::Node*> nodes;
  Collect(*graph->block(), nodes);
  if (nodes.empty()) return absl::OkStatus();
  bool casts = false;
  for (const torch::jit::Node* node : nodes) {
    const std::string name = ClassName(*node->input(0));
    if (absl::StrContains(name, "autocast_mode.")) {
      casts = true;
    } else if (!absl::StrContains(name, "torch.autograd.grad_mode.")) {
      return absl::UnimplementedError(absl::StrCat(
          "enters the context manager ", name,
          ", which only Python can run; leave it out of forward()"));
    }
  }
  if (casts) {
    const absl::Status status = runtime::aten::Guarded("torch.autocast", [&] {
      torch::jit::Autocast(graph);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    nodes.clear();
    Collect(*graph->block(), nodes);
  }
  std::set<torch::jit::Value*> objects;
  for (torch::jit::Node* node : nodes) {
    torch::jit::Value* object = node->input(0);
    objects.insert(object);
    for (torch::jit::Value* output : node->outputs()) {
      output->replaceAllUsesWith(object);
    }
    node->destroy();
  }
  for (torch::jit::Value* object : objects) RemoveObject(object);
  return absl::OkStatus();
}

// A trace holds the Python number of `ids * 0.2` as a float64 tensor without
// dimensions. A saved file no longer says that the tensor was a number, and a
// number promotes `ids` to float32, a float64 tensor to float64. In these four
// operators LibTorch's executor takes the tensor for a number again
// (CanonicalizeOps() in
// torch/csrc/jit/passes/canonicalize_graph_fuser_ops.cpp); so does this
// function.
void TakeNumbersForConstants(torch::jit::Block& block) {
  for (torch::jit::Node* node : block.nodes()) {
    for (torch::jit::Block* inner : node->blocks()) {
      TakeNumbersForConstants(*inner);
    }
    const bool takes_number =
        node->matches(
            "aten::add(Tensor self, Tensor other, *, Scalar alpha) -> "
            "Tensor") ||
        node->matches(
            "aten::sub(Tensor self, Tensor other, *, Scalar alpha) -> "
            "Tensor") ||
        node->matches("aten::mul(Tensor self, Tensor other) -> Tensor") ||
        node->matches("aten::div(Tensor self, Tensor other) -> Tensor");
    if (!takes_number) continue;
    const auto other = node->get<at::Tensor>(c10::attr::other);
    if (!other || !other->defined() || other->dim() != 0 ||
        other->is_complex()) {
      continue;
    }
    const torch::jit::WithInsertPoint before(node);
    node->replaceInput(1, node->owningGraph()->insertConstant(other->item()));
  }
}

bool HasNoSubtypes(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::StringType:
      return true;
    default:
      return false;
  }
}

// Decides isinstance() where the argument's type says the answer: an inlined
// function may take more types than its caller gives, as
// pack_padded_sequence() does.
void DecideTypes(torch::jit::Block& block) {
  for (torch::jit::Node* node : block.nodes()) {
    for (torch::jit::Block* inner : node->blocks()) DecideTypes(*inner);
    if (node->kind() != c10::prim::isinstance) continue;
    const c10::Type& type = *node->input()->type();
    if (!HasNoSubtypes(type)) continue;
    const auto& types = node->tys(c10::attr::types);
    const bool is = std::any_of(
        types.begin(), types.end(),
        [&type](const auto& each) { return type.isSubtypeOf(*each); });
    const torch::jit::WithInsertPoint before(node);
    node->output()->replaceAllUsesWith(node->owningGraph()->insertConstant(is));
  }
}

// The module's forward() as IR. Everything that constants decide is decided
// here: attributes, branches, loops, lists, arithmetic; with `examples` also
// everything that ranks, dtypes and lengths of lists decide. Unimplemented
// names the operator and the line of Python that it came from, or the input or
// output that is no tensor. May throw what LibTorch throws.
absl::StatusOr<Converted> Convert(const Archive& archive,
                                  const Examples& examples,
                                  const KeyLists& keys) {
  const auto method = archive.module().find_method("forward");
  if (!method)
    return absl::InvalidArgumentError("the module has no method forward()");
  const std::shared_ptr<torch::jit::Graph> source = method->graph()->copy();
  const std::vector<std::string> notes =
      TakeDefaults(method->function().getSchema(), *source);
  const auto finish = [&notes](Converter& converter) {
    Converted result = converter.Finish();
    result.notes.insert(result.notes.begin(), notes.begin(), notes.end());
    return result;
  };
  REFRACT_RETURN_IF_ERROR(MakeClassInputs(examples, keys, *source));
  torch::jit::Inline(*source);
  torch::jit::InlineForkWait(source);
  REFRACT_RETURN_IF_ERROR(ResolveContexts(source));
  TakeNumbersForConstants(*source->block());
  DecideTypes(*source->block());
  torch::jit::EliminateDeadCode(source);
  absl::flat_hash_set<const JitNode*> whole_loops;
  while (true) {
    Converter tracer(archive, examples);
    absl::StatusOr<Traced> traced = tracer.Trace(*source, whole_loops);
    // Each aborted walk adds a loop to `whole_loops`, so this ends.
    if (absl::IsAborted(traced.status())) continue;
    if (!traced.ok()) return traced.status();
    if (traced->opaque.empty()) return finish(tracer);
    Converter converter(archive, examples);
    REFRACT_RETURN_IF_ERROR(
        converter.Emit(*traced, PlanRegions(traced->graph, traced->opaque)));
    return finish(converter);
  }
}

}  // namespace
}  // namespace torchscript

namespace {

// The weight behind a value: the value itself, or the source of its views.
// kNoValue where there is none.
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

// Names of the weights that may be tables: weights that look-ups read, and
// matrices that enter regions, because a region may look up in them.
absl::flat_hash_set<std::string> TablesOf(const Graph& graph) {
  absl::flat_hash_set<std::string> names;
  const auto add = [&](ValueId id) {
    const ValueId weight = WeightBehind(graph, id);
    if (weight != kNoValue) names.insert(graph.value(weight).weight);
  };
  for (const Node& node : graph.nodes) {
    const absl::string_view arg = EmbeddingArgsOf(node.op).weight;
    if (!arg.empty()) add(node.ValueArg(arg));
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
  REFRACT_RETURN_IF_ERROR(runtime::aten::Guarded(path, [&]() -> absl::Status {
    torchscript::Examples examples;
    for (const NamedTensor& named : sample) {
      runtime::aten::Operand operand;
      operand.kind = runtime::aten::Operand::Kind::kTensor;
      operand.tensor = named.tensor;
      REFRACT_ASSIGN_OR_RETURN(examples[named.name],
                               runtime::aten::ToTensor(operand));
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
  // Freezing makes a parameter a constant like any other. Only a look-up shows
  // that it was a table.
  const absl::flat_hash_set<std::string> tables = TablesOf(model.graph);
  for (const std::string& name : converted.constants) {
    if (!tables.contains(name)) model.buffers.insert(name);
  }
  if (model.graph.outputs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the model returns no tensor"));
  }
  // Checks the bounds of every weight before any weight is read.
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

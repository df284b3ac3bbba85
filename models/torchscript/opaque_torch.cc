// Opaque nodes of a TorchScript graph: nodes without a form in the graph IR are
// copied for LibTorch's interpreter, and run once for their result types.

#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/torchscript/converter_torch.h"
#include "models/torchscript/items_torch.h"
#include "models/torchscript/regions_torch.h"

namespace refract::models::torchscript {
namespace {

// Whether an operator that drops values at random is switched off: by a
// probability of 0, or by evaluation mode.
bool DropsNothing(const JitNode& node) {
  const c10::FunctionSchema* schema = node.maybeSchema();
  if (schema == nullptr) return false;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const std::string& name = schema->arguments()[i].name();
    const JitValue& input = *node.input(i);
    const auto constant = torch::jit::toIValue(&input);
    if (name == "train" || name == "training") {
      if (constant && constant->isBool() && !constant->toBool()) return true;
      // Archive::Load() has put every module into evaluation mode.
      if (input.node()->kind() == c10::prim::GetAttr &&
          input.node()->s(c10::attr::name) == "training" &&
          input.node()->input()->type()->is_module()) {
        return true;
      }
    }
    if ((name == "p" || name == "dropout" || name == "dropout_p") && constant &&
        constant->isDouble() && constant->toDouble() == 0) {
      return true;
    }
  }
  return false;
}

// Refuses nodes that no request may run, not even in a region: random
// operators, writes into the module, Python.
absl::Status CheckServable(const JitNode& node) {
  const absl::string_view op = node.kind().toQualString();
  if (node.isNondeterministic() && !DropsNothing(node)) {
    return absl::InvalidArgumentError(
        "draws random numbers, so its results differ from call to call; call "
        "model.eval() before the export, which switches dropout off, and take "
        "random operators out of forward()");
  }
  if (node.kind() == c10::prim::SetAttr && node.input(0)->type()->is_module()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "writes the module's attribute \"", node.s(c10::attr::name),
        "\"; a model that keeps state between requests cannot be served"));
  }
  if (op == "prim::PythonOp" || op == "prim::fork" || op == "aten::wait" ||
      op == "prim::awaitable" || op == "prim::Enter" || op == "prim::Exit") {
    return absl::UnimplementedError(
        "LibTorch's interpreter must not run this on a node");
  }
  for (const JitBlock* block : node.blocks()) {
    for (const JitNode* inner : block->nodes()) {
      const absl::Status status = CheckServable(*inner);
      if (!status.ok()) {
        // The caller adds the name of the outermost node.
        return base::Annotate(
            status, absl::StrCat("in its body, ", inner->kind().toQualString(),
                                 Location(*inner)));
      }
    }
  }
  return absl::OkStatus();
}

// Results of one node for `values` of the values that it reads; empty where the
// node throws.
std::vector<c10::IValue> RunNode(const JitNode& node,
                                 const std::vector<JitValue*>& reads,
                                 std::vector<c10::IValue> values) {
  const auto graph = std::make_shared<torch::jit::Graph>();
  std::unordered_map<const JitValue*, JitValue*> inputs;
  for (const JitValue* read : reads) {
    inputs[read] = graph->addInput()->setType(read->type());
  }
  JitNode* copy = graph->insertNode(graph->createClone(
      const_cast<JitNode*>(&node),
      [&inputs](JitValue* value) { return inputs.at(value); }));
  for (JitValue* output : copy->outputs()) graph->registerOutput(output);
  try {
    const c10::InferenceMode no_gradient;
    const torch::jit::Code code(graph, "sample");
    torch::jit::InterpreterState(code).run(values);
    return values;
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace

JitNode* Converter::Copy(const JitNode& node) {
  torch::jit::Graph& flat = *traced_.graph;
  JitNode* copy = flat.insertNode(
      flat.createClone(const_cast<JitNode*>(&node),
                       [this](JitValue* value) { return flat_of_.at(value); }));
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    flat_of_[node.output(i)] = copy->output(i);
  }
  return copy;
}

bool Converter::ReadsOpaque(const JitNode& node) {
  for (const JitValue* input : node.inputs()) {
    if (ItemOf(input).kind == Item::Kind::kOpaque) return true;
  }
  return false;
}

absl::Status Converter::MakeOpaque(const JitNode& node, JitNode* copy,
                                   const absl::Status& why) {
  // Without a sample the results of such a node are not known, and the missing
  // sample may be the very reason why the node has no form.
  if (examples_.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(why.message(),
                     "; give an example request with --sample FILE: the import "
                     "reads ranks, lengths and keys from it, and leaves to "
                     "LibTorch's interpreter what the graph cannot express"));
  }
  const absl::Status servable = CheckServable(node);
  if (!servable.ok()) {
    if (!absl::IsUnimplemented(servable)) return servable;
    return absl::UnimplementedError(
        absl::StrCat(why.message(), "; ", servable.message()));
  }
  traced_.opaque.insert(copy);
  // The node runs on the sample only when all that it reads has a value there.
  // The results are the examples for the nodes behind it.
  std::vector<JitValue*> reads = ReadsOf(node);
  std::vector<c10::IValue> values;
  for (const JitValue* read : reads) {
    auto value = ExampleOf(read->type(), ItemOf(read));
    if (!value) break;
    values.push_back(*std::move(value));
  }
  std::vector<c10::IValue> results;
  if (values.size() == reads.size()) results = RunNode(node, reads, values);
  // RunNode() takes a copy of `values`, but containers in it are shared, so the
  // values show what the node wrote into them.
  values.resize(reads.size());
  ForgetContainers(reads, values);
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const JitValue* output = node.output(i);
    if (i < results.size() && results[i].isTensor() &&
        results[i].toTensor().is_nested()) {
      return absl::InvalidArgumentError(
          "makes a nested tensor, which has no sizes; make TransformerEncoder "
          "with enable_nested_tensor=False, or use torch.export");
    }
    Item item;
    if (IsPlain(*output->type())) {
      // A placeholder: Emit() makes the real value, and nothing of this walk is
      // kept.
      const ValueId id = build_.AddValue("opaque");
      item = output->type()->kind() == c10::TypeKind::TensorType
                 ? Item::Tensor(id)
                 : Item::Number(id);
    } else {
      item.kind = Item::Kind::kOpaque;
    }
    if (i < results.size()) item.example = results[i];
    traced_.examples[copy->output(i)] = item.example;
    items_[output] = std::move(item);
  }
  return absl::OkStatus();
}

void Converter::ForgetContainers(const std::vector<JitValue*>& read,
                                 const std::vector<c10::IValue>& after) {
  for (size_t i = 0; i < read.size(); ++i) {
    const c10::TypeKind kind = read[i]->type()->kind();
    if (kind != c10::TypeKind::ListType && kind != c10::TypeKind::DictType) {
      continue;
    }
    // `contents` identifies a container: all names of it share them.
    const auto contents = ItemOf(read[i]).contents;
    if (contents == nullptr) continue;
    // The next node that reads the container joins the region if the container
    // was written; its example is the contents after the node in any case.
    for (auto& [value, item] : items_) {
      if (item.contents != contents) continue;
      item = Item();
      item.kind = Item::Kind::kOpaque;
      item.example = after[i];
    }
  }
}

void Converter::AppendOpaque(JitNode* node, const c10::IValue& example) {
  traced_.graph->insertNode(node);
  traced_.opaque.insert(node);
  traced_.examples[node->output(0)] = example;
}

absl::Status Converter::ReturnFrom(const JitValue* source, JitValue* value,
                                   const Item& item) {
  torch::jit::Graph& flat = *traced_.graph;
  if (item.kind != Item::Kind::kOpaque) {
    flat.registerOutput(value);
    return AddOutput(item, value->type());
  }
  const c10::IValue& example = item.example;
  // Adds an opaque node that takes a part out, and goes on with the part.
  const auto each = [&](JitNode* node, const c10::IValue& contents) {
    AppendOpaque(node, contents);
    Item part;
    if (IsPlain(*node->output(0)->type())) {
      part = Item::Tensor(build_.AddValue("opaque"));
    } else {
      part.kind = Item::Kind::kOpaque;
    }
    part.example = contents;
    return ReturnFrom(source, node->output(0), part);
  };
  if (const auto* type = value->type()->castRaw<c10::OptionalType>()) {
    if (example.isNone()) {
      return absl::UnimplementedError(
          "an Optional output of forward() is None for the example request, so "
          "its shape is not known; give a --sample for which it is a tensor");
    }
    JitNode* cast = flat.create(c10::prim::unchecked_cast, {value});
    cast->output()->setType(type->getElementType());
    return each(cast, example);
  }
  if (const auto* type = value->type()->castRaw<c10::TupleType>()) {
    for (size_t i = 0; i < type->elements().size(); ++i) {
      JitNode* take = flat.createTupleIndex(
          value, flat.insertConstant(int64_t(i)), type->elements()[i]);
      c10::IValue part;
      if (example.isTuple()) part = example.toTupleRef().elements()[i];
      REFRACT_RETURN_IF_ERROR(each(take, part));
    }
    return absl::OkStatus();
  }
  const auto take = [&](const c10::IValue& key, const c10::TypePtr& type,
                        const c10::IValue& part) {
    JitNode* node =
        flat.create(c10::aten::__getitem__, {value, flat.insertConstant(key)});
    node->output()->setType(type);
    return each(node, part);
  };
  if (const auto* type = value->type()->castRaw<c10::ListType>()) {
    if (example.isList()) {
      // prim::ListUnpack fails for a request whose list has another length.
      const auto list = example.toListRef();
      JitNode* unpack =
          flat.insertNode(flat.createListUnpack(value, list.size()));
      traced_.opaque.insert(unpack);
      for (size_t i = 0; i < list.size(); ++i) {
        Item part;
        if (IsPlain(*type->getElementType())) {
          part = Item::Tensor(build_.AddValue("opaque"));
        } else {
          part.kind = Item::Kind::kOpaque;
        }
        part.example = list[i];
        traced_.examples[unpack->output(i)] = list[i];
        REFRACT_RETURN_IF_ERROR(ReturnFrom(source, unpack->output(i), part));
      }
      return absl::OkStatus();
    }
  }
  if (const auto* type = value->type()->castRaw<c10::DictType>()) {
    if (example.isGenericDict()) {
      for (const auto& entry : example.toGenericDict()) {
        REFRACT_RETURN_IF_ERROR(
            take(entry.key(), type->getValueType(), entry.value()));
      }
      return absl::OkStatus();
    }
  }
  return absl::UnimplementedError(
      absl::StrCat("forward() returns a ", value->type()->str(),
                   ", which cannot be taken apart into tensors; return "
                   "tensors, or lists, tuples or dictionaries of tensors"));
}

}  // namespace refract::models::torchscript

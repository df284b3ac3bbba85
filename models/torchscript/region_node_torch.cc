#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/serialization/export.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/script_region.h"
#include "models/passes/complex_numbers.h"
#include "models/torchscript/converter_torch.h"

namespace refract::models::torchscript {
namespace {

bool IsTensor(const JitValue& value) {
  return value.type()->kind() == c10::TypeKind::TensorType;
}

// The node of the top block that contains `node`.
const JitNode* TopNode(const JitNode* node, const JitBlock* top) {
  while (node->owningBlock() != top) node = node->owningBlock()->owningNode();
  return node;
}

absl::Status WritesBuffer(const Value& buffer) {
  return absl::InvalidArgumentError(
      absl::StrCat("writes into the buffer \"", buffer.weight,
                   "\"; a model that keeps state between requests cannot be "
                   "served"));
}

bool WritesAnything(const JitNode& node) {
  const c10::FunctionSchema* schema = node.maybeSchema();
  return schema != nullptr && schema->is_mutable();
}

}  // namespace

// Copies nodes of the flat graph into a graph of their own. That graph is pure:
// tensors and numbers enter as inputs, weights as inputs as well, constants and
// containers are made inside, and a tensor that a node writes into is cloned
// first.
class RegionBuilder {
 public:
  RegionBuilder(Converter& converter, const std::vector<JitNode*>& nodes)
      : converter_(converter),
        nodes_(nodes),
        members_(nodes.begin(), nodes.end()),
        graph_(std::make_shared<torch::jit::Graph>()) {}

  absl::Status Build() {
    for (JitNode* node : nodes_) {
      // Values are made before createClone(), whose callback cannot fail.
      absl::Status status;
      for (JitValue* value : ReadsOf(*node)) {
        if (values_.contains(value)) continue;
        absl::StatusOr<JitValue*> made = Bring(value);
        if (!made.ok()) return made.status();
        values_[value] = *made;
      }
      JitNode* copy = graph_->insertNode(graph_->createClone(
          node, [this](JitValue* value) { return values_.at(value); }));
      for (size_t i = 0; i < node->outputs().size(); ++i) {
        values_[node->output(i)] = copy->output(i);
      }
    }
    // Before CopyWhatIsWritten(): a write may reach an attribute, which is an
    // input only after ResolveBlock().
    REFRACT_RETURN_IF_ERROR(ResolveBlock(*graph_->block()));
    for (const auto& [module, object] : modules_) {
      if (module->hasUses()) {
        return absl::UnimplementedError(
            "passes a module as a value; the graph has only the weights of "
            "modules");
      }
    }
    CopyWhatIsWritten();
    return CheckWrites();
  }

  // Adds the region's node to the IR graph and binds its results.
  absl::Status Emit(const Traced& traced) {
    // Results of the region's nodes that others read, then tensors from outside
    // that the region writes into and others read afterwards: they read the
    // copy.
    std::vector<const JitValue*> outputs;
    for (JitNode* node : nodes_) {
      for (JitValue* output : node->outputs()) {
        if (IsReadOutside(*output)) outputs.push_back(output);
      }
    }
    for (const auto& [value, copy] : written_) {
      const ValueId id = converter_.ItemOf(value).value;
      const bool weight = converter_.build_.graph().value(id).is_weight();
      if (!weight && IsReadOutside(*value)) outputs.push_back(value);
    }
    if (outputs.empty()) return absl::OkStatus();
    // The conversions come before all other nodes, clones of written inputs
    // included.
    JoinComplexInputs();
    std::vector<JitValue*> results;
    for (const JitValue* output : outputs) {
      const auto copy = written_.find(output);
      results.push_back(SplitIfComplex(
          copy != written_.end() ? copy->second : values_.at(output),
          ExampleOf(*output, traced)));
    }
    if (results.size() == 1) {
      graph_->registerOutput(results[0]);
    } else {
      graph_->registerOutput(
          graph_->insertNode(graph_->createTuple(results))->output());
    }
    // Clones of inputs and modules' placeholders may have no reader.
    torch::jit::EliminateDeadCode(graph_);
    Node node;
    node.op = std::string(kScriptRegionOp);
    node.args.push_back({std::string(kRegionOperatorsArg), Operators()});
    for (size_t i = 0; i < inputs_.size(); ++i) {
      node.args.push_back({absl::StrCat("input_", i), ValueRef{inputs_[i]}});
    }
    node.args.push_back({std::string(kRegionScriptArg), Script()});
    Builder& build = converter_.build_;
    const ValueId first =
        build.AddNode("script", std::move(node), outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto id = first + static_cast<ValueId>(i);
      Item item = Item::Tensor(id);
      Value& value = build.graph().values[id];
      switch (outputs[i]->type()->kind()) {
        case c10::TypeKind::IntType:
          value.kind = ValueKind::kSymInt;
          break;
        case c10::TypeKind::FloatType:
          value.kind = ValueKind::kSymFloat;
          break;
        case c10::TypeKind::BoolType:
          value.kind = ValueKind::kSymBool;
          break;
        default:
          break;
      }
      item.is_number = value.kind != ValueKind::kTensor;
      item.example = ExampleOf(*outputs[i], traced);
      converter_.MarkComplex(item);
      converter_.items_[outputs[i]] = std::move(item);
    }
    return absl::OkStatus();
  }

 private:
  bool IsReadOutside(const JitValue& value) const {
    const JitBlock* top = nodes_.front()->owningBlock();
    return std::any_of(
        value.uses().begin(), value.uses().end(), [&](const auto& use) {
          const JitNode* user = TopNode(use.user, top);
          // A reader before the region reads the value before the write.
          return !members_.contains(user) && (!written_.contains(&value) ||
                                              !user->isBefore(nodes_.front()));
        });
  }

  c10::IValue ExampleOf(const JitValue& output, const Traced& traced) const {
    const auto example = traced.examples.find(&output);
    if (example != traced.examples.end()) return example->second;
    if (written_.contains(&output)) return converter_.ItemOf(&output).example;
    return {};
  }

  // Complex tensors enter and leave regions as pairs of floats
  // (models/passes/complex_numbers.h).
  void JoinComplexInputs() {
    for (const auto& [id, input] : input_of_) {
      if (!IsComplex(converter_.build_.graph().value(id).dtype)) continue;
      const torch::jit::WithInsertPoint first(*graph_->nodes().begin());
      JitNode* join = graph_->insertNode(
          graph_->create(c10::Symbol::aten("view_as_complex"), {input}));
      join->output()->setType(c10::TensorType::get());
      input->replaceAllUsesAfterNodeWith(join, join->output());
    }
  }

  JitValue* SplitIfComplex(JitValue* result, const c10::IValue& example) {
    if (!example.isTensor() || !example.toTensor().defined() ||
        !example.toTensor().is_complex()) {
      return result;
    }
    // view_as_real refuses lazy conjugates and negatives.
    for (const char* op : {"resolve_conj", "resolve_neg", "view_as_real"}) {
      JitNode* node =
          graph_->insertNode(graph_->create(c10::Symbol::aten(op), {result}));
      node->output()->setType(c10::TensorType::get());
      result = node->output();
    }
    return result;
  }

  // One input per IR value, however many values of the flat graph stand for it:
  // a write through one name must be seen through the others.
  JitValue* AddInput(ValueId id, const c10::TypePtr& type) {
    const auto [it, inserted] = input_of_.try_emplace(id, nullptr);
    if (inserted) {
      inputs_.push_back(id);
      it->second = graph_->addInput()->setType(type);
    }
    return it->second;
  }

  // The value of this graph that stands for a value outside the region.
  absl::StatusOr<JitValue*> Bring(const JitValue* value) {
    // prim::Uninitialized: the value of a branch that is left early.
    if (value->node()->kind() == c10::prim::Uninitialized ||
        (value->node()->kind() == c10::prim::Constant && !IsTensor(*value))) {
      JitNode* copy = graph_->insertNode(graph_->createClone(
          const_cast<JitNode*>(value->node()), [](JitValue* v) { return v; }));
      return copy->output();
    }
    return FromItem(converter_.ItemOf(value), value->type());
  }

  absl::StatusOr<JitValue*> FromItem(const Item& item,
                                     const c10::TypePtr& type) {
    if (const auto* optional = type->castRaw<c10::OptionalType>()) {
      if (!item.is_none()) return FromItem(item, optional->getElementType());
    }
    switch (item.kind) {
      case Item::Kind::kLiteral: {
        const auto constant =
            torch::jit::tryInsertConstant(*graph_, item.literal);
        if (!constant) break;
        if (item.is_none()) (*constant)->setType(c10::NoneType::get());
        return *constant;
      }
      case Item::Kind::kValue:
        if (!item.is_number)
          return AddInput(item.value, c10::TensorType::get());
        return FromNumber(item, type);
      case Item::Kind::kSizes: {
        JitNode* sizes = graph_->insertNode(graph_->create(
            c10::aten::size, {AddInput(item.value, c10::TensorType::get())}));
        sizes->output()->setType(c10::ListType::ofInts());
        return sizes->output();
      }
      case Item::Kind::kDTypeOf: {
        JitNode* dtype = graph_->insertNode(graph_->create(
            c10::prim::dtype, {AddInput(item.value, c10::TensorType::get())}));
        dtype->output()->setType(c10::IntType::get());
        return dtype->output();
      }
      case Item::Kind::kList:
      case Item::Kind::kDict:
        return FromContents(item, type);
      case Item::Kind::kModule: {
        // ResolveBlock() replaces reads of its attributes by inputs. The
        // module itself becomes no input.
        JitValue* self =
            graph_->insertNode(graph_->create(c10::prim::Uninitialized))
                ->output()
                ->setType(type);
        modules_[self] = item;
        return self;
      }
      default:
        break;
    }
    return absl::UnimplementedError(absl::StrCat(
        "a value of type ", type->str(),
        " cannot enter a region that LibTorch's interpreter runs"));
  }

  // A trace holds numbers in tensors.
  absl::StatusOr<JitValue*> FromNumber(const Item& item,
                                       const c10::TypePtr& type) {
    c10::TypePtr number = c10::IntType::get();
    const ValueKind kind = converter_.build_.graph().value(item.value).kind;
    if (kind == ValueKind::kSymFloat) number = c10::FloatType::get();
    if (kind == ValueKind::kSymBool) number = c10::BoolType::get();
    JitValue* input = AddInput(item.value, number);
    if (type->kind() != c10::TypeKind::TensorType) return input;
    JitNode* wrap =
        graph_->insertNode(graph_->create(c10::prim::NumToTensor, {input}));
    return wrap->output();
  }

  absl::StatusOr<JitValue*> FromContents(const Item& item,
                                         const c10::TypePtr& type) {
    const auto* tuple = type->castRaw<c10::TupleType>();
    const auto* list = type->castRaw<c10::ListType>();
    const auto* dict = type->castRaw<c10::DictType>();
    const auto& elements = item.elements();
    if ((tuple == nullptr && list == nullptr && dict == nullptr) ||
        (tuple != nullptr && tuple->elements().size() != elements.size())) {
      return absl::UnimplementedError(
          absl::StrCat("a ", type->str(),
                       " with another number of elements than its type says"));
    }
    // The item has only the keys that were looked up before the region.
    if (!item.path.empty()) {
      return absl::UnimplementedError(absl::StrCat(
          "the keys of the input dictionary ", item.path,
          " are not known at import; make the model look each of them up"));
    }
    std::vector<JitValue*> parts;
    for (size_t i = 0; i < elements.size(); ++i) {
      if (dict != nullptr) {
        parts.push_back(graph_->insertConstant((*item.keys)[i]));
      }
      absl::StatusOr<JitValue*> part =
          FromItem(elements[i], tuple != nullptr  ? tuple->elements()[i]
                                : list != nullptr ? list->getElementType()
                                                  : dict->getValueType());
      if (!part.ok()) return part.status();
      parts.push_back(*part);
    }
    JitNode* made = nullptr;
    if (tuple != nullptr) {
      made = graph_->create(c10::prim::TupleConstruct, parts);
    } else if (list != nullptr) {
      made = graph_->create(c10::prim::ListConstruct, parts);
    } else {
      made = graph_->create(c10::prim::DictConstruct, parts);
    }
    made->output()->setType(type);
    return graph_->insertNode(made)->output();
  }

  // Attributes of modules and constant tensors become inputs.
  absl::Status ResolveBlock(JitBlock& block) {
    for (auto it = block.nodes().begin(); it != block.nodes().end();) {
      JitNode* node = *it;
      ++it;
      for (JitBlock* inner : node->blocks()) {
        REFRACT_RETURN_IF_ERROR(ResolveBlock(*inner));
      }
      std::optional<Item> item;
      if (node->kind() == c10::prim::GetAttr) {
        const auto module = modules_.find(node->input(0));
        if (module == modules_.end()) continue;
        const std::string& name = node->s(c10::attr::name);
        const std::string& path = module->second.path;
        REFRACT_ASSIGN_OR_RETURN(
            item, converter_.FromIValue(
                      module->second.literal.toObjectRef().getAttr(name),
                      path.empty() ? name : absl::StrCat(path, ".", name)));
      } else if (node->kind() == c10::prim::Constant &&
                 IsTensor(*node->output())) {
        const auto tensor = torch::jit::toIValue(node->output());
        if (!tensor || !tensor->isTensor()) continue;
        REFRACT_ASSIGN_OR_RETURN(item, converter_.FromIValue(*tensor, ""));
      } else {
        continue;
      }
      // The input goes where the attribute was read: the node may be in a
      // branch.
      const torch::jit::WithInsertPoint here(node);
      absl::StatusOr<JitValue*> value = FromItem(*item, node->output()->type());
      if (!value.ok()) return value.status();
      node->output()->replaceAllUsesWith(*value);
      node->destroy();
    }
    return absl::OkStatus();
  }

  // A region must not write into requests, tables or results of other
  // operators: it writes into copies.
  void CopyWhatIsWritten() {
    // The clone is the first node and replaces every use, so that reads before
    // and after the write go to the same memory, as in the model.
    absl::flat_hash_set<const JitValue*> written;
    FindWrites(*graph_->block(), written);
    for (JitValue* input : std::vector<JitValue*>(graph_->inputs().begin(),
                                                  graph_->inputs().end())) {
      if (!IsTensor(*input) || !written.contains(input)) continue;
      const torch::jit::WithInsertPoint first(*graph_->nodes().begin());
      JitNode* copy = graph_->create(
          c10::aten::clone, {input, graph_->insertConstant(c10::IValue())});
      copy->output()->setType(c10::TensorType::get());
      graph_->insertNode(copy);
      input->replaceAllUsesAfterNodeWith(copy, copy->output());
      copies_[input] = copy->output();
      for (auto& [outside, inside] : values_) {
        // A value from outside whose memory is written: Emit() returns the copy
        // in its place.
        if (inside == input) written_[outside] = inside = copy->output();
      }
    }
  }

  // Inputs that a write reaches, directly or through views.
  void FindWrites(const JitBlock& block,
                  absl::flat_hash_set<const JitValue*>& written) {
    for (const JitNode* node : block.nodes()) {
      for (const JitBlock* inner : node->blocks()) FindWrites(*inner, written);
      const c10::FunctionSchema* schema = node->maybeSchema();
      if (schema == nullptr) continue;
      for (size_t i = 0; i < schema->arguments().size(); ++i) {
        const auto* alias = schema->arguments()[i].alias_info();
        // A write into a list changes no tensor.
        if (alias != nullptr && alias->isWrite() && IsTensor(*node->input(i))) {
          MarkSources(node->input(i), written);
        }
      }
    }
  }

  // The value, and all values whose view or element it may be.
  void MarkSources(const JitValue* value,
                   absl::flat_hash_set<const JitValue*>& written) {
    if (!written.insert(value).second) return;
    const JitNode* node = value->node();
    if (node->kind() == c10::prim::Param) {
      // A value that a loop carries comes from before the loop and from its
      // last round.
      const JitNode* owner = node->owningBlock()->owningNode();
      if (owner == nullptr || value->offset() == 0) return;
      MarkSources(owner->input(value->offset() + 1), written);
      MarkSources(owner->blocks()[0]->outputs()[value->offset()], written);
      return;
    }
    for (const JitBlock* block : node->blocks()) {
      // A loop's block returns the condition before the carried values; its
      // node takes the number of rounds and the condition before them.
      const size_t shift = node->kind() == c10::prim::Loop ? 1 : 0;
      MarkSources(block->outputs()[value->offset() + shift], written);
      if (shift == 1) MarkSources(node->input(value->offset() + 2), written);
    }
    if (!node->blocks().empty()) return;
    // Without alias information in the schema an argument's memory is not in
    // the result. An argument that is no tensor may be a container of tensors.
    const c10::FunctionSchema* schema = node->maybeSchema();
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      const bool shares = schema == nullptr ||
                          i >= schema->arguments().size() ||
                          schema->arguments()[i].alias_info() != nullptr ||
                          !IsTensor(*node->input(i));
      if (shares) MarkSources(node->input(i), written);
    }
  }

  // InvalidArgument: a write of this region is visible outside by another way
  // than the region's outputs.
  absl::Status CheckWrites() {
    const Graph& graph = converter_.build_.graph();
    for (const auto& [id, input] : input_of_) {
      const auto copy = copies_.find(input);
      if (copy == copies_.end() || !graph.value(id).is_weight()) continue;
      // A buffer that is written but never read, such as a count of warnings,
      // is no state: no result can depend on it. CheckWrittenWeights() checks
      // the other nodes.
      if (IsReadInside(*copy->second)) return WritesBuffer(graph.value(id));
      converter_.written_weights_.push_back(id);
    }
    for (const auto& [value, copy] : written_) {
      // Views outside the region do not see the write into the copy. The
      // examples show which tensors share memory: RunOnExamples() runs views as
      // the model does.
      const Item& item = converter_.ItemOf(value);
      if (graph.value(item.value).is_weight()) continue;
      const at::Tensor* tensor = item.example_tensor();
      if (tensor == nullptr) continue;
      for (const auto& [other, seen] : converter_.items_) {
        const at::Tensor* view = seen.example_tensor();
        if (other == value || view == nullptr || values_.contains(other) ||
            other->node()->owningGraph() != value->node()->owningGraph() ||
            !view->has_storage() ||
            view->storage().data() != tensor->storage().data() ||
            view->storage().nbytes() == 0) {
          continue;
        }
        const auto& uses = other->uses();
        const JitBlock* top = nodes_.front()->owningBlock();
        if (std::any_of(uses.begin(), uses.end(), [&](const auto& use) {
              // A read before the region sees the old contents in the model,
              // too.
              return TopNode(use.user, top)->isAfter(nodes_.front());
            })) {
          return absl::UnimplementedError(
              absl::StrCat("writes into \"", value->debugName(), "\" while \"",
                           other->debugName(),
                           "\" shares its memory and is read later; write into "
                           "a clone() instead"));
        }
      }
    }
    return absl::OkStatus();
  }

  // Whether a node reads the value: any use except a write whose result is
  // unused.
  bool IsReadInside(const JitValue& value) const {
    return std::any_of(
        value.uses().begin(), value.uses().end(), [](const auto& use) {
          if (!WritesAnything(*use.user)) return true;
          const auto* alias =
              use.user->schema().arguments()[use.offset].alias_info();
          if (alias == nullptr || !alias->isWrite()) return true;
          return std::any_of(
              use.user->outputs().begin(), use.user->outputs().end(),
              [](const JitValue* output) { return output->hasUses(); });
        });
  }

  static void CollectOperators(const JitBlock& block,
                               std::set<std::string>& names) {
    for (const JitNode* node : block.nodes()) {
      for (const JitBlock* inner : node->blocks()) {
        CollectOperators(*inner, names);
      }
      if (node->kind() != c10::prim::Constant) {
        names.insert(node->kind().toQualString());
      }
    }
  }

  StringList Operators() const {
    std::set<std::string> names;
    CollectOperators(*graph_->block(), names);
    StringList list(names.begin(), names.end());
    std::stable_partition(list.begin(), list.end(), [](const auto& name) {
      return !absl::StartsWith(name, "aten::") &&
             !absl::StartsWith(name, "prim::");
    });
    return list;
  }

  std::string Script() const {
    // A module without attributes whose forward() is the graph, saved as
    // torch.jit.save does; base64, because arguments of nodes are texts.
    torch::jit::Module module("__torch__.Region");
    graph_->insertInput(0, "self")->setType(module.type());
    auto* method = module._ivalue()->compilation_unit()->create_function(
        c10::QualifiedName(*module.type()->name(), "forward"), graph_);
    module.type()->addMethod(method);
    std::ostringstream out;
    module.save(out);
    return absl::Base64Escape(out.str());
  }

  Converter& converter_;
  const std::vector<JitNode*>& nodes_;
  const absl::flat_hash_set<const JitNode*> members_;
  std::shared_ptr<torch::jit::Graph> graph_;
  // Value of the flat graph → value of this graph.
  absl::flat_hash_map<const JitValue*, JitValue*> values_;
  // Value of the flat graph from outside the region → the copy written into.
  absl::flat_hash_map<const JitValue*, JitValue*> written_;
  // Input of this graph → the same copy.
  absl::flat_hash_map<const JitValue*, JitValue*> copies_;
  absl::flat_hash_map<const JitValue*, Item> modules_;
  std::vector<ValueId> inputs_;
  absl::flat_hash_map<ValueId, JitValue*> input_of_;
};

absl::Status Converter::CheckWrittenWeights() const {
  const Graph& graph = build_.graph();
  // A node outside all regions that reads the buffer would see a value that the
  // region no longer writes.
  for (const Node& node : graph.nodes) {
    if (IsScriptRegion(node)) continue;
    for (ValueId id : InputsOf(node)) {
      if (std::count(written_weights_.begin(), written_weights_.end(), id) >
          0) {
        return WritesBuffer(graph.value(id));
      }
    }
  }
  // A region that reads the weight, and not only writes it.
  for (ValueId id : written_weights_) {
    const auto regions = std::count_if(
        graph.nodes.begin(), graph.nodes.end(), [id](const Node& node) {
          const std::vector<ValueId> reads = InputsOf(node);
          return std::count(reads.begin(), reads.end(), id) > 0;
        });
    if (regions >
        std::count(written_weights_.begin(), written_weights_.end(), id)) {
      return WritesBuffer(graph.value(id));
    }
  }
  return absl::OkStatus();
}

absl::Status Converter::EmitRegion(const Traced& traced,
                                   const std::vector<JitNode*>& nodes) {
  RegionBuilder region(*this, nodes);
  REFRACT_RETURN_IF_ERROR(region.Build());
  return region.Emit(traced);
}

}  // namespace refract::models::torchscript

#include "models/torchscript/regions_torch.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/torchscript/converter_torch.h"
#include "models/torchscript/items_torch.h"

namespace refract::models::torchscript {
namespace {

using torch::jit::AliasDb;
using torch::jit::Block;
using Value = torch::jit::Value;
using JitNode = torch::jit::Node;

void CollectReads(const JitNode& node, const JitNode& top,
                  std::vector<Value*>& reads,
                  absl::flat_hash_set<const Value*>& seen) {
  const auto add = [&](Value* value) {
    // Values made inside the node are no reads.
    for (const JitNode* at = value->node(); at != nullptr;
         at = at->owningBlock()->owningNode()) {
      if (at == &top) return;
    }
    if (seen.insert(value).second) reads.push_back(value);
  };
  for (const Value* input : node.inputs()) add(const_cast<Value*>(input));
  for (const Block* block : node.blocks()) {
    for (const JitNode* inner : block->nodes()) {
      CollectReads(*inner, top, reads, seen);
    }
    for (const Value* output : block->outputs()) {
      add(const_cast<Value*>(output));
    }
  }
}

bool IsContainer(const Value& value) {
  switch (value.type()->kind()) {
    case c10::TypeKind::ListType:
    case c10::TypeKind::DictType:
    case c10::TypeKind::ClassType:
      return true;
    default:
      return false;
  }
}

bool Writes(const JitNode& node) {
  if (node.kind() == c10::prim::SetAttr) return true;
  const c10::FunctionSchema* schema = node.maybeSchema();
  if (schema != nullptr && schema->is_mutable()) return true;
  for (const Block* block : node.blocks()) {
    for (const JitNode* inner : block->nodes()) {
      if (Writes(*inner)) return true;
    }
  }
  return false;
}

class Planner {
 public:
  Planner(const std::shared_ptr<torch::jit::Graph>& graph,
          const absl::flat_hash_set<const JitNode*>& opaque)
      : aliases_(graph) {
    for (JitNode* node : graph->nodes()) {
      place_[node] = nodes_.size();
      nodes_.push_back(node);
      reads_.push_back(ReadsOf(*node));
      opaque_.push_back(opaque.contains(node));
      group_.push_back(group_.size());
    }
  }

  std::vector<Unit> Plan() {
    FindDependencies();
    do {
      changed_ = false;
      JoinWhatIsNotPlain();
      JoinWrittenContainers();
      JoinWrittenResults();
      JoinViewsOfWhatIsWritten();
      JoinCycles();
    } while (changed_);
    return Order();
  }

 private:
  size_t GroupOf(size_t node) {
    while (group_[node] != node) node = group_[node] = group_[group_[node]];
    return node;
  }

  // Puts both nodes into one region.
  void Join(size_t a, size_t b) {
    changed_ |= !opaque_[a] || !opaque_[b] || GroupOf(a) != GroupOf(b);
    opaque_[a] = opaque_[b] = true;
    group_[GroupOf(b)] = GroupOf(a);
  }

  // The node of the graph that makes a value; nullptr for its inputs.
  const JitNode* MakerOf(const Value* value) const {
    return place_.count(value->node()) == 0 ? nullptr : value->node();
  }

  // Predecessors of each node: producers of its inputs, writers into values
  // that it touches, and nodes that touch a value that it writes into.
  void FindDependencies() {
    before_.resize(nodes_.size());
    std::vector<torch::jit::ValueSet> touched(nodes_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (Value* value : reads_[i]) {
        if (const JitNode* maker = MakerOf(value)) {
          before_[i].push_back(place_.at(maker));
        }
        touched[i].insert(value);
      }
      for (Value* value : nodes_[i]->outputs()) touched[i].insert(value);
      writes_.push_back(Writes(*nodes_[i]));
    }
    for (size_t w = 0; w < nodes_.size(); ++w) {
      if (!writes_[w]) continue;
      for (size_t i = 0; i < nodes_.size(); ++i) {
        if (i == w || touched[i].empty() ||
            !aliases_.writesToAlias(nodes_[w], touched[i])) {
          continue;
        }
        before_[std::max(i, w)].push_back(std::min(i, w));
      }
    }
  }

  void JoinWhatIsNotPlain() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const Value* value : reads_[i]) {
        const JitNode* maker = MakerOf(value);
        if (maker == nullptr || !opaque_[place_.at(maker)] ||
            IsPlain(*value->type())) {
          continue;
        }
        Join(place_.at(maker), i);
      }
    }
  }

  void JoinWrittenContainers() {
    for (size_t w = 0; w < nodes_.size(); ++w) {
      if (!opaque_[w] || !writes_[w]) continue;
      for (Value* value : reads_[w]) {
        if (!IsContainer(*value) ||
            !aliases_.writesToAlias(nodes_[w], {value})) {
          continue;
        }
        for (size_t i = 0; i < nodes_.size(); ++i) {
          if (Touches(i, *value)) Join(w, i);
        }
      }
    }
  }

  // A result of a region may be one of its arguments: one of two branches may
  // return its argument. A node that writes into either belongs to the region,
  // so that the region's results alias nothing outside.
  void JoinWrittenResults() {
    for (size_t o = 0; o < nodes_.size(); ++o) {
      if (!opaque_[o]) continue;
      for (Value* output : nodes_[o]->outputs()) {
        if (!MaySeeInput(o, *output)) continue;
        for (size_t w = o + 1; w < nodes_.size(); ++w) {
          if (writes_[w] && aliases_.writesToAlias(nodes_[w], {output})) {
            Join(o, w);
          }
        }
      }
    }
  }

  // A view of a value that a region writes into shows the write. The view must
  // be made inside the region, and later readers must get it from the region.
  void JoinViewsOfWhatIsWritten() {
    for (size_t w = 0; w < nodes_.size(); ++w) {
      if (!opaque_[w] || !writes_[w]) continue;
      for (size_t i = 0; i < w; ++i) {
        for (Value* output : nodes_[i]->outputs()) {
          if (MaySeeInput(i, *output) && IsReadLater(*output, w) &&
              aliases_.writesToAlias(nodes_[w], {output})) {
            Join(w, i);
          }
        }
      }
    }
  }

  bool MaySeeInput(size_t node, const Value& output) const {
    return output.type()->kind() == c10::TypeKind::TensorType &&
           std::any_of(reads_[node].begin(), reads_[node].end(),
                       [&](const Value* read) {
                         return aliases_.mayContainAlias(
                             const_cast<Value*>(read),
                             const_cast<Value*>(&output));
                       });
  }

  // Whether a node comes after `node` or is in its region.
  bool IsReadLater(const Value& value, size_t node) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (i <= node && (!opaque_[i] || GroupOf(i) != GroupOf(node))) continue;
      if (std::count(reads_[i].begin(), reads_[i].end(), &value) > 0) {
        return true;
      }
    }
    return std::any_of(
        value.uses().begin(), value.uses().end(), [](const auto& use) {
          return use.user->kind() == c10::prim::Return &&
                 use.user->owningBlock()->owningNode() == nullptr;
        });
  }

  bool Touches(size_t node, const Value& container) const {
    const auto is = [&](const Value* value) {
      return IsContainer(*value) && aliases_.mayAlias(value, &container);
    };
    return std::any_of(reads_[node].begin(), reads_[node].end(), is) ||
           std::any_of(nodes_[node]->outputs().begin(),
                       nodes_[node]->outputs().end(), is);
  }

  // Nodes that depend on a region on which the region depends: strongly
  // connected components (Tarjan) of the graph of regions.
  void JoinCycles() {
    const size_t count = nodes_.size();
    std::vector<std::vector<size_t>> after(count);
    for (size_t i = 0; i < count; ++i) {
      for (size_t b : before_[i]) {
        if (GroupOf(b) != GroupOf(i)) after[GroupOf(b)].push_back(GroupOf(i));
      }
    }
    std::vector<size_t> index(count, 0);
    std::vector<size_t> low(count, 0);
    std::vector<bool> on_stack(count, false);
    std::vector<size_t> stack;
    size_t next = 1;
    struct Frame {
      size_t node;
      size_t edge;
    };
    for (size_t root = 0; root < count; ++root) {
      if (GroupOf(root) != root || index[root] != 0) continue;
      std::vector<Frame> frames = {{root, 0}};
      while (!frames.empty()) {
        Frame& frame = frames.back();
        const size_t node = frame.node;
        if (frame.edge == 0) {
          index[node] = low[node] = next++;
          stack.push_back(node);
          on_stack[node] = true;
        }
        if (frame.edge < after[node].size()) {
          const size_t to = after[node][frame.edge++];
          if (index[to] == 0) {
            frames.push_back({to, 0});
          } else if (on_stack[to]) {
            low[node] = std::min(low[node], index[to]);
          }
          continue;
        }
        if (low[node] == index[node]) {
          std::vector<size_t> component;
          do {
            component.push_back(stack.back());
            on_stack[stack.back()] = false;
            stack.pop_back();
          } while (component.back() != node);
          for (size_t member : component) {
            if (component.size() > 1) Join(node, member);
          }
        }
        frames.pop_back();
        if (!frames.empty()) {
          Frame& parent = frames.back();
          low[parent.node] = std::min(low[parent.node], low[node]);
        }
      }
    }
  }

  // Topological order; of several units that may come next, the unit whose
  // first node comes first in the graph.
  std::vector<Unit> Order() {
    const size_t count = nodes_.size();
    std::vector<size_t> first(count, count);
    std::vector<std::vector<size_t>> members(count);
    for (size_t i = 0; i < count; ++i) {
      first[GroupOf(i)] = std::min(first[GroupOf(i)], i);
      members[GroupOf(i)].push_back(i);
    }
    std::vector<absl::flat_hash_set<size_t>> after(count);
    std::vector<size_t> waits(count, 0);
    for (size_t i = 0; i < count; ++i) {
      for (size_t b : before_[i]) {
        if (GroupOf(b) == GroupOf(i)) continue;
        if (after[GroupOf(b)].insert(GroupOf(i)).second) ++waits[GroupOf(i)];
      }
    }
    using Entry = std::pair<size_t, size_t>;  // first node, group
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    for (size_t g = 0; g < count; ++g) {
      if (!members[g].empty() && waits[g] == 0) ready.push({first[g], g});
    }
    std::vector<Unit> units;
    while (!ready.empty()) {
      const size_t g = ready.top().second;
      ready.pop();
      Unit unit;
      for (size_t member : members[g]) unit.nodes.push_back(nodes_[member]);
      unit.is_region = opaque_[g];
      units.push_back(std::move(unit));
      for (size_t to : after[g]) {
        if (--waits[to] == 0) ready.push({first[to], to});
      }
    }
    return units;
  }

  AliasDb aliases_;
  std::vector<JitNode*> nodes_;
  std::unordered_map<const JitNode*, size_t> place_;
  std::vector<std::vector<Value*>> reads_;
  std::vector<bool> writes_;
  std::vector<bool> opaque_;
  std::vector<size_t> group_;  // union-find
  std::vector<std::vector<size_t>> before_;
  bool changed_ = false;
};

}  // namespace

bool IsPlain(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
      return true;
    default:
      return false;
  }
}

std::vector<Value*> ReadsOf(const JitNode& node) {
  std::vector<Value*> reads;
  absl::flat_hash_set<const Value*> seen;
  CollectReads(node, node, reads, seen);
  return reads;
}

std::vector<Unit> PlanRegions(
    const std::shared_ptr<torch::jit::Graph>& graph,
    const absl::flat_hash_set<const JitNode*>& opaque) {
  return Planner(graph, opaque).Plan();
}

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
        "gives other results on every call; call model.eval() before the "
        "export (dropout draws in training mode), and export no sampling");
  }
  if (node.kind() == c10::prim::SetAttr && node.input(0)->type()->is_module()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "writes the module's attribute \"", node.s(c10::attr::name),
        "\"; a model that keeps state between requests cannot be served"));
  }
  if (op == "prim::PythonOp" || op == "prim::fork" || op == "aten::wait" ||
      op == "prim::awaitable" || op == "prim::Enter" || op == "prim::Exit") {
    return absl::UnimplementedError("has no form in the graph IR");
  }
  for (const JitBlock* block : node.blocks()) {
    for (const JitNode* inner : block->nodes()) {
      const absl::Status status = CheckServable(*inner);
      if (!status.ok()) {
        // The caller adds the name of the outermost node.
        return base::Annotate(
            status, absl::StrCat("in it ", inner->kind().toQualString(),
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
    return absl::UnimplementedError(absl::StrCat(
        why.message(), "; LibTorch can interpret it, which takes a --sample"));
  }
  const absl::Status servable = CheckServable(node);
  if (!servable.ok()) {
    return absl::IsUnimplemented(servable) ? why : servable;
  }
  traced_.opaque.insert(copy);
  std::vector<JitValue*> reads = ReadsOf(node);
  std::vector<c10::IValue> values;
  for (const JitValue* read : reads) {
    auto value = ExampleOf(read->type(), ItemOf(read));
    if (!value) break;
    values.push_back(*std::move(value));
  }
  std::vector<c10::IValue> results;
  if (values.size() == reads.size()) results = RunNode(node, reads, values);
  values.resize(reads.size());
  ForgetContainers(reads, values);
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const JitValue* output = node.output(i);
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
          "returns something that may be None and is for the sample");
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
      absl::StrCat("returns a ", value->type()->str(), ", which is no tensor"));
}

}  // namespace refract::models::torchscript

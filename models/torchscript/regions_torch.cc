#include "models/torchscript/regions_torch.h"

#include <torch/csrc/jit/ir/alias_analysis.h>

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <utility>

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

// Grows regions from the opaque nodes until no rule joins another node (see
// PlanRegions()). Nodes are numbered by their place in the graph; `group_` is a
// union-find over these numbers, and a group whose nodes are opaque is a
// region. A rule may make another rule apply, so all rules run until none
// changes anything. Joins only merge groups, hence the end.
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
    // A node that joins a region runs in the interpreter, too, so it counts as
    // opaque for the rules that follow.
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
    // An edge from a write to each later node that may see it, and from each
    // earlier node that must not see it to the write. Quadratic in the nodes,
    // with writers alone in the outer loop.
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

  // A list, dictionary or object that a region makes exists in the interpreter
  // alone, so all its readers join the region.
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

  // A region reads copies of containers that the converter made, so nobody
  // outside would see a write into such a container.
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
    // Edges between groups, from a group to the groups that need it.
    std::vector<std::vector<size_t>> after(count);
    for (size_t i = 0; i < count; ++i) {
      for (size_t b : before_[i]) {
        if (GroupOf(b) != GroupOf(i)) after[GroupOf(b)].push_back(GroupOf(i));
      }
    }
    // Tarjan's algorithm with a stack of its own: recursion would take a frame
    // per node of a chain, and unrolled loops make long chains. `index`: order
    // of discovery, 0 for not yet found; `low`: least index that the node's
    // subtree reaches.
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
        // A node without edges passes here once, since its frame is popped
        // below. A node with edges passes again only with edge > 0.
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
        // The node is the root of a component, which lies above it on the
        // stack.
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
    // Kahn's algorithm over the groups: `waits` counts predecessors that have
    // no place yet. JoinCycles() has left no cycle, so every group gets a
    // place.
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

}  // namespace refract::models::torchscript

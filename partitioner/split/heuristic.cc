#include "partitioner/split/heuristic.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "partitioner/split/coloring.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::OpClass;
using models::SplitPlan;
using models::Stage;
using models::ValueId;

SplitPlan MakePlan(const Graph& graph, const base::Digest& model,
                   absl::string_view method) {
  SplitPlan plan;
  plan.model = model;
  plan.method = std::string(method);
  plan.stages.assign(graph.nodes.size(), Stage::kCnPre);
  return plan;
}

// Stages from a repaired colouring: HN nodes, nodes after them, the rest.
void AssignStages(const Topology& topology, const NodeSet& on_hn,
                  SplitPlan& plan) {
  const NodeSet below = topology.Descendants(on_hn);
  for (size_t n = 0; n < plan.stages.size(); ++n) {
    plan.stages[n] = on_hn[n]   ? Stage::kHn
                     : below[n] ? Stage::kCnPost
                                : Stage::kCnPre;
  }
}

// HN nodes that read or write a crossing value that cannot be sent (unknown
// type or size). Keeping such a node off the HN removes the crossing.
NodeSet NodesAtIllegalCrossings(const Graph& graph, const SplitPlan& plan) {
  NodeSet result(graph.nodes.size(), false);
  // Down: the node that makes the value. Up: every HN node that reads it.
  for (const ValueId id : plan.down) {
    if (!models::MayCross(graph.value(id))) {
      result[graph.value(id).producer] = true;
    }
  }
  NodeSet illegal(graph.values.size(), false);
  for (const ValueId id : plan.up) {
    illegal[id] = !models::MayCross(graph.value(id));
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (plan.stages[n] != Stage::kHn) continue;
    for (const ValueId id : models::InputsOf(graph.nodes[n])) {
      if (illegal[id]) result[n] = true;
    }
  }
  return result;
}

// Calls `color` with the nodes that may be on the HN until every crossing value
// can be sent. Each round removes at least one node, so it ends.
template <typename Color>
absl::StatusOr<SplitPlan> SplitUntilLegal(const Graph& graph,
                                          const Topology& topology,
                                          SplitPlan plan, Color color) {
  NodeSet allowed(graph.nodes.size(), false);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    allowed[n] = models::MayRunOnHn(models::ClassOf(graph, graph.nodes[n]));
  }
  while (true) {
    AssignStages(topology, color(allowed), plan);
    KeepSizesNearTheirTensors(graph, plan);
    models::ComputeCrossings(graph, plan);
    const NodeSet offenders = NodesAtIllegalCrossings(graph, plan);
    bool legal = true;
    for (size_t n = 0; n < offenders.size(); ++n) {
      if (!offenders[n]) continue;
      allowed[n] = false;
      legal = false;
    }
    if (legal) break;
  }
  // Constants alone do not justify using the HN.
  if (plan.up.empty() && plan.down.empty()) {
    plan.stages.assign(graph.nodes.size(), Stage::kCnPre);
  }
  REFRACT_RETURN_IF_ERROR(models::ValidatePlan(graph, plan.model, plan));
  return plan;
}

// All nodes on the HN except those that a barred operator depends on; nodes
// before `first` are barred.
absl::StatusOr<SplitPlan> HnBehind(const Graph& graph, SplitPlan plan,
                                   models::NodeId first) {
  const Topology topology(graph);
  return SplitUntilLegal(
      graph, topology, std::move(plan), [&](const NodeSet& allowed) {
        // `barred`: operators that must not run on the HN. Their ancestors must
        // run before them on the CN, so these leave the HN, too.
        NodeSet barred = allowed;
        barred.flip();
        std::fill(barred.begin(), barred.begin() + first, true);
        NodeSet on_hn = topology.WithAncestors(barred);
        on_hn.flip();
        return on_hn;
      });
}

}  // namespace

absl::StatusOr<SplitPlan> SplitHeuristically(const Graph& graph,
                                             const base::Digest& model) {
  const Topology topology(graph);
  const NodeSet feeds_embedding =
      topology.WithAncestors(NodesOfClass(graph, OpClass::kEmbedding));
  const NodeSet varies = topology.DependingOnInputs();
  NodeSet dense = NodesOfClass(graph, OpClass::kDense);
  // A product of weights alone is a constant, computed at load.
  for (size_t n = 0; n < dense.size(); ++n) dense[n] = dense[n] && varies[n];

  return SplitUntilLegal(graph, topology, MakePlan(graph, model, "heuristic"),
                         [&](const NodeSet& allowed) {
                           // Colour from the dense seeds, then repair: sizes
                           // first, which would order CN work behind the HN,
                           // then the paths HN → CN → HN that are left.
                           NodeSet free = allowed;
                           for (size_t n = 0; n < free.size(); ++n) {
                             free[n] = free[n] && !feeds_embedding[n];
                           }
                           NodeSet on_hn = topology.Grow(dense, free);
                           ReleaseSharedSizes(graph, topology, on_hn);
                           MakeConvex(topology, dense, on_hn);
                           return on_hn;
                         });
}

SplitPlan AllCn(const Graph& graph, const base::Digest& model) {
  return MakePlan(graph, model, "all-cn");
}

absl::StatusOr<SplitPlan> AllHn(const Graph& graph, const base::Digest& model) {
  return HnBehind(graph, MakePlan(graph, model, "all-hn"), 0);
}

absl::StatusOr<SplitPlan> HnFrom(const Graph& graph, const base::Digest& model,
                                 models::NodeId first) {
  return HnBehind(
      graph,
      MakePlan(graph, model, absl::StrCat("from ", graph.nodes[first].name)),
      first);
}

absl::StatusOr<SplitPlan> HnOnly(const Graph& graph, const base::Digest& model,
                                 models::NodeId node) {
  const Topology topology(graph);
  // Look-ups stay before the HN.
  const NodeSet feeds_embedding =
      topology.WithAncestors(NodesOfClass(graph, OpClass::kEmbedding));
  return SplitUntilLegal(
      graph, topology,
      MakePlan(graph, model, absl::StrCat("only ", graph.nodes[node].name)),
      [&](const NodeSet& allowed) {
        NodeSet on_hn(graph.nodes.size(), false);
        on_hn[node] = allowed[node] && !feeds_embedding[node];
        return on_hn;
      });
}

}  // namespace refract::partitioner

#include "partitioner/measured_costs.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "models/op_traits.h"
#include "partitioner/coloring.h"
#include "partitioner/work.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::NodeId;

bool IsFree(const Graph& graph, NodeId node) {
  const models::OpClass op_class = models::ClassOf(graph, graph.nodes[node]);
  return op_class == models::OpClass::kView ||
         op_class == models::OpClass::kSize;
}

// What the hardware would have the operator take; 0 for views and sizes.
double Estimate(const Graph& graph, NodeId node,
                const models::SymbolBindings& sizes, const Hardware& hardware) {
  if (IsFree(graph, node)) return 0;
  const std::optional<Work> work = WorkOf(graph, graph.nodes[node], sizes);
  return RooflineSeconds(hardware, work.value_or(Work()));
}

// Work at `now` ÷ work at `then`, as time on `hardware`; 1 when not known.
double WorkRatio(const Graph& graph, const std::vector<NodeId>& nodes,
                 const models::SymbolBindings& now,
                 const models::SymbolBindings& then, const Hardware& hardware) {
  double above = 0;
  double below = 0;
  for (const NodeId node : nodes) {
    const std::optional<Work> a = WorkOf(graph, graph.nodes[node], now);
    const std::optional<Work> b = WorkOf(graph, graph.nodes[node], then);
    if (!a || !b) return 1;
    above += RooflineSeconds(hardware, *a) - hardware.operator_s;
    below += RooflineSeconds(hardware, *b) - hardware.operator_s;
  }
  return below > 0 ? above / below : 1;
}

}  // namespace

MeasuredCosts MeasuredSeconds(const Graph& graph, const Profile& profile,
                              const RequestSize& request,
                              const models::SymbolBindings& profiled,
                              const Hardware& hardware) {
  const double batch = static_cast<double>(request.batch);
  MeasuredCosts costs;
  costs.node_s.assign(graph.nodes.size(), 0);
  costs.run_s = profile.run.At(batch);
  costs.rescaled = request.sizes != profiled;
  std::vector<bool> known(graph.nodes.size(), false);
  for (const NodeId node : profile.free_nodes) known[node] = true;
  for (const Profile::Operator& op : profile.operators) {
    double seconds = op.timing.At(batch);
    if (costs.rescaled) {
      const double fixed = std::min(op.timing.line.fixed_s, seconds);
      seconds =
          fixed + (seconds - fixed) * WorkRatio(graph, op.nodes, request.sizes,
                                                profiled, hardware);
    }
    std::vector<double> shares;
    for (const NodeId node : op.nodes) {
      shares.push_back(op.nodes.size() == 1
                           ? 1
                           : Estimate(graph, node, request.sizes, hardware));
    }
    const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
    if (all == 0) shares.back() = 1;  // views alone
    for (size_t i = 0; i < op.nodes.size(); ++i) {
      costs.node_s[op.nodes[i]] = seconds * shares[i] / (all == 0 ? 1 : all);
      known[op.nodes[i]] = true;
    }
  }
  const NodeSet varies = Topology(graph).DependingOnInputs();
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const NodeId node = static_cast<NodeId>(n);
    if (known[n] || !varies[n]) continue;
    costs.node_s[n] = Estimate(graph, node, request.sizes, hardware);
    if (IsFree(graph, node)) continue;
    costs.estimated.push_back(node);
    if (!WorkOf(graph, graph.nodes[n], request.sizes)) {
      costs.unknown.push_back(node);
    }
  }
  return costs;
}

}  // namespace refract::partitioner

#include "partitioner/costs/measured_costs.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "models/graph/script_region.h"
#include "partitioner/costs/step_shares.h"
#include "partitioner/costs/work.h"
#include "partitioner/split/coloring.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::NodeId;

// Estimated time of the operator on the hardware; 0 for views and sizes.
double Estimate(const Graph& graph, NodeId node,
                const models::SymbolBindings& sizes, const Hardware& hardware) {
  if (IsFree(graph, node)) return 0;
  if (models::IsScriptRegion(graph.nodes[node])) {
    return RegionSeconds(graph, graph.nodes[node], sizes, hardware);
  }
  const std::optional<Work> work = WorkOf(graph, graph.nodes[node], sizes);
  return RooflineSeconds(hardware, work.value_or(Work()));
}

// Work at `now` ÷ work at `then`, as time on `hardware` without the fixed time
// of an operator, which does not grow; 1 if unknown.
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
  costs.cut_s.assign(graph.values.size(), 0);
  costs.run_s = profile.run.At(batch);
  // The profile's times depend on the batch only. For other sizes per item than
  // the profile's, the part of the time that grows with the batch is scaled.
  costs.rescaled = request.sizes != profiled;
  std::vector<bool> known(graph.nodes.size(), false);
  // `known`: nodes that the profile covers. A node left over at the end is
  // priced by `hardware`.
  for (const NodeId node : profile.free_nodes) known[node] = true;
  for (const Profile::Operator& op : profile.operators) {
    // A measured step or piece at the sizes of the request.
    const auto seconds_of = [&](const Timing& timing,
                                const std::vector<NodeId>& nodes) {
      const double seconds = timing.At(batch);
      if (!costs.rescaled) return seconds;
      const double fixed = std::min(timing.line.fixed_s, seconds);
      return fixed + (seconds - fixed) * WorkRatio(graph, nodes, request.sizes,
                                                   profiled, hardware);
    };
    // Divides `seconds` among the nodes of a step or piece, by their estimates.
    const auto share = [&](double seconds, const std::vector<NodeId>& nodes) {
      std::vector<double> shares;
      for (const NodeId node : nodes) {
        shares.push_back(nodes.size() == 1
                             ? 1
                             : Estimate(graph, node, request.sizes, hardware));
      }
      const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
      if (all == 0) shares.back() = 1;  // views alone
      for (size_t i = 0; i < nodes.size(); ++i) {
        costs.node_s[nodes[i]] = seconds * shares[i] / (all == 0 ? 1 : all);
        known[nodes[i]] = true;
      }
    };
    const double seconds = seconds_of(op.timing, op.nodes);
    // The pieces, measured one by one, take `apart` ≥ `seconds` because their
    // values go through memory. A piece gets its part of the time of the step;
    // the excess becomes the price of cutting the values between the pieces.
    double apart = 0;
    for (const Profile::Operator::Piece& piece : op.pieces) {
      apart += seconds_of(piece.timing, piece.nodes);
    }
    // No pieces were measured: a cut through the step costs nothing extra.
    if (apart <= 0) {
      share(seconds, op.nodes);
      continue;
    }
    for (const Profile::Operator::Piece& piece : op.pieces) {
      share(seconds * seconds_of(piece.timing, piece.nodes) / apart,
            piece.nodes);
    }
    ShareExcess(graph, op.nodes, request.sizes, std::max(0.0, apart - seconds),
                costs.cut_s);
  }
  const NodeSet varies = Topology(graph).DependingOnInputs();
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const NodeId node = static_cast<NodeId>(n);
    if (known[n] || !varies[n]) continue;
    costs.node_s[n] = Estimate(graph, node, request.sizes, hardware);
    if (IsFree(graph, node)) continue;
    costs.estimated.push_back(node);
    if (!models::IsScriptRegion(graph.nodes[n]) &&
        !WorkOf(graph, graph.nodes[n], request.sizes)) {
      costs.unknown.push_back(node);
    }
  }
  return costs;
}

}  // namespace refract::partitioner

#include "partitioner/measured_costs.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "models/op_traits.h"
#include "models/script_region.h"
#include "models/split_plan.h"
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
  if (models::IsScriptRegion(graph.nodes[node])) {
    return RegionSeconds(graph, graph.nodes[node], sizes, hardware);
  }
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

// The values that some nodes of `op` make and others read, by the memory they
// are in: views are no memory of their own.
std::vector<std::vector<models::ValueId>> InnerValues(
    const Graph& graph, const Profile::Operator& op) {
  const auto inside = [&](NodeId node) {
    return node != models::kNoNode &&
           std::find(op.nodes.begin(), op.nodes.end(), node) != op.nodes.end();
  };
  std::vector<models::ValueId> read;
  for (const NodeId node : op.nodes) {
    for (const models::ValueId id : models::InputsOf(graph.nodes[node])) {
      if (inside(graph.value(id).producer) &&
          models::MayCross(graph.value(id))) {
        read.push_back(id);
      }
    }
  }
  std::sort(read.begin(), read.end());
  read.erase(std::unique(read.begin(), read.end()), read.end());
  std::vector<std::vector<models::ValueId>> memories;
  std::map<models::ValueId, size_t> memory_of;
  for (const models::ValueId id : read) {
    const NodeId maker = graph.value(id).producer;
    models::ValueId base = models::kNoValue;
    if (IsFree(graph, maker)) {
      for (const models::ValueId from : models::InputsOf(graph.nodes[maker])) {
        if (memory_of.count(from) > 0) base = from;
      }
    }
    const size_t memory =
        base == models::kNoValue ? memories.size() : memory_of.at(base);
    if (memory == memories.size()) memories.emplace_back();
    memories[memory].push_back(id);
    memory_of[id] = memory;
  }
  return memories;
}

void ShareExcess(const Graph& graph, const Profile::Operator& op,
                 const models::SymbolBindings& sizes, double excess,
                 std::vector<double>& cut_s) {
  const auto memories = InnerValues(graph, op);
  std::vector<double> bytes;
  for (const std::vector<models::ValueId>& memory : memories) {
    bytes.push_back(
        std::max(1.0, BytesOf(graph.value(memory.front()), sizes).value_or(1)));
  }
  const double all = std::accumulate(bytes.begin(), bytes.end(), 0.0);
  for (size_t m = 0; m < memories.size(); ++m) {
    for (const models::ValueId id : memories[m]) {
      cut_s[id] += excess * bytes[m] / all;
    }
  }
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
  costs.rescaled = request.sizes != profiled;
  std::vector<bool> known(graph.nodes.size(), false);
  for (const NodeId node : profile.free_nodes) known[node] = true;
  for (const Profile::Operator& op : profile.operators) {
    const auto seconds_of = [&](const Timing& timing,
                                const std::vector<NodeId>& nodes) {
      const double seconds = timing.At(batch);
      if (!costs.rescaled) return seconds;
      const double fixed = std::min(timing.line.fixed_s, seconds);
      return fixed + (seconds - fixed) * WorkRatio(graph, nodes, request.sizes,
                                                   profiled, hardware);
    };
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
    double apart = 0;
    for (const Profile::Operator::Piece& piece : op.pieces) {
      apart += seconds_of(piece.timing, piece.nodes);
    }
    if (apart <= 0) {
      share(seconds, op.nodes);
      continue;
    }
    for (const Profile::Operator::Piece& piece : op.pieces) {
      share(seconds * seconds_of(piece.timing, piece.nodes) / apart,
            piece.nodes);
    }
    ShareExcess(graph, op, request.sizes, std::max(0.0, apart - seconds),
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

#include "partitioner/cut/max_flow.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "boost/graph/boykov_kolmogorov_max_flow.hpp"
#include "boost/graph/compressed_sparse_row_graph.hpp"

namespace refract::partitioner::cut {
namespace {

using Graph = boost::compressed_sparse_row_graph<boost::directedS>;

// False: infinite arcs lead from source to sink, and the flow would exceed 64
// bits.
bool HasFiniteCut(const FlowNetwork& network) {
  std::vector<std::vector<int>> infinite(network.num_vertices());
  for (const FlowNetwork::Arc& arc : network.arcs()) {
    if (arc.capacity >= kInfinite) infinite[arc.from].push_back(arc.to);
    if (arc.reverse_capacity >= kInfinite) infinite[arc.to].push_back(arc.from);
  }
  std::vector<bool> seen(network.num_vertices());
  std::vector<int> pending;
  for (int v = 0; v < network.num_vertices(); ++v) {
    if (network.from_source()[v] < kInfinite) continue;
    seen[v] = true;
    pending.push_back(v);
  }
  while (!pending.empty()) {
    const int vertex = pending.back();
    pending.pop_back();
    if (network.to_sink()[vertex] >= kInfinite) return false;
    for (const int next : infinite[vertex]) {
      if (seen[next]) continue;
      seen[next] = true;
      pending.push_back(next);
    }
  }
  return true;
}

absl::Status Broken(absl::string_view what, int64_t where, absl::int128 found,
                    absl::int128 wanted) {
  return absl::InternalError(
      absl::StrCat("the maximum flow does not prove the minimum cut: ", what,
                   " ", where, ": ", static_cast<Cost>(found), " instead of ",
                   static_cast<Cost>(wanted)));
}

}  // namespace

int FlowNetwork::AddVertex() {
  from_source_.push_back(0);
  to_sink_.push_back(0);
  return num_vertices() - 1;
}

int FlowNetwork::AddArc(int from, int to, Cost capacity,
                        Cost reverse_capacity) {
  arcs_.push_back({from, to, capacity, reverse_capacity});
  return static_cast<int>(arcs_.size()) - 1;
}

void FlowNetwork::SetArc(int arc, Cost capacity, Cost reverse_capacity) {
  arcs_[arc].capacity = capacity;
  arcs_[arc].reverse_capacity = reverse_capacity;
}

void FlowNetwork::PayOnSinkSide(int vertex, Cost cost) {
  from_source_[vertex] = std::min(kInfinite, from_source_[vertex] + cost);
}

void FlowNetwork::PayOnSourceSide(int vertex, Cost cost) {
  to_sink_[vertex] = std::min(kInfinite, to_sink_[vertex] + cost);
}

void FlowNetwork::ForgetPayments() {
  std::fill(from_source_.begin(), from_source_.end(), 0);
  std::fill(to_sink_.begin(), to_sink_.end(), 0);
}

absl::StatusOr<std::optional<MinCut>> SolveMinCut(const FlowNetwork& network) {
  if (!HasFiniteCut(network)) return std::nullopt;
  const size_t count = network.num_vertices();
  const size_t source = count;
  const size_t sink = count + 1;
  // Halves 2a and 2a + 1 are arc a and its reverse. The arcs from the source
  // and to the sink follow those of the network.
  struct Half {
    size_t from;
    size_t to;
    Cost capacity;
  };
  std::vector<Half> halves;
  const auto add = [&](size_t from, size_t to, Cost there, Cost back) {
    halves.push_back({from, to, there});
    halves.push_back({to, from, back});
  };
  for (const FlowNetwork::Arc& arc : network.arcs()) {
    add(arc.from, arc.to, arc.capacity, arc.reverse_capacity);
  }
  for (size_t v = 0; v < count; ++v) {
    add(source, v, network.from_source()[v], 0);
    add(v, sink, network.to_sink()[v], 0);
  }
  // Boost's graph numbers edges by the vertex where they start.
  std::vector<size_t> order(halves.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return halves[a].from < halves[b].from;
  });
  std::vector<std::pair<size_t, size_t>> ends;
  std::vector<Cost> capacities;
  std::vector<size_t> edge_of(halves.size());
  for (const size_t half : order) {
    edge_of[half] = ends.size();
    ends.emplace_back(halves[half].from, halves[half].to);
    capacities.push_back(halves[half].capacity);
  }
  const Graph graph(boost::edges_are_unsorted_multi_pass, ends.begin(),
                    ends.end(), count + 2);
  std::vector<Graph::edge_descriptor> reverses;
  for (const size_t half : order) {
    reverses.emplace_back(halves[half].to, edge_of[half ^ 1]);
  }
  std::vector<Cost> left(halves.size());
  std::vector<boost::default_color_type> colours(count + 2);
  const auto by_edge = [&](auto& values) {
    return boost::make_iterator_property_map(
        values.begin(), boost::get(boost::edge_index, graph));
  };
  MinCut cut;
  cut.value = boost::boykov_kolmogorov_max_flow(
      graph, by_edge(capacities), by_edge(left), by_edge(reverses),
      boost::make_iterator_property_map(colours.begin(),
                                        boost::get(boost::vertex_index, graph)),
      boost::get(boost::vertex_index, graph), source, sink);
  const auto flow = [&](size_t arc) {
    const size_t edge = edge_of[2 * arc];
    return capacities[edge] - left[edge];
  };
  const size_t num_arcs = network.arcs().size();
  for (size_t a = 0; a < num_arcs; ++a) cut.arcs.push_back(flow(a));
  for (size_t v = 0; v < count; ++v) {
    cut.from_source.push_back(flow(num_arcs + 2 * v));
    cut.to_sink.push_back(flow(num_arcs + 2 * v + 1));
    // The source's tree has every vertex that residual arcs lead to: the
    // fewest vertices of any minimum cut.
    cut.on_source_side.push_back(colours[v] == boost::black_color);
  }
  REFRACT_RETURN_IF_ERROR(CheckCertificate(network, cut));
  return cut;
}

absl::Status CheckCertificate(const FlowNetwork& network, const MinCut& cut) {
  const size_t count = network.num_vertices();
  if (cut.on_source_side.size() != count || cut.from_source.size() != count ||
      cut.to_sink.size() != count || cut.arcs.size() != network.arcs().size()) {
    return Broken("size", 0, static_cast<Cost>(cut.arcs.size()),
                  static_cast<Cost>(network.arcs().size()));
  }
  // Sums in 128 bits: in 64 bits an overflow could hide a wrong flow.
  std::vector<absl::int128> surplus(count, 0);
  absl::int128 flow = 0;
  absl::int128 capacity = 0;
  for (size_t v = 0; v < count; ++v) {
    const Cost in = cut.from_source[v];
    const Cost out = cut.to_sink[v];
    if (in > network.from_source()[v]) {
      return Broken("flow into vertex", static_cast<int64_t>(v), in,
                    network.from_source()[v]);
    }
    if (out > network.to_sink()[v]) {
      return Broken("flow out of vertex", static_cast<int64_t>(v), out,
                    network.to_sink()[v]);
    }
    surplus[v] += absl::int128(in) - out;
    flow += in;
    capacity +=
        cut.on_source_side[v] ? network.to_sink()[v] : network.from_source()[v];
    if (capacity >= kInfinite) {
      return Broken("infinite terminal of vertex", static_cast<int64_t>(v),
                    capacity, cut.value);
    }
  }
  for (size_t a = 0; a < cut.arcs.size(); ++a) {
    const FlowNetwork::Arc& arc = network.arcs()[a];
    const Cost net = cut.arcs[a];
    if (net > arc.capacity || net < -arc.reverse_capacity) {
      return Broken("flow along arc", static_cast<int64_t>(a), net,
                    arc.capacity);
    }
    surplus[arc.from] -= net;
    surplus[arc.to] += net;
    const bool from = cut.on_source_side[arc.from];
    const bool to = cut.on_source_side[arc.to];
    if (from && !to) capacity += arc.capacity;
    if (!from && to) capacity += arc.reverse_capacity;
    if (capacity >= kInfinite) {
      return Broken("infinite arc", static_cast<int64_t>(a), capacity,
                    cut.value);
    }
  }
  for (size_t v = 0; v < count; ++v) {
    if (surplus[v] != 0) {
      return Broken("flow in minus flow out of vertex", static_cast<int64_t>(v),
                    surplus[v], 0);
    }
  }
  if (flow != cut.value) return Broken("flow", 0, flow, cut.value);
  if (capacity != cut.value) return Broken("capacity", 0, capacity, cut.value);
  return absl::OkStatus();
}

}  // namespace refract::partitioner::cut

#include "partitioner/cut/max_flow.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "boost/graph/boykov_kolmogorov_max_flow.hpp"
#include "boost/graph/compressed_sparse_row_graph.hpp"
#include "boost/property_map/property_map.hpp"

namespace refract::partitioner::cut {
namespace {

// The network in Boost's terms. Boost wants each arc's reverse as an arc of its
// own; a compressed graph wants arcs sorted by where they start.
class BoostNetwork {
 public:
  // Capacities at a vertex that go straight from source to sink are left out,
  // `through()` has them: the solver then has no direct paths to look for.
  explicit BoostNetwork(const FlowNetwork& network)
      : source_(network.num_vertices()), sink_(network.num_vertices() + 1) {
    for (int v = 0; v < network.num_vertices(); ++v) {
      const Cost in = network.from_source()[v];
      const Cost out = network.to_sink()[v];
      through_.push_back(std::min(in, out));
      if (in > out) AddPair(source_, v, in - out, 0);
      if (out > in) AddPair(v, sink_, out - in, 0);
    }
    first_arc_ = ends_.size();
    for (const FlowNetwork::Arc& arc : network.arcs()) {
      AddPair(arc.from, arc.to, arc.capacity, arc.reverse_capacity);
    }
    Build(network.num_vertices() + 2);
  }

  MinCut Solve() {
    const auto index = boost::get(boost::edge_index, graph_);
    std::vector<boost::default_color_type> colors(boost::num_vertices(graph_));
    MinCut cut;
    cut.value = boost::boykov_kolmogorov_max_flow(
        graph_, boost::make_iterator_property_map(capacities_.begin(), index),
        boost::make_iterator_property_map(residuals_.begin(), index),
        boost::make_iterator_property_map(reverses_.begin(), index),
        boost::make_iterator_property_map(
            colors.begin(), boost::get(boost::vertex_index, graph_)),
        boost::get(boost::vertex_index, graph_), source_, sink_);
    for (const Cost through : through_) cut.value += through;
    cut.from_source = through_;
    cut.to_sink = through_;
    for (size_t i = 0; i < first_arc_; i += 2) {
      const auto [from, to] = ends_[i];
      (from == source_ ? cut.from_source[to] : cut.to_sink[from]) += Flow(i);
    }
    for (size_t i = first_arc_; i < ends_.size(); i += 2) {
      cut.arcs.push_back(Flow(i));
    }
    for (size_t v = 0; v < through_.size(); ++v) {
      cut.on_source_side.push_back(colors[v] == boost::black_color);
    }
    return cut;
  }

 private:
  using Graph = boost::compressed_sparse_row_graph<boost::directedS>;
  using Edge = boost::graph_traits<Graph>::edge_descriptor;

  void AddPair(size_t from, size_t to, Cost capacity, Cost reverse_capacity) {
    ends_.push_back({from, to});
    ends_.push_back({to, from});
    given_.push_back(capacity);
    given_.push_back(reverse_capacity);
  }

  void Build(size_t num_vertices) {
    // Counting sort by start; place_[i] is the index of arc i in the graph.
    std::vector<size_t> next(num_vertices + 1, 0);
    for (const auto& [from, to] : ends_) ++next[from + 1];
    for (size_t v = 0; v < num_vertices; ++v) next[v + 1] += next[v];
    place_.resize(ends_.size());
    std::vector<std::pair<size_t, size_t>> sorted(ends_.size());
    capacities_.resize(ends_.size());
    for (size_t i = 0; i < ends_.size(); ++i) {
      place_[i] = next[ends_[i].first]++;
      sorted[place_[i]] = ends_[i];
      capacities_[place_[i]] = given_[i];
    }
    graph_ = Graph(boost::edges_are_sorted, sorted.begin(), sorted.end(),
                   num_vertices);
    residuals_.resize(ends_.size());
    reverses_.resize(ends_.size());
    for (size_t i = 0; i < ends_.size(); ++i) {
      const size_t partner = i % 2 == 0 ? i + 1 : i - 1;
      reverses_[place_[i]] = Edge(ends_[i].second, place_[partner]);
    }
  }

  // Net flow of the pair that arc i opens. Read off the arc's own residual: the
  // solver keeps no residual for the reverses of terminal arcs.
  Cost Flow(size_t i) const {
    return capacities_[place_[i]] - residuals_[place_[i]];
  }

  const size_t source_;
  const size_t sink_;
  size_t first_arc_ = 0;  // ends_ before it lead from the source or to the sink
  std::vector<Cost> through_;
  std::vector<std::pair<size_t, size_t>> ends_;  // arc, reverse, arc, …
  std::vector<Cost> given_;                      // capacities, in that order
  std::vector<size_t> place_;
  Graph graph_;
  std::vector<Cost> capacities_;  // from here on by index in graph_
  std::vector<Cost> residuals_;
  std::vector<Edge> reverses_;
};

// Whether infinite arcs alone lead from source to sink. Told beforehand, as the
// flow would otherwise be a multiple of kInfinite and overflow.
bool HasInfinitePath(const FlowNetwork& network) {
  std::vector<std::vector<int>> next(network.num_vertices());
  for (const FlowNetwork::Arc& arc : network.arcs()) {
    if (arc.capacity >= kInfinite) next[arc.from].push_back(arc.to);
    if (arc.reverse_capacity >= kInfinite) next[arc.to].push_back(arc.from);
  }
  std::vector<bool> seen(network.num_vertices(), false);
  std::vector<int> pending;
  const auto see = [&](int vertex) {
    if (seen[vertex]) return;
    seen[vertex] = true;
    pending.push_back(vertex);
  };
  for (int v = 0; v < network.num_vertices(); ++v) {
    if (network.from_source()[v] >= kInfinite) see(v);
  }
  while (!pending.empty()) {
    const int vertex = pending.back();
    pending.pop_back();
    if (network.to_sink()[vertex] >= kInfinite) return true;
    for (const int to : next[vertex]) see(to);
  }
  return false;
}

absl::Status Broken(absl::string_view what, int64_t where, Cost found,
                    Cost wanted) {
  return absl::InternalError(
      absl::StrCat("minimum cut without a certificate: ", what, " ", where,
                   ": ", found, " against ", wanted));
}

}  // namespace

int FlowNetwork::AddVertex() {
  from_source_.push_back(0);
  to_sink_.push_back(0);
  return num_vertices() - 1;
}

void FlowNetwork::AddArc(int from, int to, Cost capacity,
                         Cost reverse_capacity) {
  arcs_.push_back({from, to, capacity, reverse_capacity});
}

void FlowNetwork::PayOnSinkSide(int vertex, Cost cost) {
  from_source_[vertex] = std::min(kInfinite, from_source_[vertex] + cost);
}

void FlowNetwork::PayOnSourceSide(int vertex, Cost cost) {
  to_sink_[vertex] = std::min(kInfinite, to_sink_[vertex] + cost);
}

absl::StatusOr<std::optional<MinCut>> SolveMinCut(const FlowNetwork& network) {
  if (HasInfinitePath(network)) return std::nullopt;
  std::optional<MinCut> cut = BoostNetwork(network).Solve();
  REFRACT_RETURN_IF_ERROR(CheckCertificate(network, *cut));
  return cut;
}

absl::Status CheckCertificate(const FlowNetwork& network, const MinCut& cut) {
  const size_t count = network.num_vertices();
  if (cut.on_source_side.size() != count || cut.from_source.size() != count ||
      cut.to_sink.size() != count || cut.arcs.size() != network.arcs().size()) {
    return Broken("size", 0, static_cast<Cost>(cut.arcs.size()),
                  static_cast<Cost>(network.arcs().size()));
  }
  std::vector<Cost> surplus(count, 0);
  Cost flow = 0;
  Cost capacity = 0;
  for (size_t v = 0; v < count; ++v) {
    const Cost in = cut.from_source[v];
    const Cost out = cut.to_sink[v];
    if (in < 0 || in > network.from_source()[v]) {
      return Broken("flow into vertex", static_cast<int64_t>(v), in,
                    network.from_source()[v]);
    }
    if (out < 0 || out > network.to_sink()[v]) {
      return Broken("flow out of vertex", static_cast<int64_t>(v), out,
                    network.to_sink()[v]);
    }
    surplus[v] += in - out;
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
      return Broken("surplus at vertex", static_cast<int64_t>(v), surplus[v],
                    0);
    }
  }
  if (flow != cut.value) return Broken("flow", 0, flow, cut.value);
  if (capacity != cut.value) return Broken("capacity", 0, capacity, cut.value);
  return absl::OkStatus();
}

}  // namespace refract::partitioner::cut

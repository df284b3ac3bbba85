#include "partitioner/cut/max_flow.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::partitioner::cut {
namespace {

// A wave costs about as much as some tens of augmenting paths. Waves stop when
// a wave moves more than this share of the surpluses of the wave before, or
// when few surpluses are left.
constexpr double kWorthAWave = 0.8;
constexpr int kFewSurpluses = 20;

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

FlowSolver::FlowSolver(const FlowNetwork& network)
    : network_(network),
      head_(2 * network.arcs().size()),
      first_(network.num_vertices() + 1, 0),
      out_(head_.size()),
      residual_(head_.size()),
      vertices_(network.num_vertices()),
      through_(network.num_vertices()),
      side_(network.num_vertices()) {
  const std::vector<FlowNetwork::Arc>& arcs = network.arcs();
  for (size_t a = 0; a < arcs.size(); ++a) {
    head_[2 * a] = arcs[a].to;
    head_[2 * a + 1] = arcs[a].from;
  }
  // Counting sort of the half arcs by the vertex where they start.
  for (const int head : head_) ++first_[head + 1];
  for (size_t v = 0; v + 1 < first_.size(); ++v) first_[v + 1] += first_[v];
  std::vector<int> place(first_.begin(), first_.end() - 1);
  for (size_t h = 0; h < head_.size(); ++h) {
    out_[place[head_[h ^ 1]]++] = static_cast<int>(h);
  }
  cut_.on_source_side.resize(vertices_.size());
  cut_.from_source.resize(vertices_.size());
  cut_.to_sink.resize(vertices_.size());
  cut_.arcs.resize(arcs.size());
}

absl::StatusOr<const MinCut*> FlowSolver::Solve(int scale) {
  if (!Settle()) return nullptr;
  SetUp(scale - std::exchange(scale_, scale));
  Run();
  Describe();
  REFRACT_RETURN_IF_ERROR(CheckCertificate(network_, cut_));
  return &cut_;
}

// Finds the vertices whose side is settled by infinite arcs. False: such arcs
// lead from source to sink, so that the flow would be infinite.
bool FlowSolver::Settle() {
  std::fill(side_.begin(), side_.end(), kOpen);
  settled_.clear();
  for (const Side side : {kSource, kSink}) {
    const std::vector<Cost>& terminal =
        side == kSource ? network_.from_source() : network_.to_sink();
    pending_.clear();
    const auto see = [&](int vertex, int half) {
      if (side_[vertex] == side) return;
      side_[vertex] = side;
      pending_.push_back(vertex);
      settled_.push_back({vertex, half});
    };
    for (int v = 0; v < network_.num_vertices(); ++v) {
      if (terminal[v] < kInfinite) continue;
      if (side_[v] == kSource && side == kSink) return false;
      see(v, kRoot);
    }
    while (!pending_.empty()) {
      const int vertex = pending_.back();
      pending_.pop_back();
      for (int i = first_[vertex]; i < first_[vertex + 1]; ++i) {
        // Arcs away from the source, or towards the sink.
        const bool along = (out_[i] % 2 == 0) == (side == kSource);
        const FlowNetwork::Arc& arc = network_.arcs()[out_[i] / 2];
        if ((along ? arc.capacity : arc.reverse_capacity) < kInfinite) continue;
        if (side_[head_[out_[i]]] == kSource && side == kSink) return false;
        see(head_[out_[i]], out_[i] ^ 1);
      }
    }
  }
  return true;
}

// Starts from the last flow, scaled and clipped to the new capacities. This
// flow need not be conserved: an excess at a vertex becomes its surplus, a lack
// becomes a negative surplus. A minimum cut of that network is a minimum cut of
// the original.
void FlowSolver::SetUp(int doublings) {
  const std::vector<FlowNetwork::Arc>& arcs = network_.arcs();
  const double scale = std::ldexp(1.0, doublings);
  constexpr auto kMost = static_cast<double>(kMaxFinite);
  // The flow through a vertex must stay far from overflow. Overflow is near
  // only when many arcs each carry all of the flow.
  std::fill(through_.begin(), through_.end(), 0.0);
  for (size_t a = 0; a < arcs.size(); ++a) {
    Cost& flow = cut_.arcs[a];
    if (flow == 0) continue;
    const double scaled =
        std::clamp(static_cast<double>(flow) * scale, -kMost, kMost);
    if (doublings != 0) flow = static_cast<Cost>(scaled);
    through_[arcs[a].from] += std::abs(scaled);
    through_[arcs[a].to] += std::abs(scaled);
  }
  const bool start_anew =
      std::any_of(through_.begin(), through_.end(),
                  [](double flow) { return flow > 2 * kMost; });
  // All surpluses may meet at one vertex, so their sum must fit, too.
  if (Fill(start_anew) > 2 * kMost) Fill(/*start_anew=*/true);
}

double FlowSolver::Fill(bool start_anew) {
  const std::vector<FlowNetwork::Arc>& arcs = network_.arcs();
  for (size_t v = 0; v < vertices_.size(); ++v) {
    vertices_[v] = Vertex();
    vertices_[v].surplus = network_.from_source()[v] - network_.to_sink()[v];
  }
  for (size_t a = 0; a < arcs.size(); ++a) {
    const FlowNetwork::Arc& arc = arcs[a];
    const Side from = side_[arc.from];
    const Side to = side_[arc.to];
    // Arcs from a higher to a lower side are in every finite cut: saturate
    // them. Open vertices keep the last flow within the new capacities.
    const Cost flow =
        from > to   ? arc.capacity
        : from < to ? -arc.reverse_capacity
        : from != kOpen || start_anew
            ? 0
            : std::clamp(cut_.arcs[a], -arc.reverse_capacity, arc.capacity);
    residual_[2 * a] = arc.capacity - flow;
    residual_[2 * a + 1] = arc.reverse_capacity + flow;
    vertices_[arc.from].surplus -= flow;
    vertices_[arc.to].surplus += flow;
  }
  // A settled vertex passes its surplus or deficit on along the infinite arc
  // that settled it, the last settled first, until it reaches a terminal.
  for (auto it = settled_.rbegin(); it != settled_.rend(); ++it) {
    const Cost surplus = std::exchange(vertices_[it->vertex].surplus, 0);
    const bool passes = side_[it->vertex] == kSink ? surplus > 0 : surplus < 0;
    if (!passes || it->half == kRoot) continue;
    residual_[it->half] -= surplus;
    residual_[it->half ^ 1] += surplus;
    vertices_[head_[it->half]].surplus += surplus;
  }
  double surpluses = 0;
  for (const Vertex& vertex : vertices_) {
    surpluses += std::max(0.0, static_cast<double>(vertex.surplus));
  }
  return surpluses;
}

// Moves every surplus one arc nearer to a deficit, the farthest first, so that
// surpluses that meet continue together. Run() fills one path at a time, and a
// path may be as long as the model is deep; waves shorten that work.
int FlowSolver::Wave() {
  constexpr int kUnreached = -1;
  // Breadth-first search backwards from the deficits gives each vertex its
  // distance.
  std::vector<int>& order = pending_;
  order.clear();
  for (size_t v = 0; v < vertices_.size(); ++v) {
    Vertex& vertex = vertices_[v];
    vertex.distance = vertex.surplus < 0 ? 0 : kUnreached;
    if (vertex.surplus < 0) order.push_back(static_cast<int>(v));
  }
  int far = 0;  // surpluses that can reach a deficit
  for (size_t next = 0; next < order.size(); ++next) {
    const int vertex = order[next];
    for (int i = first_[vertex]; i < first_[vertex + 1]; ++i) {
      Vertex& other = vertices_[head_[out_[i]]];
      if (other.distance != kUnreached || residual_[out_[i] ^ 1] == 0 ||
          side_[head_[out_[i]]] != kOpen) {
        continue;
      }
      other.distance = vertices_[vertex].distance + 1;
      order.push_back(head_[out_[i]]);
      if (other.surplus > 0) ++far;
    }
  }
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    Vertex& vertex = vertices_[*it];
    // The order is by distance: only deficits follow.
    if (vertex.distance == 0) break;
    for (int i = first_[*it]; i < first_[*it + 1] && vertex.surplus > 0; ++i) {
      const int half = out_[i];
      Vertex& other = vertices_[head_[half]];
      if (residual_[half] == 0 || other.distance + 1 != vertex.distance) {
        continue;
      }
      const Cost amount = std::min(vertex.surplus, residual_[half]);
      residual_[half] -= amount;
      residual_[half ^ 1] += amount;
      vertex.surplus -= amount;
      other.surplus += amount;
    }
  }
  return far;
}

void FlowSolver::Run() {
  int far = Wave();
  for (int before = 0; far >= kFewSurpluses; before = far) {
    far = Wave();
    if (before > 0 && far > kWorthAWave * before) break;
  }
  now_ = 0;
  active_.clear();
  next_active_ = 0;
  for (size_t v = 0; v < vertices_.size(); ++v) {
    Vertex& vertex = vertices_[v];
    // The roots of the two trees are the vertices with a surplus and with a
    // deficit.
    vertex.stamp = 0;
    vertex.parent = vertex.surplus != 0 ? kRoot : kFree;
    vertex.of_sink = vertex.surplus < 0;
    vertex.distance = 1;
    if (vertex.surplus != 0) Activate(static_cast<int>(v));
  }
  while (next_active_ < active_.size()) {
    const int vertex = active_[next_active_++];
    // Grow until all neighbours of the vertex are in trees, or until the vertex
    // itself has left its tree.
    while (vertices_[vertex].parent != kFree) {
      const int half = Grow(vertex);
      if (half == kFree) break;
      ++now_;
      orphans_.clear();
      next_orphan_ = 0;
      Augment(half);
      while (next_orphan_ < orphans_.size()) Adopt(orphans_[next_orphan_++]);
    }
    vertices_[vertex].active = false;
    // Drops the consumed front of the queue, in constant amortised time.
    if (next_active_ > vertices_.size()) {
      active_.erase(
          active_.begin(),
          active_.begin() + static_cast<std::ptrdiff_t>(next_active_));
      next_active_ = 0;
    }
  }
}

// Adds free neighbours of `at` to its tree. Returns a half arc from the
// source's tree to the sink's as soon as the trees touch, else kFree.
int FlowSolver::Grow(int at) {
  const Vertex& vertex = vertices_[at];
  for (int i = first_[at]; i < first_[at + 1]; ++i) {
    const int half = out_[i];
    if (LeftOutward(vertex.of_sink, half) == 0) continue;
    const int to = head_[half];
    Vertex& other = vertices_[to];
    if (side_[to] != kOpen) continue;
    if (other.parent == kFree) {
      other.of_sink = vertex.of_sink;
      other.parent = half ^ 1;
      other.stamp = vertex.stamp;
      other.distance = vertex.distance + 1;
      Activate(to);
    } else if (other.of_sink != vertex.of_sink) {
      return vertex.of_sink ? half ^ 1 : half;
    } else if (other.stamp <= vertex.stamp &&
               other.distance > vertex.distance) {
      // `at` is nearer to the root, by the distances known so far.
      other.parent = half ^ 1;
      other.stamp = vertex.stamp;
      other.distance = vertex.distance + 1;
    }
  }
  return kFree;
}

// Pushes flow along the path through `half`, which leads from the source's tree
// to the sink's. Vertices whose arc to the parent becomes saturated become
// orphans.
void FlowSolver::Augment(int half) {
  // First pass: the bottleneck of both half paths, up to the surplus of one
  // root and the deficit of the other.
  Cost amount = residual_[half];
  int source_root = head_[half ^ 1];
  while (vertices_[source_root].parent != kRoot) {
    const int up = vertices_[source_root].parent;
    amount = std::min(amount, residual_[up ^ 1]);
    source_root = head_[up];
  }
  int sink_root = head_[half];
  while (vertices_[sink_root].parent != kRoot) {
    const int up = vertices_[sink_root].parent;
    amount = std::min(amount, residual_[up]);
    sink_root = head_[up];
  }
  amount = std::min(
      {amount, vertices_[source_root].surplus, -vertices_[sink_root].surplus});

  residual_[half] -= amount;
  residual_[half ^ 1] += amount;
  for (int at = head_[half ^ 1]; at != source_root;) {
    const int up = vertices_[at].parent;
    residual_[up] += amount;
    if ((residual_[up ^ 1] -= amount) == 0) MakeOrphan(at);
    at = head_[up];
  }
  if ((vertices_[source_root].surplus -= amount) == 0) MakeOrphan(source_root);
  for (int at = head_[half]; at != sink_root;) {
    const int up = vertices_[at].parent;
    residual_[up ^ 1] += amount;
    if ((residual_[up] -= amount) == 0) MakeOrphan(at);
    at = head_[up];
  }
  if ((vertices_[sink_root].surplus += amount) == 0) MakeOrphan(sink_root);
}

// Gives the orphan a new parent of its own tree, the nearest to a root. Without
// such a neighbour the orphan becomes free and its children become orphans.
void FlowSolver::Adopt(int orphan) {
  Vertex& vertex = vertices_[orphan];
  constexpr int kFar = std::numeric_limits<int>::max();
  int best = kFree;
  int nearest = kFar;
  for (int i = first_[orphan]; i < first_[orphan + 1]; ++i) {
    const int half = out_[i];
    if (LeftInward(vertex.of_sink, half) == 0) continue;
    const int to = head_[half];
    if (vertices_[to].parent == kFree ||
        vertices_[to].of_sink != vertex.of_sink) {
      continue;
    }
    // Follows the parents of the neighbour to a root or to an orphan. A vertex
    // stamped with now_ is known to reach a root in this adoption phase.
    int distance = 0;
    for (int at = to;;) {
      Vertex& on_way = vertices_[at];
      if (on_way.stamp == now_) {
        distance += on_way.distance;
        break;
      }
      ++distance;
      if (on_way.parent == kRoot) {
        on_way.stamp = now_;
        on_way.distance = 1;
        break;
      }
      if (on_way.parent == kOrphan) {
        distance = kFar;
        break;
      }
      at = head_[on_way.parent];
    }
    if (distance == kFar) continue;
    if (distance < nearest) {
      nearest = distance;
      best = half;
    }
    // Stamps the whole way, so that later orphans need not follow it again.
    for (int at = to; vertices_[at].stamp != now_;) {
      vertices_[at].stamp = now_;
      vertices_[at].distance = distance--;
      at = head_[vertices_[at].parent];
    }
  }
  vertex.parent = best;
  if (best != kFree) {
    vertex.stamp = now_;
    vertex.distance = nearest + 1;
    return;
  }
  for (int i = first_[orphan]; i < first_[orphan + 1]; ++i) {
    const int half = out_[i];
    const int to = head_[half];
    const Vertex& other = vertices_[to];
    if (other.parent == kFree || other.of_sink != vertex.of_sink) continue;
    // This neighbour may take the freed vertex back: scan it again.
    if (LeftInward(vertex.of_sink, half) > 0) Activate(to);
    if (other.parent >= 0 && other.parent == (half ^ 1)) MakeOrphan(to);
  }
}

void FlowSolver::MakeOrphan(int vertex) {
  vertices_[vertex].parent = kOrphan;
  orphans_.push_back(vertex);
}

void FlowSolver::Activate(int vertex) {
  if (vertices_[vertex].active) return;
  vertices_[vertex].active = true;
  active_.push_back(vertex);
}

// Fills cut_ from the residuals and the final trees.
void FlowSolver::Describe() {
  const std::vector<FlowNetwork::Arc>& arcs = network_.arcs();
  std::vector<Cost>& out_of_source = cut_.from_source;
  std::vector<Cost>& into_sink = cut_.to_sink;
  // Net flow out of each vertex along arcs.
  std::fill(out_of_source.begin(), out_of_source.end(), 0);
  for (size_t a = 0; a < arcs.size(); ++a) {
    cut_.arcs[a] = arcs[a].capacity - residual_[2 * a];
    out_of_source[arcs[a].from] += cut_.arcs[a];
    out_of_source[arcs[a].to] -= cut_.arcs[a];
  }
  cut_.value = 0;
  for (size_t v = 0; v < vertices_.size(); ++v) {
    const bool on_source_side =
        side_[v] == kSource ||
        (vertices_[v].parent != kFree && !vertices_[v].of_sink);
    cut_.on_source_side[v] = on_source_side;
    const Cost out = out_of_source[v];
    // Arcs that the cut pays for are saturated; the other terminal arc takes
    // the rest.
    into_sink[v] = on_source_side ? network_.to_sink()[v]
                                  : network_.from_source()[v] - out;
    out_of_source[v] = out + into_sink[v];
    cut_.value += out_of_source[v];
  }
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

#ifndef REFRACT_PARTITIONER_CUT_MAX_FLOW_H_
#define REFRACT_PARTITIONER_CUT_MAX_FLOW_H_

// Minimum s-t cuts of networks with integer capacities.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

// The finite capacities of one network must not add up to more than one and a
// half times this value.
inline constexpr Cost kMaxFinite = Cost{1} << 60;
// Capacity of an arc that no cut may contain. Leaves room for a flow of
// kMaxFinite on top of it.
inline constexpr Cost kInfinite = Cost{1} << 61;

// A network whose source and sink are implicit. A cut puts each vertex on the
// source's or the sink's side and pays for the arcs from the source's side to
// the sink's. Capacities may be changed at any time. Used by one thread.
class FlowNetwork {
 public:
  struct Arc {
    int from;
    int to;
    Cost capacity;
    Cost reverse_capacity;  // of the arc to → from
  };

  explicit FlowNetwork(int num_vertices)
      : from_source_(num_vertices), to_sink_(num_vertices) {}

  int AddVertex();  // returns its number
  // Returns the arc's number.
  int AddArc(int from, int to, Cost capacity, Cost reverse_capacity = 0);
  void SetArc(int arc, Cost capacity, Cost reverse_capacity = 0);
  // Paid when `vertex` is on the sink's (source's) side; calls add up.
  void PayOnSinkSide(int vertex, Cost cost);
  void PayOnSourceSide(int vertex, Cost cost);
  void ForgetPayments();

  int num_vertices() const { return static_cast<int>(from_source_.size()); }
  const std::vector<Arc>& arcs() const { return arcs_; }
  const std::vector<Cost>& from_source() const { return from_source_; }
  const std::vector<Cost>& to_sink() const { return to_sink_; }

 private:
  std::vector<Cost> from_source_;
  std::vector<Cost> to_sink_;
  std::vector<Arc> arcs_;
};

// A cut and the flow that proves it minimal. The flow may also go from a vertex
// back to the source and from the sink back to a vertex (negative numbers
// below). Arcs into the source or out of the sink are in no cut, so such a flow
// bounds every cut as well.
struct MinCut {
  Cost value = 0;
  std::vector<bool> on_source_side;  // per vertex
  std::vector<Cost> from_source;     // flow per vertex
  std::vector<Cost> to_sink;
  std::vector<Cost> arcs;  // net flow; negative: against the arc
};

// Solves one network repeatedly, each time from the last flow. The parts of
// that flow that still fit the capacities are kept, so the work depends on the
// changes. Boykov and Kolmogorov's algorithm (An Experimental Comparison of
// Min-Cut/Max-Flow Algorithms, PAMI 2004), restarted as Kohli and Torr do
// (Dynamic Graph Cuts, PAMI 2007). Used by one thread.
class FlowSolver {
 public:
  // Keeps a reference to the network, to which no vertices or arcs may be added
  // from here on.
  explicit FlowSolver(const FlowNetwork& network);

  // The minimum cut with the fewest vertices on the source's side, independent
  // of earlier calls; nullptr when every cut contains an infinite arc. Valid
  // until the next call; has passed CheckCertificate(). `scale`: the capacities
  // are in units of about 2^−scale, which helps to reuse the last flow.
  // Internal when the certificate fails: a defect of the solver or of the
  // network.
  absl::StatusOr<const MinCut*> Solve(int scale = 0);

 private:
  // A vertex is in the source's tree (reached by surplus), in the sink's tree,
  // or free. Arcs are stored as two halves, one per direction.
  struct Vertex {
    Cost surplus = 0;  // negative: deficit
    int parent = 0;    // half arc to the parent, or a constant below
    int stamp = 0;     // when `distance` was right
    int distance = 0;  // to the root of its tree
    bool of_sink = false;
    bool active = false;  // in active_: its neighbours are not scanned yet
  };
  static constexpr int kFree = -1;
  static constexpr int kRoot = -2;
  static constexpr int kOrphan = -3;

  // Side on which infinite arcs put a vertex; flow goes from higher to lower.
  enum Side : int8_t { kSink = 0, kOpen = 1, kSource = 2 };

  bool Settle();
  void SetUp(int doublings);
  // Computes residuals and surpluses from the last flow, or from zero flow.
  // Returns the sum of the positive surpluses.
  double Fill(bool start_anew);
  int Wave();  // returns the number of surpluses that moved
  void Run();
  int Grow(int vertex);  // half arc from tree to tree, or kFree
  void Augment(int half);
  void Adopt(int orphan);
  void MakeOrphan(int vertex);
  void Activate(int vertex);
  // Residual capacity of half arc `half` in the direction of growth: away from
  // the source in the source's tree, towards the sink in the sink's tree.
  Cost LeftOutward(bool of_sink, int half) const {
    return residual_[of_sink ? half ^ 1 : half];
  }
  Cost LeftInward(bool of_sink, int half) const {
    return residual_[of_sink ? half : half ^ 1];
  }
  void Describe();

  const FlowNetwork& network_;
  // Halves 2a and 2a + 1 are arc a and its reverse.
  std::vector<int> head_;       // where a half leads
  std::vector<int> first_;      // per vertex: where its halves begin in out_
  std::vector<int> out_;        // halves, sorted by where they start
  std::vector<Cost> residual_;  // per half
  std::vector<Vertex> vertices_;
  std::vector<int> active_;
  size_t next_active_ = 0;
  std::vector<int> orphans_;
  size_t next_orphan_ = 0;
  int now_ = 0;
  std::vector<double> through_;  // of SetUp()
  int scale_ = 0;                // of the flow in cut_
  struct Settled {
    int vertex;
    int half;  // to the vertex that settled it; kRoot: its terminal did
  };
  std::vector<Side> side_;
  std::vector<Settled> settled_;  // in order of settling
  std::vector<int> pending_;      // of Settle() and Wave()
  MinCut cut_;                    // of the last Solve(), with its flow
};

// Checks `cut` by linear-programming duality: a flow and a cut of equal value
// prove each other optimal. Checks by definition and without the solver's code
// that the flow respects every capacity, is conserved at every vertex and has
// the value `cut.value`, and that the arcs from the source's to the sink's side
// have exactly that capacity. Internal names the violated condition.
absl::Status CheckCertificate(const FlowNetwork& network, const MinCut& cut);

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_MAX_FLOW_H_

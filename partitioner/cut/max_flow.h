#ifndef REFRACT_PARTITIONER_CUT_MAX_FLOW_H_
#define REFRACT_PARTITIONER_CUT_MAX_FLOW_H_

// Minimum s-t cuts of networks with integer capacities.

#include <cstdint>
#include <optional>
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

// A cut and the flow that proves it minimal.
struct MinCut {
  Cost value = 0;
  std::vector<bool> on_source_side;  // per vertex
  std::vector<Cost> from_source;     // flow per vertex
  std::vector<Cost> to_sink;
  std::vector<Cost> arcs;  // net flow; negative: against the arc
};

// The minimum cut with the fewest vertices on the source's side, found by
// Boost.Graph's solver (Boykov and Kolmogorov, An Experimental Comparison of
// Min-Cut/Max-Flow Algorithms, PAMI 2004); nullopt when every cut contains an
// infinite arc. Has passed CheckCertificate(). Internal when the certificate
// fails: a defect of the solver or of the network.
absl::StatusOr<std::optional<MinCut>> SolveMinCut(const FlowNetwork& network);

// Checks `cut` by linear-programming duality: a flow and a cut of equal value
// prove each other optimal. Checks by definition and without the solver's code
// that the flow respects every capacity, is conserved at every vertex and has
// the value `cut.value`, and that the arcs from the source's to the sink's side
// have exactly that capacity. Internal names the violated condition.
absl::Status CheckCertificate(const FlowNetwork& network, const MinCut& cut);

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_MAX_FLOW_H_

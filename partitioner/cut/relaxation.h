#ifndef REFRACT_PARTITIONER_CUT_RELAXATION_H_
#define REFRACT_PARTITIONER_CUT_RELAXATION_H_

// The two minimum cuts behind a split, over nodes whose stages are limited to
// `domains` (propagated, see Propagate()).
//
// With three stages and free by-passes of the HN the cost is not submodular, so
// no single minimum cut gives the best split. Two cuts bound it: TwoLabels
// drops the order on the CN and bounds it from below; ThreeStages charges
// by-passes as crossings and bounds it from above.

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/cut/max_flow.h"
#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

struct Relaxed {
  // The nodes on the HN, and for the others the cheaper CN stage of their
  // domain (kPre when equal). May be illegal: HN → CN → HN.
  Stages stages;
  Cost price = 0;  // of `stages`; nothing legal within `domains` is cheaper
};

// Two labels, CN or HN: the exact minimum when the order of CN stages is
// dropped. Where a domain fixes a node's side of the crossing, the order is
// kept: a node that cannot be in CN-post follows its producers onto the HN.
// Among equally cheap answers, Cut() returns the answer with the fewest nodes
// on the HN.
//
// Keeps a reference to the problem, and from one cut to the next the network
// with its flow. Used by one thread.
class TwoLabels {
 public:
  explicit TwoLabels(const Problem& problem);
  TwoLabels(const TwoLabels&) = delete;
  TwoLabels& operator=(const TwoLabels&) = delete;

  // nullopt: nothing legal within `domains`. `scale`: `measure` is in units of
  // 2^−scale, which helps to start from the last flow. Errors: those of
  // FlowSolver.
  absl::StatusOr<std::optional<Relaxed>> Cut(const Measure& measure,
                                             const Domains& domains,
                                             int scale = 0);

 private:
  static constexpr int kNone = -1;
  // Arcs and vertices that charge one tensor or weight. With several readers
  // there is a vertex per direction between the readers and the producer.
  struct TensorArcs {
    std::vector<int> readers;   // distinct
    int between = kNone;        // the only reader's and the producer's
    int any_on_hn = kNone;      // vertex
    int up = kNone;             // from it to the producer
    int down = kNone;           // from the producer to the other vertex
    std::vector<int> in_order;  // per reader, from the producer
  };
  struct SharedVertices {
    int any_on_hn = kNone;
    int any_on_cn = kNone;
  };
  void Price(const Measure& measure, const Domains& domains);

  const Problem& problem_;
  FlowNetwork network_;
  std::vector<TensorArcs> tensors_;
  std::vector<SharedVertices> shared_;
  std::optional<FlowSolver> solver_;
};

// Three labels in order, so always legal. Tensors that by-pass the HN are
// charged as if they went up and came down, unless domains show that they
// cannot cross; so the result is good, not always the best. Otherwise as
// TwoLabels.
class ThreeStages {
 public:
  explicit ThreeStages(const Problem& problem);
  ThreeStages(const ThreeStages&) = delete;
  ThreeStages& operator=(const ThreeStages&) = delete;

  // nullopt: nothing legal was found.
  absl::StatusOr<std::optional<Stages>> Cut(const Measure& measure,
                                            const Domains& domains,
                                            int scale = 0);

 private:
  static constexpr int kNone = -1;
  struct TensorArcs {
    std::vector<int> readers;  // distinct
    // Between the producer and its only reader: both on the HN, both after it.
    int on_hn = kNone;
    int after = kNone;
    // With several readers.
    int any_on_hn = kNone;    // vertex
    std::vector<int> to_any;  // arcs there, per reader
    int up = kNone;
    int down = kNone;
  };
  struct SharedVertices {
    std::vector<int> readers;  // distinct
    int any_on_hn = kNone;
    std::vector<int> to_any;  // per reader
    int any_on_cn = kNone;
  };
  void Price(const Measure& measure, const Domains& domains);

  const Problem& problem_;
  FlowNetwork network_;
  std::vector<int> on_hn_;  // arc per node
  std::vector<TensorArcs> tensors_;
  std::vector<SharedVertices> shared_;
  std::optional<FlowSolver> solver_;
};

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_RELAXATION_H_

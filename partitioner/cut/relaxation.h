#ifndef REFRACT_PARTITIONER_CUT_RELAXATION_H_
#define REFRACT_PARTITIONER_CUT_RELAXATION_H_

// The two minimum cuts behind a split, over nodes whose stages are limited to
// `domains` (propagated, see Propagate()).
//
// With three stages and by-passes of the HN for free the cost is not
// submodular, so no single minimum cut gives the best split. Two do bound it:
// one that forgets the order on the CN, from below; one that charges by-passes
// as crossings, from above.

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

// Two labels: CN or HN. Exact minimum over everything but the order of CN
// stages. Where a domain settles a node's side of the crossing, the order is
// kept too: a node that is no CN-post follows its producers onto the HN. Of
// equally cheap answers the one with the fewest nodes on the HN.
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
  // The arcs and vertices that charge one tensor or shared thing. With several
  // readers there is a vertex for each direction between them and the producer.
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

// Three labels, in order, so always legal. Values that pass the HN by are
// charged as if they went up and came down, unless domains show that they
// cannot cross: the result is good, not always the best. As TwoLabels.
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

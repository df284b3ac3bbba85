// Translation of a cut problem into networks. A vertex on the source's side
// means "on the HN" (TwoLabels) or "at least this stage" (ThreeStages). The
// topology depends only on the problem; each cut sets new capacities.

#include "partitioner/cut/relaxation.h"

#include <algorithm>

#include "base/status_macros.h"

namespace refract::partitioner::cut {
namespace {

bool MayBe(StageSet domain, StageSet stages) { return (domain & stages) != 0; }

// Without the order of CN stages, a node off the HN takes the cheaper of its CN
// stages.
Stage CheaperCnStage(const Measure& measure, const Domains& domains, int node) {
  if (!MayBe(domains[node], kOnPost)) return kPre;
  if (!MayBe(domains[node], kOnPre)) return kPost;
  return measure.stage[node][kPost] < measure.stage[node][kPre] ? kPost : kPre;
}

std::vector<int> Distinct(std::vector<int> nodes) {
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

Cost InfiniteIf(bool condition) { return condition ? kInfinite : 0; }

// ThreeStages has two vertices per node, on the source's side when the node's
// stage is at least kHn, and at least kPost.
int AtLeastHn(int node) { return 2 * node; }
int AtLeastPost(int node) { return 2 * node + 1; }

// The cheapest relaxed choice without nodes on the HN, when domains allow it.
std::optional<Relaxed> NobodyOnHn(const Problem& problem,
                                  const Measure& measure,
                                  const Domains& domains) {
  Relaxed result;
  for (int n = 0; n < problem.num_nodes(); ++n) {
    if (!MayBe(domains[n], kOnCn)) return std::nullopt;
    result.stages.push_back(CheaperCnStage(measure, domains, n));
  }
  result.price = Price(problem, measure, result.stages);
  return result;
}

}  // namespace

// Source side = HN.
TwoLabels::TwoLabels(const Problem& problem)
    : problem_(problem),
      network_(problem.num_nodes()),
      tensors_(problem.tensors.size()),
      shared_(problem.shared.size()) {
  // A vertex that is on the source's side when any of `nodes` is.
  const auto any_of = [&](const std::vector<int>& nodes) {
    const int any = network_.AddVertex();
    for (const int node : nodes) network_.AddArc(node, any, kInfinite);
    return any;
  };
  // A vertex that is on the source's side only if all of `nodes` are.
  const auto all_of = [&](const std::vector<int>& nodes) {
    const int all = network_.AddVertex();
    for (const int node : nodes) network_.AddArc(all, node, kInfinite);
    return all;
  };
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = problem.tensors[t];
    TensorArcs& arcs = tensors_[t];
    arcs.readers = Distinct(tensor.readers);
    if (arcs.readers.empty()) continue;
    if (tensor.producer == Tensor::kRequest) {
      arcs.any_on_hn = arcs.readers.size() == 1 ? arcs.readers.front()
                                                : any_of(arcs.readers);
      continue;
    }
    const int maker = tensor.producer;
    if (arcs.readers.size() == 1) {
      arcs.between = network_.AddArc(maker, arcs.readers.front(), 0);
      continue;
    }
    arcs.any_on_hn = any_of(arcs.readers);
    arcs.up = network_.AddArc(arcs.any_on_hn, maker, 0);
    if (!tensor.is_result) {
      arcs.down = network_.AddArc(maker, all_of(arcs.readers), 0);
    }
    for (const int reader : arcs.readers) {
      arcs.in_order.push_back(network_.AddArc(maker, reader, 0));
    }
  }
  for (size_t s = 0; s < shared_.size(); ++s) {
    const std::vector<int> readers = Distinct(problem.shared[s].readers);
    if (readers.empty()) continue;
    const bool single = readers.size() == 1;
    shared_[s].any_on_hn = single ? readers.front() : any_of(readers);
    shared_[s].any_on_cn = single ? readers.front() : all_of(readers);
  }
  solver_.emplace(network_);
}

void TwoLabels::Price(const Measure& measure, const Domains& domains) {
  network_.ForgetPayments();
  for (int n = 0; n < problem_.num_nodes(); ++n) {
    const StageSet domain = domains[n];
    network_.PayOnSinkSide(
        n, MayBe(domain, kOnCn)
               ? measure.stage[n][CheaperCnStage(measure, domains, n)]
               : kInfinite);
    network_.PayOnSourceSide(
        n, MayBe(domain, kOnHn) ? measure.stage[n][kHn] : kInfinite);
  }
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = problem_.tensors[t];
    const TensorArcs& arcs = tensors_[t];
    const Cost up = tensor.may_go_up ? measure.up[t] : kInfinite;
    const Cost down = tensor.may_come_down ? measure.down[t] : kInfinite;
    if (tensor.producer == Tensor::kRequest) {
      if (!arcs.readers.empty()) network_.PayOnSourceSide(arcs.any_on_hn, up);
      continue;
    }
    // A result made on the HN comes down whoever else reads it.
    if (tensor.is_result) network_.PayOnSourceSide(tensor.producer, down);
    if (arcs.readers.empty()) continue;
    // A reader that cannot be in CN-post cannot be on the CN after an HN
    // producer; a producer that cannot be in CN-pre cannot feed an HN reader
    // from the CN. Both become infinite arcs.
    const auto stays = [&](int reader) {
      return InfiniteIf(!MayBe(domains[reader], kOnPost));
    };
    const Cost follows = InfiniteIf(!MayBe(domains[tensor.producer], kOnPre));
    if (arcs.between != kNone) {
      network_.SetArc(arcs.between,
                      std::max(tensor.is_result ? Cost{0} : down,
                               stays(arcs.readers.front())),
                      std::max(up, follows));
      continue;
    }
    network_.SetArc(arcs.up, up);
    if (arcs.down != kNone) network_.SetArc(arcs.down, down);
    for (size_t r = 0; r < arcs.readers.size(); ++r) {
      network_.SetArc(arcs.in_order[r], stays(arcs.readers[r]), follows);
    }
  }
  for (size_t s = 0; s < shared_.size(); ++s) {
    if (shared_[s].any_on_hn == kNone) continue;
    network_.PayOnSourceSide(shared_[s].any_on_hn, measure.shared_on_hn[s]);
    network_.PayOnSinkSide(shared_[s].any_on_cn, measure.shared_on_cn[s]);
  }
}

absl::StatusOr<std::optional<Relaxed>> TwoLabels::Cut(const Measure& measure,
                                                      const Domains& domains,
                                                      int scale) {
  Price(measure, domains);
  REFRACT_ASSIGN_OR_RETURN(const MinCut* const cut, solver_->Solve(scale));
  if (cut == nullptr) return std::nullopt;
  Relaxed result;
  bool hn_used = false;
  result.stages.reserve(problem_.num_nodes());
  for (int n = 0; n < problem_.num_nodes(); ++n) {
    hn_used = hn_used || cut->on_source_side[n];
    result.stages.push_back(
        cut->on_source_side[n] ? kHn : CheaperCnStage(measure, domains, n));
  }
  // Using the HN at all costs hn_used, which no arc can express: it is charged
  // once for any set of HN nodes. The optimum is therefore either the cut plus
  // hn_used or the best choice without the HN.
  result.price = hn_used ? cut->value + measure.hn_used : cut->value;
  if (!hn_used || measure.hn_used == 0) return result;
  const std::optional<Relaxed> none = NobodyOnHn(problem_, measure, domains);
  if (none && none->price <= result.price) return none;
  return result;
}

ThreeStages::ThreeStages(const Problem& problem)
    : problem_(problem),
      network_(2 * problem.num_nodes()),
      tensors_(problem.tensors.size()),
      shared_(problem.shared.size()) {
  for (int n = 0; n < problem.num_nodes(); ++n) {
    on_hn_.push_back(
        network_.AddArc(AtLeastHn(n), AtLeastPost(n), 0, kInfinite));
  }
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = problem.tensors[t];
    TensorArcs& arcs = tensors_[t];
    arcs.readers = Distinct(tensor.readers);
    if (arcs.readers.empty()) continue;
    const int maker = tensor.producer;
    // With a single reader the charges are plain arcs between producer and
    // reader; with several, an auxiliary vertex charges the tensor once.
    if (maker != Tensor::kRequest && arcs.readers.size() == 1) {
      const int reader = arcs.readers.front();
      arcs.on_hn =
          network_.AddArc(AtLeastHn(maker), AtLeastHn(reader), kInfinite);
      arcs.after =
          network_.AddArc(AtLeastPost(maker), AtLeastPost(reader), kInfinite);
      continue;
    }
    arcs.any_on_hn = network_.AddVertex();
    for (const int reader : arcs.readers) {
      arcs.to_any.push_back(
          network_.AddArc(AtLeastHn(reader), arcs.any_on_hn, 0));
    }
    if (maker == Tensor::kRequest) continue;
    arcs.up = network_.AddArc(arcs.any_on_hn, AtLeastHn(maker), 0);
    const int any_after = network_.AddVertex();
    for (const int reader : arcs.readers) {
      network_.AddArc(AtLeastHn(maker), AtLeastHn(reader), kInfinite);
      network_.AddArc(AtLeastPost(maker), AtLeastPost(reader), kInfinite);
      network_.AddArc(AtLeastPost(reader), any_after, kInfinite);
    }
    arcs.down = network_.AddArc(any_after, AtLeastPost(maker), 0);
  }
  for (size_t s = 0; s < shared_.size(); ++s) {
    SharedVertices& shared = shared_[s];
    shared.readers = Distinct(problem.shared[s].readers);
    if (shared.readers.empty()) continue;
    shared.any_on_hn = network_.AddVertex();
    shared.any_on_cn = network_.AddVertex();
    for (const int reader : shared.readers) {
      shared.to_any.push_back(
          network_.AddArc(AtLeastHn(reader), shared.any_on_hn, 0));
      network_.AddArc(shared.any_on_cn, AtLeastHn(reader), kInfinite);
    }
  }
  solver_.emplace(network_);
}

void ThreeStages::Price(const Measure& measure, const Domains& domains) {
  network_.ForgetPayments();
  // A result that is made on the HN comes down whatever its other readers do,
  // so its cost is part of the HN stage.
  std::vector<Cost> on_hn_extra(problem_.num_nodes(), 0);
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = problem_.tensors[t];
    if (!tensor.is_result || tensor.producer == Tensor::kRequest) continue;
    Cost& extra = on_hn_extra[tensor.producer];
    extra = tensor.may_come_down ? extra + measure.down[t] : kInfinite;
    extra = std::min(extra, kInfinite);
  }
  for (int n = 0; n < problem_.num_nodes(); ++n) {
    const auto cost = [&](Stage stage) {
      return MayBe(domains[n], 1 << stage) ? measure.stage[n][stage]
                                           : kInfinite;
    };
    network_.PayOnSinkSide(AtLeastHn(n), cost(kPre));
    network_.SetArc(on_hn_[n], std::min(kInfinite, cost(kHn) + on_hn_extra[n]),
                    kInfinite);
    network_.PayOnSourceSide(AtLeastPost(n), cost(kPost));
  }
  // Readers that cannot be on the HN do not make a tensor go up.
  const auto may_be_on_hn = [&](int reader) {
    return InfiniteIf(MayBe(domains[reader], kOnHn));
  };
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = problem_.tensors[t];
    const TensorArcs& arcs = tensors_[t];
    if (arcs.readers.empty()) continue;
    const Cost up = tensor.may_go_up ? measure.up[t] : kInfinite;
    const bool comes_down = tensor.producer != Tensor::kRequest &&
                            !tensor.is_result &&
                            MayBe(domains[tensor.producer], kOnHn);
    const Cost down = !comes_down            ? 0
                      : tensor.may_come_down ? measure.down[t]
                                             : kInfinite;
    if (arcs.on_hn != kNone) {
      const int reader = arcs.readers.front();
      network_.SetArc(arcs.on_hn, kInfinite,
                      std::min(up, may_be_on_hn(reader)));
      network_.SetArc(arcs.after, kInfinite, down);
      continue;
    }
    for (size_t r = 0; r < arcs.readers.size(); ++r) {
      network_.SetArc(arcs.to_any[r], may_be_on_hn(arcs.readers[r]));
    }
    if (tensor.producer == Tensor::kRequest) {
      network_.PayOnSourceSide(arcs.any_on_hn, up);
      continue;
    }
    network_.SetArc(arcs.up, up);
    network_.SetArc(arcs.down, down);
  }
  // The cost of a weight is not monotone in the order of stages. As an upper
  // bound, readers in CN-post count as on the HN, and only readers in CN-pre as
  // on the CN.
  for (size_t s = 0; s < shared_.size(); ++s) {
    const SharedVertices& shared = shared_[s];
    if (shared.readers.empty()) continue;
    for (size_t r = 0; r < shared.readers.size(); ++r) {
      network_.SetArc(shared.to_any[r], may_be_on_hn(shared.readers[r]));
    }
    network_.PayOnSourceSide(shared.any_on_hn, measure.shared_on_hn[s]);
    network_.PayOnSinkSide(shared.any_on_cn, measure.shared_on_cn[s]);
  }
}

absl::StatusOr<std::optional<Stages>> ThreeStages::Cut(const Measure& measure,
                                                       const Domains& domains,
                                                       int scale) {
  Price(measure, domains);
  REFRACT_ASSIGN_OR_RETURN(const MinCut* const cut, solver_->Solve(scale));
  if (cut == nullptr) return std::nullopt;
  Stages stages;
  for (int n = 0; n < problem_.num_nodes(); ++n) {
    stages.push_back(cut->on_source_side[AtLeastPost(n)] ? kPost
                     : cut->on_source_side[AtLeastHn(n)] ? kHn
                                                         : kPre);
  }
  return stages;
}

}  // namespace refract::partitioner::cut

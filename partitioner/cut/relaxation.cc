#include "partitioner/cut/relaxation.h"

#include <algorithm>

#include "base/status_macros.h"
#include "partitioner/cut/max_flow.h"

namespace refract::partitioner::cut {
namespace {

bool MayBe(StageSet domain, StageSet stages) { return (domain & stages) != 0; }

Stage CheaperCnStage(const Measure& measure, const Domains& domains, int node) {
  if (!MayBe(domains[node], kOnPost)) return kPre;
  if (!MayBe(domains[node], kOnPre)) return kPost;
  return measure.stage[node][kPost] < measure.stage[node][kPre] ? kPost : kPre;
}

// `cost` once when any of `readers` is on the source's side and `owner` is not.
void PayWhenAnyLeads(const std::vector<int>& readers, int owner, Cost cost,
                     FlowNetwork& network) {
  if (cost == 0) return;
  if (readers.size() == 1) {
    network.AddArc(readers.front(), owner, cost);
    return;
  }
  const int any = network.AddVertex();
  for (const int reader : readers) network.AddArc(reader, any, kInfinite);
  network.AddArc(any, owner, cost);
}

// `cost` once when `owner` is on the source's side and any of `readers` is not.
void PayWhenAnyLags(const std::vector<int>& readers, int owner, Cost cost,
                    FlowNetwork& network) {
  if (cost == 0) return;
  if (readers.size() == 1) {
    network.AddArc(owner, readers.front(), cost);
    return;
  }
  const int all = network.AddVertex();
  network.AddArc(owner, all, cost);
  for (const int reader : readers) network.AddArc(all, reader, kInfinite);
}

// The same for an owner that is always on the sink's (source's) side.
void PayForAnyOnSourceSide(const std::vector<int>& readers, Cost cost,
                           FlowNetwork& network) {
  if (cost == 0 || readers.empty()) return;
  if (readers.size() == 1) {
    network.PayOnSourceSide(readers.front(), cost);
    return;
  }
  const int any = network.AddVertex();
  for (const int reader : readers) network.AddArc(reader, any, kInfinite);
  network.PayOnSourceSide(any, cost);
}

void PayForAnyOnSinkSide(const std::vector<int>& readers, Cost cost,
                         FlowNetwork& network) {
  if (cost == 0 || readers.empty()) return;
  if (readers.size() == 1) {
    network.PayOnSinkSide(readers.front(), cost);
    return;
  }
  const int all = network.AddVertex();
  for (const int reader : readers) network.AddArc(all, reader, kInfinite);
  network.PayOnSinkSide(all, cost);
}

// Readers that may be in one of `stages`.
std::vector<int> ReadersThatMayBe(const std::vector<int>& readers,
                                  const Domains& domains, StageSet stages) {
  std::vector<int> result;
  for (const int reader : readers) {
    if (MayBe(domains[reader], stages)) result.push_back(reader);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

// Source's side: HN.
FlowNetwork TwoLabelNetwork(const Problem& problem, const Measure& measure,
                            const Domains& domains) {
  FlowNetwork network(problem.num_nodes());
  for (int n = 0; n < problem.num_nodes(); ++n) {
    const StageSet domain = domains[n];
    network.PayOnSinkSide(
        n, MayBe(domain, kOnCn)
               ? measure.stage[n][CheaperCnStage(measure, domains, n)]
               : kInfinite);
    network.PayOnSourceSide(
        n, MayBe(domain, kOnHn) ? measure.stage[n][kHn] : kInfinite);
  }
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    const Tensor& tensor = problem.tensors[t];
    const Cost up = tensor.may_go_up ? measure.up[t] : kInfinite;
    const Cost down = tensor.may_come_down ? measure.down[t] : kInfinite;
    const std::vector<int> on_hn =
        ReadersThatMayBe(tensor.readers, domains, kOnHn);
    if (tensor.producer == Tensor::kRequest) {
      PayForAnyOnSourceSide(on_hn, up, network);
      continue;
    }
    const StageSet maker = domains[tensor.producer];
    if (MayBe(maker, kOnCn) && !on_hn.empty()) {
      PayWhenAnyLeads(on_hn, tensor.producer, up, network);
    }
    if (!MayBe(maker, kOnHn)) continue;
    const std::vector<int> on_cn =
        ReadersThatMayBe(tensor.readers, domains, kOnCn);
    if (tensor.is_result) {
      network.PayOnSourceSide(tensor.producer, down);
    } else if (!on_cn.empty()) {
      PayWhenAnyLags(on_cn, tensor.producer, down, network);
    }
    for (const int reader : tensor.readers) {
      if (!MayBe(domains[reader], kOnPost)) {
        network.AddArc(tensor.producer, reader, kInfinite);
      }
      if (!MayBe(maker, kOnPre)) {
        network.AddArc(reader, tensor.producer, kInfinite);
      }
    }
  }
  for (size_t s = 0; s < problem.shared.size(); ++s) {
    const std::vector<int>& readers = problem.shared[s].readers;
    PayForAnyOnSourceSide(ReadersThatMayBe(readers, domains, kOnHn),
                          measure.shared_on_hn[s], network);
    PayForAnyOnSinkSide(ReadersThatMayBe(readers, domains, kOnCn),
                        measure.shared_on_cn[s], network);
  }
  return network;
}

// Vertices 2n and 2n + 1: on the source's side when node n is in stage ≥ kHn
// (= kPost).
int AtLeastHn(int node) { return 2 * node; }
int AtLeastPost(int node) { return 2 * node + 1; }

std::vector<int> Vertices(const std::vector<int>& nodes, int (*vertex)(int)) {
  std::vector<int> result;
  for (const int node : nodes) result.push_back(vertex(node));
  return result;
}

FlowNetwork ThreeStageNetwork(const Problem& problem, const Measure& measure,
                              const Domains& domains) {
  FlowNetwork network(2 * problem.num_nodes());
  // A result that is made on the HN comes down whoever else reads it.
  std::vector<Cost> on_hn_extra(problem.num_nodes(), 0);
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    const Tensor& tensor = problem.tensors[t];
    if (!tensor.is_result || tensor.producer == Tensor::kRequest) continue;
    Cost& extra = on_hn_extra[tensor.producer];
    extra = tensor.may_come_down ? extra + measure.down[t] : kInfinite;
    extra = std::min(extra, kInfinite);
  }
  for (int n = 0; n < problem.num_nodes(); ++n) {
    const auto cost = [&](Stage stage) {
      return MayBe(domains[n], 1 << stage) ? measure.stage[n][stage]
                                           : kInfinite;
    };
    network.PayOnSinkSide(AtLeastHn(n), cost(kPre));
    network.AddArc(AtLeastHn(n), AtLeastPost(n),
                   std::min(kInfinite, cost(kHn) + on_hn_extra[n]), kInfinite);
    network.PayOnSourceSide(AtLeastPost(n), cost(kPost));
  }
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    const Tensor& tensor = problem.tensors[t];
    const Cost up = tensor.may_go_up ? measure.up[t] : kInfinite;
    const Cost down = tensor.may_come_down ? measure.down[t] : kInfinite;
    const std::vector<int> on_hn =
        Vertices(ReadersThatMayBe(tensor.readers, domains, kOnHn), AtLeastHn);
    if (tensor.producer == Tensor::kRequest) {
      PayForAnyOnSourceSide(on_hn, up, network);
      continue;
    }
    const int maker = tensor.producer;
    for (const int reader : tensor.readers) {
      network.AddArc(AtLeastHn(maker), AtLeastHn(reader), kInfinite);
      network.AddArc(AtLeastPost(maker), AtLeastPost(reader), kInfinite);
    }
    if (MayBe(domains[maker], kOnPre) && !on_hn.empty()) {
      PayWhenAnyLeads(on_hn, AtLeastHn(maker), up, network);
    }
    const std::vector<int> after = Vertices(
        ReadersThatMayBe(tensor.readers, domains, kOnPost), AtLeastPost);
    if (MayBe(domains[maker], kOnHn) && !tensor.is_result && !after.empty()) {
      PayWhenAnyLeads(after, AtLeastPost(maker), down, network);
    }
  }
  // Readers after the HN count as on it here, those before it alone as on the
  // CN: what a shared thing costs is no order-preserving function of stages.
  for (size_t s = 0; s < problem.shared.size(); ++s) {
    const std::vector<int>& readers = problem.shared[s].readers;
    PayForAnyOnSourceSide(
        Vertices(ReadersThatMayBe(readers, domains, kOnHn), AtLeastHn),
        measure.shared_on_hn[s], network);
    PayForAnyOnSinkSide(
        Vertices(ReadersThatMayBe(readers, domains, kOnPre), AtLeastHn),
        measure.shared_on_cn[s], network);
  }
  return network;
}

// The relaxed choice with nobody on the HN, when domains allow it.
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

absl::StatusOr<std::optional<Relaxed>> CutTwoLabels(const Problem& problem,
                                                    const Measure& measure,
                                                    const Domains& domains) {
  REFRACT_ASSIGN_OR_RETURN(
      const std::optional<MinCut> cut,
      SolveMinCut(TwoLabelNetwork(problem, measure, domains)));
  if (!cut) return std::nullopt;
  Relaxed result;
  bool hn_used = false;
  for (int n = 0; n < problem.num_nodes(); ++n) {
    hn_used = hn_used || cut->on_source_side[n];
    result.stages.push_back(
        cut->on_source_side[n] ? kHn : CheaperCnStage(measure, domains, n));
  }
  // The network has no place for what the HN costs by being used at all. With
  // it the best is either the best without it or nobody on the HN.
  result.price = hn_used ? cut->value + measure.hn_used : cut->value;
  if (!hn_used || measure.hn_used == 0) return result;
  const std::optional<Relaxed> none = NobodyOnHn(problem, measure, domains);
  if (none && none->price <= result.price) return none;
  return result;
}

absl::StatusOr<std::optional<Stages>> CutThreeStages(const Problem& problem,
                                                     const Measure& measure,
                                                     const Domains& domains) {
  REFRACT_ASSIGN_OR_RETURN(
      const std::optional<MinCut> cut,
      SolveMinCut(ThreeStageNetwork(problem, measure, domains)));
  if (!cut) return std::nullopt;
  Stages stages;
  for (int n = 0; n < problem.num_nodes(); ++n) {
    stages.push_back(cut->on_source_side[AtLeastPost(n)] ? kPost
                     : cut->on_source_side[AtLeastHn(n)] ? kHn
                                                         : kPre);
  }
  return stages;
}

}  // namespace refract::partitioner::cut

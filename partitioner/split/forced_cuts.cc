#include "partitioner/split/forced_cuts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "partitioner/cut/search.h"
#include "partitioner/split/split_search.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::SplitPlan;
using models::ValueId;

// Limit on the searches for one requirement, when no single domain decides it.
constexpr size_t kMaxCases = 64;

struct Requirement {
  ValueId value;
  bool up;
  bool crosses;
  int64_t alike = 1;
};

// One value per group of equivalent values, the largest first.
std::vector<Requirement> RequirementsOf(const Graph& graph,
                                        const OptimalSplit& split,
                                        const ValueSizes& sizes) {
  // Values of the best plan are forced out; values that only other plans send
  // are forced in. Values of one kind (direction, requirement, bytes, operator)
  // would give much the same plan, so the first stands for all.
  const auto crossings = [](const SplitPlan& plan) {
    std::set<std::pair<ValueId, bool>> result;
    for (const ValueId id : plan.up) result.insert({id, true});
    for (const ValueId id : plan.down) result.insert({id, false});
    return result;
  };
  const auto in_best = crossings(split.best.plan);
  auto all = in_best;
  for (const Alternative& other : split.others) {
    all.merge(crossings(other.plan));
  }
  using Kind = std::tuple<bool, bool, double, std::string>;
  std::map<Kind, Requirement> first;
  for (const auto& [id, up] : all) {
    const models::NodeId producer = graph.value(id).producer;
    const bool crosses = in_best.count({id, up}) == 0;
    const Kind kind = {
        up, crosses, sizes.bytes[id],
        producer == models::kNoNode ? "" : graph.nodes[producer].op};
    // `all` ascends by value, so the first of a kind has the smallest id.
    const auto [at, is_new] =
        first.emplace(kind, Requirement{id, up, crosses, 1});
    if (!is_new) ++at->second.alike;
  }
  std::vector<Requirement> requirements;
  for (const auto& [kind, requirement] : first) {
    requirements.push_back(requirement);
  }
  std::sort(requirements.begin(), requirements.end(),
            [&](const Requirement& a, const Requirement& b) {
              const double a_bytes = sizes.bytes[a.value];
              const double b_bytes = sizes.bytes[b.value];
              if (a_bytes != b_bytes) return a_bytes > b_bytes;
              return std::pair(a.value, a.up) < std::pair(b.value, b.up);
            });
  return requirements;
}

// The domains whose union is the set of choices that meet a requirement.
using Cases = std::vector<cut::Domains>;

class Forcing {
 public:
  explicit Forcing(const SplitSearch& search)
      : search_(search), problem_(search.problem().problem()) {}

  // The best plan that meets `requirement`; nullopt if there is none, or if it
  // would take too many searches. A requirement is an "or" over stages of
  // several nodes, and a search takes one domain per node. So a requirement is
  // divided into cases, each a set of domains, and the best of their plans is
  // taken.
  absl::StatusOr<std::optional<cut::Best>> Find(
      const Requirement& requirement) {
    const int t = search_.problem().TensorOf(requirement.value);
    // For example, an input without readers crosses in no plan.
    if (t < 0) return std::nullopt;
    const cut::Tensor& tensor = problem_.tensors[t];
    if (!requirement.crosses)
      return Best(CasesOfStaying(tensor, requirement.up));
    const cut::Domains from = MadeIn(
        tensor, requirement.up ? cut::kOnPre : cut::kOnHn, problem_.allowed);
    if (from.empty()) return std::nullopt;
    // A result of the request comes down wherever its readers are.
    if (!requirement.up && tensor.is_result) return Best({from});
    const cut::StageSet to = requirement.up ? cut::kOnHn : cut::kOnPost;
    // Adds a reader without cost where the value has to go. No plan that meets
    // the requirement is cheaper. In most cases a real reader moves there, too,
    // and the plan meets the requirement.
    REFRACT_ASSIGN_OR_RETURN(std::optional<cut::Best> best,
                             WithReader(t, to, from));
    if (!best) return best;
    const auto is_there = [&](int reader) {
      return (1 << best->stages[reader] & to) != 0;
    };
    if (std::any_of(tensor.readers.begin(), tensor.readers.end(), is_there)) {
      return best;
    }
    // The plan with the extra reader sends the value for nobody. One search per
    // real reader finds the best plan that sends it for that reader.
    if (tensor.readers.size() > kMaxCases) return std::nullopt;
    Cases cases;
    for (const int reader : tensor.readers) {
      cases.push_back(from);
      cases.back()[reader] &= to;
    }
    return Best(cases);
  }

 private:
  // `domains` with the tensor's producer limited to `stages`; empty if the
  // request brings the tensor and `stages` lacks CN-pre.
  static cut::Domains MadeIn(const cut::Tensor& tensor, cut::StageSet stages,
                             cut::Domains domains) {
    if (tensor.producer != cut::Tensor::kRequest) {
      domains[tensor.producer] &= stages;
      return domains;
    }
    if ((stages & cut::kOnPre) == 0) domains.clear();
    return domains;
  }

  // The tensor is computed on the other node, or has no reader there.
  Cases CasesOfStaying(const cut::Tensor& tensor, bool up) const {
    Cases cases;
    cut::Domains elsewhere = MadeIn(
        tensor, up ? cut::kOnHn | cut::kOnPost : cut::kOnCn, problem_.allowed);
    if (!elsewhere.empty()) cases.push_back(std::move(elsewhere));
    if (up || !tensor.is_result) {
      cases.push_back(problem_.allowed);
      for (const int reader : tensor.readers) {
        cases.back()[reader] &=
            static_cast<cut::StageSet>(~(up ? cut::kOnHn : cut::kOnPost));
      }
    }
    return cases;
  }

  absl::StatusOr<std::optional<cut::Best>> Best(const Cases& cases) const {
    std::optional<cut::Best> best;
    std::optional<cut::Cost> lower_bound;
    for (const cut::Domains& domains : cases) {
      cut::Problem problem = problem_;
      problem.allowed = domains;
      REFRACT_ASSIGN_OR_RETURN(const std::optional<cut::Best> found,
                               Solve(problem, search_.goal()));
      if (!found) continue;
      // The bound of a union is the least bound of its cases.
      lower_bound = std::min(found->lower_bound,
                             lower_bound.value_or(found->lower_bound));
      if (!best || found->cost < best->cost) best = found;
    }
    if (best) best->lower_bound = *lower_bound;
    return best;
  }

  absl::StatusOr<std::optional<cut::Best>> WithReader(
      int tensor, cut::StageSet stages, const cut::Domains& domains) const {
    cut::Problem problem = problem_;
    problem.allowed = domains;
    // The reader is a node behind the others that costs nothing in any measure;
    // SplitSearch::Judge() drops it from the plan.
    problem.tensors[tensor].readers.push_back(problem.num_nodes());
    problem.allowed.push_back(stages);
    cut::Goal goal = search_.goal();
    for (cut::Measure& measure : goal.objectives) measure.stage.push_back({});
    for (cut::Limit& limit : goal.limits) limit.measure.stage.push_back({});
    return Solve(problem, goal);
  }

  static absl::StatusOr<std::optional<cut::Best>> Solve(
      const cut::Problem& problem, const cut::Goal& goal) {
    cut::Domains domains = problem.allowed;
    const auto is_empty = [](cut::StageSet stages) { return stages == 0; };
    // An empty domain means that no plan meets the requirement. FindBest()
    // would take it for an invalid problem.
    if (std::any_of(domains.begin(), domains.end(), is_empty) ||
        !cut::Propagate(problem, domains)) {
      return std::nullopt;
    }
    absl::StatusOr<cut::Found> found = cut::FindBest(problem, goal);
    // The problem was solved before, without the requirement; its only possible
    // error is that nothing legal is left.
    if (absl::IsInvalidArgument(found.status())) return std::nullopt;
    if (!found.ok()) return std::move(found).status();
    return std::move(found->best);
  }

  const SplitSearch& search_;
  const cut::Problem& problem_;
};

}  // namespace

absl::StatusOr<std::vector<ForcedCut>> FindForcedCuts(
    const Graph& graph, const base::Digest& model, const Conditions& conditions,
    const OptimalOptions& options, const OptimalSplit& split, int64_t at_most) {
  std::vector<ForcedCut> cuts;
  if (at_most <= 0) return cuts;
  REFRACT_ASSIGN_OR_RETURN(
      const SplitSearch search,
      SplitSearch::Create(graph, model, conditions, options));
  Forcing forcing(search);
  for (const Requirement& requirement :
       RequirementsOf(graph, split, search.sizes())) {
    REFRACT_ASSIGN_OR_RETURN(const std::optional<cut::Best> best,
                             forcing.Find(requirement));
    if (!best) continue;
    ForcedCut cut;
    cut.value = requirement.value;
    cut.up = requirement.up;
    cut.crosses = requirement.crosses;
    cut.alike = requirement.alike;
    REFRACT_ASSIGN_OR_RETURN(cut.best, search.Judge(best->stages, "forced"));
    cut.lower_bound = static_cast<double>(best->lower_bound) * search.unit();
    cut.proven = best->proven();
    cuts.push_back(std::move(cut));
    if (static_cast<int64_t>(cuts.size()) == at_most) break;
  }
  return cuts;
}

}  // namespace refract::partitioner

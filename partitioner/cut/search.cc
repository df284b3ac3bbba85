#include "partitioner/cut/search.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partitioner/cut/divide.h"
#include "partitioner/cut/mixture.h"
#include "partitioner/cut/order.h"
#include "partitioner/cut/relaxation.h"
#include "partitioner/cut/walk.h"
#include "partitioner/cut/weighted.h"

namespace refract::partitioner::cut {
namespace {

// A relaxed choice that bounded some domain, and its cost.
struct Column {
  Stages stages;
  Point point;
  Stages legal;  // a legal choice near it; empty: none is known
};
using Columns = std::vector<std::shared_ptr<const Column>>;

// A domain that is still to be examined.
struct Open {
  Domains domains;
  Cost lower_bound = 0;
  int depth = 0;
  // The multipliers found for the parent domain, as a starting point.
  Multipliers multipliers;
  Columns columns;
};

struct OpenOrder {
  // True when `a` is examined after `b`: least bound first, then deepest.
  bool operator()(const Open& a, const Open& b) const {
    if (a.lower_bound != b.lower_bound) return a.lower_bound > b.lower_bound;
    return a.depth < b.depth;
  }
};

// Column generation ends by itself; this bound stops it on numerical trouble.
constexpr int kMaxRounds = 100;
// Below the root, multipliers are good enough when better multipliers could
// close no more than this share of the gap: dividing the domain closes more.
constexpr double kWorthAnotherCut = 0.1;
// Passes of single moves through all nodes. Few are needed.
constexpr int kPasses = 4;
// Growth of penalties that turn out too small, and its limit.
constexpr double kMorePenalty = 1000;
constexpr double kMostPenalty = 1e12;

// `problem` without the stages and crossings that exceed a limit by themselves.
Problem Tighten(Problem problem, const std::vector<Limit>& limits) {
  for (const Limit& limit : limits) {
    const Measure& measure = limit.measure;
    const auto beyond = [&](Cost cost) { return cost > limit.at_most; };
    for (int n = 0; n < problem.num_nodes(); ++n) {
      for (int s = 0; s < kNumStages; ++s) {
        if (beyond(measure.stage[n][s])) problem.allowed[n] &= ~(1 << s);
      }
      if (beyond(measure.hn_used)) problem.allowed[n] &= ~kOnHn;
    }
    for (size_t t = 0; t < problem.tensors.size(); ++t) {
      Tensor& tensor = problem.tensors[t];
      tensor.may_go_up = tensor.may_go_up && !beyond(measure.up[t]);
      tensor.may_come_down = tensor.may_come_down && !beyond(measure.down[t]);
    }
    for (size_t s = 0; s < problem.shared.size(); ++s) {
      for (const int reader : problem.shared[s].readers) {
        if (beyond(measure.shared_on_cn[s])) problem.allowed[reader] &= ~kOnCn;
        if (beyond(measure.shared_on_hn[s])) problem.allowed[reader] &= ~kOnHn;
      }
    }
  }
  return problem;
}

class Search {
 public:
  Search(const Problem& problem, const Goal& goal)
      : problem_(Tighten(problem, goal.limits)),
        goal_(goal),
        order_(problem),
        divider_(problem_),
        two_labels_(problem_) {
    for (const Measure& measure : goal.objectives) {
      objectives_.push_back(&measure);
    }
    for (const Limit& limit : goal.limits) {
      limits_.push_back(&limit.measure);
      at_most_.push_back(limit.at_most);
    }
    if (!single()) walk_.emplace(problem_, objectives_, limits_, at_most_);
  }

  absl::StatusOr<Found> Run() {
    for (const Stages& stages : goal_.known) Offer(stages);
    Open root{.domains = problem_.allowed};
    root.multipliers.objectives.assign(
        objectives_.size(), 1.0 / static_cast<double>(objectives_.size()));
    root.multipliers.limits.assign(limits_.size(), 0.0);
    open_.push(std::move(root));
    while (!open_.empty() && found_.cuts < goal_.max_cuts) {
      Open open = open_.top();
      open_.pop();
      // The best choice may have improved since this domain was queued.
      if (found_.best && open.lower_bound >= found_.best->cost) continue;
      ++found_.branches;
      REFRACT_RETURN_IF_ERROR(LookInto(std::move(open)));
    }
    if (found_.best) {
      Cost least = found_.best->cost;
      if (!open_.empty()) least = std::min(least, open_.top().lower_bound);
      found_.best->lower_bound = least;
    }
    exhausted_ = open_.empty();
    return found_;
  }

  // Whether the search ended with a proof, not for want of cuts.
  bool exhausted() const { return exhausted_; }

 private:
  bool single() const { return objectives_.size() == 1 && limits_.empty(); }

  // Keeps `stages` as the best choice if they are legal, within the limits and
  // cheaper than the best so far.
  void Offer(const Stages& stages) {
    if (stages.size() != problem_.allowed.size() ||
        !IsLegal(problem_, stages)) {
      return;
    }
    for (size_t j = 0; j < limits_.size(); ++j) {
      if (Price(problem_, *limits_[j], stages) > at_most_[j]) return;
    }
    Cost cost = 0;
    for (const Measure* objective : objectives_) {
      cost = std::max(cost, Price(problem_, *objective, stages));
    }
    if (found_.best && found_.best->cost <= cost) return;
    found_.best = Best{.stages = stages, .cost = cost};
  }

  bool Beaten(Cost lower_bound) const {
    return found_.best && lower_bound >= found_.best->cost;
  }

  // Cost of `stages` by every measure, for the linear program.
  Point PointOf(const Stages& stages) const {
    Point point;
    for (const Measure* objective : objectives_) {
      point.objectives.push_back(
          static_cast<double>(Price(problem_, *objective, stages)));
    }
    for (const Measure* limit : limits_) {
      point.usages.push_back(
          static_cast<double>(Price(problem_, *limit, stages)));
    }
    return point;
  }

  // Penalty per unit of excess: an excess as large as the limit costs `more` ×
  // ten times the worst objective seen. This penalty drives mixtures within the
  // limits and keeps the sums accurate.
  std::vector<double> Penalties(const Columns& columns, double more) const {
    double worst = found_.best ? static_cast<double>(found_.best->cost) : 1;
    for (const auto& column : columns) {
      for (const double value : column->point.objectives) {
        worst = std::max(worst, value);
      }
    }
    std::vector<double> penalties;
    for (const Cost at_most : at_most_) {
      penalties.push_back(more * 10 * worst /
                          std::max(1.0, static_cast<double>(at_most)));
    }
    return penalties;
  }

  absl::Status LookInto(Open open) {
    if (!Propagate(problem_, open.domains)) return absl::OkStatus();
    Columns columns;
    for (const auto& column : open.columns) {
      if (single()) break;  // one cut is enough
      if (Fits(column->stages, open.domains)) columns.push_back(column);
    }
    Mixture mixture;
    mixture.multipliers = open.multipliers;
    double more = 1;           // penalty
    bool may_be_kept = false;  // limits not proven infeasible
    for (int round = 0; round < kMaxRounds; ++round) {
      const WeightedMeasure weighted(problem_, objectives_, limits_, at_most_,
                                     mixture.multipliers);
      REFRACT_ASSIGN_OR_RETURN(
          const std::optional<Relaxed> relaxed,
          two_labels_.Cut(weighted.measure(), open.domains, weighted.scale()));
      ++found_.cuts;
      if (!relaxed) return absl::OkStatus();
      open.lower_bound =
          std::max(open.lower_bound, weighted.LowerBound(relaxed->price));
      if (Beaten(open.lower_bound)) return absl::OkStatus();
      REFRACT_ASSIGN_OR_RETURN(Stages legal,
                               OfferLegal(*relaxed, weighted, open.domains));
      if (Beaten(open.lower_bound)) return absl::OkStatus();

      // A choice that was found before adds no column to the linear program.
      const bool is_new = std::none_of(
          columns.begin(), columns.end(),
          [&](const auto& known) { return known->stages == relaxed->stages; });
      if (is_new) {
        auto column = std::make_shared<Column>();
        column->stages = relaxed->stages;
        column->point = PointOf(relaxed->stages);
        column->legal = std::move(legal);
        columns.push_back(std::move(column));
      }
      if (single()) {
        mixture.shares.assign(columns.size(), 0.0);
        mixture.shares.back() = 1;
        break;
      }
      std::vector<Point> points;
      for (const auto& known : columns) points.push_back(known->point);
      const std::vector<double> limits(at_most_.begin(), at_most_.end());
      mixture = BestMixture(points, limits, Penalties(columns, more));
      // No multipliers can prove a bound above the mixture's value. A repeated
      // choice means that the remaining improvement is below the precision of
      // doubles.
      const double most = mixture.value * (1 - 1e-12);
      const bool settled =
          std::ceil(most) <= static_cast<double>(open.lower_bound) ||
          (!is_new && round > 0);
      if (settled && !mixture.exceeds) break;
      if (open.depth > 0 && !mixture.exceeds && found_.best &&
          mixture.value - static_cast<double>(open.lower_bound) <
              kWorthAnotherCut *
                  static_cast<double>(found_.best->cost - open.lower_bound)) {
        break;
      }
      if (settled) {
        // The cheapest mixture still exceeds a limit: either the domain has no
        // feasible choice, or the penalties are too small because all choices
        // so far cost little.
        if (!may_be_kept) {
          REFRACT_ASSIGN_OR_RETURN(const bool hopeless,
                                   ExceedsLimits(open.domains, columns));
          if (hopeless) return absl::OkStatus();
          may_be_kept = true;
        }
        if (more >= kMostPenalty) break;
        more *= kMorePenalty;
        mixture = BestMixture(points, limits, Penalties(columns, more));
      }
      if (found_.cuts >= goal_.max_cuts) break;
    }
    if (mixture.exceeds && !may_be_kept) {
      REFRACT_ASSIGN_OR_RETURN(const bool hopeless,
                               ExceedsLimits(open.domains, columns));
      if (hopeless) return absl::OkStatus();
    }
    if (!single()) {
      WalkBetween(columns, mixture.shares);
      if (Beaten(open.lower_bound)) return absl::OkStatus();
    }
    // Children start from these multipliers and columns: their own are close.
    open.multipliers = mixture.multipliers;
    open.columns = columns;
    return Divide(std::move(open), mixture.shares);
  }

  // Offers choices on the walks between the two choices with the largest
  // shares.
  void WalkBetween(const Columns& columns, const std::vector<double>& shares) {
    const Column* main = nullptr;
    const Column* second = nullptr;
    double most = 0;
    double less = 0;
    for (size_t k = 0; k < columns.size(); ++k) {
      const double share = k < shares.size() ? shares[k] : 0;
      if (columns[k]->legal.empty() || share <= less) continue;
      if (share > most) {
        second = std::exchange(main, columns[k].get());
        less = std::exchange(most, share);
      } else {
        second = columns[k].get();
        less = share;
      }
    }
    if (second == nullptr) return;
    for (const auto& [from, to] :
         {std::pair(main, second), std::pair(second, main)}) {
      walk_->Start(from->legal);
      walk_->GoTowards(to->legal);
      walk_->Descend(kPasses);
      Offer(walk_->stages());
    }
  }

  // Whether some weighting of the limits proves that no choice within `domains`
  // keeps them all: the largest usage ÷ limit is at least its weighted mean.
  absl::StatusOr<bool> ExceedsLimits(const Domains& domains,
                                     const Columns& columns) {
    // A limit of 0 counts as half a unit, which a usage of 1 still exceeds.
    std::vector<double> limits;
    for (const Cost at_most : at_most_) {
      limits.push_back(at_most > 0 ? static_cast<double>(at_most) : 0.5);
    }
    std::vector<Point> points;
    const auto add = [&](const std::vector<double>& usages) {
      Point point;
      for (size_t j = 0; j < usages.size(); ++j) {
        point.objectives.push_back(usages[j] / limits[j]);
      }
      points.push_back(std::move(point));
    };
    for (const auto& column : columns) add(column->point.usages);
    for (int round = 0; round < kMaxRounds; ++round) {
      const Mixture mixture = BestMixture(points, {}, {});
      if (mixture.value <= 1) return false;
      Multipliers multipliers;
      for (size_t j = 0; j < limits.size(); ++j) {
        multipliers.limits.push_back(mixture.multipliers.objectives[j] /
                                     limits[j]);
      }
      const WeightedMeasure weighted(problem_, {}, limits_, at_most_,
                                     multipliers);
      REFRACT_ASSIGN_OR_RETURN(
          const std::optional<Relaxed> relaxed,
          two_labels_.Cut(weighted.measure(), domains, weighted.scale()));
      ++found_.cuts;
      if (!relaxed || weighted.LowerBound(relaxed->price) > 0) return true;
      Offer(relaxed->stages);
      if (found_.cuts >= goal_.max_cuts) return false;
      add(PointOf(relaxed->stages).usages);
    }
    return false;
  }

  static bool Fits(const Stages& stages, const Domains& domains) {
    for (size_t n = 0; n < stages.size(); ++n) {
      if ((domains[n] & (1 << stages[n])) == 0) return false;
    }
    return true;
  }

  // Offers legal choices near `relaxed`: `relaxed` itself with CN stages put in
  // order, or else the three-stage cut. Returns the last offered choice, empty
  // if there is none.
  absl::StatusOr<Stages> OfferLegal(const Relaxed& relaxed,
                                    const WeightedMeasure& weighted,
                                    const Domains& domains) {
    if (IsLegal(problem_, relaxed.stages)) {
      Offer(relaxed.stages);
      return relaxed.stages;
    }
    Domains settled = domains;
    for (size_t n = 0; n < settled.size(); ++n) {
      settled[n] &= relaxed.stages[n] == kHn ? kOnHn : kOnCn;
    }
    if (Propagate(problem_, settled)) {
      // The set of HN nodes is fixed, and with it every domain except the order
      // on the CN. The three-stage cut is exact then.
      Stages earliest;
      for (const StageSet set : settled) {
        earliest.push_back(set & kOnPre ? kPre : set & kOnHn ? kHn : kPost);
      }
      Offer(earliest);
      if (IsLegal(problem_, earliest) &&
          Price(problem_, weighted.measure(), earliest) == relaxed.price) {
        return earliest;
      }
    } else {
      settled = domains;
    }
    if (!three_stages_) three_stages_.emplace(problem_);
    REFRACT_ASSIGN_OR_RETURN(
        const std::optional<Stages> stages,
        three_stages_->Cut(weighted.measure(), settled, weighted.scale()));
    ++found_.cuts;
    if (!stages || !IsLegal(problem_, *stages)) return Stages();
    Offer(*stages);
    return *stages;
  }

  // Divides a domain at one node into the stages that it may be in.
  absl::Status Divide(Open open, const std::vector<double>& shares) {
    const int node = NodeToDivide(open, shares);
    if (node < 0) {
      // The domain has a single choice, which was offered.
      return absl::OkStatus();
    }
    for (const StageSet stage : {kOnPre, kOnHn, kOnPost}) {
      if ((open.domains[node] & stage) == 0) continue;
      Open part = open;
      part.domains[node] = stage;
      ++part.depth;
      open_.push(std::move(part));
    }
    return absl::OkStatus();
  }

  // −1: every node has one stage left.
  int NodeToDivide(const Open& open, const std::vector<double>& shares) const {
    // The relaxed choice with the largest share, if it breaks the order of
    // stages: divide at a node between two HN nodes, or at a node before its
    // producers.
    size_t main = 0;
    for (size_t k = 0; k < shares.size(); ++k) {
      if (shares[k] >= shares[main]) main = k;
    }
    const int between =
        order_.NodeOutOfOrder(open.columns[main]->stages, open.domains);
    if (between >= 0) return between;
    std::vector<std::pair<const Stages*, double>> choices;
    for (size_t k = 0; k < shares.size(); ++k) {
      if (shares[k] > 0) {
        choices.emplace_back(&open.columns[k]->stages, shares[k]);
      }
    }
    const WeightedMeasure weighted(problem_, objectives_, limits_, at_most_,
                                   open.multipliers);
    int node = divider_.Undecided(choices, open.domains,
                                  divider_.WeightsOf(weighted.measure()));
    for (int n = 0; n < problem_.num_nodes() && node < 0; ++n) {
      if ((open.domains[n] & (open.domains[n] - 1)) != 0) node = n;
    }
    return node;
  }

  const Problem problem_;
  const Goal& goal_;
  const Order order_;
  const Divider divider_;
  TwoLabels two_labels_;
  std::optional<ThreeStages> three_stages_;  // once one is needed
  std::optional<Walk> walk_;                 // unless single()
  std::vector<const Measure*> objectives_;
  std::vector<const Measure*> limits_;
  std::vector<Cost> at_most_;
  std::priority_queue<Open, std::vector<Open>, OpenOrder> open_;
  Found found_;
  bool exhausted_ = false;
};

// The first limit that no choice meets alone, or else together with the limits
// before it.
absl::StatusOr<std::optional<Shortfall>> Explain(const Problem& problem,
                                                 const Goal& goal,
                                                 Found& found) {
  for (const bool alone : {true, false}) {
    for (size_t j = alone ? 0 : 1; j < goal.limits.size(); ++j) {
      Goal least;
      least.objectives = {goal.limits[j].measure};
      if (!alone) {
        least.limits.assign(goal.limits.begin(), goal.limits.begin() + j);
      }
      least.max_cuts = goal.max_cuts;
      REFRACT_ASSIGN_OR_RETURN(const Found answer,
                               Search(problem, least).Run());
      found.cuts += answer.cuts;
      found.branches += answer.branches;
      if (answer.best && answer.best->lower_bound > goal.limits[j].at_most) {
        return Shortfall{
            .limit = j, .least = answer.best->lower_bound, .alone = alone};
      }
    }
  }
  return std::nullopt;
}

absl::Status Validate(const Problem& problem, const Goal& goal) {
  REFRACT_RETURN_IF_ERROR(ValidateProblem(problem));
  if (goal.objectives.empty()) {
    return absl::InvalidArgumentError("the goal has no objective");
  }
  for (size_t i = 0; i < goal.objectives.size(); ++i) {
    REFRACT_RETURN_IF_ERROR(ValidateMeasure(problem, goal.objectives[i],
                                            absl::StrCat("objective ", i)));
  }
  for (const Limit& limit : goal.limits) {
    REFRACT_RETURN_IF_ERROR(
        ValidateMeasure(problem, limit.measure, limit.name));
    if (limit.at_most < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(limit.name, ": the limit is negative"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Found> FindBest(const Problem& problem, const Goal& goal) {
  REFRACT_RETURN_IF_ERROR(Validate(problem, goal));
  Search search(problem, goal);
  REFRACT_ASSIGN_OR_RETURN(Found found, search.Run());
  if (found.best) return found;
  if (goal.limits.empty() && search.exhausted()) {
    return absl::InvalidArgumentError(
        "no assignment of stages is legal: for some node, the stages that it "
        "may run in contradict those of its producers and readers");
  }
  REFRACT_ASSIGN_OR_RETURN(found.shortfall, Explain(problem, goal, found));
  return found;
}

}  // namespace refract::partitioner::cut

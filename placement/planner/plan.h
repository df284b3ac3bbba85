#ifndef REFRACT_PLACEMENT_PLANNER_PLAN_H_
#define REFRACT_PLACEMENT_PLANNER_PLAN_H_

// The capacity plan of a spec: per service the cheapest configuration found,
// its numbers of instances, nodes and NICs, its highest rate, its price, and
// how the answer depends on its inputs.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "placement/planner/deployment.h"
#include "placement/planner/sizing.h"
#include "placement/planner/spec.h"

namespace refract::placement {

struct PlanOptions {
  SizingOptions sizing;
  // Configurations that are sized by simulation, per service.
  int samples = 12;
  bool sensitivity = true;
  // Called with lines for people about the progress; may be empty.
  std::function<void(const std::string&)> progress;
};

// A configuration that was sized by simulation.
struct Tried {
  Configuration configuration;
  bool met = false;
  std::string why_not;
  int cns = 0;
  int hns = 0;
  double price = 0;
  double p99_s = 0;
  double formula_price = 0;  // by the formulas alone
};

struct LoadPoint {
  double requests_per_s = 0;
  RepeatedResult result;
};

// The answer with one input changed.
struct Sensitivity {
  std::string input;  // "HN time"
  double factor = 1;  // of the input
  bool met = false;
  int cns = 0;
  int hns = 0;
  double price = 0;
};

// Resources of the deployment, and its rate within the objective per resource:
// the knee divided by each.
struct Efficiency {
  double gpus = 0;  // whole GPUs: slices count as their part
  double cores = 0;
  double nics = 0;
  double price_per_h = 0;
  double knee = 0;
};

// An answer: the disaggregated deployment or the monolith.
struct Answer {
  SizingInput input;  // of the spec that the plan was made from
  Sizing sizing;
  int cn_nodes = 0;
  int hn_nodes = 0;
  double nodes_price_per_h = 0;  // of whole nodes
  double knee = 0;               // highest rate with p99 ≤ the objective
  std::vector<LoadPoint> sweep;  // ascending rates, up to beyond the knee
  Efficiency efficiency;
};

// A part of the day.
struct DayPart {
  double queries_per_s = 0;  // times the burst
  int cns = 1;
  int hns = 1;
  double price_per_h = 0;
};

struct ServicePlan {
  std::string name;
  Answer answer;
  std::vector<Tried> tried;  // in order
  int possible = 0;          // configurations of the spec
  // No configuration that was not tried can be cheaper: even with every
  // resource always busy it would cost more.
  bool proven = false;
  std::optional<Answer> monolith;
  std::string why_no_monolith;  // where it was asked for and is impossible
  std::vector<Sensitivity> sensitivity;
  std::vector<DayPart> day;  // one per entry of the curve
};

struct NodeUse {
  std::string type;
  int64_t nodes = 0;
  int64_t available = -1;  // -1: as many as needed
  double price_per_h = 0;  // of all of them
};

// Views of the spec: it must outlive the plan.
struct Plan {
  std::vector<ServicePlan> services;
  std::vector<NodeUse> nodes;
  double price_per_h = 0;  // of all nodes
};

// `spec` must be checked. InvalidArgument: a demand that cannot be met, with
// the service, the figure and the resource that binds.
absl::StatusOr<Plan> MakePlan(const PlanSpec& spec, const PlanOptions& options);

// For manifests.
Deployment DeploymentOf(const PlanSpec& spec, const Plan& plan);

// "48 cores, 2g, 500 us"
std::string Text(const Configuration& configuration);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_PLANNER_PLAN_H_

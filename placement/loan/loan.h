#ifndef REFRACT_PLACEMENT_LOAN_LOAN_H_
#define REFRACT_PLACEMENT_LOAN_LOAN_H_

// Loans: which training nodes to borrow for a peak of traffic, and when each
// step happens. HN instances run on borrowed nodes; CN instances never do,
// since their tables take too long to move.
//
// Borrowing a node stops the training jobs on it. A stopped job repeats the
// work since its last checkpoint, on all its GPUs: its cost is GPUs × that time
// (the rule of "Heterogeneity at Hyperscale", OSDI '26). A job that runs on
// several borrowed nodes is stopped once.
//
//   dormant_at ──── hand_over ──── start ════ peak ════ end ──── give_back
//   instances are   jobs stop,     traffic              drain    jobs go on
//   placed without  instances      comes
//   a GPU           warm up
//
// Times are seconds; all times of a plan count from one zero.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "placement/cluster/cluster.h"
#include "placement/cluster/instance.h"

namespace refract::placement {

struct LoanService {
  std::string name;
  int cns = 0;
  Demand cn;
  int hns = 0;
  Demand hn;
  int hn_max_per_node = -1;
  std::string pod;  // of all HNs; empty: any
};

// A training job.
struct LenderJob {
  std::string name;
  std::vector<int> nodes;  // indices of LoanSpec::lenders
  int gpus = 0;            // of all its nodes
  double last_checkpoint = 0;
  double checkpoint_every = 0;  // 0: none after `last_checkpoint`
};

struct LoanSpec {
  std::vector<LoanService> services;
  Cluster own;      // for CN instances
  Cluster lenders;  // training nodes
  // Per lender: begin and end of its availability.
  std::vector<double> from;
  std::vector<double> until;
  // Per lender: cores and memory that training leaves free, for dormant
  // instances.
  std::vector<int64_t> free_cpu_milli;
  std::vector<int64_t> free_memory_mib;
  std::vector<LenderJob> jobs;
  double start = 0;  // of the peak
  double end = 0;
  double warm_up = 300;   // of instances that were dormant
  double drain = 60;      // after the last grant
  double dormant = 3600;  // before the hand-over
  // Demand of a dormant instance, which gets its GPU at the hand-over.
  int64_t dormant_cpu_milli = 100;
  int64_t dormant_memory_mib = 0;
  // The whole model in one container, one in place of each HN, for comparison;
  // gpus = 0: no comparison.
  Demand monolith;

  double hand_over() const { return start - warm_up; }
  double give_back() const { return end + drain; }
};

struct Lease {
  int node = -1;  // of LoanSpec::lenders
  double from = 0;
  double until = 0;
  std::vector<int> jobs;  // that stop for it, of LoanSpec::jobs
};

struct LoanPlacement {
  int service = -1;
  int number = 0;        // 0, 1, … within the service and role
  int node = -1;         // of lenders for HNs, of own for CNs
  bool dormant = false;  // placed ahead
};

struct LoanPlan {
  std::vector<Lease> leases;  // in the order of node names
  std::vector<int> stopped;   // jobs
  double cost_gpu_s = 0;      // GPU seconds that training repeats
  double lent_gpu_s = 0;      // GPU seconds of the leases
  bool proven = false;        // no cheaper set of nodes exists
  std::vector<LoanPlacement> hns;
  std::vector<LoanPlacement> cns;
  int monolith_nodes = 0;  // of the largest lender's shape; 0: not compared
};

// GPU seconds lost by stopping the job at `time`.
double StopCost(const LenderJob& job, double time);

// InvalidArgument names the field: a demand that no lender's or own node meets,
// and the resource that binds; or all lenders together have too little.
absl::StatusOr<LoanPlan> PlanLoan(const LoanSpec& spec);

// Reads JSON; errors as of ParsePlanSpec().
absl::StatusOr<LoanSpec> ParseLoanSpec(absl::string_view text,
                                       absl::string_view path);

// Results as JSON, as comma-separated events (time, action, node, what), for a
// terminal, and as an HTML page.
std::string LoanToJson(const LoanSpec& spec, const LoanPlan& plan);
std::string LoanToCsv(const LoanSpec& spec, const LoanPlan& plan);
std::string LoanToText(const LoanSpec& spec, const LoanPlan& plan);
std::string LoanToHtml(const LoanSpec& spec, const LoanPlan& plan);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_LOAN_LOAN_H_

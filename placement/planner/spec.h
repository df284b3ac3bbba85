#ifndef REFRACT_PLACEMENT_PLANNER_SPEC_H_
#define REFRACT_PLACEMENT_PLANNER_SPEC_H_

// Inputs of a capacity plan: node types with prices, and services with a
// model's costs, a latency objective and traffic.
// docs/reference/planning_files.md lists the fields of the file.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "placement/cluster/instance.h"
#include "placement/planner/costs.h"

namespace refract::placement {

// Available machines.
struct NodeType {
  std::string name;
  double cores = 0;
  double memory_gib = 0;
  int gpus = 0;
  std::string gpu_model;
  int nics = 1;
  double nic_gbps = 200;
  double price_per_h = 0;  // any currency
  int64_t count = -1;      // available; -1 = as many as needed
  std::vector<std::pair<std::string, std::string>> labels;
};

// A part of a GPU for an HN instance.
struct GpuPart {
  MigProfile mig = MigProfile::kNone;  // kNone: whole GPU
  // Time of an execution ÷ time on a whole GPU.
  double slowdown = 1;
  bool slowdown_given = false;
};

// Lists are alternatives: the plan takes the cheapest combination.
struct CnOptions {
  std::string node;                // NodeType::name
  std::vector<double> cores;       // of an instance; ≥ 1 entry, whole numbers
  double memory_gib = 0;           // of an instance
  std::optional<int> nic_percent;  // default: the NICs shared evenly
  int max_per_node = -1;
};
struct HnOptions {
  std::string node;
  double cores = 4;  // of an instance
  double memory_gib = 16;
  std::optional<int> nic_percent;
  int max_per_node = -1;
  std::vector<GpuPart> parts;  // ≥ 1 entry
  int parallel = 1;            // executions at once (--instances)
  // Negative: requests are not merged.
  std::vector<double> batching_window_us = {-1};
  int64_t max_batch_rows = 1024;
};
// The whole model in one container, before disaggregation.
struct MonolithOptions {
  std::string node;  // with GPUs
  double cores = 48;
  double memory_gib = 0;
};

struct Traffic {
  double queries_per_s = 0;  // at the peak of the curve
  double burst = 1;          // the plan holds for this many times the peak
  // A day's rates as parts of the peak, evenly spaced; empty: always the peak.
  std::vector<double> curve;
  std::vector<double> rows = {1};  // items per query, equally likely
};

// Source of a model's costs if the file names a version instead of figures. The
// reader of the file fills `costs` through a ModelReader.
struct ModelSource {
  std::string path;  // DIR/NAME or DIR/NAME/VERSION
  std::string calibration;
  std::string cn;  // hardware; empty: the profile beside the version
  std::string hn = "a100";
  std::vector<int64_t> batches = {1, 16, 64, 256, 1024};
};

struct ServiceSpec {
  std::string name;  // a DNS label
  std::optional<ModelSource> source;
  ModelCosts costs;
  double slo_p99_s = 0;
  Traffic traffic;
  CnOptions cn;
  HnOptions hn;
  std::optional<MonolithOptions> monolith;
};

struct PlanSpec {
  std::string name = "refract";
  std::string currency = "$";
  std::vector<NodeType> nodes;
  std::vector<ServiceSpec> services;
  // For manifests.
  std::string image = "refract:latest";
  std::string model_repository = "/models";
  std::vector<std::string> tier_keys;

  const NodeType* FindNode(absl::string_view name) const;
};

// Price per hour by name of the node type.
using Prices = absl::flat_hash_map<std::string, double>;

// A price list: comma-separated, columns node and price_per_h; other columns
// are ignored. InvalidArgument names file, line and column.
absl::StatusOr<Prices> ReadPrices(const std::string& path);

// Readers that the caller of the spec's reader provides.
struct SpecReaders {
  // Costs of a version; the path is relative to the current folder.
  std::function<absl::StatusOr<ModelCosts>(const ModelSource&)> model;
  // Items per query of "fixed:N", "mlperf", "file:PATH".
  std::function<absl::StatusOr<std::vector<double>>(absl::string_view)> rows;
  // Replace the file's prices; node types without an entry keep theirs.
  Prices prices = {};
};

// Reads JSON with // comments. `path` appears in errors. Every error is
// InvalidArgument and names the field: "spec.json: services[0].slo.p99_ms: …";
// errors of `readers` pass with the field before them. The result is checked.
absl::StatusOr<PlanSpec> ParsePlanSpec(absl::string_view text,
                                       absl::string_view path,
                                       const SpecReaders& readers);

// InvalidArgument names the field that contradicts another: a node type twice,
// a service on a node type that is missing or lacks GPUs, an instance larger
// than its node, a model that does not fit the instance's memory.
absl::Status Check(const PlanSpec& spec);

// Time on a MIG slice ÷ time on a whole GPU, if not measured: as if all of the
// time were arithmetic, in proportion to the compute slices (7 of a GPU). Too
// high for small models, whose launches take as long on a slice.
double AssumedSlowdown(MigProfile profile);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_PLANNER_SPEC_H_

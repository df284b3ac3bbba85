#ifndef REFRACT_TESTS_PLACEMENT_PLANNER_SPECS_H_
#define REFRACT_TESTS_PLACEMENT_PLANNER_SPECS_H_

// A small spec of a capacity plan, as a file and as values.

#include <string>

#include "placement/planner/spec.h"

namespace refract::placement {

inline constexpr char kSpecText[] = R"json({
  // One service on two kinds of nodes.
  "name": "demo",
  "nodes": [
    {"name": "cpu", "cores": 64, "memory_gib": 512, "nic_gbps": 100,
     "price_per_h": 3, "labels": {"pool": "cpu"}},
    {"name": "gpu", "cores": 128, "memory_gib": 1024, "gpus": 8,
     "gpu_model": "A100", "nics": 4, "nic_gbps": 200, "price_per_h": 24}
  ],
  "services": [{
    "name": "ranker",
    "model": {
      "profile": [
        {"rows": 1, "cn_pre_ms": 1, "cn_post_ms": 0.1, "hn_ms": 0.5,
         "up_kib": 10, "down_kib": 1},
        {"rows": 256, "cn_pre_ms": 5, "cn_post_ms": 0.3, "hn_ms": 2,
         "up_kib": 2560, "down_kib": 64}
      ],
      "round_trip_us": 20, "cn_memory_gib": 100, "hn_memory_gib": 2,
      "variation": {"cn": 0.1, "hn": [0.9, 1.0, 1.1]}
    },
    "slo": {"p99_ms": 25},
    "traffic": {"queries_per_s": 4000, "burst": 1.2,
                "curve": [0.2, 0.5, 1.0, 0.6], "query_sizes": "fixed:256"},
    "cn": {"node": "cpu", "cores": [8, 16], "memory_gib": 120},
    "hn": {"node": "gpu", "cores": 4, "memory_gib": 16,
           "gpu_parts": [{"part": "whole"}, {"part": "2g", "slowdown": 2.2}],
           "batching_window_us": ["off", 200], "max_batch_rows": 1024},
    "monolith": {"node": "gpu", "cores": 16, "memory_gib": 120}
  }]
})json";

// Knows "fixed:N" and the version "models/m".
inline SpecReaders TestReaders() {
  return {
      .model = [](const ModelSource& source) -> absl::StatusOr<ModelCosts> {
        if (source.path != "models/m") {
          return absl::NotFoundError("no such version");
        }
        ModelCosts costs;
        costs.points = {{.cn_pre_s = 0.001, .hn_s = 0.001}};
        return costs;
      },
      .rows =
          [](absl::string_view text) -> absl::StatusOr<std::vector<double>> {
        if (text.substr(0, 6) != "fixed:") {
          return absl::InvalidArgumentError("knows fixed:N alone");
        }
        return std::vector<double>{std::stod(std::string(text.substr(6)))};
      }};
}

}  // namespace refract::placement

#endif  // REFRACT_TESTS_PLACEMENT_PLANNER_SPECS_H_

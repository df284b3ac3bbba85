#ifndef REFRACT_PLACEMENT_REPORT_PLAN_REPORT_H_
#define REFRACT_PLACEMENT_REPORT_PLAN_REPORT_H_

// A capacity plan for people and programs. docs/how-to/planning.md explains the
// fields.

#include <string>
#include <utility>
#include <vector>

#include "placement/planner/plan.h"

namespace refract::placement {

// One JSON object with all fields of the plan.
std::string PlanToJson(const PlanSpec& spec, const Plan& plan);

// One HTML page that needs no other files and no network.
std::string PlanToHtml(const PlanSpec& spec, const Plan& plan);

// Tables as comma-separated values: file name, text. load.csv (p50 and p99 by
// rate), search.csv (configurations), sensitivity.csv, day.csv.
std::vector<std::pair<std::string, std::string>> PlanToCsv(const PlanSpec& spec,
                                                           const Plan& plan);

// A text for the terminal.
std::string PlanToText(const PlanSpec& spec, const Plan& plan);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_REPORT_PLAN_REPORT_H_

#ifndef REFRACT_PLACEMENT_REPORT_PLAN_JSON_H_
#define REFRACT_PLACEMENT_REPORT_PLAN_JSON_H_

#include "nlohmann/json_fwd.hpp"
#include "placement/planner/plan.h"

namespace refract::placement {

// The JSON of PlanToJson() and of the page.
nlohmann::ordered_json PlanJson(const PlanSpec& spec, const Plan& plan);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_REPORT_PLAN_JSON_H_

#include <string>

#include "base/html_page.h"
#include "base/json.h"
#include "nlohmann/json.hpp"
#include "placement/report/page_files.h"
#include "placement/report/plan_json.h"
#include "placement/report/plan_report.h"

namespace refract::placement {

std::string PlanToJson(const PlanSpec& spec, const Plan& plan) {
  return base::FormatJson(PlanJson(spec, plan), 2) + "\n";
}

std::string PlanToHtml(const PlanSpec& spec, const Plan& plan) {
  return base::FillPage(PlanPageFiles(),
                        base::FormatJson(PlanJson(spec, plan)));
}

}  // namespace refract::placement

#include <string>

#include "base/html_page.h"
#include "nlohmann/json.hpp"
#include "placement/report/page_files.h"
#include "placement/report/plan_json.h"
#include "placement/report/plan_report.h"

namespace refract::placement {

// Names come from the user's file, so they need not be UTF-8.
constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;

std::string PlanToJson(const PlanSpec& spec, const Plan& plan) {
  return PlanJson(spec, plan).dump(2, ' ', false, kReplace) + "\n";
}

std::string PlanToHtml(const PlanSpec& spec, const Plan& plan) {
  return base::FillPage(PlanPageFiles(),
                        PlanJson(spec, plan).dump(-1, ' ', false, kReplace));
}

}  // namespace refract::placement

#include "tools/bench_serving/serving_page.h"

#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "nlohmann/json.hpp"

namespace refract::tools {
namespace {

bool IsServingReport(const nlohmann::ordered_json& json) {
  const auto is = [&json](const char* key, auto check) {
    const auto it = json.find(key);
    return it != json.end() && check(*it);
  };
  using Json = nlohmann::ordered_json;
  const auto object = [](const Json& value) { return value.is_object(); };
  const auto list = [](const Json& value) { return value.is_array(); };
  const auto number = [](const Json& value) { return value.is_number(); };
  return json.is_object() && json.value("benchmark", Json()) == "serving" &&
         is("options", object) && is("latency_ms", object) &&
         is("sent_late_ms", object) && is("percentiles", list) &&
         is("timeline", list) && is("timeline_width_s", number);
}

}  // namespace

absl::StatusOr<std::string> ServingPage(
    const std::vector<NamedReport>& reports) {
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  for (const NamedReport& report : reports) {
    auto json = base::ParseOrderedJson(report.json);
    if (json.is_discarded() || !IsServingReport(json)) {
      return absl::InvalidArgumentError(absl::StrCat(
          report.path, ": is no report of refract bench serving --json"));
    }
    json["name"] = std::filesystem::path(report.path).stem().string();
    runs.push_back(std::move(json));
  }
  return base::FillPage(
      ServingPageFiles(),
      base::FormatJson(nlohmann::ordered_json{{"runs", runs}}));
}

}  // namespace refract::tools

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "partitioner/report/split_report.h"

namespace refract::partitioner {

using models::SplitPlan;
using models::ValueId;
using models::WireForm;

nlohmann::ordered_json WireToJson(const models::Graph& graph,
                                  const SplitPlan& plan,
                                  const WireReport& report) {
  using nlohmann::ordered_json;
  const models::WireMeasurement& measured = *plan.measured;
  const auto values = [&](const std::vector<ValueId>& ids,
                          const std::vector<WireForm>& forms,
                          const std::vector<double>& bytes,
                          const std::vector<double>& plain_bytes,
                          const std::vector<std::optional<double>>& errors) {
    ordered_json list = ordered_json::array();
    for (size_t i = 0; i < ids.size(); ++i) {
      list.push_back({{"name", graph.value(ids[i]).name},
                      {"type", models::Name(forms[i].type)},
                      {"unique_rows", forms[i].unique_rows},
                      {"bytes", bytes[i]},
                      {"plain_bytes", plain_bytes[i]},
                      {"max_abs_error_alone", i < errors.size() && errors[i] &&
                                                      std::isfinite(*errors[i])
                                                  ? ordered_json(*errors[i])
                                                  : ordered_json()}});
    }
    return list;
  };
  // JSON has no infinity: null.
  const auto number = [](double value) {
    return std::isfinite(value) ? ordered_json(value) : ordered_json();
  };
  ordered_json outputs = ordered_json::array();
  for (const models::WireError& error : measured.errors) {
    outputs.push_back(
        {{"output", error.output},
         {"max_abs_error", number(error.max_abs)},
         {"largest_value", number(error.largest_value)},
         {"max_relative_error",
          error.largest_value > 0 ? number(error.max_abs / error.largest_value)
                                  : ordered_json()}});
  }
  return {
      {"sample", measured.sample},
      {"requests", measured.requests},
      {"error_bound",
       measured.bound ? ordered_json(*measured.bound) : ordered_json()},
      {"outputs", std::move(outputs)},
      {"message_bytes_up", report.chosen.message_bytes_up},
      {"message_bytes_down", report.chosen.message_bytes_down},
      {"plain_message_bytes_up", report.plain.message_bytes_up},
      {"plain_message_bytes_down", report.plain.message_bytes_down},
      {"up", values(plan.up, report.forms.up, report.chosen.up_bytes,
                    report.plain.up_bytes, report.up_errors)},
      {"down", values(plan.down, report.forms.down, report.chosen.down_bytes,
                      report.plain.down_bytes, report.down_errors)},
  };
}

}  // namespace refract::partitioner

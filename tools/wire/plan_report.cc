#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tools/wire/plan.h"

namespace refract::tools {

using models::SplitPlan;
using models::ValueId;
using models::WireForm;
using models::WireType;

namespace {

std::string FormText(WireForm form) {
  return absl::StrCat(
      form.type == WireType::kAsIs ? "as is" : models::Name(form.type),
      form.unique_rows ? ", equal rows once" : "");
}

// One line each: form, bytes with and without it, the error that it alone
// makes.
void PrintLargest(const models::Graph& graph, const SplitPlan& plan,
                  const WireReport& report, std::ostream& out) {
  constexpr size_t kShown = 10;
  struct Line {
    std::string text;
    double plain_bytes;
  };
  std::vector<Line> lines;
  const auto add = [&](const char* direction, const std::vector<ValueId>& ids,
                       const std::vector<WireForm>& forms,
                       const std::vector<double>& bytes,
                       const std::vector<double>& plain_bytes,
                       const std::vector<std::optional<double>>& errors) {
    for (size_t i = 0; i < ids.size() && i < forms.size(); ++i) {
      if (forms[i].is_plain()) continue;
      std::string text =
          absl::StrFormat("    %-4s %s: %s, %.0f of %.0f bytes", direction,
                          graph.value(ids[i]).name, FormText(forms[i]),
                          bytes[i], plain_bytes[i]);
      if (i < errors.size() && errors[i]) {
        absl::StrAppend(
            &text, *errors[i] == 0
                       ? std::string(", exact")
                       : absl::StrFormat(", alone off by %.4g", *errors[i]));
      }
      lines.push_back({std::move(text), plain_bytes[i]});
    }
  };
  add("up", plan.up, report.forms.up, report.chosen.up_bytes,
      report.plain.up_bytes, report.up_errors);
  add("down", plan.down, report.forms.down, report.chosen.down_bytes,
      report.plain.down_bytes, report.down_errors);
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) {
                     return a.plain_bytes > b.plain_bytes;
                   });
  for (size_t i = 0; i < lines.size() && i < kShown; ++i) {
    out << lines[i].text << "\n";
  }
  if (lines.size() > kShown) {
    out << "    and " << lines.size() - kShown << " more\n";
  }
}

}  // namespace

void PrintWire(const models::Graph& graph, const SplitPlan& plan,
               const WireReport& report, std::ostream& out) {
  const models::WireMeasurement& measured = *plan.measured;
  out << "on the wire (" << measured.requests << " requests, "
      << measured.sample << ")\n";
  out << absl::StrFormat("  a request: %.0f bytes up, %.0f down",
                         report.chosen.message_bytes_up,
                         report.chosen.message_bytes_down)
      << absl::StrFormat("; %.0f and %.0f with all tensors as they are\n",
                         report.plain.message_bytes_up,
                         report.plain.message_bytes_down);
  // Tensors of one form together: there may be hundreds.
  std::vector<std::pair<std::string, int>> counts;
  const auto count = [&](const char* direction, WireForm form) {
    const std::string text = absl::StrCat(direction, ": ", FormText(form));
    for (auto& [known, number] : counts) {
      if (known == text) return void(++number);
    }
    counts.emplace_back(text, 1);
  };
  for (const WireForm form : report.forms.up) count("up", form);
  for (const WireForm form : report.forms.down) count("down", form);
  for (const auto& [text, number] : counts) {
    out << absl::StrFormat("  %4d %s\n", number, text);
  }
  PrintLargest(graph, plan, report, out);
  for (const models::WireError& error : measured.errors) {
    out << absl::StrFormat("  output %s: off by up to %.4g", error.output,
                           error.max_abs);
    if (error.largest_value > 0) {
      out << absl::StrFormat(" (%.2g of the largest, %.4g)",
                             error.max_abs / error.largest_value,
                             error.largest_value);
    }
    if (measured.bound) {
      out << absl::StrFormat("; absolute bound %g", *measured.bound);
    }
    out << "\n";
  }
}

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

}  // namespace refract::tools

#include "placement/report/figures.h"

#include <algorithm>
#include <cstddef>

#include "base/html_page.h"
#include "base/json.h"
#include "nlohmann/json.hpp"
#include "placement/report/page_files.h"

namespace refract::placement {
namespace {

// A screen has no more columns.
constexpr size_t kMostPoints = 1000;

nlohmann::ordered_json LineJson(const Line& line) {
  auto points = nlohmann::ordered_json::array();
  const size_t count = line.points.size();
  const size_t shown = std::min(count, kMostPoints);
  for (size_t i = 0; i < shown; ++i) {
    // The first and the last point are always shown.
    const size_t at = shown > 1 ? i * (count - 1) / (shown - 1) : 0;
    points.push_back({line.points[at].first, line.points[at].second});
  }
  return {{"name", line.name}, {"steps", line.steps}, {"points", points}};
}

}  // namespace

std::string FiguresToHtml(const Figures& figures) {
  nlohmann::ordered_json json = {{"title", figures.title},
                                 {"notes", figures.notes},
                                 {"tables", nlohmann::ordered_json::array()},
                                 {"charts", nlohmann::ordered_json::array()}};
  for (const Table& table : figures.tables) {
    json["tables"].push_back(
        {{"title", table.title}, {"head", table.head}, {"rows", table.rows}});
  }
  for (const Chart& chart : figures.charts) {
    auto lines = nlohmann::ordered_json::array();
    for (const Line& line : chart.lines) {
      if (!line.points.empty()) lines.push_back(LineJson(line));
    }
    if (lines.empty()) continue;
    json["charts"].push_back({{"title", chart.title},
                              {"x", chart.x},
                              {"y", chart.y},
                              {"lines", lines}});
  }
  // The pages of the folder share their style and charts.
  std::vector<base::PageFile> files;
  for (base::PageFile file : PlanPageFiles()) {
    if (file.name == "page.html") continue;
    if (file.name == "figures.html") file.name = "page.html";
    files.push_back(file);
  }
  // Names come from the user's files, so they need not be UTF-8.
  return base::FillPage(files, base::FormatJson(json));
}

}  // namespace refract::placement

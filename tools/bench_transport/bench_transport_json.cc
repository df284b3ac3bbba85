#include "tools/bench_transport/bench_transport_json.h"

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "nlohmann/json.hpp"
#include "tools/bench_json.h"

namespace refract::tools {
namespace {

using Json = nlohmann::ordered_json;
using transport_meter::Figures;
using transport_meter::Quartiles;
using transport_meter::Ratio;
using transport_meter::Report;
using transport_meter::Row;

Json OptionsJson(const TransportOptions& options) {
  return {{"paths", options.paths},
          {"levels", options.levels},
          {"ops", options.ops},
          {"modes", options.modes},
          {"sizes", options.sizes},
          {"no_yardsticks", options.no_yardsticks},
          {"rounds", options.rounds},
          {"time_ms", options.time_ms},
          {"iterations", options.max_iterations},
          {"window", options.window_bytes},
          {"eager_bytes", options.eager_bytes},
          {"rdma_device", options.rdma_device},
          {"cpus", options.cpus}};
}

Json QuartilesJson(const Quartiles& quartiles) {
  return {{"median", quartiles.median},
          {"q25", quartiles.q25},
          {"q75", quartiles.q75},
          {"rounds", quartiles.used},
          {"discarded", quartiles.discarded}};
}

Json RowJson(const Report& report, size_t index) {
  const Row& row = report.rows[index];
  const bool stream = transport_meter::IsStream(row.point.op);
  Json json = {{"op", std::string(transport_meter::OpName(row.point.op))},
               {"mode", std::string(transport_meter::ModeName(row.point.mode))},
               {"bytes", row.point.bytes},
               {"level", row.level},
               {"name", row.name},
               {"iterations", row.iterations},
               {"outstanding", row.outstanding},
               {stream ? "bytes_per_s" : "p50_us",
                QuartilesJson(transport_meter::QuartilesOf(row.Primary()))}};
  if (row.yardstick()) json["yardstick_of"] = row.yardstick_of;
  json["rounds"] = Json::array();
  for (const Figures& figures : row.rounds) {
    json["rounds"].push_back(stream ? Json{{"bytes_per_s", figures.bytes_per_s}}
                                    : Json{{"p50_us", figures.p50_us},
                                           {"p99_us", figures.p99_us},
                                           {"mean_us", figures.mean_us}});
  }
  json["ratios"] = Json::array();
  for (const Ratio& ratio : report.ratios) {
    if (ratio.subject != index) continue;
    const Row& yardstick = report.rows[ratio.yardstick];
    Json one = {
        {"yardstick", absl::StrCat(yardstick.level, " ", yardstick.name)}};
    one.update(QuartilesJson(ratio.quartiles));
    json["ratios"].push_back(std::move(one));
  }
  if (!row.error.empty()) json["error"] = row.error;
  return json;
}

}  // namespace

std::string TransportJson(const TransportOptions& options,
                          const Report& report) {
  Json json = BenchJson("transport");
  json.update({{"options", OptionsJson(options)},
               {"seed", options.seed},
               {"cpus", report.cpus}});
  json["rows"] = Json::array();
  for (size_t i = 0; i < report.rows.size(); ++i) {
    json["rows"].push_back(RowJson(report, i));
  }
  return base::FormatJson(json, 1) + "\n";
}

}  // namespace refract::tools

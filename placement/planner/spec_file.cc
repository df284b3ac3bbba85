#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "placement/cluster/csv.h"
#include "placement/planner/spec.h"
#include "placement/planner/traces.h"
#include "placement/topology/json_fields.h"
#include "placement/topology/json_text.h"

namespace refract::placement {
namespace {

using Fields = JsonFields;

// Larger figures are given in a wrong unit.
constexpr double kMostCores = 10'000;
constexpr double kMostGib = 1 << 20;
constexpr double kMostGbps = 1e6;
constexpr double kMostPrice = 1e9;
constexpr double kMostMs = 1e6;
constexpr double kMostQps = 1e9;
constexpr double kMostRows = 1e7;
constexpr int64_t kMostCount = 10'000'000;
// Parts of a day: quarters of an hour.
constexpr int kMostParts = 96;

// Readers ask for every field that they know; JsonFields then refuses the
// others. After the first error all fields answer "absent", so readers go on
// without checks and the first error is reported.
NodeType ReadNodeType(Fields& fields, const Prices& prices) {
  NodeType node;
  Need(fields, "name", fields.Text("name"), &node.name);
  Need(fields, "cores", fields.Number("cores", 1, kMostCores), &node.cores);
  Need(fields, "memory_gib", fields.Number("memory_gib", 1, kMostGib),
       &node.memory_gib);
  Assign(fields.Whole("gpus", 0, 16), &node.gpus);
  Assign(fields.Text("gpu_model"), &node.gpu_model);
  Assign(fields.Whole("nics", 1, 16), &node.nics);
  Assign(fields.Number("nic_gbps", 0.001, kMostGbps), &node.nic_gbps);
  const auto price = fields.Number("price_per_h", 0, kMostPrice);
  // A price list beats the price in the file, which may then be missing.
  if (const auto listed = prices.find(node.name); listed != prices.end()) {
    node.price_per_h = listed->second;
  } else {
    Need(fields, "price_per_h", price, &node.price_per_h);
  }
  Assign(fields.Whole("count", 0, kMostCount), &node.count);
  fields.Object("labels", [&](Fields& labels) {
    for (const std::string& key : labels.Names()) {
      std::string value;
      Assign(labels.Text(key.c_str()), &value);
      node.labels.emplace_back(key, value);
    }
  });
  return node;
}

// A number (sigma), or a list of factors.
Variation ReadVariation(Fields& fields, const char* name) {
  Variation variation;
  if (fields.IsList(name)) {
    Assign(fields.Numbers(name, 1e-6, 1e6), &variation.factors);
  } else {
    Assign(fields.Number(name, 0, 3), &variation.sigma);
  }
  return variation;
}

ModelCosts ReadCosts(Fields& fields) {
  ModelCosts costs;
  costs.source = "figures of the file";
  fields.Each("profile", [&](Fields& point) {
    RequestCost cost;
    Need(point, "rows", point.Number("rows", 1, kMostRows), &cost.rows);
    // The file has milliseconds and KiB; costs are in seconds and bytes.
    const auto milliseconds = [&](const char* name, double* target) {
      double value = 0;
      Need(point, name, point.Number(name, 0, kMostMs), &value);
      *target = value / 1e3;
    };
    const auto kib = [&](const char* name, double* target) {
      double value = 0;
      Need(point, name, point.Number(name, 0, 1e9), &value);
      *target = value * 1024;
    };
    milliseconds("cn_pre_ms", &cost.cn_pre_s);
    milliseconds("cn_post_ms", &cost.cn_post_s);
    milliseconds("hn_ms", &cost.hn_s);
    kib("up_kib", &cost.up_bytes);
    kib("down_kib", &cost.down_bytes);
    costs.points.push_back(cost);
  });
  return costs;
}

ModelSource ReadSource(Fields& fields) {
  ModelSource source;
  Need(fields, "path", fields.Text("path"), &source.path);
  Assign(fields.Text("calibration"), &source.calibration);
  Assign(fields.Text("cn"), &source.cn);
  Assign(fields.Text("hn"), &source.hn);
  if (const auto batches = fields.Numbers("batches", 1, kMostRows)) {
    source.batches.clear();
    for (const double batch : *batches) {
      source.batches.push_back(std::llround(batch));
    }
    if (!std::is_sorted(source.batches.begin(), source.batches.end(),
                        std::less_equal<>())) {
      fields.Fail("batches", "do not ascend");
    }
  }
  return source;
}

// Times of `traces`; bytes and memory stay those of `costs`.
void ReadTraces(Fields& fields, ModelCosts& costs) {
  TraceSource source;
  if (fields.IsList("files")) {
    Assign(fields.Texts("files"), &source.files);
  } else if (const auto file = fields.Text("files")) {
    source.files = {*file};
  }
  if (fields.ok() && source.files.empty()) fields.Fail("files", "is missing");
  Assign(fields.Text("model"), &source.model);
  if (const auto us = fields.Number("client_us", 0, 1e9)) {
    source.client_s = *us / 1e6;
  }
  if (!fields.ok()) return;
  // Traces have times and no bytes. Where `path` gave costs as well, bytes,
  // memory and the reason against merging come from them.
  absl::StatusOr<ModelCosts> traced = CostsFromTraces(source);
  if (!traced.ok()) {
    fields.Fail("files", traced.status().message());
    return;
  }
  if (!costs.points.empty()) {
    for (RequestCost& point : traced->points) {
      const RequestCost priced = costs.At(point.rows);
      point.up_bytes = priced.up_bytes;
      point.down_bytes = priced.down_bytes;
    }
    traced->cn_memory_bytes = costs.cn_memory_bytes;
    traced->hn_memory_bytes = costs.hn_memory_bytes;
    traced->never_merged = costs.never_merged;
    traced->source = absl::StrCat(traced->source, "; bytes: ", costs.source);
  } else {
    absl::StrAppend(&traced->source,
                    "; without bytes, so no NIC has work (model.path gives "
                    "the bytes)");
  }
  costs = *std::move(traced);
}

void ReadModel(Fields& fields, const SpecReaders& readers,
               ServiceSpec& service) {
  // Three sources of costs: `path` (a version with its profile), `profile`
  // (figures of the file), `traces`. Traces may join a path; other combinations
  // contradict each other.
  const bool has_path = fields.Has("path");
  const bool has_traces = fields.Has("traces");
  if (has_path && fields.Has("profile")) {
    fields.Fail("", "has both path and profile: give one of them");
  } else if (has_traces && fields.Has("profile")) {
    fields.Fail("", "has both traces and profile: give one of them");
  } else if (has_traces &&
             (fields.Has("variation") || fields.Has("round_trip_us"))) {
    fields.Fail("",
                "has traces, whose times and variation are measured: "
                "leave out variation and round_trip_us");
  } else if (!has_path && !has_traces && !fields.Has("profile")) {
    fields.Fail("", "has none of path, profile and traces");
  }
  if (!fields.ok()) return;
  double cn_memory_gib = 0;
  double hn_memory_gib = 0;
  if (has_path) {
    service.source = ReadSource(fields);
    if (!fields.ok()) return;
    absl::StatusOr<ModelCosts> costs = readers.model(*service.source);
    if (!costs.ok()) {
      fields.Fail("path", costs.status().message());
      return;
    }
    service.costs = *std::move(costs);
  } else if (!has_traces) {
    service.costs = ReadCosts(fields);
  }
  // Traces keep the bytes in the costs of `path`, so they are read after it.
  fields.Object("traces",
                [&](Fields& traces) { ReadTraces(traces, service.costs); });
  if (!fields.ok()) return;
  // Figures of the file replace those of the model, so they are read last.
  if (const auto us = fields.Number("round_trip_us", 0, 1e9)) {
    service.costs.round_trip_s = *us / 1e6;
  }
  if (const auto gib = fields.Number("cn_memory_gib", 0, kMostGib)) {
    cn_memory_gib = *gib;
    service.costs.cn_memory_bytes = cn_memory_gib * 0x1p30;
  }
  if (const auto gib = fields.Number("hn_memory_gib", 0, kMostGib)) {
    hn_memory_gib = *gib;
    service.costs.hn_memory_bytes = hn_memory_gib * 0x1p30;
  }
  fields.Object("variation", [&](Fields& variation) {
    if (variation.Has("cn")) {
      service.costs.cn = ReadVariation(variation, "cn");
    }
    if (variation.Has("hn")) {
      service.costs.hn = ReadVariation(variation, "hn");
    }
    if (variation.Has("round_trip")) {
      service.costs.round_trip = ReadVariation(variation, "round_trip");
    }
  });
}

// Evenly spaced rates of a file, divided by the largest rate. If there are more
// rows than a page shows, neighbouring rows are merged.
absl::StatusOr<std::vector<double>> CurveFromCsv(const std::string& path,
                                                 const std::string& name) {
  REFRACT_ASSIGN_OR_RETURN(const CsvTable table, CsvTable::Read(path));
  const std::optional<int> column = table.Column(name);
  if (!column.has_value() || table.rows() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, column.has_value() ? ": has no rows" : ": has no column ",
        column.has_value() ? "" : name));
  }
  // A group of rows becomes its largest rate: the plan must hold at all times.
  const int group = (table.rows() + kMostParts - 1) / kMostParts;
  std::vector<double> curve;
  for (int row = 0; row < table.rows(); ++row) {
    REFRACT_ASSIGN_OR_RETURN(const double rate,
                             table.Number(row, *column, 0, kMostQps));
    if (row % group == 0) curve.push_back(0);
    curve.back() = std::max(curve.back(), rate);
  }
  const double most = *std::max_element(curve.begin(), curve.end());
  if (most == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ", column ", name, ": every rate is 0"));
  }
  for (double& rate : curve) rate /= most;
  return curve;
}

void ReadCurve(Fields& fields, Traffic& traffic) {
  if (!fields.IsObject("curve")) {
    Assign(fields.Numbers("curve", 0, 1), &traffic.curve);
    return;
  }
  fields.Object("curve", [&](Fields& file) {
    std::string path;
    std::string column = "queries_per_s";
    Need(file, "csv", file.Text("csv"), &path);
    Assign(file.Text("column"), &column);
    if (!file.ok()) return;
    absl::StatusOr<std::vector<double>> curve = CurveFromCsv(path, column);
    if (curve.ok()) {
      traffic.curve = *std::move(curve);
    } else {
      file.Fail("csv", curve.status().message());
    }
  });
}

Traffic ReadTraffic(Fields& fields, const SpecReaders& readers) {
  Traffic traffic;
  Need(fields, "queries_per_s", fields.Number("queries_per_s", 1e-3, kMostQps),
       &traffic.queries_per_s);
  Assign(fields.Number("burst", 1, 1000), &traffic.burst);
  ReadCurve(fields, traffic);
  std::string sizes = "fixed:1";
  Assign(fields.Text("query_sizes"), &sizes);
  if (!fields.ok()) return traffic;
  absl::StatusOr<std::vector<double>> rows = readers.rows(sizes);
  if (rows.ok()) {
    traffic.rows = *std::move(rows);
  } else {
    fields.Fail("query_sizes", rows.status().message());
  }
  return traffic;
}

CnOptions ReadCn(Fields& fields) {
  CnOptions cn;
  Need(fields, "node", fields.Text("node"), &cn.node);
  Need(fields, "cores", fields.Numbers("cores", 1, kMostCores), &cn.cores);
  for (const double cores : cn.cores) {
    // A CN has one worker per core.
    if (cores != std::floor(cores)) {
      fields.Fail("cores", absl::StrCat(cores, " is no whole number"));
    }
  }
  Assign(fields.Number("memory_gib", 0, kMostGib), &cn.memory_gib);
  if (const auto percent = fields.Whole("nic_percent", 1, 100)) {
    cn.nic_percent = static_cast<int>(*percent);
  }
  Assign(fields.Whole("max_per_node", 1, kMostCount), &cn.max_per_node);
  return cn;
}

HnOptions ReadHn(Fields& fields) {
  HnOptions hn;
  Need(fields, "node", fields.Text("node"), &hn.node);
  Assign(fields.Number("cores", 0.1, kMostCores), &hn.cores);
  Assign(fields.Number("memory_gib", 0, kMostGib), &hn.memory_gib);
  if (const auto percent = fields.Whole("nic_percent", 1, 100)) {
    hn.nic_percent = static_cast<int>(*percent);
  }
  Assign(fields.Whole("max_per_node", 1, kMostCount), &hn.max_per_node);
  Assign(fields.Whole("parallel", 1, 64), &hn.parallel);
  Assign(fields.Whole("max_batch_rows", 1, 1 << 20), &hn.max_batch_rows);
  if (fields.Has("batching_window_us")) {
    hn.batching_window_us.clear();
    // "off" in place of a number: requests are not merged.
    const auto windows =
        fields.NumbersOr("batching_window_us", 0, 1e6, "off", -1);
    Assign(windows, &hn.batching_window_us);
  }
  fields.Each("gpu_parts", [&](Fields& entry) {
    GpuPart part;
    std::string mig = "whole";
    Need(entry, "part", entry.Text("part"), &mig);
    if (mig != "whole") {
      const auto profile = MigProfileFromName(mig);
      if (!profile.has_value()) {
        entry.Fail("part", absl::StrCat("'", mig,
                                        "' is neither 'whole' nor a MIG "
                                        "profile such as 2g.20gb"));
        return;
      }
      part.mig = *profile;
    }
    // A measured slowdown replaces the assumption; reports say which it is.
    part.slowdown = AssumedSlowdown(part.mig);
    if (const auto slowdown = entry.Number("slowdown", 0.1, 1000)) {
      part.slowdown = *slowdown;
      part.slowdown_given = true;
    }
    hn.parts.push_back(part);
  });
  if (hn.parts.empty()) hn.parts.push_back({});
  return hn;
}

ServiceSpec ReadService(Fields& fields, const SpecReaders& readers) {
  ServiceSpec service;
  Need(fields, "name", fields.Text("name"), &service.name);
  // Objects that every service has.
  const auto need = [&](const char* name, const auto& read) {
    if (!fields.Object(name, read)) fields.Fail(name, "is missing");
  };
  need("slo", [&](Fields& slo) {
    double ms = 0;
    Need(slo, "p99_ms", slo.Number("p99_ms", 0.001, kMostMs), &ms);
    service.slo_p99_s = ms / 1e3;
  });
  need("traffic", [&](Fields& traffic) {
    service.traffic = ReadTraffic(traffic, readers);
  });
  need("cn", [&](Fields& cn) { service.cn = ReadCn(cn); });
  need("hn", [&](Fields& hn) { service.hn = ReadHn(hn); });
  fields.Object("monolith", [&](Fields& monolith) {
    MonolithOptions options;
    Need(monolith, "node", monolith.Text("node"), &options.node);
    Assign(monolith.Number("cores", 1, kMostCores), &options.cores);
    Assign(monolith.Number("memory_gib", 0, kMostGib), &options.memory_gib);
    service.monolith = options;
  });
  // Last, because it may take long.
  need("model", [&](Fields& model) { ReadModel(model, readers, service); });
  return service;
}

}  // namespace

absl::StatusOr<Prices> ReadPrices(const std::string& path) {
  REFRACT_ASSIGN_OR_RETURN(const CsvTable table, CsvTable::Read(path));
  const auto name = table.Column("node");
  const auto price = table.Column("price_per_h");
  if (!name.has_value() || !price.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has no columns node and price_per_h"));
  }
  Prices prices;
  for (int row = 0; row < table.rows(); ++row) {
    const std::string node(table.Text(row, *name));
    if (node.empty() || prices.contains(node)) {
      return table.Wrong(row, *name,
                         node.empty() ? "is empty" : node + " is there twice");
    }
    REFRACT_ASSIGN_OR_RETURN(prices[node],
                             table.Number(row, *price, 0, kMostPrice));
  }
  return prices;
}

absl::StatusOr<PlanSpec> ParsePlanSpec(absl::string_view text,
                                       absl::string_view path,
                                       const SpecReaders& readers) {
  const absl::StatusOr<nlohmann::json> json = ParseJsonText(text);
  if (!json.ok()) return base::Annotate(json.status(), path);
  PlanSpec spec;
  absl::Status status;
  Fields root(*json, "", &status);
  if (status.ok()) {
    Assign(root.Text("name"), &spec.name);
    Assign(root.Text("currency"), &spec.currency);
    root.Each("nodes", [&](Fields& fields) {
      spec.nodes.push_back(ReadNodeType(fields, readers.prices));
    });
    root.Each("services", [&](Fields& fields) {
      spec.services.push_back(ReadService(fields, readers));
    });
    root.Object("deployment", [&](Fields& fields) {
      Assign(fields.Text("image"), &spec.image);
      Assign(fields.Text("model_repository"), &spec.model_repository);
      Assign(fields.Texts("tier_keys"), &spec.tier_keys);
    });
    root.RefuseOthers();
  }
  // Fields that contradict each other, after every field by itself is right.
  if (status.ok()) status = Check(spec);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", status.message()));
  }
  return spec;
}

}  // namespace refract::placement

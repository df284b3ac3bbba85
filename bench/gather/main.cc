// Look-ups of many tables in one request, through the engine, beside LibTorch
// and FBGEMM on the same bytes (docs/measurements/look_ups.md). One thread.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "bench/gather/baseline.h"
#include "bench/gather/cores.h"
#include "bench/gather/engine.h"
#include "bench/gather/tables.h"
#include "bench/runtime/timing.h"
#include "models/tables/row_format.h"
#include "runtime/torch/caller.h"
#include "runtime/torch/op_library.h"
#include "tools/bench_json.h"

namespace refract::bench {
namespace {

constexpr double kGib = 0x1p30;
constexpr char kTableBatched[] = "fbgemm_table_batched";

struct Options {
  std::vector<std::string> formats = {"fp32"};
  std::vector<int64_t> batches = {1, 16, 64, 256};
  std::vector<int64_t> look_ups = {1, 20};
  int64_t tables = 26;
  int64_t dim = 128;
  double gib = 4.25;
  int rounds = 21;
  bool skewed = false;
  bool apart = false;
  bool thread_time = false;
  bool sources = false;
  bool cores = false;
  Place place = Place::kHuge;
  uint64_t seed = 1;
  std::string folder = "/dev/shm";
  std::vector<std::string> libraries;
  std::string json;
};

// Loads each cache line of the rows of a request once: the time that memory
// alone takes, a floor for every look-up. The sum keeps the compiler from
// dropping the loads.
uint64_t LoadLines(const Tables& tables,
                   const std::vector<const std::byte*>& at,
                   const Request& request) {
  uint64_t sum = 0;
  for (size_t t = 0; t < at.size(); ++t) {
    for (const int64_t id : request.ids[t].view().as<int64_t>()) {
      const std::byte* const row = at[t] + id * tables.layout.stride;
      for (int64_t byte = 0; byte < tables.layout.stride; byte += 64) {
        sum += *reinterpret_cast<const uint32_t*>(row + byte);
      }
    }
  }
  return sum;
}

struct Variant {
  std::string name;
  bool joined;  // takes Request::joined_ids
  std::function<void(const Request&)> run;
};

// The variants take turns; each of their requests has new ids, which are
// written just before it is timed, as a server writes them when it decodes a
// message. Ratios are of turns of the same round.
Json Compare(const std::vector<Variant>& variants, const Tables& tables,
             int64_t batch, int64_t look_ups, const Options& options,
             uint64_t seed) {
  // About 2000 rows of each table in a turn.
  const auto runs = static_cast<size_t>(
      std::clamp<int64_t>(2000 / (batch * look_ups), 2, 500));
  std::vector<std::vector<double>> took(variants.size());
  RowSource source(tables.rows, options.skewed, seed);
  Request request = MakeRequest(tables, batch, look_ups);
  const Clock clock = options.thread_time ? ThreadSeconds : ClockSeconds;
  // Two rounds warm up. The first variant of a round changes, so that none
  // always runs after the same other.
  for (int round = -2; round < options.rounds; ++round) {
    for (size_t i = 0; i < variants.size(); ++i) {
      const size_t v = (i + static_cast<size_t>(round + 2)) % variants.size();
      double all = 0;
      for (size_t r = 0; r < runs; ++r) {
        DrawIds(source, variants[v].joined, request);
        const double begin = clock();
        variants[v].run(request);
        all += clock() - begin;
      }
      if (round >= 0) took[v].push_back(all / static_cast<double>(runs));
    }
  }
  Json result;
  for (size_t v = 0; v < variants.size(); ++v) {
    std::vector<double> micros;
    for (const double seconds : took[v]) micros.push_back(seconds * 1e6);
    result[variants[v].name]["us"] = Quartiles(micros);
    if (v == 0) continue;
    std::vector<double> ratios;
    for (size_t r = 0; r < took[v].size(); ++r) {
      ratios.push_back(took[v][r] / took[0][r]);
    }
    result[variants[v].name][absl::StrCat("time_over_", variants[0].name)] =
        Quartiles(ratios);
  }
  return result;
}

// Refuses results that differ from the engine's by more than `tolerance`: a
// comparison of times is only fair between equal answers.
absl::Status CheckEqual(const std::string& name, const std::vector<float>& own,
                        const std::vector<float>& other, double tolerance) {
  if (own.size() != other.size()) {
    return absl::InternalError(absl::StrCat(name, ": gives ", other.size(),
                                            " values, not ", own.size()));
  }
  for (size_t i = 0; i < own.size(); ++i) {
    if (std::abs(own[i] - other[i]) <= tolerance) continue;
    return absl::InternalError(absl::StrCat(name, ": value ", i, " is ",
                                            other[i], ", Refract's ", own[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tables> Make(const models::RowLayout& layout, int64_t rows,
                            Place place, const Options& options, Json& json) {
  size_t huge_bytes = 0;
  REFRACT_ASSIGN_OR_RETURN(
      Tables tables, MakeTables(options.folder, place, layout, options.tables,
                                rows, huge_bytes));
  const double share =
      static_cast<double>(huge_bytes) / static_cast<double>(tables.bytes());
  const std::string format(models::NameOf(layout.format));
  if (place == Place::kHuge) json["huge_share"][format] = share;
  std::fprintf(stderr, "%s: %.2f GiB, %.1f %% of it in huge pages\n",
               format.c_str(), static_cast<double>(tables.bytes()) / kGib,
               share * 100);
  return tables;
}

absl::Status MeasureFormat(const Tables& tables, const Tables* floats,
                           const Options& options, Json& json) {
  const std::string format(models::NameOf(tables.layout.format));
  REFRACT_ASSIGN_OR_RETURN(const auto engine,
                           Engine::Create(tables, !options.apart));
  std::unique_ptr<Engine> float_engine;
  if (floats != nullptr) {
    REFRACT_ASSIGN_OR_RETURN(float_engine,
                             Engine::Create(*floats, !options.apart));
  }
  std::vector<std::pair<std::string, std::unique_ptr<Baseline>>> baselines;
  const bool is_float = format == "fp32";
  if (is_float) {
    baselines.emplace_back("embedding_bags_and_cat", MakeEmbeddingBags(tables));
  }
  if (auto bags = MakeQuantizedBags(tables)) {
    baselines.emplace_back("quantized_bags_and_cat", std::move(bags));
  }
  if (!options.libraries.empty()) {
    if (auto batched = MakeTableBatched(tables)) {
      baselines.emplace_back(kTableBatched, std::move(batched));
    }
  }
  // Looked up once: at() searches the store by name.
  std::vector<const std::byte*> at;
  for (int64_t t = 0; t < tables.count; ++t) at.push_back(tables.at(t));
  volatile uint64_t sink = 0;
  uint64_t seed = options.seed;
  for (const int64_t look_ups : options.look_ups) {
    for (const int64_t batch : options.batches) {
      RowSource source(tables.rows, options.skewed, ++seed);
      Request request = MakeRequest(tables, batch, look_ups);
      DrawIds(source, false, request);
      JoinIds(request);
      engine->Run(request);
      const std::vector<float> own = engine->Result(batch);
      std::vector<Variant> variants;
      variants.push_back({"refract", false, [&](const Request& request) {
                            engine->Run(request);
                          }});
      for (const auto& [name, baseline] : baselines) {
        baseline->Run(request);
        // 1e-6 of the sum of |scale × q| + |bias|, below 3 per row.
        REFRACT_RETURN_IF_ERROR(
            CheckEqual(name, own, baseline->Result(),
                       3e-6 * static_cast<double>(look_ups)));
        variants.push_back(
            {name, name == kTableBatched,
             [&baseline = *baseline](const Request& request) {
               baseline.Run(request);
             }});
      }
      if (float_engine != nullptr) {
        float_engine->Run(request);
        // Bound for rows of values up to 1: half a step of the format, plus the
        // rounding of fp16 parameters.
        const double step = models::BitsOf(tables.layout.format.element) >= 16
                                ? 1.0 / 128
                                : 2.0 / tables.layout.format.levels();
        REFRACT_RETURN_IF_ERROR(
            CheckEqual("fp32 rows", own, float_engine->Result(batch),
                       (step * 0.55 + 2e-3) * static_cast<double>(look_ups)));
        variants.push_back(
            {"refract_fp32", false,
             [&](const Request& request) { float_engine->Run(request); }});
      }
      variants.push_back(
          {"load_every_line", false, [&](const Request& request) {
             sink = sink + LoadLines(tables, at, request);
           }});
      Json row = {{"format", format},
                  {"row_bytes", tables.layout.stride},
                  {"table_gib", static_cast<double>(tables.bytes()) / kGib},
                  {"batch", batch},
                  {"look_ups", look_ups}};
      // Time of a request whose rows the caches hold: the part that is not
      // memory.
      row["engine_parts_hot_us"] = engine->PartsOf(request);
      row.update(
          Compare(variants, tables, batch, look_ups, options, ++seed));
      std::string line =
          absl::StrCat(format, " batch ", batch, " look-ups ", look_ups, ": ");
      for (const Variant& variant : variants) {
        const Json& each = row[variant.name];
        absl::StrAppend(
            &line, variant.name, " ",
            std::round(each["us"]["median"].get<double>() * 10) / 10, " us");
        if (each.contains("time_over_refract")) {
          const Json& ratio = each["time_over_refract"];
          const auto round2 = [](const Json& x) {
            return std::round(x.get<double>() * 100) / 100;
          };
          absl::StrAppend(&line, " (x ", round2(ratio["q25"]), " ",
                          round2(ratio["median"]), " ", round2(ratio["q75"]),
                          ")");
        }
        absl::StrAppend(&line, "  ");
      }
      std::fprintf(stderr, "%s\n", line.c_str());
      json["results"].push_back(std::move(row));
    }
  }
  return absl::OkStatus();
}

// The engine on the same tables in huge pages, in 4 KiB pages and in a mapped
// file, whose results must be the same bits.
absl::Status MeasureSources(const models::RowLayout& layout, int64_t rows,
                            const Options& options, Json& json) {
  const std::pair<const char*, Place> sources[] = {
      {"huge_pages", Place::kHuge},
      {"small_pages", Place::kSmall},
      {"mapped", Place::kMapped}};
  std::vector<Tables> all;
  std::vector<std::unique_ptr<Engine>> engines;
  for (const auto& [name, place] : sources) {
    REFRACT_ASSIGN_OR_RETURN(all.emplace_back(),
                             Make(layout, rows, place, options, json));
    REFRACT_ASSIGN_OR_RETURN(engines.emplace_back(),
                             Engine::Create(all.back(), !options.apart));
  }
  const Tables& mapped = all.back();
  uint64_t seed = options.seed;
  for (const int64_t look_ups : options.look_ups) {
    for (const int64_t batch : options.batches) {
      RowSource source(mapped.rows, options.skewed, ++seed);
      Request request = MakeRequest(mapped, batch, look_ups);
      DrawIds(source, false, request);
      std::vector<Variant> variants;
      engines[0]->Run(request);
      const std::vector<float> first = engines[0]->Result(batch);
      for (size_t s = 0; s < engines.size(); ++s) {
        engines[s]->Run(request);
        REFRACT_RETURN_IF_ERROR(
            CheckEqual(sources[s].first, first, engines[s]->Result(batch), 0));
        variants.push_back({sources[s].first, false,
                            [engine = engines[s].get()](const Request& each) {
                              engine->Run(each);
                            }});
      }
      Json row = {{"batch", batch}, {"look_ups", look_ups}};
      row.update(Compare(variants, mapped, batch, look_ups, options, ++seed));
      std::string line = absl::StrCat("batch ", batch, " look-ups ", look_ups);
      for (const Variant& variant : variants) {
        const Json& each = row[variant.name];
        absl::StrAppend(&line, "  ", variant.name, " ",
                        std::round(each["us"]["median"].get<double>() * 10) / 10,
                        " us");
        if (!each.contains("time_over_huge_pages")) continue;
        const Json& ratio = each["time_over_huge_pages"];
        absl::StrAppend(&line, " (x ",
                        std::round(ratio["q25"].get<double>() * 100) / 100, " ",
                        std::round(ratio["median"].get<double>() * 100) / 100,
                        ")");
      }
      std::fprintf(stderr, "%s\n", line.c_str());
      json["results"].push_back(std::move(row));
    }
  }
  return absl::OkStatus();
}

absl::Status MeasureCores(const Tables& tables, const Options& options,
                          Json& json) {
  for (const int64_t look_ups : options.look_ups) {
    for (const int64_t batch : options.batches) {
      Json row = {{"batch", batch}, {"look_ups", look_ups}};
      REFRACT_ASSIGN_OR_RETURN(
          const std::vector<double> ratios,
          RateOfTwoCores(tables, batch, look_ups, options.rounds,
                         options.skewed, options.seed));
      row["rate_of_two_over_one"] = Quartiles(ratios);
      std::fprintf(stderr, "batch %ld look-ups %ld: %s\n", batch, look_ups,
                   base::FormatJson(row["rate_of_two_over_one"]).c_str());
      json["results"].push_back(std::move(row));
    }
  }
  return absl::OkStatus();
}

absl::Status Measure(const Options& options, Json& json) {
  for (const std::string& library : options.libraries) {
    REFRACT_RETURN_IF_ERROR(runtime::aten::LoadOpLibrary(library));
  }
  const auto layout_of =
      [&](const std::string& name) -> absl::StatusOr<models::RowLayout> {
    REFRACT_ASSIGN_OR_RETURN(const models::RowFormat format,
                             models::RowFormatNamed(name));
    // TBE rows as TorchRec pads them.
    const bool tbe = format.parameters == models::RowParameters::kFirst;
    return models::LayoutOf(format, options.dim, 0, tbe ? 16 : 1);
  };
  REFRACT_ASSIGN_OR_RETURN(const models::RowLayout floats, layout_of("fp32"));
  // Rows follow from the fp32 size, and are the same for all formats: smaller
  // rows then show what a smaller table gains.
  const auto rows = static_cast<int64_t>(
      options.gib * kGib / static_cast<double>(options.tables * floats.stride));
  if (options.sources) return MeasureSources(floats, rows, options, json);
  REFRACT_ASSIGN_OR_RETURN(const Tables base,
                           Make(floats, rows, options.place, options, json));
  if (options.cores) {
    return MeasureCores(base, options, json);
  }
  for (const std::string& name : options.formats) {
    if (name == "fp32") {
      REFRACT_RETURN_IF_ERROR(MeasureFormat(base, nullptr, options, json));
      continue;
    }
    REFRACT_ASSIGN_OR_RETURN(const models::RowLayout layout, layout_of(name));
    REFRACT_ASSIGN_OR_RETURN(const Tables tables,
                             Make(layout, rows, options.place, options, json));
    REFRACT_RETURN_IF_ERROR(MeasureFormat(tables, &base, options, json));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Look-ups of many tables, then cat: the engine beside at::embedding_bag, "
      "PyTorch's quantised operators and FBGEMM. One thread.");
  app.add_option("--formats", options.formats,
                 absl::StrCat("row formats: ", models::RowFormatNames()))
      ->delimiter(',');
  app.add_option("--batches", options.batches, "items per request")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--look-ups", options.look_ups, "ids per bag")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 12));
  app.add_option("--tables", options.tables)->check(CLI::Range(1, 1024));
  app.add_option("--dim", options.dim)->check(CLI::Range(1, 1 << 16));
  app.add_option(
         "--gib", options.gib,
         "size of all fp32 tables; tables of other formats have as many rows")
      ->check(CLI::Range(0.001, 1000.0));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(5, 10000));
  app.add_flag("--skewed", options.skewed,
               "rows by Meta's histogram of uses instead of uniform ones");
  app.add_flag("--apart", options.apart,
               "results as tensors of their own, without cat");
  app.add_flag("--thread-time", options.thread_time,
               "the thread's processor time instead of the clock's, where "
               "others use the machine too");
  app.add_flag("--sources", options.sources,
               "instead: the engine on fp32 tables in huge pages, in 4 KiB "
               "pages and in a mapped file of --folder; takes three times "
               "--gib");
  app.add_flag("--cores", options.cores,
               "instead: rows per second of the engine on two threads ÷ on one "
               "(fp32)");
  app.add_option("--place", options.place,
                 "place of the tables, except with --sources: huge or 4 KiB "
                 "pages of memory, or a mapped file in --folder")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Place>{{"huge", Place::kHuge},
                                       {"small", Place::kSmall},
                                       {"mapped", Place::kMapped}}))
      ->default_str("huge");
  app.add_option("--seed", options.seed);
  app.add_option("--folder", options.folder, "folder of the tables' file");
  app.add_option("--op-library", options.libraries,
                 "library with FBGEMM's operators; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--json", options.json)->check(base::CheckOutputFile);
  CLI11_PARSE(app, argc, argv);
  runtime::aten::UseOneThread();
  Json json = tools::BenchJson("gather");
  json["tables"] = options.tables;
  json["dim"] = options.dim;
  json["rounds"] = options.rounds;
  json["time"] = options.thread_time ? "of the thread" : "of the clock";
  json["seed"] = options.seed;
  json["ids"] = options.skewed ? "histogram" : "uniform";
  json["results"] = Json::array();
  absl::Status status = Measure(options, json);
  if (status.ok() && !options.json.empty()) {
    status = base::WriteText(options.json, base::FormatJson(json, 2) + "\n");
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_gather: %s\n",
               std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

}  // namespace
}  // namespace refract::bench

int main(int argc, char** argv) { return refract::bench::Main(argc, argv); }

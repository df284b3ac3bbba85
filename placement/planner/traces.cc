#include "placement/planner/traces.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "base/process/files.h"
#include "nlohmann/json.hpp"
#include "placement/planner/recording.h"

namespace refract::placement {
namespace {

using Json = nlohmann::json;

// Of 100 requests one is beyond p99.
constexpr size_t kLeastTraces = 100;
// Up to this many different numbers of rows have a point each. Where there are
// more, half as many groups of equally many requests have the points.
constexpr size_t kMostPoints = 16;

struct Span {
  double begin = 0;
  double end = 0;
  double time() const { return end - begin; }
};

// A request that one HN executed. Seconds, by the clock of the CN.
struct Traced {
  std::string gpu_node;
  double rows = 1;
  Span request;
  Span decode;
  Span pre;
  Span execute;
  double sent = 0;
  double answered = 0;
  double post_s = 0;
  double way_s = 0;
  // By the HN's clock, to tell merged executions.
  Span execute_there;

  double pre_s() const { return decode.time() + pre.time(); }
};

const Json* Find(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(name);
  return found == json.end() ? nullptr : &*found;
}

// Calls `entry` with each element of list `name`.
template <typename Function>
void Each(const Json& json, const char* name, const Function& entry) {
  const Json* const list = Find(json, name);
  if (list == nullptr || !list->is_array()) return;
  for (const Json& element : *list) entry(element);
}

// Numbers are texts in OTLP's JSON; absent: "".
std::string TextOf(const Json& json, const char* name) {
  const Json* const value = Find(json, name);
  if (value == nullptr) return "";
  return value->is_string() ? value->get<std::string>()
                            : base::FormatJson(*value);
}

std::string Attribute(const Json& span, absl::string_view name) {
  std::string found;
  Each(span, "attributes", [&](const Json& attribute) {
    if (TextOf(attribute, "key") != name) return;
    const Json* const value = Find(attribute, "value");
    if (value == nullptr || !value->is_object() || value->empty()) return;
    found = TextOf(*value, value->begin().key().c_str());
  });
  return found;
}

// Nanoseconds since 1970 lose a quarter of a microsecond as a double, so they
// are counted from `base`.
std::optional<Span> SpanOf(const Json& span, int64_t base) {
  int64_t begin = 0;
  int64_t end = 0;
  if (!absl::SimpleAtoi(TextOf(span, "startTimeUnixNano"), &begin) ||
      !absl::SimpleAtoi(TextOf(span, "endTimeUnixNano"), &end) || end < begin) {
    return std::nullopt;
  }
  return Span{static_cast<double>(begin - base) / 1e9,
              static_cast<double>(end - base) / 1e9};
}

// Reads the lines of one file.
class FileReader {
 public:
  FileReader(const std::string& path, const std::string& model)
      : path_(path), model_(model) {}

  absl::Status Read(std::vector<Traced>& traces,
                    std::set<std::string>& models) {
    absl::StatusOr<std::string> text = base::ReadText(path_);
    if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
    int number = 0;
    for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
      ++number;
      if (line.empty()) continue;
      const Json json = base::ParseJson(line);
      if (Find(json, "resourceSpans") == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            path_, ":", number, ": is no trace: an object with resourceSpans"));
      }
      if (auto traced = TracedOf(json, models)) {
        traces.push_back(*std::move(traced));
      }
    }
    return absl::OkStatus();
  }

 private:
  std::optional<Traced> TracedOf(const Json& json,
                                 std::set<std::string>& models) {
    // Spans of the request by name. A name twice means a second attempt or
    // look-ups at shards: such times are not those of one request.
    absl::flat_hash_map<std::string, const Json*> found;
    bool is_repeated = false;
    Each(json, "resourceSpans", [&](const Json& resource) {
      Each(resource, "scopeSpans", [&](const Json& scope) {
        Each(scope, "spans", [&](const Json& span) {
          is_repeated |= !found.emplace(TextOf(span, "name"), &span).second;
        });
      });
    });
    const auto request = found.find("request");
    if (request == found.end()) return std::nullopt;
    const std::string model = Attribute(*request->second, "refract.model");
    if (!model_.empty() && model != model_) return std::nullopt;
    models.insert(model);
    if (is_repeated) return std::nullopt;  // sent again, or to shards
    // The first request of the file is the zero of its times.
    if (base_ == 0 &&
        !absl::SimpleAtoi(TextOf(*request->second, "startTimeUnixNano"),
                          &base_)) {
      return std::nullopt;
    }
    const auto span = [&](const char* name) -> std::optional<Span> {
      const auto at = found.find(name);
      if (at == found.end()) return std::nullopt;
      return SpanOf(*at->second, base_);
    };
    const auto whole = span("request");
    const auto decode = span("decode");
    const auto pre = span("cn_pre");
    const auto gpu_node = span("gpu_node");
    const auto there = span("hn_request");
    const auto execute = span("hn_execute");
    if (!whole || !decode || !pre || !gpu_node || !there || !execute) {
      return std::nullopt;
    }
    Traced traced;
    traced.gpu_node = Attribute(*found["gpu_node"], "server.address");
    if (!absl::SimpleAtod(Attribute(*request->second, "refract.rows"),
                          &traced.rows) ||
        traced.rows < 1) {
      return std::nullopt;
    }
    traced.request = *whole;
    traced.decode = *decode;
    traced.pre = *pre;
    traced.sent = gpu_node->begin;
    traced.answered = gpu_node->end;
    const auto time = [&](const char* name) {
      const auto one = span(name);
      return one ? one->time() : 0;
    };
    traced.post_s = time("resume") + time("cn_post") + time("encode");
    // The rest of the request's time besides queues and work: both ways over
    // the network and hand-overs between threads. Queues are left out, because
    // the simulation makes its own.
    traced.way_s =
        std::max(0.0, whole->time() - time("cn_queue") - time("hn_queue") -
                          execute->time() - traced.pre_s() - traced.post_s);
    // The HN may have another clock: its part of the request lies in the middle
    // of the CN's.
    const double begin = gpu_node->begin +
                         (gpu_node->time() - there->time()) / 2 +
                         (execute->begin - there->begin);
    traced.execute = {begin, begin + execute->time()};
    traced.execute_there = *execute;
    return traced;
  }

  const std::string& path_;
  const std::string& model_;
  int64_t base_ = 0;
};

double Median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double MedianOf(const std::vector<const Traced*>& traces, const auto& value) {
  std::vector<double> values;
  values.reserve(traces.size());
  for (const Traced* const traced : traces) values.push_back(value(*traced));
  return Median(std::move(values));
}

// Medians of requests of equal rows, or of equally many requests of similar
// rows.
std::vector<RequestCost> Points(std::vector<const Traced*> traces) {
  std::stable_sort(
      traces.begin(), traces.end(),
      [](const Traced* a, const Traced* b) { return a->rows < b->rows; });
  std::map<double, std::vector<const Traced*>> groups;
  for (const Traced* const traced : traces) {
    groups[traced->rows].push_back(traced);
  }
  if (groups.size() > kMostPoints) {
    groups.clear();
    const size_t count = kMostPoints / 2;
    for (size_t i = 0; i < count; ++i) {
      std::vector<const Traced*> group(
          traces.begin() +
              static_cast<std::ptrdiff_t>(traces.size() * i / count),
          traces.begin() +
              static_cast<std::ptrdiff_t>(traces.size() * (i + 1) / count));
      // A group is named by its median rows; groups of equal medians join.
      std::vector<const Traced*>& all = groups[group[group.size() / 2]->rows];
      all.insert(all.end(), group.begin(), group.end());
    }
  }
  std::vector<RequestCost> points;
  for (const auto& [rows, group] : groups) {
    RequestCost& point = points.emplace_back();
    point.rows = rows;
    point.cn_pre_s =
        MedianOf(group, [](const Traced& one) { return one.pre_s(); });
    point.cn_post_s =
        MedianOf(group, [](const Traced& one) { return one.post_s; });
    point.hn_s =
        MedianOf(group, [](const Traced& one) { return one.execute.time(); });
  }
  return points;
}

// Adds the traces of one file.
void Record(const ModelCosts& costs, std::vector<const Traced*> traces,
            double client_s, Recording& recording) {
  std::sort(traces.begin(), traces.end(),
            [](const Traced* a, const Traced* b) { return a->sent < b->sent; });
  double begin = traces[0]->request.begin;
  double end = traces[0]->request.end;
  for (const Traced* const traced : traces) {
    begin = std::min(begin, traced->request.begin);
    end = std::max(end, traced->request.end);
  }
  // Files follow each other in the recording: this file begins at `before`.
  const double before = recording.length();
  std::vector<SpeedTimeline::Work> cn;
  std::vector<SpeedTimeline::Work> hn;
  for (const Traced* const traced : traces) {
    const RequestCost usual = costs.At(traced->rows);
    // Decoding and the model's part before the HN are one figure of the costs,
    // so both spans get the slowness of the pair: usual time = time ÷ slower.
    const double slower = traced->pre_s() / usual.cn_pre_s;
    for (const Span& span : {traced->decode, traced->pre}) {
      cn.push_back(
          {span.begin - begin, span.end - begin, span.time() / slower});
    }
    const double answered = traced->answered - begin;
    cn.push_back({answered, answered + traced->post_s, usual.cn_post_s});
    hn.push_back({traced->execute.begin - begin, traced->execute.end - begin,
                  usual.hn_s});
    recording.ways.emplace_back(before + traced->sent - begin,
                                traced->way_s + client_s);
  }
  recording.cn.Append(cn, end - begin);
  recording.hn.Append(hn, end - begin);
}

}  // namespace

absl::StatusOr<ModelCosts> CostsFromTraces(const TraceSource& source) {
  std::vector<std::vector<Traced>> files(source.files.size());
  std::set<std::string> models;
  std::map<std::string, size_t> counts;  // by GPU node
  size_t all = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const absl::Status status =
        FileReader(source.files[i], source.model).Read(files[i], models);
    if (!status.ok()) return status;
    all += files[i].size();
    for (const Traced& traced : files[i]) ++counts[traced.gpu_node];
  }
  const std::string names = absl::StrJoin(source.files, ", ");
  if (models.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(names, ": has traces of the models ",
                     absl::StrJoin(models, ", "), ": say which, in `model`"));
  }
  // One HN, because a recording describes one pair of machines.
  std::string busiest;
  for (const auto& [address, count] : counts) {
    if (busiest.empty() || count > counts[busiest]) busiest = address;
  }
  std::vector<const Traced*> traces;
  std::vector<std::vector<const Traced*>> by_file(files.size());
  // Members of one batch have the same span of execution.
  std::set<std::pair<double, double>> executions;
  for (size_t i = 0; i < files.size(); ++i) {
    executions.clear();
    for (const Traced& traced : files[i]) {
      if (traced.gpu_node != busiest) continue;
      by_file[i].push_back(&traced);
      traces.push_back(&traced);
      if (!executions
               .emplace(traced.execute_there.begin, traced.execute_there.end)
               .second) {
        return absl::InvalidArgumentError(absl::StrCat(
            source.files[i],
            ": the GPU node executed several requests as one batch: record "
            "without --batching-window-us"));
      }
    }
  }
  if (traces.size() < kLeastTraces) {
    return absl::InvalidArgumentError(absl::StrCat(
        names, ": has ", traces.size(), " traces of requests of model '",
        source.model.empty() && !models.empty() ? *models.begin()
                                                : source.model,
        "' that a GPU node executed; at least ", kLeastTraces, " are needed"));
  }
  ModelCosts costs;
  costs.points = Points(traces);
  costs.source = absl::StrCat("traces of ", traces.size(), " of ", all,
                              " requests, executed by ", busiest);
  auto recording = std::make_shared<Recording>();
  for (const auto& one : by_file) {
    if (!one.empty()) Record(costs, one, source.client_s, *recording);
  }
  if (recording->length() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(names, ": all requests begin and end at one moment"));
  }
  for (const Traced* const traced : traces) {
    const RequestCost usual = costs.At(traced->rows);
    // For the formulas; the simulation replays the recording itself.
    costs.cn.factors.push_back(
        std::max(1e-3, (traced->pre_s() + traced->post_s) /
                           (usual.cn_pre_s + usual.cn_post_s)));
    costs.hn.factors.push_back(
        std::max(1e-3, traced->execute.time() / usual.hn_s));
  }
  costs.round_trip_s =
      MedianOf(traces, [](const Traced& one) { return one.way_s; }) +
      source.client_s;
  costs.recording = std::move(recording);
  return costs;
}

}  // namespace refract::placement

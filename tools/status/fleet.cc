#include "tools/status/fleet.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/shorten.h"
#include "nlohmann/json.hpp"

namespace refract::tools {
namespace {

using Json = nlohmann::ordered_json;

// Share of failed requests above which a model is reported as a problem.
constexpr double kManyFailures = 0.01;
// Share of request memory above which a node is reported as a problem.
constexpr double kMuchMemory = 0.9;

std::string Text(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}
double Number(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : 0;
}
std::string Count(const Json& object, const char* key) {
  return absl::StrCat(static_cast<int64_t>(Number(object, key)));
}
bool Flag(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}
// The objects of a list; nothing if there is none.
std::vector<Json> Objects(const Json& object, const char* key) {
  std::vector<Json> objects;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return objects;
  for (const Json& one : *it) {
    if (one.is_object()) objects.push_back(one);
  }
  return objects;
}
std::string Version(const Json& model) { return Count(model, "version"); }
std::string Because(const Json& object) {
  const std::string why = Text(object, "why");
  return why.empty() ? "" : absl::StrCat(": ", base::Shorten(why));
}

// Finds problems in the statuses of nodes.
class Problems {
 public:
  // Statuses come from nodes of any version, or from something else at that
  // port: every field is optional, and a missing number counts as 0.
  void OfNode(const Json& node) {
    address_ = Text(node, "address");
    if (node.contains("error")) {
      const std::string error = Text(node, "error");
      return Add(std::string(
          absl::StripPrefix(error, absl::StrCat(address_, ": "))));
    }
    const Json& status = node["status"];
    if (!Flag(status, "ready")) {
      Add(absl::StrCat(Text(status, "state"), Because(status)));
    }
    for (const Json& model : Objects(status, "models")) {
      if (!Flag(model, "ready")) {
        Add(absl::StrCat("model ", Text(model, "name"), " version ",
                         Version(model), " is not ready", Because(model)));
      }
    }
    for (const Json& link : Objects(status, "gpu_nodes")) OfLink(link);
    // Rates over the last interval, not counts since the start: a problem that
    // is over is not reported.
    const double failed = Number(node, "failed_per_s");
    const double all = failed + Number(node, "succeeded_per_s");
    if (failed > kManyFailures * all) {
      Add(absl::StrFormat("%.1f %% of its requests fail", 100 * failed / all));
    }
    const double limit = Number(status, "request_memory_limit_bytes");
    const double held = Number(status, "request_memory_bytes");
    if (limit > 0 && held > kMuchMemory * limit) {
      Add(absl::StrFormat("requests hold %.0f %% of --request-memory",
                          100 * held / limit));
    }
    versions_.insert(Text(status, "version"));
    if (Text(status, "role") == "cpu_node") NoteModels(status);
  }

  Json Take() {
    // Differences between nodes, which no single status shows.
    if (versions_.size() > 1) {
      address_ = "";
      Add(absl::StrCat("nodes run Refract ", absl::StrJoin(versions_, ", ")));
    }
    for (const auto& [model, newest] : newest_) {
      std::set<int64_t> different;
      for (const auto& [node, version] : newest) different.insert(version);
      if (different.size() < 2) continue;
      for (const auto& [node, version] : newest) {
        if (version == *different.rbegin()) continue;
        address_ = node;
        Add(absl::StrCat("its newest version of model ", model, " is ",
                         version, "; another CPU node has ",
                         *different.rbegin()));
      }
    }
    return std::move(found_);
  }

 private:
  void Add(std::string what) {
    found_.push_back({{"node", address_}, {"what", std::move(what)}});
  }

  void OfLink(const Json& link) {
    const std::string name = absl::StrCat("GPU node ", Text(link, "address"));
    // A GPU node that leaves is disconnected on purpose.
    if (Flag(link, "leaving")) return;
    if (!Flag(link, "connected")) {
      return Add(absl::StrCat(name, " is not connected", Because(link)));
    }
    for (const Json& model : Objects(link, "models")) {
      if (Flag(model, "ready")) continue;
      Add(absl::StrCat(name, " does not serve model ", Text(model, "name"),
                       " version ", Version(model), Because(model)));
    }
  }

  void NoteModels(const Json& status) {
    for (const Json& model : Objects(status, "models")) {
      int64_t& newest = newest_[Text(model, "name")][address_];
      newest = std::max(newest, static_cast<int64_t>(Number(model, "version")));
    }
  }

  std::string address_;
  Json found_ = Json::array();
  std::set<std::string> versions_;
  std::map<std::string, std::map<std::string, int64_t>> newest_;
};

// Rows of texts in columns as wide as their longest.
class Table {
 public:
  void Row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  void Print(std::ostream& out) const {
    std::vector<size_t> widths;
    for (const auto& row : rows_) {
      widths.resize(std::max(widths.size(), row.size()));
      for (size_t i = 0; i < row.size(); ++i) {
        widths[i] = std::max(widths[i], row[i].size());
      }
    }
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        absl::StrAppend(&line, row[i],
                        i + 1 < row.size()
                            ? std::string(widths[i] + 2 - row[i].size(), ' ')
                            : "");
      }
      out << line << "\n";
    }
  }
  bool empty() const { return rows_.size() < 2; }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string YesNo(bool value) { return value ? "yes" : "no"; }

std::string Uptime(double seconds) {
  if (seconds < 120) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 172800) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.1f d", seconds / 86400);
}

std::string Rate(const Json& node, const char* key) {
  return node.contains(key) ? absl::StrFormat("%.1f", Number(node, key)) : "-";
}

}  // namespace

absl::Status CheckNodeStatus(absl::string_view text) {
  const Json json = base::ParseJson(text);
  const std::string role = json.is_object() ? Text(json, "role") : "";
  if (role != "cpu_node" && role != "gpu_node") {
    return absl::FailedPreconditionError(
        "/status is no status of a Refract node");
  }
  return absl::OkStatus();
}

NodeCounts CountsOf(absl::string_view status) {
  const Json json = base::ParseJson(status);
  NodeCounts counts;
  const auto requests = json.find("requests");
  if (requests == json.end() || !requests->is_object()) return counts;
  for (const auto& [key, count] : requests->items()) {
    if (!count.is_number_unsigned()) continue;
    (key == "succeeded" ? counts.succeeded : counts.failed) +=
        count.get<uint64_t>();
  }
  return counts;
}

nlohmann::ordered_json FleetJson(const std::vector<NodeReport>& reports) {
  Json nodes = Json::array();
  Problems problems;
  for (const NodeReport& report : reports) {
    Json node = {{"address", report.address}};
    if (report.error.ok()) {
      if (report.since > absl::ZeroDuration()) {
        const NodeCounts now = CountsOf(report.status);
        const double seconds = absl::ToDoubleSeconds(report.since);
        node["succeeded_per_s"] =
            static_cast<double>(now.succeeded - report.before.succeeded) /
            seconds;
        node["failed_per_s"] =
            static_cast<double>(now.failed - report.before.failed) / seconds;
      }
      node["status"] = base::ParseJson(report.status);
    } else {
      node["error"] = std::string(report.error.message());
    }
    problems.OfNode(node);
    nodes.push_back(std::move(node));
  }
  return {{"nodes", std::move(nodes)}, {"problems", problems.Take()}};
}

void PrintFleet(const nlohmann::ordered_json& fleet, std::ostream& out) {
  Table nodes, models, links;
  nodes.Row({"NODE", "ROLE", "STATE", "READY", "OK/S", "FAILED/S", "UNDER WAY",
             "MEMORY", "UP", "VERSION"});
  models.Row({"MODEL", "VERSION", "NODE", "READY", "SUCCEEDED", "FAILED"});
  links.Row({"CPU NODE", "GPU NODE", "PATH", "UNDER WAY", "SENT", "LOSSES"});
  for (const Json& node : fleet["nodes"]) {
    const std::string address = Text(node, "address");
    if (!node.contains("status")) {
      nodes.Row({address, "?", "no answer", "no", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    const Json& status = node["status"];
    const bool cpu_node = Text(status, "role") == "cpu_node";
    nodes.Row(
        {address, cpu_node ? "CN" : absl::StrCat("HN ", Text(status, "device")),
         Text(status, "state"), YesNo(Flag(status, "ready")),
         Rate(node, "succeeded_per_s"), Rate(node, "failed_per_s"),
         Count(status, cpu_node ? "requests_in_flight" : "requests_pending"),
         absl::StrFormat("%.0f MiB", Number(status, "request_memory_bytes") /
                                         (1 << 20)),
         Uptime(Number(status, "uptime_seconds")), Text(status, "version")});
    for (const Json& model : Objects(status, "models")) {
      models.Row({Text(model, "name"), Version(model), address,
                  YesNo(Flag(model, "ready")),
                  Count(model, "succeeded"),
                  model.contains("failed") ? Count(model, "failed") : "-"});
    }
    for (const Json& link : Objects(status, "gpu_nodes")) {
      links.Row({address,
                 absl::StrCat(Text(link, "address"),
                              Flag(link, "leaving") ? " (leaving)" : ""),
                 Text(link, "path"), Count(link, "in_flight"),
                 Count(link, "requests_sent"), Count(link, "losses")});
    }
  }
  nodes.Print(out);
  for (const Table* table : {&models, &links}) {
    if (table->empty()) continue;
    out << "\n";
    table->Print(out);
  }
  out << "\n";
  if (fleet["problems"].empty()) out << "Nothing is wrong.\n";
  for (const Json& problem : fleet["problems"]) {
    const std::string node = Text(problem, "node");
    out << "WRONG  " << node << (node.empty() ? "" : ": ")
        << Text(problem, "what") << "\n";
  }
}

}  // namespace refract::tools

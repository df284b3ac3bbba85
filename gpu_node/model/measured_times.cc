#include "gpu_node/model/measured_times.h"

#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "base/json.h"
#include "base/process/files.h"
#include "base/process/mapped_file.h"
#include "gpu_node/model/device_model.h"
#include "models/repository/result_settings.h"
#include "nlohmann/json.hpp"

namespace refract::gpu_node {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kFile = ".execution_times.json";

// An array of {"key", "machine", "times_ns": [[rows, ns], …]}, latest first;
// empty if the file is absent or damaged.
Json ReadEntries(const std::string& path) {
  const auto file = base::MappedFile::Open(path);
  if (!file.ok()) return Json::array();
  const char* const text =
      reinterpret_cast<const char*>((*file)->bytes().data());
  Json json = base::ParseJson({text, (*file)->bytes().size()});
  return json.is_array() ? json : Json::array();
}

bool HasKey(const Json& entry, const std::string& key) {
  return entry.is_object() && entry.contains("key") && entry["key"] == key;
}

}  // namespace

scheduling::ExecutionTimes TimesOf(const MeasuredTimes& measured) {
  scheduling::ExecutionTimes times;
  for (const MeasuredTime& each : measured) times.Prime(each.rows, each.time);
  return times;
}

std::string ThisMachine() {
  std::string cpu;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; cpu.empty() && std::getline(info, line);) {
    const size_t colon = line.find(':');
    if (absl::StartsWith(line, "model name") && colon != std::string::npos) {
      cpu = std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
    }
  }
  if (utsname names; cpu.empty() && uname(&names) == 0) cpu = names.machine;
  return absl::StrCat(cpu, " x ", std::thread::hardware_concurrency());
}

TimesFile::TimesFile(const DeviceModel& model, const std::string& machine,
                     int64_t max_rows)
    : machine_(machine) {
  if (model.model().folder.empty()) return;
  path_ = absl::StrCat(model.model().folder, "/", kFile);
  // The key has everything that the times depend on: CPUs, release, weights,
  // plan, settings, and the largest batch measured.
  base::DigestBuilder key;
  key.AddString(machine);
  key.AddString(REFRACT_VERSION);
  key.AddString(model.model().digest.ToHex());
  key.AddString(model.schema().ToHex());
  for (const models::ResultSetting& setting :
       models::ResultSettingsOf(model.model().config)) {
    key.AddString(setting.name);
    key.AddString(setting.value);
  }
  key.AddInt(static_cast<uint64_t>(max_rows));
  key_ = key.Finish().ToHex();
}

std::optional<MeasuredTimes> TimesFile::Read() const {
  if (path_.empty()) return std::nullopt;
  for (const Json& entry : ReadEntries(path_)) {
    if (!HasKey(entry, key_) || !entry.contains("times_ns")) continue;
    MeasuredTimes times;
    for (const Json& pair : entry["times_ns"]) {
      if (!pair.is_array() || pair.size() != 2 ||
          !pair[0].is_number_integer() || !pair[1].is_number_integer() ||
          pair[0] < 1 || pair[1] < 1) {
        return std::nullopt;
      }
      times.push_back({pair[0], absl::Nanoseconds(pair[1].get<int64_t>())});
    }
    return times;
  }
  return std::nullopt;
}

absl::Status TimesFile::Write(const MeasuredTimes& times) const {
  if (path_.empty()) return absl::OkStatus();
  Json pairs = Json::array();
  for (const MeasuredTime& each : times) {
    pairs.push_back({each.rows, absl::ToInt64Nanoseconds(each.time)});
  }
  Json entries = Json::array();
  // Entries of other machines stay, latest first, within a bound. Of two nodes
  // that write at once, one may lose its entry, and measures again at its next
  // start.
  entries.push_back(
      {{"key", key_}, {"machine", machine_}, {"times_ns", pairs}});
  for (const Json& entry : ReadEntries(path_)) {
    if (entries.size() == kMostEntries) break;
    if (!HasKey(entry, key_)) entries.push_back(entry);
  }
  return base::ReplaceText(path_, base::FormatJson(entries, 1) + "\n");
}

}  // namespace refract::gpu_node

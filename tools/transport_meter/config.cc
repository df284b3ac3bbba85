#include "tools/transport_meter/config.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "transport/loop/fd.h"
#include "transport/paths/paths.h"

namespace refract::transport_meter {
namespace {

// Fits the int32 fields, and the rings of two processes fit a small machine.
constexpr size_t kMaxBytes = size_t{64} << 20;

// The values of the words of `text`, all from `choices`.
template <typename T>
absl::StatusOr<std::vector<T>> ParseWords(
    const std::string& option, const std::string& text,
    const std::vector<std::pair<std::string, T>>& choices) {
  std::vector<T> values;
  for (const std::string& word :
       std::vector<std::string>(absl::StrSplit(text, ','))) {
    const auto found =
        std::find_if(choices.begin(), choices.end(),
                     [&](const auto& choice) { return choice.first == word; });
    if (found == choices.end()) {
      std::vector<std::string> names;
      for (const auto& choice : choices) names.push_back(choice.first);
      return absl::InvalidArgumentError(absl::StrCat(
          option, ": no '", word, "'; there is ", absl::StrJoin(names, ", ")));
    }
    if (std::count(values.begin(), values.end(), found->second) == 0) {
      values.push_back(found->second);
    }
  }
  return values;
}

absl::StatusOr<std::vector<int>> UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return transport::ErrnoStatus(errno, "sched_getaffinity");
  }
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

absl::StatusOr<std::vector<proto::TransportPath>> ParsePaths(
    const std::string& text) {
  std::vector<std::pair<std::string, proto::TransportPath>> choices;
  for (const proto::TransportPath path : transport::AllPaths()) {
    choices.emplace_back(transport::PathName(path), path);
  }
  return ParseWords<proto::TransportPath>("--paths", text, choices);
}

absl::StatusOr<std::vector<Level>> ParseLevels(const std::string& text) {
  return ParseWords<Level>("--levels", text,
                           {{"path", Level::kPath},
                            {"message", Level::kMessage},
                            {"channel", Level::kChannel}});
}

absl::StatusOr<std::vector<Op>> ParseOps(const std::string& text) {
  std::vector<std::pair<std::string, Op>> choices;
  for (size_t i = 0; i < kOpNames.size(); ++i) {
    choices.emplace_back(kOpNames[i], static_cast<Op>(i));
  }
  return ParseWords<Op>("--ops", text, choices);
}

absl::StatusOr<std::vector<Mode>> ParseModes(const std::string& text) {
  return ParseWords<Mode>("--modes", text,
                          {{"busy", Mode::kBusy}, {"event", Mode::kEvent}});
}

absl::StatusOr<std::vector<size_t>> ParseSizes(const std::string& text) {
  std::vector<size_t> sizes;
  for (absl::string_view word :
       std::vector<absl::string_view>(absl::StrSplit(text, ','))) {
    const absl::string_view whole = word;
    size_t unit = 1;
    if (absl::ConsumeSuffix(&word, "K")) unit = size_t{1} << 10;
    if (absl::ConsumeSuffix(&word, "M")) unit = size_t{1} << 20;
    size_t number = 0;
    if (!absl::SimpleAtoi(word, &number) || number == 0 ||
        number > kMaxBytes / unit) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sizes: '", whole, "' is no size from 1 to 64M"));
    }
    sizes.push_back(number * unit);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

absl::StatusOr<std::vector<int>> ParseCpus(const std::string& text) {
  REFRACT_ASSIGN_OR_RETURN(const std::vector<int> usable, UsableCpus());
  // Two different processors if there are two: spinning sides on one processor
  // would only wait for each other's time slices.
  if (text.empty())
    return std::vector<int>{usable.front(),
                            usable[std::min<size_t>(1, usable.size() - 1)]};
  std::vector<int> cpus;
  for (const absl::string_view word :
       std::vector<absl::string_view>(absl::StrSplit(text, ','))) {
    int cpu = 0;
    if (!absl::SimpleAtoi(word, &cpu) ||
        std::count(usable.begin(), usable.end(), cpu) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--cpus: '", word, "' is no processor of this process; ",
                       "there is ", absl::StrJoin(usable, ", ")));
    }
    cpus.push_back(cpu);
  }
  if (cpus.size() != 2) {
    return absl::InvalidArgumentError("--cpus: wants two, as in 0,1");
  }
  return cpus;
}

absl::Status CheckConfig(const Config& config) {
  const auto bad = [](absl::string_view what) {
    return absl::InvalidArgumentError(what);
  };
  if (config.rounds < 1 || config.rounds > 1000) {
    return bad("--rounds: wants 1 to 1000");
  }
  if (!(config.time_ms > 0 && config.time_ms <= 60'000)) {
    return bad("--time-ms: wants more than 0 and at most 60000");
  }
  if (config.max_iterations < 1 || config.max_iterations > 100'000'000) {
    return bad("--iterations: wants 1 to 100000000");
  }
  if (config.window_bytes < 1 || config.window_bytes > kMaxBytes) {
    return bad("--window: wants 1 to 64M bytes");
  }
  // The transport's own bound, minus the overhead of a message.
  if (config.eager_bytes > (size_t{8} << 20)) {
    return bad("--eager-bytes: wants at most 8M");
  }
  return absl::OkStatus();
}

}  // namespace refract::transport_meter

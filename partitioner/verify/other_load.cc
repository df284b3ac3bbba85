#include "partitioner/verify/other_load.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace refract::partitioner {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file),
          std::istreambuf_iterator<char>()};
}

// Sum of the fields of `wanted`, which are all there and numbers.
std::optional<double> SumOf(const std::vector<absl::string_view>& fields,
                            std::initializer_list<size_t> wanted) {
  double sum = 0;
  for (const size_t field : wanted) {
    double ticks = 0;
    if (field >= fields.size() || !absl::SimpleAtod(fields[field], &ticks)) {
      return std::nullopt;
    }
    sum += ticks;
  }
  return sum;
}

double TicksPerSecond() { return static_cast<double>(sysconf(_SC_CLK_TCK)); }

}  // namespace

std::optional<double> BusySeconds(absl::string_view stat,
                                  double ticks_per_second) {
  // proc(5): cpu user nice system idle iowait irq softirq steal …
  const absl::string_view line = stat.substr(0, stat.find('\n'));
  const std::vector<absl::string_view> fields =
      absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (fields.empty() || fields[0] != "cpu") return std::nullopt;
  const std::optional<double> ticks = SumOf(fields, {1, 2, 3, 6, 7, 8});
  if (!ticks) return std::nullopt;
  return *ticks / ticks_per_second;
}

std::optional<double> ProcessSeconds(absl::string_view stat,
                                     double ticks_per_second) {
  // proc(5): pid (name) state …; the name may have spaces and brackets. After
  // it utime, stime, cutime and cstime are fields 12 to 15 from `state` on.
  const size_t name_end = stat.rfind(')');
  if (name_end == absl::string_view::npos) return std::nullopt;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(stat.substr(name_end + 1), ' ', absl::SkipEmpty());
  const std::optional<double> ticks = SumOf(fields, {11, 12, 13, 14});
  if (!ticks) return std::nullopt;
  return *ticks / ticks_per_second;
}

OtherLoad::OtherLoad(std::vector<pid_t> own)
    : own_([&own] {
        own.push_back(getpid());
        return std::move(own);
      }()),
      begin_(absl::Now()),
      before_(OthersSeconds()) {}

std::optional<double> OtherLoad::OthersSeconds() const {
  std::optional<double> seconds =
      BusySeconds(ReadText("/proc/stat"), TicksPerSecond());
  for (const pid_t pid : own_) {
    const std::optional<double> own = ProcessSeconds(
        ReadText(absl::StrCat("/proc/", pid, "/stat")), TicksPerSecond());
    if (!seconds || !own) return std::nullopt;
    *seconds -= *own;
  }
  return seconds;
}

std::optional<double> OtherLoad::Processors() const {
  const std::optional<double> now = OthersSeconds();
  const double passed = absl::ToDoubleSeconds(absl::Now() - begin_);
  if (!before_ || !now || passed <= 0) return std::nullopt;
  // Ticks of a process and of the machine are not counted at one instant.
  return std::max(0.0, *now - *before_) / passed;
}

}  // namespace refract::partitioner

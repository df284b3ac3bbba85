#include "tools/loadgen/schedule.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace refract::loadgen {
namespace {

// A query of more items than this is a slip of the keyboard.
constexpr int64_t kMaxItems = 1 << 20;

// MLPerf inference, recommendation/dlrm*/…/tools/dist_quantile.txt: twenty
// equally likely values.
std::vector<int64_t> MlperfSizes() {
  std::vector<int64_t> values = {100, 100, 300, 300, 400, 500, 600, 700};
  values.insert(values.end(), 12, 200);
  std::sort(values.begin(), values.end());
  return values;
}

absl::StatusOr<int64_t> ParseSize(absl::string_view text,
                                  absl::string_view where) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > kMaxItems) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": '", text, "' is no number of items (1 to ", kMaxItems, ")"));
  }
  return value;
}

absl::StatusOr<std::vector<int64_t>> ReadSizes(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be opened"));
  }
  std::vector<int64_t> values;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    absl::string_view text = line;
    text = absl::StripAsciiWhitespace(text.substr(0, text.find('#')));
    if (text.empty()) continue;
    absl::StatusOr<int64_t> value =
        ParseSize(text, absl::StrCat(path, ":", number));
    if (!value.ok()) return value.status();
    values.push_back(*value);
  }
  if (file.bad() || values.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds no query size"));
  }
  return values;
}

}  // namespace

QuerySizes::QuerySizes(std::vector<int64_t> values)
    : values_(std::move(values)) {}

absl::StatusOr<QuerySizes> QuerySizes::Parse(absl::string_view spec) {
  if (spec == "mlperf") return QuerySizes(MlperfSizes());
  if (absl::StartsWith(spec, "fixed:")) {
    absl::StatusOr<int64_t> value =
        ParseSize(spec.substr(6), "--query-sizes fixed");
    if (!value.ok()) return value.status();
    return QuerySizes({*value});
  }
  if (absl::StartsWith(spec, "file:")) {
    absl::StatusOr<std::vector<int64_t>> values =
        ReadSizes(std::string(spec.substr(5)));
    if (!values.ok()) return values.status();
    return QuerySizes(*std::move(values));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--query-sizes: '", spec, "' is none of mlperf, fixed:N, file:PATH"));
}

int64_t QuerySizes::Draw(Random& random) const {
  return values_[random.Below(values_.size())];
}

double QuerySizes::mean() const {
  return std::accumulate(values_.begin(), values_.end(), 0.0) /
         static_cast<double>(values_.size());
}

}  // namespace refract::loadgen

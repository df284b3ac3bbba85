#include "placement/planner/costs.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::placement {
namespace {

// The figures that depend on the rows.
constexpr std::pair<const char*, double RequestCost::*> kFigures[] = {
    {"cn_pre", &RequestCost::cn_pre_s}, {"cn_post", &RequestCost::cn_post_s},
    {"hn", &RequestCost::hn_s},         {"up", &RequestCost::up_bytes},
    {"down", &RequestCost::down_bytes},
};

absl::Status CheckVariation(const char* name, const Variation& variation) {
  if (!(variation.sigma >= 0 && variation.sigma <= 3)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "variation.", name, ": ", variation.sigma, " is outside 0..3"));
  }
  for (const double factor : variation.factors) {
    if (!(factor > 0 && std::isfinite(factor))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "variation.", name, ": factor ", factor, " is not positive"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

double Variation::Draw(Random& random) const {
  if (!factors.empty()) return factors[random.Below(factors.size())];
  if (sigma == 0) return 1;
  // Box and Muller's transform; 1 − Unit() is in (0, 1].
  const double radius = std::sqrt(-2 * std::log(1 - random.Unit()));
  return std::exp(sigma * radius *
                  std::cos(2 * std::numbers::pi * random.Unit()));
}

double Variation::Mean() const {
  if (!factors.empty()) {
    return std::accumulate(factors.begin(), factors.end(), 0.0) /
           static_cast<double>(factors.size());
  }
  // The mean of a log-normal variable of median 1.
  return std::exp(sigma * sigma / 2);
}

RequestCost ModelCosts::At(double rows) const {
  if (points.size() == 1) {
    RequestCost cost = points[0];
    cost.rows = rows;
    return cost;
  }
  // The first segment whose end is at or beyond `rows`, else the last.
  size_t end = 1;
  while (end + 1 < points.size() && points[end].rows < rows) ++end;
  const RequestCost& a = points[end - 1];
  const RequestCost& b = points[end];
  const double share = (rows - a.rows) / (b.rows - a.rows);
  RequestCost cost;
  cost.rows = rows;
  for (const auto& [name, figure] : kFigures) {
    cost.*figure = std::max(0.0, a.*figure + share * (b.*figure - a.*figure));
  }
  return cost;
}

absl::Status Check(const ModelCosts& costs) {
  if (costs.points.empty()) {
    return absl::InvalidArgumentError("profile: has no points");
  }
  // Comparisons are negated so that NaN is refused, too.
  double before = 0;
  for (size_t i = 0; i < costs.points.size(); ++i) {
    const RequestCost& point = costs.points[i];
    if (!(point.rows > before) || !std::isfinite(point.rows)) {
      return absl::InvalidArgumentError(
          absl::StrCat("profile[", i, "].rows: ", point.rows,
                       i == 0 ? " is not positive" : " does not ascend"));
    }
    before = point.rows;
    for (const auto& [name, figure] : kFigures) {
      if (!(point.*figure >= 0) || !std::isfinite(point.*figure)) {
        return absl::InvalidArgumentError(
            absl::StrCat("profile[", i, "].", name, ": ", point.*figure,
                         " is no number of at least 0"));
      }
    }
  }
  if (!(costs.round_trip_s >= 0) || !std::isfinite(costs.round_trip_s)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "round_trip: ", costs.round_trip_s, " is no number of at least 0"));
  }
  REFRACT_RETURN_IF_ERROR(CheckVariation("cn", costs.cn));
  REFRACT_RETURN_IF_ERROR(CheckVariation("hn", costs.hn));
  return CheckVariation("round_trip", costs.round_trip);
}

RequestCost MeanOf(const ModelCosts& costs, const std::vector<double>& rows) {
  RequestCost mean;
  mean.rows = 0;
  const auto count = static_cast<double>(rows.size());
  for (const double request_rows : rows) {
    const RequestCost cost = costs.At(request_rows);
    mean.rows += request_rows / count;
    for (const auto& [name, figure] : kFigures) {
      mean.*figure += cost.*figure / count;
    }
  }
  // Points are medians; the mean factor turns them into means.
  mean.cn_pre_s *= costs.cn.Mean();
  mean.cn_post_s *= costs.cn.Mean();
  mean.hn_s *= costs.hn.Mean();
  return mean;
}

}  // namespace refract::placement

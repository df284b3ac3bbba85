#include "tools/loadgen/ids.h"

#include <algorithm>
#include <cmath>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace refract::loadgen {
namespace {

// A prime above any table of fewer than 2^31 rows, so that multiplying by it
// modulo the rows is a permutation.
constexpr uint64_t kSpread = 2654435761;

// (exp(x) - 1) / x and log(1 + x) / x, by their series around 0.
double ExpRatio(double x) {
  return std::abs(x) > 1e-8 ? std::expm1(x) / x : 1 + x / 2;
}
double LogRatio(double x) {
  return std::abs(x) > 1e-8 ? std::log1p(x) / x : 1 - x / 2;
}

double Weight(double rank, double exponent) {
  return std::exp(-exponent * std::log(rank));
}

}  // namespace

absl::StatusOr<IdSkew> ParseIdSkew(absl::string_view spec) {
  if (spec == "uniform") return IdSkew{};
  IdSkew skew;
  if (!absl::StartsWith(spec, "zipf:") ||
      !absl::SimpleAtod(spec.substr(5), &skew.exponent) ||
      !(skew.exponent > 0 && skew.exponent <= 10)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--ids: '", spec,
        "' is neither uniform nor zipf:ALPHA with 0 < ALPHA <= 10"));
  }
  return skew;
}

// Rejection-inversion: Hörmann and Derflinger, "Rejection-inversion to generate
// variates from monotone discrete distributions", ACM TOMACS 6 (1996). The
// weights' histogram is covered by the curve x^-a, whose integral has an
// inverse; a point under the curve but over the histogram is drawn again.
IdSampler::IdSampler(IdSkew skew, int64_t rows)
    : exponent_(skew.exponent), rows_(rows) {
  if (exponent_ == 0) return;
  integral_first_ = Integral(1.5) - 1;
  integral_last_ = Integral(static_cast<double>(rows) + 0.5);
  always_accept_ = 2 - InverseIntegral(Integral(2.5) - Weight(2, exponent_));
}

double IdSampler::Integral(double x) const {
  const double log_x = std::log(x);
  return ExpRatio((1 - exponent_) * log_x) * log_x;
}

double IdSampler::InverseIntegral(double x) const {
  // Rounding may pass the pole of log1p.
  const double t = std::max(x * (1 - exponent_), -1.0);
  return std::exp(LogRatio(t) * x);
}

int64_t IdSampler::DrawRank(Random& random) const {
  if (exponent_ == 0) return static_cast<int64_t>(random.Below(rows_)) + 1;
  while (true) {
    const double u =
        integral_last_ + random.Uniform() * (integral_first_ - integral_last_);
    const double x = InverseIntegral(u);
    const double rounded =
        std::clamp(std::floor(x + 0.5), 1.0, static_cast<double>(rows_));
    if (rounded - x <= always_accept_ ||
        u >= Integral(rounded + 0.5) - Weight(rounded, exponent_)) {
      return static_cast<int64_t>(rounded);
    }
  }
}

int64_t IdSampler::Draw(Random& random) const {
  const uint64_t rank = static_cast<uint64_t>(DrawRank(random) - 1);
  if (exponent_ == 0) return static_cast<int64_t>(rank);
  return static_cast<int64_t>(
      absl::Uint128Low64(absl::uint128(rank) * kSpread % rows_));
}

}  // namespace refract::loadgen

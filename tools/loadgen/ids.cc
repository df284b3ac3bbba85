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

// Histograms of facebookresearch/dlrm_datasets, embedding_bag/2022/
// locality_stats.txt (batches of 131,072, 788 tables, 1.405e9 look-ups of
// 110.3e6 distinct rows): how often a row was used, which share of the rows
// that was, and which share of the look-ups went to them. The file rounds small
// shares of rows to 0.000. Rare() computes these: share of look-ups × mean uses
// of all rows ÷ uses of a row of the class (its geometric middle; 65,536 in the
// last class).
struct UseClass {
  double rows, accesses;
};
constexpr double kMeanUses = 12.7;
constexpr double Rare(double accesses, double uses) {
  return accesses * kMeanUses / uses;
}
// Ascending in uses: 1, 2, 3 to 4, 5 to 8, …, 16,385 to 32,768, more.
constexpr UseClass kUseClasses[] = {
    {0.342, 0.027},
    {0.144, 0.023},
    {0.149, 0.040},
    {0.138, 0.068},
    {0.112, 0.105},
    {0.068, 0.120},
    {0.029, 0.099},
    {Rare(0.070, 90.5), 0.070},
    {Rare(0.059, 181), 0.059},
    {Rare(0.054, 362), 0.054},
    {Rare(0.040, 724), 0.040},
    {Rare(0.072, 1448), 0.072},
    {Rare(0.064, 2896), 0.064},
    {Rare(0.047, 5793), 0.047},
    {Rare(0.021, 11585), 0.021},
    {Rare(0.017, 23170), 0.017},
    {Rare(0.076, 65536), 0.076}};

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
  if (spec == "meta") return IdSkew{.embedding_traces = true};
  IdSkew skew;
  if (!absl::StartsWith(spec, "zipf:") ||
      !absl::SimpleAtod(spec.substr(5), &skew.exponent) ||
      !(skew.exponent > 0 && skew.exponent <= 10)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--ids: '", spec,
        "' is none of uniform, meta, zipf:ALPHA with 0 < ALPHA <= 10"));
  }
  return skew;
}

// Rejection-inversion: Hörmann and Derflinger, "Rejection-inversion to generate
// variates from monotone discrete distributions", ACM TOMACS 6 (1996). The
// weights' histogram is covered by the curve x^-a, whose integral has an
// inverse; a point under the curve but over the histogram is drawn again.
IdSampler::IdSampler(IdSkew skew, int64_t rows)
    : exponent_(skew.exponent), rows_(rows), banded_(skew.embedding_traces) {
  if (banded_) SetBands();
  if (banded_ || exponent_ == 0) return;
  // Ranks are drawn by the area under the curve. integral_first_ is the left
  // end, H(1.5) − h(1): rank 1 gets its exact weight. always_accept_ saves
  // evaluations of the integral: a point that was rounded up by no more than
  // this is under the histogram.
  integral_first_ = Integral(1.5) - 1;
  integral_last_ = Integral(static_cast<double>(rows) + 0.5);
  always_accept_ = 2 - InverseIntegral(Integral(2.5) - Weight(2, exponent_));
}

void IdSampler::SetBands() {
  static_assert(kBands == sizeof(kUseClasses) / sizeof(UseClass));
  // Normalises both shares, which the rounded file does not make add up to 1,
  // and turns the classes around: rank 1 is the most used row.
  double all_rows = 0, all_accesses = 0;
  for (const UseClass& uses : kUseClasses) {
    all_rows += uses.rows;
    all_accesses += uses.accesses;
  }
  double rows = 0, accesses = 0;
  for (int i = 0; i < kBands; ++i) {
    const UseClass& uses = kUseClasses[kBands - 1 - i];
    rows += uses.rows / all_rows;
    accesses += uses.accesses / all_accesses;
    bands_[i] = {std::llround(rows * static_cast<double>(rows_)), accesses};
  }
  bands_.back() = {rows_, 1};
}

int64_t IdSampler::DrawBandRank(Random& random) const {
  // A look-up falls into a band by the band's share of look-ups, and within the
  // band every row is as likely as another.
  const double access = random.Uniform();
  int band = 0;
  while (bands_[band].accesses <= access) ++band;
  // A small table has no row for the most used classes: their look-ups go to
  // its first row.
  const int64_t begin = band == 0 ? 0 : bands_[band - 1].end;
  const int64_t rows = bands_[band].end - begin;
  if (rows == 0) return std::min(begin + 1, rows_);
  return begin + 1 + static_cast<int64_t>(random.Below(rows));
}

double IdSampler::Integral(double x) const {
  // ∫ t^−a dt from 1 to x: (x^(1 − a) − 1) / (1 − a), or log x for a = 1.
  const double log_x = std::log(x);
  return ExpRatio((1 - exponent_) * log_x) * log_x;
}

double IdSampler::InverseIntegral(double x) const {
  // Inverse of Integral(): (1 + x (1 − a))^(1 / (1 − a)), or e^x for a = 1.
  // Rounding may pass the pole of log1p.
  const double t = std::max(x * (1 - exponent_), -1.0);
  return std::exp(LogRatio(t) * x);
}

int64_t IdSampler::DrawRank(Random& random) const {
  if (banded_) return DrawBandRank(random);
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
  // Skewed ranks are spread over the table by a permutation (kSpread). Uniform
  // ids are everywhere already.
  const uint64_t rank = static_cast<uint64_t>(DrawRank(random) - 1);
  if (!banded_ && exponent_ == 0) return static_cast<int64_t>(rank);
  return static_cast<int64_t>(
      absl::Uint128Low64(absl::uint128(rank) * kSpread % rows_));
}

}  // namespace refract::loadgen

#include "partitioner/profile/least_squares.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace refract::partitioner {
namespace {

constexpr size_t kMaxFigures = 10;
// Share of the largest pivot below which columns are multiples of each other up
// to rounding.
constexpr double kSingular = 1e-12;

// Solves A·x = b by elimination with pivots; nullopt when A is singular.
std::optional<std::vector<double>> Solve(std::vector<std::vector<double>> a,
                                         std::vector<double> b) {
  const size_t n = b.size();
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k + 1; i < n; ++i) {
      if (std::abs(a[i][k]) > std::abs(a[pivot][k])) pivot = i;
    }
    // Columns are scaled to length 1, so this is relative.
    if (!(std::abs(a[pivot][k]) > kSingular)) return std::nullopt;
    std::swap(a[k], a[pivot]);
    std::swap(b[k], b[pivot]);
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = a[i][k] / a[k][k];
      for (size_t j = k; j < n; ++j) a[i][j] -= factor * a[k][j];
      b[i] -= factor * b[k];
    }
  }
  std::vector<double> x(n);
  for (size_t k = n; k-- > 0;) {
    x[k] = b[k];
    for (size_t j = k + 1; j < n; ++j) x[k] -= a[k][j] * x[j];
    x[k] /= a[k][k];
  }
  return x;
}

}  // namespace

absl::StatusOr<std::vector<double>> FitNonNegative(
    absl::Span<const Equation> equations) {
  const size_t figures = equations.empty() ? 0 : equations[0].counts.size();
  if (figures == 0 || figures > kMaxFigures) {
    return absl::InvalidArgumentError("a fit determines 1 to 10 unknowns");
  }
  for (const Equation& equation : equations) {
    if (equation.counts.size() != figures) {
      return absl::InvalidArgumentError("equations of different lengths");
    }
  }
  // Scales columns, because bytes and seconds differ by ten orders of
  // magnitude.
  std::vector<double> scale(figures, 0);
  for (const Equation& equation : equations) {
    for (size_t j = 0; j < figures; ++j) {
      const double count = equation.counts[j] * equation.weight;
      scale[j] += count * count;
    }
  }
  for (double& value : scale) value = std::sqrt(value);
  if (std::count(scale.begin(), scale.end(), 0.0) > 0) {
    return absl::FailedPreconditionError(
        "an unknown has the coefficient 0 in every sample");
  }
  const auto scaled = [&](const Equation& equation, size_t j) {
    return equation.counts[j] * equation.weight / scale[j];
  };

  // The optimum under x ≥ 0 is the free optimum over the figures that are not 0
  // in it. So every subset of figures is solved freely, by its normal
  // equations; solutions with a negative figure are dropped; the solution of
  // the least error wins. The empty subset always counts, so there is a best.
  // kMaxFigures bounds the number of subsets.
  std::vector<double> best;
  double best_error = std::numeric_limits<double>::infinity();
  for (unsigned chosen = 0; chosen < 1u << figures; ++chosen) {
    std::vector<size_t> columns;
    for (size_t j = 0; j < figures; ++j) {
      if (chosen >> j & 1) columns.push_back(j);
    }
    // Normal equations AᵀWA·x = AᵀWt with squared weights, over scaled columns.
    std::vector<std::vector<double>> a(columns.size(),
                                       std::vector<double>(columns.size(), 0));
    std::vector<double> b(columns.size(), 0);
    for (const Equation& equation : equations) {
      for (size_t i = 0; i < columns.size(); ++i) {
        const double at_i = scaled(equation, columns[i]);
        for (size_t j = 0; j < columns.size(); ++j) {
          a[i][j] += at_i * scaled(equation, columns[j]);
        }
        b[i] += at_i * equation.seconds * equation.weight;
      }
    }
    const std::optional<std::vector<double>> solved = Solve(a, b);
    if (!solved) {
      // Only the full set decides whether the samples determine all figures.
      // The full set comes last, so no result was returned before.
      if (columns.size() < figures) continue;
      return absl::FailedPreconditionError(
          "the samples are too alike to determine all unknowns");
    }
    if (std::any_of(solved->begin(), solved->end(),
                    [](double x) { return x < 0; })) {
      continue;
    }
    std::vector<double> x(figures, 0);
    for (size_t i = 0; i < columns.size(); ++i) {
      // Back from scaled columns to figures.
      x[columns[i]] = (*solved)[i] / scale[columns[i]];
    }
    double error = 0;
    for (const Equation& equation : equations) {
      double rest = equation.seconds;
      for (size_t j = 0; j < figures; ++j) rest -= equation.counts[j] * x[j];
      error += rest * rest * equation.weight * equation.weight;
    }
    if (error < best_error) {
      best_error = error;
      best = std::move(x);
    }
  }
  return best;
}

}  // namespace refract::partitioner

#include "partitioner/verify/ranking.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/quantile.h"

namespace refract::partitioner {
namespace {

// Ranks from 0; values that are equal share the mean of their ranks.
std::vector<double> RanksOf(absl::Span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) {
      ++end;
    }
    const double mean = static_cast<double>(begin + end - 1) / 2;
    for (; begin < end; ++begin) ranks[order[begin]] = mean;
  }
  return ranks;
}

}  // namespace

std::optional<double> RankCorrelation(absl::Span<const double> a,
                                      absl::Span<const double> b) {
  const std::vector<double> x = RanksOf(a);
  const std::vector<double> y = RanksOf(b);
  // Spearman's coefficient is Pearson's coefficient of the ranks. The mean of
  // the ranks 0 … n − 1 is (n − 1) / 2, with shared ranks as well.
  const double mean = static_cast<double>(x.size()) / 2 - 0.5;
  double xx = 0;
  double xy = 0;
  double yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean) * (x[i] - mean);
    xy += (x[i] - mean) * (y[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  if (xx == 0 || yy == 0) return std::nullopt;
  return xy / std::sqrt(xx * yy);
}

std::vector<double> RelativeTimes(absl::Span<const std::vector<double>> turns) {
  std::vector<std::vector<double>> relative(turns.size());
  const size_t rounds = turns.empty() ? 0 : turns.front().size();
  for (size_t round = 0; round < rounds; ++round) {
    // The geometric mean: a cut that takes twice as long in every round has
    // twice the relative time, and no long cut outweighs the others.
    double sum = 0;
    for (const std::vector<double>& turn : turns) sum += std::log(turn[round]);
    const double mean = std::exp(sum / static_cast<double>(turns.size()));
    for (size_t cut = 0; cut < turns.size(); ++cut) {
      relative[cut].push_back(turns[cut][round] / mean);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_cut : relative) {
    medians.push_back(base::QuartilesOf(std::move(of_cut)).median);
  }
  return medians;
}

}  // namespace refract::partitioner

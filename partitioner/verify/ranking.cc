#include "partitioner/verify/ranking.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/quantile.h"
#include "partitioner/verify/rank_correlation.h"

namespace refract::partitioner {
namespace {

// Of the sign test, both sides together.
constexpr double kSignificance = 0.05;
// Polish ends long before in practice.
constexpr int kMostSweeps = 50;
constexpr double kPolished = 1e-9;

double MedianOf(std::vector<double> values) {
  return base::QuartilesOf(std::move(values)).median;
}

// exp(level + effect of the cut), where the logarithms are level + effect of
// the round + effect of the cut + what is left.
std::vector<double> SteadyTimes(absl::Span<const std::vector<double>> turns) {
  std::vector<std::vector<double>> left;
  for (const std::vector<double>& of_cut : turns) {
    left.emplace_back();
    for (const double seconds : of_cut)
      left.back().push_back(std::log(seconds));
  }
  const size_t rounds = left.front().size();
  std::vector<double> cut(left.size(), 0);
  std::vector<double> round(rounds, 0);
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double moved = 0;
    for (size_t c = 0; c < left.size(); ++c) {
      const double median = MedianOf(left[c]);
      for (double& value : left[c]) value -= median;
      cut[c] += median;
      moved = std::max(moved, std::abs(median));
    }
    for (size_t r = 0; r < rounds; ++r) {
      std::vector<double> across;
      for (const std::vector<double>& of_cut : left)
        across.push_back(of_cut[r]);
      const double median = MedianOf(std::move(across));
      for (std::vector<double>& of_cut : left) of_cut[r] -= median;
      round[r] += median;
      moved = std::max(moved, std::abs(median));
    }
    if (moved < kPolished) break;
  }
  const double level = MedianOf(round);
  for (double& effect : cut) effect = std::exp(level + effect);
  return cut;
}

// Whether `less` of `count` fair coins, or fewer on either side, are so few
// that chance gives them rarely.
bool Significant(int less, int count) {
  const int fewer = std::min(less, count - less);
  double term = std::pow(0.5, count);
  double chance = 0;
  for (int k = 0; k <= fewer; ++k) {
    chance += term;
    term *= static_cast<double>(count - k) / (k + 1);
  }
  return 2 * chance < kSignificance;
}

}  // namespace

Ranking RankCuts(absl::Span<const double> predicted,
                 absl::Span<const std::vector<double>> turns) {
  Ranking ranking;
  if (turns.empty() || turns.front().empty()) return ranking;
  ranking.steady_s = SteadyTimes(turns);
  std::vector<double> medians;
  for (const std::vector<double>& of_cut : turns) {
    medians.push_back(MedianOf(of_cut));
  }
  ranking.rank_correlation = RankCorrelation(predicted, ranking.steady_s);
  ranking.rank_correlation_of_medians = RankCorrelation(predicted, medians);
  for (size_t a = 0; a < turns.size(); ++a) {
    for (size_t b = a + 1; b < turns.size(); ++b) {
      ++ranking.pairs;
      int less = 0;
      int count = 0;
      for (size_t r = 0; r < turns[a].size(); ++r) {
        if (turns[a][r] == turns[b][r]) continue;
        less += turns[a][r] < turns[b][r] ? 1 : 0;
        ++count;
      }
      if (!Significant(less, count)) continue;
      ++ranking.told_apart;
      const bool a_first = 2 * less > count;
      if (predicted[a] != predicted[b] &&
          (predicted[a] < predicted[b]) == a_first) {
        ++ranking.in_order;
      }
    }
  }
  return ranking;
}

}  // namespace refract::partitioner

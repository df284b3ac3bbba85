#include "partitioner/cut/weighted.h"

#include <algorithm>
#include <cmath>

#include "partitioner/cut/max_flow.h"

namespace refract::partitioner::cut {
namespace {

// Bound of the relative rounding error of the few long double operations behind
// a bound.
constexpr long double kRounding = 0x1p-58L;

struct Term {
  const Measure* measure;
  long double weight;
};

// Upper bound of the price of any choice.
Cost LargestPrice(const Measure& measure) {
  Cost total = measure.hn_used;
  for (const auto& costs : measure.stage) {
    total += *std::max_element(costs.begin(), costs.end());
  }
  for (const auto* costs : {&measure.up, &measure.down, &measure.shared_on_cn,
                            &measure.shared_on_hn}) {
    for (const Cost cost : *costs) total += cost;
  }
  return total;
}

// f(measure) summed over the terms, rounded down.
template <typename Get>
Cost Sum(const std::vector<Term>& terms, Get get) {
  long double sum = 0;
  for (const Term& term : terms) {
    const Cost value = get(*term.measure);
    if (value != 0) sum += term.weight * static_cast<long double>(value);
  }
  // Costs are not negative: conversion rounds down.
  return static_cast<Cost>(sum - sum * kRounding);
}

}  // namespace

WeightedMeasure::WeightedMeasure(const Problem& problem,
                                 const std::vector<const Measure*>& objectives,
                                 const std::vector<const Measure*>& limits,
                                 const std::vector<Cost>& at_most,
                                 const Multipliers& multipliers) {
  if (objectives.size() == 1 &&
      std::all_of(multipliers.limits.begin(), multipliers.limits.end(),
                  [](double multiplier) { return multiplier == 0; })) {
    measure_ = *objectives.front();
    exact_ = true;
    return;
  }
  // The weights of the objectives must add up to at most 1, or the sum would
  // overstate the largest objective.
  long double sum = 0;
  for (const double weight : multipliers.objectives) sum += weight;
  std::vector<Term> terms;
  long double total = 1;
  const auto add_term = [&](const Measure* measure, long double weight) {
    if (weight <= 0) return;
    terms.push_back({measure, weight});
    total += weight * static_cast<long double>(LargestPrice(*measure));
  };
  for (size_t i = 0; i < objectives.size(); ++i) {
    add_term(objectives[i], multipliers.objectives[i] / sum);
  }
  for (size_t j = 0; j < limits.size(); ++j) {
    add_term(limits[j], multipliers.limits[j]);
    allowance_ += static_cast<long double>(multipliers.limits[j]) *
                  static_cast<long double>(at_most[j]);
  }
  // The finest scale at which every sum is a finite capacity (kMaxFinite).
  int exponent = 0;
  std::frexp(total, &exponent);
  static_assert(kMaxFinite >= Cost{1} << 59);
  shift_ = 59 - exponent;
  // A power of two: exact.
  for (Term& term : terms) term.weight = std::ldexp(term.weight, shift_);

  measure_ = Measure(problem);
  for (size_t n = 0; n < measure_.stage.size(); ++n) {
    for (int s = 0; s < kNumStages; ++s) {
      measure_.stage[n][s] = Sum(
          terms, [&](const Measure& measure) { return measure.stage[n][s]; });
    }
  }
  const auto add = [&](std::vector<Cost> Measure::*member) {
    std::vector<Cost>& sums = measure_.*member;
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = Sum(
          terms, [&](const Measure& measure) { return (measure.*member)[i]; });
    }
  };
  add(&Measure::up);
  add(&Measure::down);
  add(&Measure::shared_on_cn);
  add(&Measure::shared_on_hn);
  measure_.hn_used =
      Sum(terms, [](const Measure& measure) { return measure.hn_used; });
}

Cost WeightedMeasure::LowerBound(Cost least) const {
  if (exact_) return least;
  const long double sum = std::ldexp(static_cast<long double>(least), -shift_);
  const long double bound = sum - allowance_;
  const long double error = (std::abs(sum) + std::abs(allowance_)) * kRounding;
  return std::max(Cost{0}, static_cast<Cost>(std::ceil(bound - error)));
}

}  // namespace refract::partitioner::cut

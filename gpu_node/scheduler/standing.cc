#include "gpu_node/scheduler/standing.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/inlined_vector.h"

namespace refract::gpu_node {

std::vector<double> NominalRates(absl::Span<const double> shares,
                                 absl::Span<const Demand> demands,
                                 double instances, std::vector<double> rates) {
  double asking = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (demands[i].asks) asking += shares[i];
  }
  rates.clear();
  for (size_t i = 0; i < shares.size(); ++i) {
    const double all = asking + (demands[i].asks ? 0 : shares[i]);
    rates.push_back(instances * shares[i] / all);
  }
  return rates;
}

std::vector<double> MaxMinRates(absl::Span<const double> shares,
                                absl::Span<const Demand> demands,
                                double instances, std::vector<double> rates) {
  // Those that want least of their share are satisfied first.
  absl::InlinedVector<size_t, 64> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return demands[a].instances * shares[b] < demands[b].instances * shares[a];
  });
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  rates.resize(shares.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    double left = instances;
    double unsatisfied = all;
    for (const size_t j : order) {
      if (j == i) continue;
      if (demands[j].instances * unsatisfied > left * shares[j]) break;
      left -= demands[j].instances;
      unsatisfied -= shares[j];
    }
    rates[i] = left * shares[i] / unsatisfied;
  }
  return rates;
}

Standings::Standings(std::vector<double> shares)
    : shares_(std::move(shares)), models_(shares_.size()) {}

void Standings::SetDemands(absl::Span<const Demand> demands, double instances) {
  nominal_rates_ =
      NominalRates(shares_, demands, instances, std::move(nominal_rates_));
  max_min_rates_ =
      MaxMinRates(shares_, demands, instances, std::move(max_min_rates_));
  const auto set = [&](Account& account, double rate) {
    account.rate = rate;
    account.most_s = std::max(
        std::min(rate, instances - rate) * absl::ToDoubleSeconds(kBurst),
        absl::ToDoubleSeconds(kLeastHeld));
    account.Add(0);
  };
  for (size_t i = 0; i < models_.size(); ++i) {
    set(models_[i].nominal, nominal_rates_[i]);
    set(models_[i].max_min, max_min_rates_[i]);
  }
}

void Standings::Account::Add(double s) {
  // What one execution takes beyond what was held is owed: a model whose
  // executions are longer than accounts are deep is not modest after each.
  const double least = std::min(held_s, std::min(0.0, s));
  held_s = std::clamp(held_s + s, least, std::max(most_s, least));
  if (held_s >= absl::ToDoubleSeconds(kLeastHeld) / 2) below = true;
  if (held_s <= 0) below = false;
}

void Standings::Advance(absl::Time now) {
  const double passed_s =
      std::max(0.0, absl::ToDoubleSeconds(now - std::min(now, last_)));
  last_ = now;
  for (Model& model : models_) {
    const bool wants_more = now - model.waiting_since > kPatience;
    for (Account* account : {&model.nominal, &model.max_min}) {
      const bool fills = !wants_more || (account->below && !model.own_limit);
      if (fills) account->Add(account->rate * passed_s);
    }
  }
}

void Standings::Use(size_t model, absl::Duration time) {
  models_[model].nominal.Add(-absl::ToDoubleSeconds(time));
  models_[model].max_min.Add(-absl::ToDoubleSeconds(time));
}

void Standings::SetWaiting(size_t model, bool waiting, bool own_limit) {
  absl::Time& since = models_[model].waiting_since;
  since = waiting ? std::min(since, last_) : absl::InfiniteFuture();
  models_[model].own_limit = own_limit;
}

Standing Standings::Of(size_t model) const {
  if (models_[model].nominal.below) return Standing::kModest;
  if (models_[model].max_min.below) return Standing::kWithin;
  return Standing::kOver;
}

}  // namespace refract::gpu_node

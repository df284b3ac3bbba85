#include "metrics/exposition.h"

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"

namespace refract::metrics {
namespace {

using prometheus::ClientMetric;

// 50'000 * 1e-9 is not the double nearest to 0.00005, and would be shown with
// 17 digits. No bound has more than 12.
double Shown(uint64_t value, double unit) {
  // Decimal digits with the exponent of `unit`, for example "50000e-9": reading
  // them gives the nearest double.
  return std::stod(std::to_string(value) +
                   (unit == 1 ? ""
                              : "e" + std::to_string(static_cast<int>(
                                          std::lround(std::log10(unit))))));
}

}  // namespace

struct Exposition::Families {
  std::vector<prometheus::MetricFamily> list;  // in the order of first use
  std::map<std::string, size_t, std::less<>> index;

  ClientMetric& Add(absl::string_view name, absl::string_view help,
                    prometheus::MetricType type, const Labels& labels) {
    const auto [entry, is_new] =
        index.try_emplace(std::string(name), list.size());
    if (is_new) {
      list.push_back({std::string(name), std::string(help), type, {}});
    }
    ClientMetric& metric = list[entry->second].metric.emplace_back();
    for (const auto& [label, value] : labels) {
      metric.label.push_back({label, value});
    }
    return metric;
  }
};

Exposition::Exposition() : families_(std::make_unique<Families>()) {}
Exposition::~Exposition() = default;

void Exposition::AddCounter(absl::string_view name, absl::string_view help,
                            const Labels& labels, double value) {
  families_->Add(name, help, prometheus::MetricType::Counter, labels)
      .counter.value = value;
}

void Exposition::AddGauge(absl::string_view name, absl::string_view help,
                          const Labels& labels, double value) {
  families_->Add(name, help, prometheus::MetricType::Gauge, labels)
      .gauge.value = value;
}

void Exposition::AddHistogram(absl::string_view name, absl::string_view help,
                              const Labels& labels,
                              const Histogram::Snapshot& values, double unit) {
  ClientMetric::Histogram& shown =
      families_->Add(name, help, prometheus::MetricType::Histogram, labels)
          .histogram;
  // Buckets are cumulative in Prometheus's format, and the last one is +Inf.
  // The total is the sum of the buckets and not a counter of its own, so that
  // both agree while requests are recorded.
  uint64_t count = 0;
  for (size_t i = 0; i < values.counts.size(); ++i) {
    count += values.counts[i];
    shown.bucket.push_back(
        {count, i < values.bounds.size()
                    ? Shown(values.bounds[i], unit)
                    : std::numeric_limits<double>::infinity()});
  }
  shown.sample_count = count;
  shown.sample_sum = static_cast<double>(values.sum) * unit;
}

std::string Exposition::Text() const {
  return prometheus::TextSerializer().Serialize(families_->list);
}

}  // namespace refract::metrics

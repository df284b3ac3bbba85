#ifndef REFRACT_METRICS_EXPOSITION_H_
#define REFRACT_METRICS_EXPOSITION_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "metrics/histogram.h"

namespace refract::metrics {

// Names and values, in the order of output.
using Labels = std::vector<std::pair<std::string, std::string>>;

// The metrics of one scrape. Series of one name form a family, whose help is
// that of the first series. The caller must give the series of a family
// different labels. Not thread-safe.
class Exposition {
 public:
  Exposition();
  ~Exposition();

  void AddCounter(absl::string_view name, absl::string_view help,
                  const Labels& labels, double value);
  void AddGauge(absl::string_view name, absl::string_view help,
                const Labels& labels, double value);
  // Bounds and sum are multiplied by `unit`: 1e-9 shows ns as seconds, 1e-3 as
  // microseconds.
  void AddHistogram(absl::string_view name, absl::string_view help,
                    const Labels& labels, const Histogram::Snapshot& values,
                    double unit);

  // The text in Prometheus's format 0.0.4.
  std::string Text() const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace refract::metrics

#endif  // REFRACT_METRICS_EXPOSITION_H_

#ifndef REFRACT_TOOLS_LOADGEN_SCHEDULE_H_
#define REFRACT_TOOLS_LOADGEN_SCHEDULE_H_

// When queries are sent and how large they are. Both are drawn before a run,
// from its seed: an answer that is late delays no later query.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/loadgen/random.h"

namespace refract::loadgen {

// Arrivals of a Poisson process of `queries_per_s` > 0 within [0, length),
// ascending. One seed gives the same gaps at every rate, scaled: two rates see
// the same bursts.
std::vector<absl::Duration> PoissonArrivals(double queries_per_s,
                                            absl::Duration length,
                                            uint64_t seed);

// Items per query: a list of equally likely values.
class QuerySizes {
 public:
  // "mlperf": the aggregated requests of MLPerf's DLRM (mean 270);
  // "fixed:N"; "file:PATH": one positive number per line, '#' begins a
  // comment. InvalidArgument for anything else; it names the file and line.
  static absl::StatusOr<QuerySizes> Parse(absl::string_view spec);

  int64_t Draw(Random& random) const;

  double mean() const;
  const std::vector<int64_t>& values() const { return values_; }

 private:
  explicit QuerySizes(std::vector<int64_t> values);
  std::vector<int64_t> values_;
};

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_SCHEDULE_H_

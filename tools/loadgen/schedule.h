#ifndef REFRACT_TOOLS_LOADGEN_SCHEDULE_H_
#define REFRACT_TOOLS_LOADGEN_SCHEDULE_H_

// How large queries are. When they arrive: arrivals/arrivals.h.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/loadgen/random.h"

namespace refract::loadgen {

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

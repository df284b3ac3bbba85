#ifndef REFRACT_TOOLS_LOADGEN_OUTPUT_HDR_HISTOGRAM_H_
#define REFRACT_TOOLS_LOADGEN_OUTPUT_HDR_HISTOGRAM_H_

// Latencies in the format of HdrHistogram (http://hdrhistogram.org), which its
// plotter and the libraries of a dozen languages read.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/loadgen/open_loop.h"

namespace refract::loadgen {

// Counts of nanoseconds from 1 ns to one hour, to three decimal digits, in
// HdrHistogram's buckets. Not thread-safe.
class HdrHistogram {
 public:
  HdrHistogram();

  // Durations beyond the limits count as the limit.
  void Record(absl::Duration value);

  int64_t total() const { return total_; }
  absl::Duration max() const { return max_; }

  // Encoding V2, compressed by zlib, in base64 ("HISTFAAA…").
  std::string Encode() const;

 private:
  std::vector<int64_t> counts_;
  int64_t total_ = 0;
  absl::Duration max_;
};

// A histogram log, version 1.3: one line per second of the schedule from
// `warmup` on, with the latencies of the queries that were due in that second
// and succeeded. `started` is the wall time of the schedule's begin.
void WriteHistogramLog(absl::Span<const PlannedQuery> schedule,
                       absl::Span<const QueryResult> results,
                       absl::Duration warmup, absl::Time started,
                       std::ostream& out);

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_OUTPUT_HDR_HISTOGRAM_H_

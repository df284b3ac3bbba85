#ifndef REFRACT_TOOLS_LOADGEN_ARRIVALS_ARRIVALS_H_
#define REFRACT_TOOLS_LOADGEN_ARRIVALS_ARRIVALS_H_

// Arrival times of queries. All arrivals are drawn before a run, from its seed:
// a late answer delays no later query.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace refract::loadgen {

// How the rate of arrivals varies during a run. Immutable.
class ArrivalProfile {
 public:
  // "poisson": exponential gaps, the rate stays the same.
  // "constant": equal gaps.
  // "bursts:TIMES,ON,PERIOD": a Poisson process whose rate is TIMES the mean
  //   for the first ON seconds of every PERIOD seconds, and as much lower for
  //   the rest that the mean holds: TIMES x ON <= PERIOD.
  // "diurnal" or "diurnal:TROUGH": a Poisson process whose rate follows one
  //   day, squeezed into the measured time: a cosine that begins and ends at
  //   its trough, which is TROUGH (0 to 1, default 0.3) times the peak.
  // "curve:FILE": the same with the rates of a file, one number >= 0 per line,
  //   evenly spaced over the measured time; '#' begins a comment.
  // InvalidArgument for anything else; it names the file and line.
  static absl::StatusOr<ArrivalProfile> Parse(absl::string_view spec);

  // Arrivals within [0, warmup + duration), ascending, of the mean rate
  // `queries_per_s` > 0. The mean of a curve is that over `duration`; its first
  // rate holds during the warm-up. One seed gives the same unit gaps at every
  // rate and for every profile.
  std::vector<absl::Duration> Draw(double queries_per_s, absl::Duration warmup,
                                   absl::Duration duration,
                                   uint64_t seed) const;

 private:
  struct Burst {
    double times = 1, on_s = 0, period_s = 0;
  };
  // A stretch of time at `factor` times the mean rate.
  struct Piece {
    double seconds = 0, factor = 1;
  };
  std::vector<Piece> Pieces(double warmup_s, double duration_s) const;

  bool equal_gaps_ = false;
  Burst burst_;
  // Relative rates, evenly spaced over the measured time; empty: none.
  std::vector<double> curve_;
};

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_ARRIVALS_ARRIVALS_H_

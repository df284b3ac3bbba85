#include "gpu_node/scheduler/isolation.h"

#include <algorithm>
#include <cmath>

#include "absl/container/inlined_vector.h"

namespace refract::gpu_node {
namespace {

// Instances that are looked at; with more, some are free for certain.
constexpr size_t kMostInstances = 64;

// P(N ≥ count) of a Poisson variable.
double AtLeast(size_t count, double mean) {
  double term = std::exp(-mean);
  double less = 0;
  for (size_t k = 0; k < count; ++k) {
    less += term;
    term *= mean / static_cast<double>(k + 1);
  }
  return std::max(0.0, 1 - less);
}

}  // namespace

absl::Duration LongestBeside(absl::Span<const QuietModel> quiet,
                             absl::Duration own) {
  absl::Duration longest = absl::InfiniteDuration();
  for (const QuietModel& other : quiet) {
    const absl::Duration most = kMostFelt * other.time;
    longest = std::min(longest, own > most ? 2 * own
                                           : std::max(kUnfelt * other.time,
                                                      std::min(2 * own, most)));
  }
  return longest;
}

int64_t RowsWithin(absl::Duration longest, const ExecutionTimes& times,
                   int64_t least, int64_t most, absl::Time now) {
  if (times.Typical(most, now) <= longest) return most;
  int64_t rows = least;
  for (int bucket = BucketOf(least); bucket < kNumBuckets; ++bucket) {
    const int64_t next = RowsOfBucket(bucket);
    if (next > most || times.Typical(next, now) > longest) break;
    rows = std::max(rows, next);
  }
  return std::min(rows, most);
}

bool IsFelt(absl::Span<const QuietModel> quiet, absl::Duration time) {
  return std::any_of(quiet.begin(), quiet.end(), [time](const QuietModel& m) {
    return time > kUnfelt * m.time;
  });
}

bool MayBeginBeside(absl::Span<const QuietModel> quiet, absl::Duration time,
                    absl::Span<const absl::Time> others, absl::Time now) {
  if (quiet.empty()) return true;
  absl::InlinedVector<absl::Duration, 16> free_in = {time};
  for (const absl::Time at : others) {
    if (free_in.size() == kMostInstances) break;
    free_in.push_back(std::max(at - now, absl::ZeroDuration()));
  }
  std::sort(free_in.begin(), free_in.end());
  for (const QuietModel& other : quiet) {
    const absl::Duration slack = kUnfelt * other.time;
    if (time <= slack) continue;
    const double most = kMayBeLate * absl::FDivDuration(time, other.gap);
    double late = 0;
    // The first to come takes the first instance, and so on.
    for (size_t i = 0; i < free_in.size() && late <= most; ++i) {
      if (free_in[i] <= slack) continue;
      late += AtLeast(i + 1, absl::FDivDuration(free_in[i] - slack, other.gap));
    }
    if (late > most) return false;
  }
  return true;
}

}  // namespace refract::gpu_node

#include "gpu_node/scheduler/admission.h"

#include <algorithm>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace refract::gpu_node {

absl::Time PredictStart(absl::Time now, absl::Span<const absl::Time> free_at,
                        absl::Duration ahead) {
  if (free_at.empty()) return absl::InfiniteFuture();
  absl::InlinedVector<absl::Time, 16> levels(free_at.begin(), free_at.end());
  for (absl::Time& level : levels) level = std::max(level, now);
  std::sort(levels.begin(), levels.end());
  absl::Time surface = levels[0];
  for (size_t i = 0; i < levels.size(); ++i) {
    // The first i + 1 instances are at `surface`.
    const auto wide = static_cast<int64_t>(i) + 1;
    if (i + 1 == levels.size()) return surface + ahead / wide;
    const absl::Duration step = (levels[i + 1] - surface) * wide;
    if (ahead <= step) return surface + ahead / wide;
    ahead -= step;
    surface = levels[i + 1];
  }
  return surface;
}

absl::Duration CompetingWork(absl::Duration own, double share,
                             absl::Span<const Competitor> others) {
  absl::Duration sum;
  for (const Competitor& other : others) {
    sum += std::min(other.queued, own * (other.share / share));
  }
  return sum;
}

absl::Status DecideAdmission(const AdmissionSnapshot& snapshot) {
  if (snapshot.deadline == absl::InfiniteFuture()) return absl::OkStatus();
  const absl::Time start =
      PredictStart(snapshot.now, snapshot.free_at, snapshot.ahead);
  if (start + snapshot.own <= snapshot.deadline) return absl::OkStatus();
  if (snapshot.now + snapshot.own_at_best > snapshot.deadline) {
    return absl::DeadlineExceededError(absl::StrCat(
        "an idle HN could not finish in time: ",
        absl::FormatDuration(snapshot.own_at_best), " to execute, ",
        absl::FormatDuration(snapshot.deadline - snapshot.now), " left"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "the HN cannot finish in time: ",
      absl::FormatDuration(start - snapshot.now), " until it could begin and ",
      absl::FormatDuration(snapshot.own), " to execute, ",
      absl::FormatDuration(snapshot.deadline - snapshot.now), " left"));
}

}  // namespace refract::gpu_node

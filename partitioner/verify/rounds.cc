#include "partitioner/verify/rounds.h"

#include "base/status_macros.h"

namespace refract::partitioner {

absl::StatusOr<std::vector<std::vector<double>>> TimeInRounds(
    Requester& requester, absl::Span<const std::vector<size_t>> subjects,
    const RoundOptions& options, const std::function<void(int)>& progress) {
  std::vector<std::vector<double>> times(subjects.size());
  std::vector<size_t> next(subjects.size(), 0);
  for (int round = 0; round < options.rounds; ++round) {
    if (progress) progress(round);
    for (size_t turn = 0; turn < subjects.size(); ++turn) {
      const size_t s = (turn + static_cast<size_t>(round)) % subjects.size();
      for (int i = 0; i < options.warm + options.timed; ++i) {
        const size_t request = subjects[s][next[s]++ % subjects[s].size()];
        REFRACT_ASSIGN_OR_RETURN(const double seconds, requester.Time(request));
        if (i >= options.warm) times[s].push_back(seconds);
      }
    }
  }
  return times;
}

}  // namespace refract::partitioner

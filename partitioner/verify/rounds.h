#ifndef REFRACT_PARTITIONER_VERIFY_ROUNDS_H_
#define REFRACT_PARTITIONER_VERIFY_ROUNDS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partitioner/verify/requester.h"

namespace refract::partitioner {

struct RoundOptions {
  int rounds = 15;  // ≥ 1
  // In each turn: so many are sent before, untimed, because another subject has
  // just had the caches; then so many are timed.
  int warm = 1;
  int timed = 4;
};

// Every subject has a list of prepared requests, which it takes in turn from
// the start again after the last. In each round each subject has its turn, each
// round beginning with another one, so that the machine's moods hit all alike.
// Returns the times of each, in seconds. `progress` is told the round.
absl::StatusOr<std::vector<std::vector<double>>> TimeInRounds(
    Requester& requester, absl::Span<const std::vector<size_t>> subjects,
    const RoundOptions& options, const std::function<void(int)>& progress);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_ROUNDS_H_

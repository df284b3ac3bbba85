#ifndef REFRACT_TOOLS_SIZES_H_
#define REFRACT_TOOLS_SIZES_H_

// Numbers per item (ids of a bag, steps of a history) that a command assumes if
// no request gives them. Costs grow with them, so each command that uses them
// prints them with their source.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "models/repository/repository.h"
#include "partitioner/conditions/cost_profiles.h"

namespace refract::tools {

enum class SizeSource : uint8_t {
  kGiven,    // --size
  kProfile,  // the requests that were profiled
  kSample,   // the sample that the version was imported with
  kGuessed,  // the least that the model accepts
};

struct AssumedSize {
  std::string symbol;
  int64_t size = 0;  // as partitioner::SizesForBatch takes it
  SizeSource source = SizeSource::kGuessed;
  std::vector<std::string> inputs;  // that have this symbol
};

struct AssumedSizes {
  // In the order of the inputs; without the batch.
  std::vector<AssumedSize> all;
  // For partitioner::SizesForBatch; without guesses.
  absl::flat_hash_map<std::string, int64_t> per_item;

  // "hist_n 50 (the import's sample), n 3 (--size)"; empty: no such symbol.
  std::string Text() const;
};

// The first of: `given` (texts of --size), `profiles` (may be null), the sample
// kept with the version, a guess. Errors as ParseSizes(); also if the kept
// sample cannot be read.
absl::StatusOr<AssumedSizes> AssumeSizes(
    const std::vector<std::string>& given, const models::LoadedModel& model,
    const partitioner::CostProfiles* profiles = nullptr);

// Prints the sizes in a line on `out`, and warnings on `err` for the first few
// sizes that were guessed, with the number of the others.
void PrintSizes(const AssumedSizes& sizes, std::ostream& out,
                std::ostream& err);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_SIZES_H_

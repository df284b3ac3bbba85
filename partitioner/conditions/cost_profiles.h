#ifndef REFRACT_PARTITIONER_CONDITIONS_COST_PROFILES_H_
#define REFRACT_PARTITIONER_CONDITIONS_COST_PROFILES_H_

// Which measured costs `refract partition` uses: --cn-profile, --hn-profile.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "models/repository/repository.h"
#include "partitioner/profile/hardware.h"
#include "partitioner/profile/profile.h"

namespace refract::partitioner {

struct CostProfile {
  std::string path;
  Profile profile;
};

struct CostProfiles {
  std::optional<CostProfile> cn;
  std::optional<CostProfile> hn;
  // For a side without a profile: operators that the engine computes as one
  // (EngineSteps). Empty where unknown, and why.
  std::vector<std::vector<models::NodeId>> steps;
  std::string no_steps;
};

// What an option may say: "" (the default), "none", "model" (the profile
// beside the version) or a file.
struct ProfileChoice {
  std::string cn;
  std::string hn;
  // The default for the CN is the profile beside the version, where there is
  // one, unless the CN's hardware is given: that of this very machine may not
  // be meant then. The HN's default is none.
  bool cn_hardware_given = false;
};

// NotFound and InvalidArgument name the option and the file.
absl::StatusOr<CostProfiles> LoadCostProfiles(const ProfileChoice& choice,
                                              const models::LoadedModel& model);

// Fills `profiles.steps` where a side has no profile: from the other side's, or
// by compiling `model` as a node does, which reads its dense weights. What
// cannot be compiled here is priced operator by operator, with a note.
void FindSteps(const models::LoadedModel& model, CostProfiles& profiles);

// Adds the numbers per item that the CN's profile (or else the HN's) was
// measured with to those that the user gave.
void AddProfiledSizes(const CostProfiles& profiles,
                      absl::flat_hash_map<std::string, int64_t>& per_item);

// The machine that was profiled: its name, units and memory; for operators
// that were not measured the figures of `figures`.
Hardware ProfiledHardware(const Profile& profile, const Hardware& figures);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_CONDITIONS_COST_PROFILES_H_

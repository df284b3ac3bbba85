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
  // For a node without a profile: the groups of operators that the engine
  // computes in one step. Empty where unknown; `no_steps` then says why.
  std::vector<std::vector<models::NodeId>> steps;
  std::string no_steps;
};

// The value of --cn-profile or --hn-profile: "" (the default), "none", "model"
// (the profile beside the version) or a file.
struct ProfileChoice {
  std::string cn;
  std::string hn;
  // By default the CN uses the profile beside the version, if it exists and no
  // CN hardware is given: other hardware means another machine than the
  // profiled machine. The HN has no profile by default.
  bool cn_hardware_given = false;
};

// NotFound and InvalidArgument name the option and the file.
absl::StatusOr<CostProfiles> LoadCostProfiles(const ProfileChoice& choice,
                                              const models::LoadedModel& model);

// Fills `profiles.steps` if the CN or the HN has no profile: from the other
// profile, or by compiling `model` as a node does, which reads its dense
// weights. A model that cannot be compiled here is priced operator by operator,
// with a note.
void FindSteps(const models::LoadedModel& model, CostProfiles& profiles);

// Adds to the sizes that the user gave the numbers per item with which the CN's
// profile (or else the HN's) was measured.
void AddProfiledSizes(const CostProfiles& profiles,
                      absl::flat_hash_map<std::string, int64_t>& per_item);

// The profiled machine: its name, units and memory. Operators that the profile
// lacks are priced by `figures`.
Hardware ProfiledHardware(const Profile& profile, const Hardware& figures);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_CONDITIONS_COST_PROFILES_H_

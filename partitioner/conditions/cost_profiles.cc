#include "partitioner/conditions/cost_profiles.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/program.h"

namespace refract::partitioner {
namespace {

// The profile that `option` names by `said`: "" (the profile beside the
// version, if `if_there` and it exists), "none", "model", or a path.
absl::StatusOr<std::optional<CostProfile>> Load(
    absl::string_view option, const std::string& said, bool if_there,
    const models::LoadedModel& model) {
  const std::string beside = absl::StrCat(model.folder, "/", kProfileFile);
  std::string path = said;
  if (said == "none") return std::nullopt;
  if (said.empty()) {
    std::error_code error;
    if (!if_there || !std::filesystem::exists(beside, error)) {
      return std::nullopt;
    }
    path = beside;
  } else if (said == "model") {
    path = beside;
  }
  auto profile = LoadProfile(path, model.graph, model.digest);
  if (absl::IsNotFound(profile.status())) {
    return absl::NotFoundError(absl::StrCat(option, " ", said, ": ",
                                            profile.status().message(),
                                            "; make one with refract profile"));
  }
  // The user did not ask for this profile, so the message says how to go on
  // without it.
  if (!profile.ok() && said.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        profile.status().message(), "; measure again with refract profile, or ",
        "give ", option, " none"));
  }
  if (!profile.ok()) return base::Annotate(profile.status(), option);
  return CostProfile{std::move(path), *std::move(profile)};
}

}  // namespace

absl::StatusOr<CostProfiles> LoadCostProfiles(
    const ProfileChoice& choice, const models::LoadedModel& model) {
  CostProfiles profiles;
  REFRACT_ASSIGN_OR_RETURN(profiles.cn,
                           Load("--cn-profile", choice.cn,
                                /*if_there=*/!choice.cn_hardware_given, model));
  REFRACT_ASSIGN_OR_RETURN(
      profiles.hn, Load("--hn-profile", choice.hn, /*if_there=*/false, model));
  return profiles;
}

void FindSteps(const models::LoadedModel& model, CostProfiles& profiles) {
  if (profiles.cn && profiles.hn) return;
  // Steps do not depend on the machine: a profile of either node has them, and
  // compiling the model is saved.
  const std::optional<CostProfile>& known =
      profiles.cn ? profiles.cn : profiles.hn;
  if (known) {
    for (const Profile::Operator& op : known->profile.operators) {
      profiles.steps.push_back(op.nodes);
    }
    return;
  }
  runtime::CompileOptions options;
  options.config = model.config;
  const auto program = runtime::Program::Compile(
      model.graph, runtime::Part::Whole(model.graph), model.weights, options);
  if (!program.ok()) {
    profiles.no_steps = std::string(program.status().message());
    return;
  }
  for (runtime::StepInfo& step : (*program)->steps()) {
    profiles.steps.push_back(std::move(step.nodes));
  }
}

void AddProfiledSizes(const CostProfiles& profiles,
                      absl::flat_hash_map<std::string, int64_t>& per_item) {
  for (const std::optional<CostProfile>* side : {&profiles.cn, &profiles.hn}) {
    if (!*side) continue;
    for (const auto& [symbol, size] : (*side)->profile.sizes) {
      // Sizes that the user gave stay; the CN's profile comes before the HN's.
      per_item.try_emplace(symbol, size);
    }
  }
}

Hardware ProfiledHardware(const Profile& profile, const Hardware& figures) {
  Hardware hardware = figures;
  hardware.name =
      absl::StrCat("profiled ", profile.cpu.empty() ? "machine" : profile.cpu);
  hardware.description = absl::StrCat(
      "measured on ", profile.cpus, " processors, kernel ", profile.kernel,
      ", at ", profile.time, "; figures that were not measured are those of ",
      figures.name);
  hardware.units = profile.cpus;
  hardware.memory_bytes = static_cast<double>(profile.memory_bytes);
  if (!profile.wire.empty()) hardware.wire = profile.wire;
  return hardware;
}

}  // namespace refract::partitioner

#include "placement/cluster/instance.h"

#include "absl/strings/str_cat.h"
#include "placement/cluster/cluster.h"

namespace refract::placement {
namespace {

absl::Status Outside(absl::string_view field, int64_t value, int64_t most) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " ", value, " is outside 0..", most));
}

}  // namespace

absl::string_view Name(Role role) {
  switch (role) {
    case Role::kWhole:
      return "whole";
    case Role::kCn:
      return "CN";
    case Role::kHn:
      return "HN";
  }
  return "";
}

absl::Status Check(const Demand& demand) {
  const auto outside = [](int64_t value, int64_t most) {
    return value < 0 || value > most;
  };
  if (outside(demand.cpu_milli, kMostCpuMilli)) {
    return Outside("cpu_milli", demand.cpu_milli, kMostCpuMilli);
  }
  if (outside(demand.memory_mib, kMostMib)) {
    return Outside("memory_mib", demand.memory_mib, kMostMib);
  }
  if (outside(demand.disk_mib, kMostMib)) {
    return Outside("disk_mib", demand.disk_mib, kMostMib);
  }
  if (outside(demand.gpus, kMaxGpus)) {
    return Outside("gpus", demand.gpus, kMaxGpus);
  }
  if (outside(demand.gpu_milli, kWholeGpu)) {
    return Outside("gpu_milli", demand.gpu_milli, kWholeGpu);
  }
  if (outside(demand.nic_percent, kWholeNic)) {
    return Outside("nic_percent", demand.nic_percent, kWholeNic);
  }
  if ((demand.gpus == 0) != (demand.gpu_milli == 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gpus ", demand.gpus, " contradicts gpu_milli ", demand.gpu_milli));
  }
  if (demand.gpus > 1 && demand.gpu_milli != kWholeGpu) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpu_milli ", demand.gpu_milli, " of ", demand.gpus,
                     " GPUs: fractions are of one GPU"));
  }
  if (demand.mig != MigProfile::kNone &&
      (demand.gpus != 1 || demand.gpu_milli != MigGpuMilli(demand.mig))) {
    return absl::InvalidArgumentError(
        absl::StrCat("mig ", Name(demand.mig), " contradicts gpus ",
                     demand.gpus, ", gpu_milli ", demand.gpu_milli));
  }
  if (demand.gpu_models != 0 && demand.gpus == 0) {
    return absl::InvalidArgumentError("a GPU model is given, but gpus is 0");
  }
  return absl::OkStatus();
}

}  // namespace refract::placement

#include "placement/policy/score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace refract::placement {
namespace {

constexpr const char* kPolicyNames[kPolicies] = {
    "random",     "best-fit", "dot-prod", "packing",
    "clustering", "fgd",      "combined"};

// The largest node of the published experiments; amounts are divided by it so
// that CPU and GPU can be added.
constexpr double kCpuScale = 128'000;
constexpr double kGpuScale = 8.0 * kWholeGpu;

double BestFit(const ScoreInputs& in) {
  const auto cpu = static_cast<double>(in.free.cpu_milli - in.demand.cpu_milli);
  const auto gpu = static_cast<double>(FreeGpuMilli(in.node, in.free) -
                                       in.demand.TotalGpuMilli());
  return -(0.5 * cpu / kCpuScale + 0.5 * gpu / kGpuScale);
}

// Rounded down to 1 % as the published simulator does: equal scores go by name.
double DotProd(const ScoreInputs& in) {
  const auto free_cpu = static_cast<double>(in.free.cpu_milli);
  const auto free_gpu = static_cast<double>(FreeGpuMilli(in.node, in.free));
  const double dot =
      free_cpu / kCpuScale *
          (static_cast<double>(in.demand.cpu_milli) / kCpuScale) +
      free_gpu / kGpuScale *
          (static_cast<double>(in.demand.TotalGpuMilli()) / kGpuScale);
  return std::floor(100 * (1 - dot / 2));
}

// Bands: 50..100 GPUs in use, 33..50 free GPUs of a node in use, 0..33 an idle
// node; 0 for instances without GPU. Whole numbers, as published.
double Packing(const ScoreInputs& in, const Devices& devices) {
  if (in.demand.gpus == 0) return 0;
  const auto begin = in.free.gpu_milli.begin();
  const auto idle =
      static_cast<int>(std::count(begin, begin + in.node.gpus, kWholeGpu));
  if (idle == in.node.gpus) return std::max(100 / 3 - idle, idle);
  const int first = __builtin_ctz(devices.gpus);
  if (in.free.gpu_milli[first] == kWholeGpu) {
    return std::max(100 / 2 - in.demand.gpus, 100 / 3);
  }
  return 100 - in.free.gpu_milli[first] / 10 / 10;
}

// Bands of 25: another kind, idle, this kind among others, this kind alone.
// Within a band, less free GPU is better. 0 for instances without GPU.
double Clustering(const ScoreInputs& in) {
  if (in.demand.gpus == 0) return 0;
  const auto kind = static_cast<size_t>(KindOf(in.demand));
  int kinds = 0;  // with a GPU
  for (size_t i = 1; i < kGpuKinds; ++i) kinds += in.kinds[i] > 0;
  double band = 0;
  if (in.kinds[kind] > 0) {
    band = kinds == 1 ? 75 : 50;
  } else if (kinds == 0) {
    band = 25;
  }
  const auto free = static_cast<double>(FreeGpuMilli(in.node, in.free));
  return band + std::floor(25 * (kGpuScale - free) / kGpuScale);
}

// GPUs that can hold a fraction or a slice of the demand. Calls `consider(gpu,
// mig_slices)`.
void ForEachGpu(const ScoreInputs& in, auto consider) {
  for (int gpu = 0; gpu < in.node.gpus; ++gpu) {
    if (!GpuHasRoom(in.node, in.free, gpu, in.demand)) continue;
    consider(gpu, in.demand.mig == MigProfile::kNone
                      ? uint8_t{0}
                      : ChooseMigSlices(in.demand.mig, in.free.mig_used[gpu]));
  }
}

bool IsPart(const Demand& demand) { return demand.gpu_milli < kWholeGpu; }

// The free GPUs of the lowest numbers.
uint16_t LowestGpus(const ScoreInputs& in) {
  uint16_t gpus = 0;
  int left = in.demand.gpus;
  for (int gpu = 0; gpu < in.node.gpus && left > 0; ++gpu) {
    if (GpuHasRoom(in.node, in.free, gpu, in.demand)) {
      gpus |= static_cast<uint16_t>(1u << gpu);
      --left;
    }
  }
  return gpus;
}

double After(const ScoreInputs& in, const Devices& devices) {
  NodeFree after = in.free;
  Take(in.demand, devices, after);
  return in.meter->Measure(in.node, after).gpu_milli;
}

bool NicHasRoom(const ScoreInputs& in, int nic) {
  return in.free.nic_percent[nic] >= in.demand.nic_percent;
}

int FirstNic(const ScoreInputs& in) {
  int nic = 0;
  while (!NicHasRoom(in, nic)) ++nic;
  return nic;
}

double PathScore(const Attachment& device, const Attachment& nic) {
  if (device.socket != nic.socket) return kOtherSocket;
  return device.pcie_switch == nic.pcie_switch ? kSameSwitch : kSameSocket;
}

// The NIC nearest to the devices' GPUs; of equals, the fullest.
int NearestNic(const ScoreInputs& in, const Devices& devices) {
  int best = -1;
  double best_score = 0;
  for (int nic = 0; nic < in.node.nics; ++nic) {
    if (!NicHasRoom(in, nic)) continue;
    Devices with = devices;
    with.nic = static_cast<int8_t>(nic);
    if (in.demand.gpus == 0) {
      TakeCores(in.node, in.free, in.demand.cpu_milli,
                in.node.nic_at[nic].socket, with);
    }
    const double score = TopologyScore(in.node, with);
    if (best < 0 || score > best_score ||
        (score == best_score &&
         in.free.nic_percent[nic] < in.free.nic_percent[best])) {
      best = nic;
      best_score = score;
    }
  }
  return best;
}

// The free GPUs nearest to `nic`, lowest numbers first.
uint16_t NearestGpus(const ScoreInputs& in, int nic) {
  uint16_t gpus = 0;
  int left = in.demand.gpus;
  for (const double path : {kSameSwitch, kSameSocket, kOtherSocket}) {
    for (int gpu = 0; gpu < in.node.gpus && left > 0; ++gpu) {
      if (PathScore(in.node.gpu_at[gpu], in.node.nic_at[nic]) == path &&
          GpuHasRoom(in.node, in.free, gpu, in.demand)) {
        gpus |= static_cast<uint16_t>(1u << gpu);
        --left;
      }
    }
  }
  return gpus;
}

// The part of a GPU that leaves the least fragment: the lowest number of
// equals.
Devices LeastFragment(const ScoreInputs& in, double& after) {
  Devices best;
  after = std::numeric_limits<double>::infinity();
  // GPUs with equal contents give equal fragments.
  std::array<std::pair<int16_t, uint8_t>, kMaxGpus> seen;
  int num_seen = 0;
  ForEachGpu(in, [&](int gpu, uint8_t slices) {
    const std::pair<int16_t, uint8_t> contents = {in.free.gpu_milli[gpu],
                                                  in.free.mig_used[gpu]};
    if (std::find(seen.begin(), seen.begin() + num_seen, contents) !=
        seen.begin() + num_seen) {
      return;
    }
    seen[num_seen++] = contents;
    Devices devices;
    devices.gpus = static_cast<uint16_t>(1u << gpu);
    devices.mig_slices = slices;
    const double fragment = After(in, devices);
    // Sums of floating-point numbers differ in the last digits between GPUs
    // that are equally good.
    if (fragment < after - 1e-6) {
      after = fragment;
      best = devices;
    }
  });
  return best;
}

// The part of a GPU that leaves the least of that GPU.
Devices TightestGpu(const ScoreInputs& in) {
  Devices best;
  int least = std::numeric_limits<int>::max();
  ForEachGpu(in, [&](int gpu, uint8_t slices) {
    if (in.free.gpu_milli[gpu] < least) {
      least = in.free.gpu_milli[gpu];
      best.gpus = static_cast<uint16_t>(1u << gpu);
      best.mig_slices = slices;
    }
  });
  return best;
}

void AddNicAndCores(const ScoreInputs& in, Devices& devices) {
  int socket = 0;
  if (in.demand.nic_percent > 0) {
    devices.nic = static_cast<int8_t>(in.nic_rule == NicRule::kNearest
                                          ? NearestNic(in, devices)
                                          : FirstNic(in));
    if (in.nic_rule == NicRule::kNearest) {
      socket = in.node.nic_at[devices.nic].socket;
    }
  }
  TakeCores(in.node, in.free, in.demand.cpu_milli, socket, devices);
}

// All pairs of NIC and GPUs: the shortest path, then the least fragment, then
// the fullest NIC, which keeps whole NICs for large shares.
Choice Combined(const ScoreInputs& in) {
  Choice best;
  double best_after = std::numeric_limits<double>::infinity();
  bool found = false;
  // Fragments after the choice, by contents of its first GPU, which alone
  // changes them.
  std::array<std::pair<std::pair<int16_t, uint8_t>, double>, kMaxGpus> known;
  int num_known = 0;
  const auto after_of = [&](const Devices& devices) {
    const int gpu = devices.gpus == 0 ? 0 : __builtin_ctz(devices.gpus);
    const std::pair<int16_t, uint8_t> contents = {in.free.gpu_milli[gpu],
                                                  in.free.mig_used[gpu]};
    for (int i = 0; i < num_known; ++i) {
      if (known[i].first == contents) return known[i].second;
    }
    const double after = After(in, devices);
    known[num_known++] = {contents, after};
    return after;
  };
  const auto consider = [&](Devices devices, int nic) {
    devices.nic = static_cast<int8_t>(nic);
    int socket = 0;
    if (nic >= 0) {
      socket = in.node.nic_at[nic].socket;
    } else if (devices.gpus != 0) {
      socket = in.node.gpu_at[__builtin_ctz(devices.gpus)].socket;
    }
    TakeCores(in.node, in.free, in.demand.cpu_milli, socket, devices);
    const double topology = TopologyScore(in.node, devices);
    // A longer path loses whatever its fragment, which is then not measured.
    if (found && topology < best.score.topology) return;
    const double after = after_of(devices);
    const auto nic_free = [&](int i) {
      return i < 0 ? 0 : in.free.nic_percent[i];
    };
    const bool better = !found || topology > best.score.topology ||
                        after < best_after - 1e-6 ||
                        (after < best_after + 1e-6 &&
                         nic_free(nic) < nic_free(best.devices.nic));
    if (!better) return;
    found = true;
    best_after = after;
    best.devices = devices;
    best.score.topology = topology;
  };
  const auto consider_nic = [&](int nic) {
    if (in.demand.gpus == 0) {
      consider({}, nic);
    } else if (!IsPart(in.demand)) {
      Devices devices;
      devices.gpus = nic < 0 ? LowestGpus(in) : NearestGpus(in, nic);
      consider(devices, nic);
    } else {
      ForEachGpu(in, [&](int gpu, uint8_t slices) {
        Devices devices;
        devices.gpus = static_cast<uint16_t>(1u << gpu);
        devices.mig_slices = slices;
        consider(devices, nic);
      });
    }
  };
  if (in.demand.nic_percent == 0) {
    consider_nic(-1);
  } else {
    for (int nic = 0; nic < in.node.nics; ++nic) {
      if (NicHasRoom(in, nic)) consider_nic(nic);
    }
  }
  // Between nodes, cores near the NIC do not count: 96 cores fit in a socket of
  // the largest nodes alone, and filling those would leave larger instances
  // without a node.
  if (in.demand.gpus == 0) best.score.topology = 1;
  best.score.primary = FgdBucket(in.gpu_fragment, best_after);
  best.score.secondary = BestFit(in);
  return best;
}

}  // namespace

absl::string_view Name(Policy policy) {
  return kPolicyNames[static_cast<int>(policy)];
}

std::optional<Policy> PolicyFromName(absl::string_view name) {
  for (int i = 0; i < kPolicies; ++i) {
    if (name == kPolicyNames[i]) return static_cast<Policy>(i);
  }
  return std::nullopt;
}

std::string PolicyNames() {
  std::string names;
  for (const char* name : kPolicyNames) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  return names;
}

int FgdBucket(double before_milli, double after_milli) {
  const double change = (before_milli - after_milli) / kWholeGpu;
  // No change at all must be in the bucket that begins there, whatever the last
  // digits of the two sums.
  return static_cast<int>(std::floor(100 / (1 + std::exp(-change)) + 1e-9));
}

double TopologyScore(const Node& node, const Devices& devices) {
  if (devices.nic < 0) return 1;
  const Attachment& nic = node.nic_at[devices.nic];
  if (devices.gpus == 0) {
    for (int socket = 0; socket < node.sockets; ++socket) {
      if (socket != nic.socket && devices.socket_cpu_milli[socket] > 0) {
        return kCoresElsewhere;
      }
    }
    return kCoresAtNic;
  }
  double score = kSameSwitch;
  for (unsigned left = devices.gpus; left != 0; left &= left - 1) {
    score = std::min(score, PathScore(node.gpu_at[__builtin_ctz(left)], nic));
  }
  return score;
}

Choice ScoreNode(Policy policy, const ScoreInputs& in) {
  if (policy == Policy::kCombined) return Combined(in);
  Choice choice;
  double after = 0;
  // A part of a GPU: the GPU that FGD or the tightest fit prefers. Whole GPUs
  // are alike to these policies, so the lowest numbers are taken.
  if (in.demand.gpus > 0 && IsPart(in.demand)) {
    choice.devices =
        policy == Policy::kFgd ? LeastFragment(in, after) : TightestGpu(in);
  } else if (in.demand.gpus > 0) {
    choice.devices.gpus = LowestGpus(in);
  }
  AddNicAndCores(in, choice.devices);
  switch (policy) {
    case Policy::kRandom:
    case Policy::kCombined:
      break;
    case Policy::kBestFit:
      choice.score.primary = BestFit(in);
      break;
    case Policy::kDotProd:
      choice.score.primary = DotProd(in);
      break;
    case Policy::kPacking:
      choice.score.primary = Packing(in, choice.devices);
      break;
    case Policy::kClustering:
      choice.score.primary = Clustering(in);
      break;
    case Policy::kFgd:
      // LeastFragment() has measured parts of a GPU already.
      if (!IsPart(in.demand) || in.demand.gpus == 0) {
        after = After(in, choice.devices);
      }
      choice.score.primary = FgdBucket(in.gpu_fragment, after);
      choice.score.secondary = BestFit(in);
      break;
  }
  return choice;
}

}  // namespace refract::placement

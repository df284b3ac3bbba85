#include "placement/cluster/mig.h"

#include <array>

#include "placement/cluster/cluster.h"

namespace refract::placement {
namespace {

struct Profile {
  const char* name;
  int slices;
  uint8_t starts;  // bit per position at which it may begin
};

constexpr int kProfiles = 6;
// Memory slices and positions of NVIDIA's table, in the order of MigProfile. 3g
// takes 4 of the 8 memory slices, 7g all of them.
constexpr Profile kTable[kProfiles] = {
    {"none", 0, 0},        {"1g", 1, 0b01111111}, {"2g", 2, 0b00010101},
    {"3g", 4, 0b00010001}, {"4g", 4, 0b00000001}, {"7g", 8, 0b00000001},
};

// The slices of `profile` from `start` on.
uint8_t Slices(const Profile& profile, int start) {
  return static_cast<uint8_t>(((1u << profile.slices) - 1) << start);
}

bool IsFree(const Profile& profile, int start, uint8_t used) {
  return (profile.starts >> start & 1) != 0 &&
         (Slices(profile, start) & used) == 0;
}

// Free positions of all profiles.
int FreePositions(uint8_t used) {
  int count = 0;
  for (const Profile& profile : kTable) {
    for (int start = 0; start < kMemorySlices; ++start) {
      count += IsFree(profile, start, used);
    }
  }
  return count;
}

uint8_t Choose(const Profile& profile, uint8_t used) {
  uint8_t best = 0;
  int most = -1;
  for (int start = 0; start < kMemorySlices; ++start) {
    if (!IsFree(profile, start, used)) continue;
    const uint8_t slices = Slices(profile, start);
    const int left = FreePositions(used | slices);
    if (left > most) {
      most = left;
      best = slices;
    }
  }
  return best;
}

// The choice for every profile and every set of used slices, made once.
using Choices = std::array<std::array<uint8_t, 256>, kProfiles>;

Choices AllChoices() {
  Choices choices{};
  for (int profile = 1; profile < kProfiles; ++profile) {
    for (int used = 0; used < 256; ++used) {
      choices[profile][used] =
          Choose(kTable[profile], static_cast<uint8_t>(used));
    }
  }
  return choices;
}

}  // namespace

absl::string_view Name(MigProfile profile) {
  return kTable[static_cast<int>(profile)].name;
}

std::optional<MigProfile> MigProfileFromName(absl::string_view name) {
  // "2g" of "2g.20gb": the part after the point depends on the GPU.
  const absl::string_view compute = name.substr(0, name.find('.'));
  for (int i = 0; i < kProfiles; ++i) {
    if (compute == kTable[i].name) return static_cast<MigProfile>(i);
  }
  return std::nullopt;
}

int MemorySlices(MigProfile profile) {
  return kTable[static_cast<int>(profile)].slices;
}

int MigGpuMilli(MigProfile profile) {
  return MemorySlices(profile) * kWholeGpu / kMemorySlices;
}

uint8_t ChooseMigSlices(MigProfile profile, uint8_t used) {
  // Placement calls this for every GPU of every node.
  static const Choices& choices = *new Choices(AllChoices());
  return choices[static_cast<int>(profile)][used];
}

}  // namespace refract::placement

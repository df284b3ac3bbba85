#ifndef REFRACT_PARTITIONER_PROFILE_HARDWARE_FILES_H_
#define REFRACT_PARTITIONER_PROFILE_HARDWARE_FILES_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace refract::partitioner {

// A description built into the library, so that every program finds it.
struct HardwareFile {
  absl::string_view name;  // without ".textproto"
  absl::string_view text;
};

// The descriptions of partitioner/hardware/, by name.
const std::vector<HardwareFile>& HardwareFiles();

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_HARDWARE_FILES_H_

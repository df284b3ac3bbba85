#ifndef REFRACT_PARTITIONER_PROFILE_HARDWARE_FILES_H_
#define REFRACT_PARTITIONER_PROFILE_HARDWARE_FILES_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace refract::partitioner {

// A description that is built into the library, so that it is found wherever
// the program runs.
struct HardwareFile {
  absl::string_view name;  // without ".textproto"
  absl::string_view text;
};

// Those of partitioner/hardware/, by name.
const std::vector<HardwareFile>& HardwareFiles();

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_HARDWARE_FILES_H_

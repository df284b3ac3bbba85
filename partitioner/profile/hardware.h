#ifndef REFRACT_PARTITIONER_PROFILE_HARDWARE_H_
#define REFRACT_PARTITIONER_PROFILE_HARDWARE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partitioner/costs/wire_rates.h"

namespace refract::partitioner {

// A hardware description (proto/hardware.proto, one field each).
struct Hardware {
  std::string name;
  std::string description;
  double units = 1;
  double operator_s = 0;
  double flops_per_s = 0;
  double bytes_per_s = 0;
  std::optional<double> row_s;
  double memory_bytes = 0;
  // Absent: all bytes come from memory.
  struct Cache {
    double bytes = 0;
    double bytes_per_s = 0;
  };
  std::optional<Cache> cache;
  WireRates wire;
};

// `text` is a refract.proto.Hardware in Protobuf's text format; `file` appears
// in errors. InvalidArgument names the figure that is missing, negative, zero
// where it must not be, or without a source.
absl::StatusOr<Hardware> ParseHardware(absl::string_view text,
                                       absl::string_view file);

// A built-in description by name, else the file of that path. NotFound lists
// the names; other errors as ParseHardware().
absl::StatusOr<Hardware> FindHardware(absl::string_view name_or_path);

// "a100, cpu-2s, …"
std::string BuiltInHardware();

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_HARDWARE_H_

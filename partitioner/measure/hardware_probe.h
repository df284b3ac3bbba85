#ifndef REFRACT_PARTITIONER_MEASURE_HARDWARE_PROBE_H_
#define REFRACT_PARTITIONER_MEASURE_HARDWARE_PROBE_H_

// This machine as a hardware description (proto/hardware.proto), each figure
// measured on one core with the engine's own kernels.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::partitioner {

// Facts about the machine that the probe does not measure.
struct MachineFacts {
  std::string cpu;     // its model name
  std::string kernel;  // "6.1.0-18-amd64"
  int cpus = 1;
  // The largest cache of the first processor; 0: unknown.
  uint64_t cache_bytes = 0;
  uint64_t memory_bytes = 0;
  uint64_t available_bytes = 0;
};

struct ProbeOptions {
  std::string name;  // of the description
  MachineFacts machine;
  // Size of the table whose rows are looked up. Rows of a table that fits a
  // cache are read far faster than rows of a real table.
  uint64_t table_bytes = uint64_t{1} << 30;
  int repetitions = 21;
  std::function<void(absl::string_view what)> progress;
};

// The description in Protobuf's text format. Measures on the calling thread;
// the machine should be idle otherwise. Internal or ResourceExhausted: the
// folder for temporary files cannot be written, or memory is short.
absl::StatusOr<std::string> ProbeHardware(const ProbeOptions& options);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_MEASURE_HARDWARE_PROBE_H_

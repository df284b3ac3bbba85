#ifndef REFRACT_GPU_NODE_MODEL_MEASURED_TIMES_H_
#define REFRACT_GPU_NODE_MODEL_MEASURED_TIMES_H_

// Keeps the times that a warm-up measured in a file beside the version,
// <version>/.execution_times.json. A restarted node, or another node on the
// same kind of machine, need not measure the model again.
//
// The times belong to a machine (CPU model, number of CPUs), a release of
// Refract, the model's graph and weights, its plan, the settings of
// config.pbtxt that change what is computed, and the largest batch. They are
// the first predictions only: executions of requests replace them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduling/execution_times.h"

namespace refract::gpu_node {

class DeviceModel;

struct MeasuredTime {
  int64_t rows = 0;
  absl::Duration time;

  friend bool operator==(const MeasuredTime&, const MeasuredTime&) = default;
};
using MeasuredTimes = std::vector<MeasuredTime>;  // ascending rows

scheduling::ExecutionTimes TimesOf(const MeasuredTimes& measured);

// "Intel(R) Xeon(R) … x 2": the CPU model and count, on which times depend.
std::string ThisMachine();

class TimesFile {
 public:
  // For `model` on `machine` with batches of up to `max_rows`. A model from no
  // folder has no file: Read() finds nothing, Write() does nothing.
  TimesFile(const DeviceModel& model, const std::string& machine,
            int64_t max_rows);

  // nullopt: not measured under these conditions, or the file is damaged.
  std::optional<MeasuredTimes> Read() const;
  // Adds `times`. The file keeps the latest kMostEntries conditions.
  // Unavailable when the file cannot be written.
  absl::Status Write(const MeasuredTimes& times) const;

  static constexpr size_t kMostEntries = 16;

 private:
  std::string path_;  // empty: none
  std::string machine_;
  std::string key_;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_MODEL_MEASURED_TIMES_H_

#ifndef REFRACT_TESTS_GPU_NODE_SCHEDULER_LOAD_FIXTURE_H_
#define REFRACT_TESTS_GPU_NODE_SCHEDULER_LOAD_FIXTURE_H_

// Devices of known cost for tests of the scheduler under load.

#include <cstdint>

#include "absl/time/time.h"
#include "gpu_node/scheduler/scheduler.h"
#include "scheduling/execution_times.h"

namespace refract::gpu_node {

// A device that needs `launch_us` per execution and `row_us` per padded row.
struct Cost {
  double launch_us = 0;
  double row_us = 0;
  absl::Duration Of(int64_t rows) const {
    return absl::Microseconds(
        launch_us + row_us * static_cast<double>(scheduling::RowsOfBucket(
                                 scheduling::BucketOf(rows))));
  }
};

// Whose times are known.
inline ScheduledModel ModelOf(const Cost& cost, int64_t max_rows = 1024) {
  ScheduledModel model;
  model.label = "model";
  model.batching.max_rows = max_rows;
  for (int bucket = 0; scheduling::RowsOfBucket(bucket) <= max_rows; ++bucket) {
    model.times.Prime(scheduling::RowsOfBucket(bucket),
                      cost.Of(scheduling::RowsOfBucket(bucket)));
  }
  return model;
}

}  // namespace refract::gpu_node

#endif  // REFRACT_TESTS_GPU_NODE_SCHEDULER_LOAD_FIXTURE_H_

#ifndef REFRACT_TESTS_GPU_NODE_SCHEDULER_SCHEDULER_FIXTURE_H_
#define REFRACT_TESTS_GPU_NODE_SCHEDULER_SCHEDULER_FIXTURE_H_

// Devices and models for tests of the scheduler in virtual time.

#include <string>

#include "tests/gpu_node/scheduler/simulation.h"

namespace refract::gpu_node {

inline absl::Duration Ms(double ms) { return absl::Milliseconds(ms); }

// Every execution takes `time`, whatever is in it.
inline FakeDevice::Options Fixed(absl::Duration time, int instances = 1,
                                 int slots = 1) {
  FakeDevice::Options options;
  options.traits.instances = instances;
  options.traits.slots = slots;
  options.execute = [time](const Batch&) { return time; };
  return options;
}

inline ScheduledModel Model(const std::string& name, absl::Duration time,
                            double share = 1) {
  ScheduledModel model;
  model.label = "model '" + name + "'";
  model.share = share;
  model.times.Prime(1, time);
  return model;
}

// A model whose requests can be merged, and the device that it was measured on.
inline ScheduledModel Merging(absl::Duration window) {
  ScheduledModel model;
  model.label = "model 'm'";
  model.batching = {.enabled = true, .window = window, .max_rows = 64};
  for (int bucket = 0; bucket <= 6; ++bucket) {
    const int64_t rows = scheduling::RowsOfBucket(bucket);
    model.times.Prime(rows, Ms(10 + 0.1 * static_cast<double>(rows)));
  }
  return model;
}
inline FakeDevice::Options LaunchBound(int instances = 1) {
  FakeDevice::Options options;
  options.traits.instances = instances;
  options.execute = [](const Batch& batch) {
    return Ms(10 + 0.1 * static_cast<double>(scheduling::RowsOfBucket(
                             scheduling::BucketOf(batch.rows))));
  };
  return options;
}

}  // namespace refract::gpu_node

#endif  // REFRACT_TESTS_GPU_NODE_SCHEDULER_SCHEDULER_FIXTURE_H_

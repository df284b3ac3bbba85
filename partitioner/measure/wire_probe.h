#ifndef REFRACT_PARTITIONER_MEASURE_WIRE_PROBE_H_
#define REFRACT_PARTITIONER_MEASURE_WIRE_PROBE_H_

// Measures the rates at which this machine encodes and decodes wire forms.

#include "absl/status/statusor.h"
#include "partitioner/costs/wire_rates.h"
#include "runtime/program.h"

namespace refract::partitioner {

// Every form, with the nodes' own encoders and decoders, on the calling thread:
// medians of `repetitions` (>= 1), in tensors of 1 MiB, as they cross at a few
// hundred items. `clock` counts nanoseconds; one that stands still between
// two looks counts as one of them.
absl::StatusOr<WireRates> MeasureWireRates(
    int repetitions, runtime::TickClock clock = runtime::SteadyNanoseconds);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_MEASURE_WIRE_PROBE_H_

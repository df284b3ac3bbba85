#ifndef REFRACT_PARTITIONER_MEASURE_WIRE_PROBE_H_
#define REFRACT_PARTITIONER_MEASURE_WIRE_PROBE_H_

// Measures the rates at which this machine encodes and decodes wire forms.

#include "absl/status/statusor.h"
#include "partitioner/costs/wire_rates.h"
#include "runtime/program.h"

namespace refract::partitioner {

// Measures every form, with the nodes' own encoders and decoders, on the
// calling thread: medians of `repetitions` (>= 1), in tensors of 1 MiB, the
// size of tensors at a few hundred items. `clock` counts nanoseconds; a
// difference of 0 between two readings counts as 1.
absl::StatusOr<WireRates> MeasureWireRates(
    int repetitions, runtime::TickClock clock = runtime::SteadyNanoseconds);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_MEASURE_WIRE_PROBE_H_

#ifndef REFRACT_PARTITIONER_WIRE_METER_H_
#define REFRACT_PARTITIONER_WIRE_METER_H_

// Runs sample requests through a split model in this process, encoding and
// decoding the tensors that cross as the nodes do, and compares the outputs
// with the model as a whole.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"
#include "partitioner/measure/sample_requests.h"
#include "partitioner/wire/crossing_table.h"
#include "runtime/split_run.h"

namespace refract::partitioner {

// Requests, the answers of the model as a whole, and the sizes of all values
// that may cross: shared by all plans that are measured.
struct WireSamples {
  const SampleRequests* requests = nullptr;
  std::vector<std::vector<base::Tensor>> wanted;  // the graph's outputs
  CrossingTable table;
};

// Runs `model` on each of `requests`, which must outlive the result.
// InvalidArgument names the request that does not fit; other errors as
// RequestRunner.
absl::StatusOr<WireSamples> AnswerSamples(const models::LoadedModel& model,
                                          const SampleRequests& requests);

// Forms of the values that cross, as in SplitPlan.
struct WireForms {
  std::vector<models::WireForm> up;
  std::vector<models::WireForm> down;
};

struct WireReading {
  std::vector<models::WireError> errors;  // one per output, over all samples
  // Means over the samples: bytes of each value's tensors, each padded as in a
  // message, with their entries in its table; and bytes of whole messages.
  std::vector<double> up_bytes;
  std::vector<double> down_bytes;
  double message_bytes_up = 0;
  double message_bytes_down = 0;

  double worst() const;
};

// Not thread-safe.
class WireMeter {
 public:
  // `model` and `samples` must outlive it. Errors as RequestRunner.
  static absl::StatusOr<std::unique_ptr<WireMeter>> Create(
      const models::LoadedModel& model, const models::SplitPlan& plan,
      const WireSamples& samples);

  // The error is infinite if an element is a NaN or an infinity in only one of
  // the two outputs.
  absl::StatusOr<WireReading> Measure(const WireForms& forms);

 private:
  WireMeter(const models::LoadedModel& model, models::SplitPlan plan,
            const WireSamples& samples)
      : model_(model), plan_(std::move(plan)), samples_(samples) {}

  const models::LoadedModel& model_;
  models::SplitPlan plan_;
  const WireSamples& samples_;
  std::unique_ptr<runtime::RequestRunner> split_;
};

// The largest difference of two elements, and the largest finite element of
// `wanted`. The error is infinite if dtypes or dims differ.
models::WireError ErrorBetween(const base::TensorView& found,
                               const base::TensorView& wanted);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_WIRE_METER_H_

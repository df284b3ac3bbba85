#ifndef REFRACT_PARTITIONER_WIRE_METER_H_
#define REFRACT_PARTITIONER_WIRE_METER_H_

// Runs sample requests through a split model in this process, with what
// crosses encoded and decoded as the nodes do it, against the model as a whole.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"
#include "runtime/split_run.h"

namespace refract::partitioner {

// A request, and what to call it in errors.
struct WireSample {
  std::string name;
  std::vector<base::Tensor> inputs;  // in the graph's order
};

// Requests, and what the model as a whole answers to each: many plans are
// measured against the same.
struct WireSamples {
  std::string description;  // the files, or "drawn, …": for people
  std::vector<WireSample> requests;
  std::vector<std::vector<base::Tensor>> wanted;  // the graph's outputs
};

// Runs `model` as a whole on each request. InvalidArgument names the one that
// does not fit; other errors as RequestRunner.
absl::StatusOr<WireSamples> AnswerSamples(const models::LoadedModel& model,
                                          std::string description,
                                          std::vector<WireSample> requests);

// Forms of the values that cross, as in SplitPlan.
struct WireForms {
  std::vector<models::WireForm> up;
  std::vector<models::WireForm> down;
};

struct WireReading {
  std::vector<models::WireError> errors;  // one per output, over all samples
  // Mean per sample: bytes of each value's tensors, each padded as in a
  // message, with their entries in its table; and of whole messages.
  std::vector<double> up_bytes;
  std::vector<double> down_bytes;
  double message_bytes_up = 0;
  double message_bytes_down = 0;
  // Per value: whether it went as int32 in every sample.
  std::vector<bool> up_narrowed;

  double worst() const;
};

// Not thread-safe.
class WireMeter {
 public:
  // `model` and `samples` must outlive it. Errors as RequestRunner.
  static absl::StatusOr<std::unique_ptr<WireMeter>> Create(
      const models::LoadedModel& model, const models::SplitPlan& plan,
      const WireSamples& samples);

  // An element that is a NaN or an infinity on one side only is infinitely far
  // off.
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
// `wanted`. Outputs of one model: same dtype and dims, else infinitely far off.
models::WireError ErrorBetween(const base::TensorView& found,
                               const base::TensorView& wanted);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_WIRE_METER_H_

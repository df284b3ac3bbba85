#ifndef REFRACT_PARTITIONER_WIRE_FORMS_H_
#define REFRACT_PARTITIONER_WIRE_FORMS_H_

// The options of `refract partition` that say in which form tensors cross, and
// what becomes of them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"
#include "partitioner/wire/meter.h"

namespace refract::partitioner {

struct WireOptions {
  std::string dtype = "fp32";  // or fp16, bf16, int8, auto
  std::optional<double> error_bound;
  std::vector<std::string> samples;  // safetensors files, a request each
  uint64_t seed = 1;                 // of drawn requests, without samples

  // Whether anything is to be chosen or measured at all.
  bool given = false;
};

// InvalidArgument names the option.
absl::Status CheckWireOptions(const WireOptions& options);

// The samples of the options, or drawn requests of `batch` items, `per_item` as
// SizesForBatch. InvalidArgument names a sample that does not fit
// the model, or an input that cannot be drawn.
absl::StatusOr<WireSamples> WireSamplesFor(
    const WireOptions& options, const models::LoadedModel& model, int64_t batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item);

// The lossy types that a tensor may have under the options.
std::vector<models::WireType> LossyTypesOf(const WireOptions& options);

// What was chosen, on what, and what it costs.
struct WireReport {
  WireForms forms;
  WireReading chosen;
  WireReading plain;  // all tensors as they are
  // In wire order: the largest error of any output where that tensor alone has
  // its form, all others being exact (MeasureEachForm). nullopt: not measured.
  std::vector<std::optional<double>> up_errors;
  std::vector<std::optional<double>> down_errors;
};

// Gives `plan` its forms and measured errors: `options.dtype` wherever that
// saves bytes, or with auto the smallest that keep the bound (ChooseWireTypes;
// 0.001 without one); int64 as int32 and equal rows once where the samples say
// that it saves bytes. A plan that sends nothing is left as it is, and nullopt
// returned.
//
// FailedPrecondition: the error of an output is above the bound; names output,
// error, bound and the tensor that adds the most.
absl::StatusOr<std::optional<WireReport>> ChooseWireForms(
    const WireOptions& options, const models::LoadedModel& model,
    const WireSamples& samples, models::SplitPlan& plan);

// Fills the errors of single tensors in `report`, which ChooseWireForms made
// for `plan`; of many tensors only those of the most bytes.
absl::Status MeasureEachForm(const models::LoadedModel& model,
                             const WireSamples& samples,
                             const models::SplitPlan& plan, WireReport& report);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_WIRE_FORMS_H_

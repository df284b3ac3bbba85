#ifndef REFRACT_PARTITIONER_WIRE_FORMS_H_
#define REFRACT_PARTITIONER_WIRE_FORMS_H_

// Chooses the wire forms of a plan under the options --wire-dtype,
// --wire-error-bound and --sample.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

  // Whether forms must be chosen or errors measured at all.
  bool given = false;
};

// InvalidArgument names the option.
absl::Status CheckWireOptions(const WireOptions& options);

// The form of the fewest bytes that `options` allow for a value, whatever its
// error. Forms without loss (int32, unique rows) are considered for values that
// go up, if the user gave samples.
models::WireForm SmallestForm(const WireOptions& options,
                              const models::Graph& graph,
                              const CrossingTable& table, models::ValueId id,
                              bool up);

// The chosen forms, their errors and their bytes.
struct WireReport {
  WireForms forms;
  WireReading chosen;
  WireReading plain;  // all tensors plain
  // In wire order: the largest error of any output where that tensor alone has
  // its form, all others being exact (MeasureEachForm). nullopt: not measured.
  std::vector<std::optional<double>> up_errors;
  std::vector<std::optional<double>> down_errors;
};

// Gives `plan` its forms and measured errors: `options.dtype` wherever that
// saves bytes, or with auto the smallest forms that keep the bound
// (ChooseWireTypes; 0.001 by default). int64 is sent as int32 and equal rows
// once if that saves bytes on the samples. Returns nullopt for a plan that
// sends nothing.
//
// FailedPrecondition: the error of an output is above the bound; names output,
// error, bound and the tensor that adds the most.
absl::StatusOr<std::optional<WireReport>> ChooseWireForms(
    const WireOptions& options, const models::LoadedModel& model,
    const WireSamples& samples, models::SplitPlan& plan);

// Fills in the errors of single tensors in `report`, which ChooseWireForms made
// for `plan`; if there are many, only for the largest tensors.
absl::Status MeasureEachForm(const models::LoadedModel& model,
                             const WireSamples& samples,
                             const models::SplitPlan& plan, WireReport& report);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_WIRE_FORMS_H_

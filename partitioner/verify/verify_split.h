#ifndef REFRACT_PARTITIONER_VERIFY_VERIFY_SPLIT_H_
#define REFRACT_PARTITIONER_VERIFY_VERIFY_SPLIT_H_

// The part of `refract partition` that --verify adds.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"
#include "partitioner/measure/sample_requests.h"
#include "partitioner/profile/calibration.h"
#include "partitioner/report/split_report.h"
#include "partitioner/verify/verify.h"
#include "partitioner/wire/forms.h"
#include "partitioner/wire/pricing.h"

namespace refract::partitioner {

struct VerifySplitOptions {
  bool verify = false;
  VerifyOptions run;
  std::vector<std::string> samples;  // requests (--sample); empty: drawn ones
  int forced_cuts = 6;
};

// InvalidArgument names an option that cannot be, NotFound a program of the
// nodes that is missing.
absl::Status CheckVerifyOptions(const VerifySplitOptions& options);

// `batch`: items of a request; nullopt: those of the sample. InvalidArgument
// for a sample that has not so many, does not fit the model, or has other sizes
// than the first.
absl::StatusOr<SampleRequests> SamplesFor(
    const VerifySplitOptions& options, const models::LoadedModel& model,
    std::optional<int64_t> batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item);

// The same requests, and what the model answers: forms on the wire are chosen
// on what is served, so that their errors hold for that.
absl::StatusOr<WireSamples> ServedSamples(const VerifySplitOptions& options,
                                          const models::LoadedModel& model,
                                          const SampleRequests& samples);

// What the forms of a cut are chosen on, and priced by.
struct CutForms {
  const WireOptions& options;
  const WireSamples& samples;
  const WirePricing& pricing;
};

// Verify() of `chosen`, the alternatives and forced cuts of `report`. With
// `forms`, each cut in the forms that it gets; one that cannot keep the error
// bound is left out, and `out` told. Answers are held against the errors that
// were measured on the same requests (ServedSamples).
absl::StatusOr<Verification> VerifySplit(
    const VerifySplitOptions& options, const models::LoadedModel& model,
    const models::SplitPlan& chosen, const SplitReport& report,
    const SampleRequests& samples, const CutForms* forms,
    const ProgressFn& progress, std::ostream& out, std::ostream& err);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_VERIFY_SPLIT_H_

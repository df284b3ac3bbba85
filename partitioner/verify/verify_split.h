#ifndef REFRACT_PARTITIONER_VERIFY_VERIFY_SPLIT_H_
#define REFRACT_PARTITIONER_VERIFY_VERIFY_SPLIT_H_

// Verifies a plan and its alternatives, for `refract partition --verify`.

#include <ostream>

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
  int forced_cuts = 6;
};

// InvalidArgument names an option with an impossible value, NotFound the
// missing program of a node.
absl::Status CheckVerifyOptions(const VerifySplitOptions& options);

// Options, samples and prices by which each cut gets its forms.
struct CutForms {
  const WireOptions& options;
  const WireSamples& samples;
  const WirePricing& pricing;
};

// Verify() of `chosen`, the alternatives and forced cuts of `report`. With
// `forms`, each cut gets its own wire forms; a cut that cannot keep the error
// bound is left out with a line on `out`. Answers are compared with the errors
// measured on the same requests.
absl::StatusOr<Verification> VerifySplit(
    const VerifySplitOptions& options, const models::LoadedModel& model,
    const models::SplitPlan& chosen, const SplitReport& report,
    const SampleRequests& samples, const CutForms* forms,
    const ProgressFn& progress, std::ostream& out, std::ostream& err);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_VERIFY_SPLIT_H_

#ifndef REFRACT_TOOLS_VERIFY_VERIFY_COMMAND_H_
#define REFRACT_TOOLS_VERIFY_VERIFY_COMMAND_H_

// The part of `refract partition` that --verify adds.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "models/repository.h"
#include "models/split_plan.h"
#include "tools/split_report.h"
#include "tools/verify/calibration.h"
#include "tools/verify/sample_requests.h"
#include "tools/verify/verify.h"

namespace CLI {
class App;
}  // namespace CLI

namespace refract::tools {

struct VerifyCommandOptions {
  bool verify = false;
  VerifyOptions run;
  std::string sample;  // a request (--sample); empty: drawn ones
  int forced_cuts = 6;
};

void AddVerifyOptions(CLI::App& command, VerifyCommandOptions& options);
// InvalidArgument names an option that cannot be, NotFound a program of the
// nodes that is missing.
absl::Status CheckVerifyOptions(const VerifyCommandOptions& options);

// `batch`: items of a request; nullopt: those of the sample. InvalidArgument
// for a sample that has not so many, or does not fit the model.
absl::StatusOr<SampleRequests> SamplesFor(
    const VerifyCommandOptions& options, const models::LoadedModel& model,
    std::optional<int64_t> batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item);

// Calibrate() with the same nodes, and progress on a terminal.
absl::StatusOr<Calibration> CalibrateFor(const VerifyCommandOptions& options,
                                         std::ostream& err);

// Verify() of `chosen`, the alternatives and forced cuts of `report`.
absl::StatusOr<Verification> VerifySplit(const VerifyCommandOptions& options,
                                         const models::LoadedModel& model,
                                         const models::SplitPlan& chosen,
                                         const SplitReport& report,
                                         const SampleRequests& samples,
                                         std::ostream& err);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_VERIFY_VERIFY_COMMAND_H_

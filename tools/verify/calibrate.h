#ifndef REFRACT_TOOLS_VERIFY_CALIBRATE_H_
#define REFRACT_TOOLS_VERIFY_CALIBRATE_H_

#include <functional>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "tools/verify/calibration.h"
#include "tools/verify/node_pair.h"

namespace refract::tools {

struct CalibrateOptions {
  NodeOptions nodes;
  int rounds = 15;
};

// Serves models without work (ProbeModels) by a CN and an HN of this machine
// and fits what their requests take: answers are checked before they are timed.
// Takes about ten seconds. On failure the nodes' logs go to `err`.
//
// Errors: NodePair's and FitCalibration's; Cancelled: InterruptGuard;
// DataLoss: an answer is wrong.
absl::StatusOr<Calibration> Calibrate(
    const CalibrateOptions& options,
    const std::function<void(const std::string&)>& progress, std::ostream& err);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_VERIFY_CALIBRATE_H_

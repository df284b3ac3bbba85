#ifndef REFRACT_PARTITIONER_VERIFY_CALIBRATE_H_
#define REFRACT_PARTITIONER_VERIFY_CALIBRATE_H_

#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "partitioner/profile/calibration.h"
#include "partitioner/verify/node_pair.h"

namespace refract::partitioner {

struct CalibrateOptions {
  NodeOptions nodes;
  int rounds = 15;
  std::string machine;  // its name in the result
};

// Serves models that compute almost nothing (ProbeModels) by a CN and an HN of
// this machine and fits the times of their requests. Checks answers before it
// times them. Takes about ten seconds. On failure the nodes' logs go to `err`.
//
// Errors: NodePair's and FitCalibration's; Cancelled: InterruptGuard;
// DataLoss: an answer is wrong.
absl::StatusOr<Calibration> Calibrate(const CalibrateOptions& options,
                                      const ProgressFn& progress,
                                      std::ostream& err);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_CALIBRATE_H_

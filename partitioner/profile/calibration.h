#ifndef REFRACT_PARTITIONER_PROFILE_CALIBRATION_H_
#define REFRACT_PARTITIONER_PROFILE_CALIBRATION_H_

// Time of a request outside the operators of its model on this machine, for
// predictions of any model; fitted to requests of models that do almost
// nothing.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "partitioner/costs/conditions.h"

namespace refract::partitioner {

// One kind of request and its measured time.
struct CalibrationSample {
  std::string name;
  bool split = false;  // over an HN, or on the CN alone
  // Its operators take almost no time, so its time is the front end's.
  bool idle = false;
  double tensors = 0;  // inputs and outputs
  double input_bytes = 0;
  double output_bytes = 0;
  // 0 unless split.
  double tensors_up = 0;
  double bytes_up = 0;
  double tensors_down = 0;
  double bytes_down = 0;
  double measured_s = 0;  // median, from client to client
  double fitted_s = 0;    // FitCalibration
};

struct Calibration {
  std::string machine;    // for people
  std::string transport;  // the measured data path: shm, tcp, verbs
  std::string revision;   // of the engine
  FrontEnd front_end;
  Link link;
  std::vector<CalibrationSample> samples;

  // Median of |fitted ÷ measured - 1| over the samples.
  double TypicalError() const;
};

// Fits the front end to the idle unsplit samples. Then fits the link to the
// extra time of each split sample over the unsplit sample of the same name:
// both have the same operators on the same kind of processor, so only the
// crossing differs. Relative errors have equal weight. Fills in front_end, link
// and samples; unsplit samples that are not idle get no fitted time.
//
// InvalidArgument names a split sample without its counterpart, or a time that
// is not a positive number; FailedPrecondition: too few kinds of samples.
absl::Status FitCalibration(std::vector<CalibrationSample> samples,
                            Calibration* calibration);

// Stored form (proto/calibration.proto, text). NotFound and InvalidArgument
// name `path` and the defect: damaged, another version, a figure that is
// negative or not a number, a link without bytes.
std::string CalibrationToText(const Calibration& calibration);
absl::StatusOr<Calibration> LoadCalibration(const std::string& path);
absl::StatusOr<Calibration> ParseCalibration(absl::string_view text,
                                             absl::string_view path);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_CALIBRATION_H_

#ifndef REFRACT_PARTITIONER_PROFILE_CALIBRATION_H_
#define REFRACT_PARTITIONER_PROFILE_CALIBRATION_H_

// What a request takes outside the operators of its model, on this machine:
// figures that predictions of any model use, fitted to requests of models that
// do nothing else.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "partitioner/costs/conditions.h"

namespace refract::partitioner {

// One kind of request, and what it took.
struct CalibrationSample {
  std::string name;
  bool split = false;  // over an HN, or on the CN alone
  // Its operators take next to nothing, so that all it takes is the front end.
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
  std::string transport;  // the path that was measured: shm, tcp, verbs
  std::string revision;   // of the engine
  FrontEnd front_end;
  Link link;
  std::vector<CalibrationSample> samples;

  // Median of |fitted ÷ measured - 1| over the samples.
  double TypicalError() const;
};

// Fits the front end to the idle samples that are not split, then the link to
// what the split ones take more than the sample of the same name that is not:
// both have the same operators on the same kind of processor, so only the
// crossing differs. Relative errors count alike. Fills in front_end, link and
// samples; whole samples that are not idle have no fitted time of their own.
//
// InvalidArgument names a split sample without its counterpart, or a time that
// is no positive number; FailedPrecondition: too few kinds of samples.
absl::Status FitCalibration(std::vector<CalibrationSample> samples,
                            Calibration* calibration);

// Stored form (proto/calibration.proto, text). NotFound and InvalidArgument
// name `path` and what is wrong: damaged, another version, a figure that is
// negative or no number, a link without bytes.
std::string CalibrationToText(const Calibration& calibration);
absl::StatusOr<Calibration> LoadCalibration(const std::string& path);
absl::StatusOr<Calibration> ParseCalibration(absl::string_view text,
                                             absl::string_view path);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_CALIBRATION_H_

#include "partitioner/profile/calibration.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/quantile.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "models/repository/files/text_proto.h"
#include "partitioner/profile/least_squares.h"
#include "proto/calibration.pb.h"

namespace refract::partitioner {
namespace {

constexpr uint32_t kFormatVersion = 1;
// Least time per byte, faster than any memory: a smaller fitted time is noise.
constexpr double kLeastByteSeconds = 1e-13;

const CalibrationSample* FindWhole(absl::Span<const CalibrationSample> samples,
                                   absl::string_view name) {
  for (const CalibrationSample& sample : samples) {
    if (!sample.split && sample.name == name) return &sample;
  }
  return nullptr;
}

double FrontEndOf(const CalibrationSample& sample, const FrontEnd& front_end) {
  return front_end.request_s + sample.tensors * front_end.tensor_s +
         sample.input_bytes * front_end.input_byte_s +
         sample.output_bytes * front_end.output_byte_s;
}

double CrossingOf(const CalibrationSample& sample, const Link& link) {
  return 2 * link.latency_s +
         (sample.tensors_up + sample.tensors_down) * link.tensor_s +
         (sample.bytes_up + sample.bytes_down) / link.bytes_per_s;
}

// Reads figures and remembers the first invalid one.
class FigureReader {
 public:
  explicit FigureReader(absl::string_view path) : path_(path) {}

  double Read(const char* name, double value) {
    if (status_.ok() && !(value >= 0 && std::isfinite(value))) {
      status_ = absl::InvalidArgumentError(absl::StrCat(
          path_, ": ", name, ": ", value, " is not a number of at least 0"));
    }
    return value;
  }
  const absl::Status& status() const { return status_; }

 private:
  const absl::string_view path_;
  absl::Status status_;
};

}  // namespace

double Calibration::TypicalError() const {
  std::vector<double> errors;
  for (const CalibrationSample& sample : samples) {
    if (!sample.split && !sample.idle) continue;
    errors.push_back(std::abs(sample.fitted_s / sample.measured_s - 1));
  }
  std::sort(errors.begin(), errors.end());
  return base::Quantile(errors, 0.5);
}

absl::Status FitCalibration(std::vector<CalibrationSample> samples,
                            Calibration* calibration) {
  std::vector<Equation> front;
  std::vector<Equation> crossing;
  for (const CalibrationSample& sample : samples) {
    if (!(sample.measured_s > 0 && std::isfinite(sample.measured_s))) {
      return absl::InvalidArgumentError(absl::StrCat(
          sample.name, ": took ", sample.measured_s,
          " s, and must be a positive time; run refract calibrate again"));
    }
    // Errors relative to the whole time of the request count, also for the
    // crossing: the difference of two times can be close to 0, and an error
    // relative to it would give small requests all the weight.
    const double weight = 1 / sample.measured_s;
    if (!sample.split) {
      // Requests with operators that take time say nothing about the front end.
      // Such samples serve as counterparts of split samples only.
      if (!sample.idle) continue;
      // Unknowns: request_s, tensor_s, input_byte_s, output_byte_s
      // (FrontEndOf).
      front.push_back(
          {{1, sample.tensors, sample.input_bytes, sample.output_bytes},
           sample.measured_s,
           weight});
      continue;
    }
    const CalibrationSample* whole = FindWhole(samples, sample.name);
    if (whole == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          sample.name,
          ": the same model has no sample that ran on the CN alone"));
    }
    // Unknowns: latency_s, once each way; tensor_s; seconds per byte
    // (CrossingOf).
    crossing.push_back({{2, sample.tensors_up + sample.tensors_down,
                         sample.bytes_up + sample.bytes_down},
                        sample.measured_s - whole->measured_s,
                        weight});
  }
  const auto fit = [](absl::Span<const Equation> equations, const char* what) {
    absl::StatusOr<std::vector<double>> figures = FitNonNegative(equations);
    if (figures.ok()) return figures;
    return absl::StatusOr<std::vector<double>>(
        absl::FailedPreconditionError(absl::StrCat(
            "calibration of the ", what, ": ", figures.status().message())));
  };
  REFRACT_ASSIGN_OR_RETURN(const std::vector<double> of_front,
                           fit(front, "front end"));
  REFRACT_ASSIGN_OR_RETURN(const std::vector<double> of_link,
                           fit(crossing, "link"));
  calibration->front_end = {.request_s = of_front[0],
                            .tensor_s = of_front[1],
                            .input_byte_s = of_front[2],
                            .output_byte_s = of_front[3]};
  calibration->link = {
      .bytes_per_s = 1 / std::max(of_link[2], kLeastByteSeconds),
      .latency_s = of_link[0],
      .tensor_s = of_link[1]};
  for (CalibrationSample& sample : samples) {
    // The counterpart's time contains the operators.
    const CalibrationSample* whole = FindWhole(samples, sample.name);
    sample.fitted_s =
        sample.split ? whole->measured_s + CrossingOf(sample, calibration->link)
        : sample.idle ? FrontEndOf(sample, calibration->front_end)
                      : sample.measured_s;
  }
  calibration->samples = std::move(samples);
  return absl::OkStatus();
}

std::string CalibrationToText(const Calibration& calibration) {
  proto::Calibration stored;
  stored.set_format_version(kFormatVersion);
  stored.set_machine(calibration.machine);
  stored.set_transport(calibration.transport);
  stored.set_revision(calibration.revision);
  proto::Calibration::FrontEnd& front_end = *stored.mutable_front_end();
  front_end.set_request_seconds(calibration.front_end.request_s);
  front_end.set_tensor_seconds(calibration.front_end.tensor_s);
  front_end.set_input_byte_seconds(calibration.front_end.input_byte_s);
  front_end.set_output_byte_seconds(calibration.front_end.output_byte_s);
  proto::Calibration::Link& link = *stored.mutable_link();
  link.set_latency_seconds(calibration.link.latency_s);
  link.set_tensor_seconds(calibration.link.tensor_s);
  // Stored as seconds per byte, the unknown of the fit.
  link.set_byte_seconds(1 / calibration.link.bytes_per_s);
  for (const CalibrationSample& sample : calibration.samples) {
    proto::Calibration::Sample& one = *stored.add_samples();
    one.set_name(sample.name);
    one.set_split(sample.split);
    one.set_idle(sample.idle);
    one.set_tensors(sample.tensors);
    one.set_input_bytes(sample.input_bytes);
    one.set_output_bytes(sample.output_bytes);
    one.set_tensors_up(sample.tensors_up);
    one.set_bytes_up(sample.bytes_up);
    one.set_tensors_down(sample.tensors_down);
    one.set_bytes_down(sample.bytes_down);
    one.set_measured_seconds(sample.measured_s);
    one.set_fitted_seconds(sample.fitted_s);
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(stored, &text);
  return text;
}

absl::StatusOr<Calibration> ParseCalibration(absl::string_view text,
                                             absl::string_view path) {
  proto::Calibration stored;
  REFRACT_RETURN_IF_ERROR(models::ParseText(text, path, stored));
  if (stored.format_version() != kFormatVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": format_version ", stored.format_version(),
                     ", this reads version ", kFormatVersion));
  }
  if (!stored.has_front_end() || !stored.has_link()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", stored.has_link() ? "front_end" : "link", ": missing"));
  }
  FigureReader figures(path);
  Calibration calibration;
  calibration.machine = stored.machine();
  calibration.transport = stored.transport();
  calibration.revision = stored.revision();
  const proto::Calibration::FrontEnd& front_end = stored.front_end();
  calibration.front_end = {
      .request_s = figures.Read("front_end.request_seconds",
                                front_end.request_seconds()),
      .tensor_s =
          figures.Read("front_end.tensor_seconds", front_end.tensor_seconds()),
      .input_byte_s = figures.Read("front_end.input_byte_seconds",
                                   front_end.input_byte_seconds()),
      .output_byte_s = figures.Read("front_end.output_byte_seconds",
                                    front_end.output_byte_seconds())};
  const double byte_s =
      figures.Read("link.byte_seconds", stored.link().byte_seconds());
  calibration.link = {
      .bytes_per_s = 1 / byte_s,
      .latency_s =
          figures.Read("link.latency_seconds", stored.link().latency_seconds()),
      .tensor_s =
          figures.Read("link.tensor_seconds", stored.link().tensor_seconds())};
  REFRACT_RETURN_IF_ERROR(figures.status());
  // After figures.status(), so that a negative or non-finite figure is reported
  // as such.
  if (byte_s == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": link.byte_seconds: missing or 0, and must be "
                     "more"));
  }
  for (const proto::Calibration::Sample& one : stored.samples()) {
    calibration.samples.push_back({.name = one.name(),
                                   .split = one.split(),
                                   .idle = one.idle(),
                                   .tensors = one.tensors(),
                                   .input_bytes = one.input_bytes(),
                                   .output_bytes = one.output_bytes(),
                                   .tensors_up = one.tensors_up(),
                                   .bytes_up = one.bytes_up(),
                                   .tensors_down = one.tensors_down(),
                                   .bytes_down = one.bytes_down(),
                                   .measured_s = one.measured_seconds(),
                                   .fitted_s = one.fitted_seconds()});
  }
  return calibration;
}

absl::StatusOr<Calibration> LoadCalibration(const std::string& path) {
  const absl::StatusOr<std::string> text = base::ReadText(path);
  if (!text.ok()) return base::Annotate(text.status(), "--calibration");
  return ParseCalibration(*text, absl::StrCat("--calibration ", path));
}

}  // namespace refract::partitioner

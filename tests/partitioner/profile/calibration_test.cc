#include "partitioner/profile/calibration.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/process/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/tiny_model.h"

namespace refract::partitioner {
namespace {

using testing::HasSubstr;
using tools::TempFolder;

constexpr double kRequest = 150e-6;
constexpr double kTensor = 0.5e-6;
constexpr double kInput = 0.4e-9;
constexpr double kOutput = 0.6e-9;
constexpr double kLatency = 40e-6;
constexpr double kCrossing = 0.2e-6;
constexpr double kByte = 0.1e-9;
// Time of the operators of a sample that is not idle.
constexpr double kOperators = 77e-6;

CalibrationSample Whole(std::string name, bool idle, double tensors, double in,
                        double out) {
  CalibrationSample sample{.name = std::move(name),
                           .idle = idle,
                           .tensors = tensors,
                           .input_bytes = in,
                           .output_bytes = out};
  sample.measured_s = kRequest + tensors * kTensor + in * kInput +
                      out * kOutput + (idle ? 0 : kOperators);
  return sample;
}

CalibrationSample Split(CalibrationSample sample, double tensors,
                        double bytes) {
  sample.split = true;
  sample.tensors_up = tensors;
  sample.bytes_up = bytes;
  sample.tensors_down = 1;
  sample.bytes_down = 8;
  sample.measured_s +=
      2 * kLatency + (tensors + 1) * kCrossing + (bytes + 8) * kByte;
  return sample;
}

std::vector<CalibrationSample> Samples() {
  std::vector<CalibrationSample> samples = {
      Whole("in", true, 2, 1e6, 4),
      Whole("echo", true, 2, 1e5, 1e5),
      Whole("echo large", true, 2, 1e6, 1e6),
      Whole("many", true, 33, 1e3, 1e3),
      Whole("up", false, 2, 1e6, 4),
      Whole("up large", false, 2, 4e6, 4)};
  samples.push_back(Split(samples[3], 32, 1e3));
  samples.push_back(Split(samples[4], 1, 1e6));
  samples.push_back(Split(samples[5], 1, 4e6));
  return samples;
}

TEST(FitCalibrationTest, FindsWhatTheSamplesWereMadeFrom) {
  Calibration found;
  const absl::Status status = FitCalibration(Samples(), &found);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_NEAR(found.front_end.request_s / kRequest, 1, 1e-6);
  EXPECT_NEAR(found.front_end.tensor_s / kTensor, 1, 1e-6);
  EXPECT_NEAR(found.front_end.input_byte_s / kInput, 1, 1e-6);
  EXPECT_NEAR(found.front_end.output_byte_s / kOutput, 1, 1e-6);
  EXPECT_NEAR(found.link.latency_s / kLatency, 1, 1e-6);
  EXPECT_NEAR(found.link.tensor_s / kCrossing, 1, 1e-6);
  EXPECT_NEAR(found.link.bytes_per_s * kByte, 1, 1e-6);
  EXPECT_LT(found.TypicalError(), 1e-9);
}

TEST(FitCalibrationTest, RefusesSamplesThatCannotBe) {
  Calibration ignored;
  std::vector<CalibrationSample> samples = Samples();
  samples[4].name = "another";
  EXPECT_THAT(
      FitCalibration(samples, &ignored).ToString(),
      HasSubstr("up: the same model has no sample that ran on the CN alone"));
  samples = Samples();
  samples[0].measured_s = 0;
  EXPECT_THAT(FitCalibration(samples, &ignored).ToString(),
              HasSubstr("in: took 0 s"));
  samples = Samples();
  samples.resize(6);
  EXPECT_THAT(FitCalibration(samples, &ignored).ToString(),
              HasSubstr("calibration of the link"));
}

TEST(CalibrationFileTest, ComesBackAsItWasSaved) {
  const TempFolder folder;
  Calibration saved;
  saved.machine = "a processor";
  saved.transport = "shm";
  saved.revision = "abc";
  ASSERT_TRUE(FitCalibration(Samples(), &saved).ok());
  const std::string path = folder / "calibration.textproto";
  const absl::Status status = base::WriteText(path, CalibrationToText(saved));
  ASSERT_TRUE(status.ok()) << status;
  const auto loaded = LoadCalibration(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->machine, saved.machine);
  EXPECT_EQ(loaded->transport, saved.transport);
  EXPECT_EQ(loaded->revision, saved.revision);
  EXPECT_EQ(loaded->front_end.request_s, saved.front_end.request_s);
  EXPECT_EQ(loaded->front_end.output_byte_s, saved.front_end.output_byte_s);
  EXPECT_EQ(loaded->link.latency_s, saved.link.latency_s);
  EXPECT_NEAR(loaded->link.bytes_per_s / saved.link.bytes_per_s, 1, 1e-12);
  ASSERT_EQ(loaded->samples.size(), saved.samples.size());
  EXPECT_EQ(loaded->samples[6].split, true);
  EXPECT_EQ(loaded->samples[6].idle, true);
  EXPECT_EQ(loaded->samples[6].fitted_s, saved.samples[6].fitted_s);
}

TEST(CalibrationFileTest, RefusesBadFilesByName) {
  const std::string good =
      "format_version: 1 front_end { request_seconds: 1e-4 } "
      "link { latency_seconds: 1e-5 byte_seconds: 1e-10 }";
  ASSERT_TRUE(ParseCalibration(good, "f").ok());
  const std::vector<std::pair<std::pair<std::string, std::string>, std::string>>
      cases = {
          {{"format_version: 1", "format_version: 7"}, "f: format_version 7"},
          {{"1e-4", "-1e-4"}, "f: front_end.request_seconds: -0.0001"},
          {{"latency_seconds: 1e-5", "latency_seconds: nan"},
           "f: link.latency_seconds: nan"},
          {{"byte_seconds: 1e-10", ""}, "f: link.byte_seconds: missing or 0"},
          {{"front_end { request_seconds: 1e-4 }", ""},
           "f: front_end: missing"},
          {{"link {", "lunk {"}, "lunk"},
      };
  for (const auto& [change, expected] : cases) {
    const auto parsed =
        ParseCalibration(absl::StrReplaceAll(good, {change}), "f");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(parsed.status().ToString(), HasSubstr(expected));
  }
  EXPECT_THAT(LoadCalibration("/nowhere/c").status().ToString(),
              HasSubstr("/nowhere/c: cannot be read"));
}

}  // namespace
}  // namespace refract::partitioner

#include "tools/partition/print.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace refract::tools {
namespace {

using partitioner::Advice;
using partitioner::Calibration;
using partitioner::Verification;
using partitioner::VerificationToJson;
using partitioner::VerifiedCut;
using testing::HasSubstr;
using testing::Not;

// A cut that is predicted to take `predicted` ms and takes `measured`.
VerifiedCut Took(const std::string& name, double predicted, double measured) {
  VerifiedCut cut;
  cut.cut.name = name;
  cut.cut.prediction.front_end_s = predicted * 1e-3 / 4;
  cut.cut.prediction.cn_pre_s = predicted * 1e-3 * 3 / 4;
  cut.measured = {.q1 = measured * 0.9e-3,
                  .median = measured * 1e-3,
                  .q3 = measured * 1.1e-3};
  return cut;
}

TEST(AdviceTest, NamesTheCutsOutsideTheBounds) {
  Verification verification;
  // Ratios 0.8 and 1.25 are inside, both ends included.
  verification.cuts = {Took("fits", 8, 10), Took("fits too", 10, 8)};
  EXPECT_EQ(Advice(verification), "");
  verification.cuts.push_back(Took("too fast", 7.9, 10));
  verification.cuts.push_back(Took("too slow", 10.1, 8));
  EXPECT_THAT(Advice(verification), HasSubstr("too fast (0.79)"));
  EXPECT_THAT(Advice(verification), HasSubstr("too slow (1.26)"));
  EXPECT_THAT(Advice(verification), Not(HasSubstr("fits")));
}

TEST(VerificationTest, TextAndJsonHoldEveryCut) {
  Verification verification;
  verification.transport = "shm";
  verification.rank_correlation = 0.75;
  verification.cuts = {Took("all-cn", 10, 10), Took("with h up", 6, 10)};
  VerifiedCut& split = verification.cuts[1];
  split.cut.forced = true;
  split.cut.prediction.message_bytes_up = 1000;
  split.cut.prediction.message_bytes_down = 500;
  split.bytes_up = 1020;
  split.bytes_down = 510;
  std::ostringstream text;
  Calibration calibration;
  calibration.transport = "tcp";
  PrintVerification(verification, calibration, text);
  EXPECT_THAT(text.str(), HasSubstr("calibrated over tcp"));
  EXPECT_THAT(text.str(), HasSubstr("with h up"));
  EXPECT_THAT(text.str(), HasSubstr("1.0200"));
  EXPECT_THAT(text.str(), HasSubstr("0.750"));
  EXPECT_THAT(text.str(), HasSubstr("refract profile"));

  const nlohmann::ordered_json json =
      VerificationToJson(models::Graph(), verification, Calibration());
  ASSERT_EQ(json["cuts"].size(), 2u);
  EXPECT_NEAR(json["cuts"][1]["predicted_over_measured"].get<double>(), 0.6,
              1e-12);
  EXPECT_EQ(json["cuts"][1]["bytes_over_predicted"], 1.02);
  EXPECT_TRUE(json["cuts"][0]["bytes_over_predicted"].is_null());
  EXPECT_EQ(json["rank_correlation"], 0.75);
}

}  // namespace
}  // namespace refract::tools

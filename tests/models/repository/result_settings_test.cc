#include "models/repository/result_settings.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ResultSettingsTest, DefaultsAreNotListed) {
  ModelConfig config;
  EXPECT_THAT(ResultSettingsOf(config), IsEmpty());
  // Settings that change how a model is served, but no answer.
  config.serving.share = 3;
  config.serving.dynamic_batching = true;
  // The same as the others.
  config.id_policies["table"] = IdPolicy::kError;
  EXPECT_THAT(ResultSettingsOf(config), IsEmpty());
}

TEST(ResultSettingsTest, WhatChangesAnswersIsListedAsInConfig) {
  ModelConfig config;
  config.dense_weights = DenseWeights::kInt8;
  config.serving.gpu_precision = GpuPrecision::kTf32;
  config.default_id_policy = IdPolicy::kZeroRow;
  config.id_policies["b"] = IdPolicy::kDefaultRow;
  config.id_policies["a"] = IdPolicy::kError;
  config.id_policies["c"] = IdPolicy::kZeroRow;
  EXPECT_THAT(
      ResultSettingsOf(config),
      ElementsAre(ResultSetting{"dense_weights", "int8"},
                  ResultSetting{"gpu_precision", "tf32"},
                  ResultSetting{"out_of_range_ids", "zero"},
                  ResultSetting{"out_of_range_ids.*", "a=error,b=default"}));
}

TEST(ResultSettingsTest, ManyTablesAreOneDigest) {
  const auto with = [](int tables, IdPolicy last) {
    ModelConfig config;
    for (int i = 0; i < tables; ++i) {
      config.id_policies[absl::StrCat("table", i)] =
          i + 1 == tables ? last : IdPolicy::kZeroRow;
    }
    return ResultSettingsOf(config);
  };
  const auto many = with(100, IdPolicy::kZeroRow);
  ASSERT_EQ(many.size(), 1u);
  EXPECT_LE(many[0].value.size(), kMaxResultSettingBytes);
  EXPECT_EQ(many, with(100, IdPolicy::kZeroRow));
  EXPECT_FALSE(many == with(100, IdPolicy::kDefaultRow));
  EXPECT_FALSE(many == with(99, IdPolicy::kZeroRow));
}

}  // namespace
}  // namespace refract::models

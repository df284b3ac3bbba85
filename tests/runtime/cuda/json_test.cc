#include "bench/cuda/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "nlohmann/json.hpp"

namespace refract::bench {
namespace {

TEST(JsonTest, OtherParsersReadIt) {
  Json inner;
  inner.Set("name", "G1 \"x\" \\ y\n\t\x01");
  inner.Set("median", 0.125);
  Json json;
  json.Set("device", std::string("NVIDIA H200"));
  json.Set("count", 3);
  json.Set("quick", true);
  json.Set("limits", inner);
  json.Append("rows", inner);
  json.Append("rows", inner);
  json.Set("missing", NAN);
  json.Set("count", 4);
  const auto read = nlohmann::json::parse(json.Text());
  EXPECT_EQ(read["device"], "NVIDIA H200");
  EXPECT_EQ(read["count"], 4);
  EXPECT_EQ(read["quick"], true);
  EXPECT_EQ(read["limits"]["median"], 0.125);
  EXPECT_EQ(read["rows"].size(), 2u);
  EXPECT_EQ(read["rows"][1]["name"], "G1 \"x\" \\ y\n\t\x01");
  EXPECT_TRUE(read["missing"].is_null());
  EXPECT_EQ(nlohmann::json::parse(Json().Text()).size(), 0u);
}

}  // namespace
}  // namespace refract::bench

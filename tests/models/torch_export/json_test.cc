#include "models/torch_export/json.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace refract::models::torch_export {
namespace {

Json Parsed(const std::string& text) {
  const auto json = Json::Parse(text);
  EXPECT_TRUE(json.has_value()) << text;
  return json.value_or(Json());
}

TEST(JsonTest, ValuesHaveTheirTypes) {
  const Json json = Parsed(
      R"({"i": -7, "f": 2.5, "b": true, "s": "é", "n": null, "a": [1, "x"]})");
  EXPECT_EQ(Int(Member(json, "i")), -7);
  EXPECT_EQ(Float(Member(json, "i")), -7.0);
  EXPECT_EQ(Float(Member(json, "f")), 2.5);
  EXPECT_EQ(Int(Member(json, "f")), std::nullopt);
  EXPECT_EQ(Bool(Member(json, "b")), true);
  EXPECT_EQ(*String(Member(json, "s")), "é");
  EXPECT_TRUE(Member(json, "n")->is_null());
  EXPECT_TRUE(Member(json, "n")->empty());
  const Json* list = Array(Member(json, "a"));
  ASSERT_EQ(list->size(), 2);
  EXPECT_EQ(*String(&(*list)[1]), "x");
  EXPECT_EQ(Member(json, "other"), nullptr);
  EXPECT_EQ(String(Member(json, "i")), nullptr);
  EXPECT_EQ(Array(Member(json, "s")), nullptr);
}

TEST(JsonTest, NumbersBeyondTheirTypeAreDoubles) {
  const Json json = Parsed(
      R"([9223372036854775807, 9223372036854775808, "-Infinity", "NaN"])");
  EXPECT_EQ(Int(&json[0]), INT64_MAX);
  EXPECT_EQ(Int(&json[1]), std::nullopt);
  EXPECT_EQ(Float(&json[1]), 0x1p63);
  EXPECT_EQ(Float(&json[2]), -INFINITY);
  EXPECT_TRUE(std::isnan(*Float(&json[3])));
}

TEST(JsonTest, TheLastOfEqualMembersCounts) {
  const Json json = Parsed(R"({"b": 1, "a": 2, "b": 3})");
  ASSERT_EQ(json.entries().size(), 2);
  EXPECT_EQ(json.entries()[0].key, "a");
  EXPECT_EQ(Int(Member(json, "b")), 3);
  const Json one = Parsed(R"({"as_int": 4})");
  ASSERT_TRUE(Union(&one).has_value());
  EXPECT_EQ(*Union(&one)->tag, "as_int");
  EXPECT_EQ(Int(Union(&one)->value), 4);
  EXPECT_FALSE(Union(&json).has_value());
}

TEST(JsonTest, MembersAreSkippedAtAnyDepth) {
  const auto json = Json::Parse(
      R"({"skip": {"a": [{"skip": 1}]}, "b": [{"skip": [[]], "c": 5}], "d": 6})",
      "skip");
  ASSERT_TRUE(json.has_value());
  EXPECT_EQ(json->entries().size(), 2);
  const Json& inner = (*Member(*json, "b"))[0];
  EXPECT_EQ(inner.entries().size(), 1);
  EXPECT_EQ(Int(Member(inner, "c")), 5);
  EXPECT_EQ(Int(Member(*json, "d")), 6);
}

TEST(JsonTest, TextThatIsNoJsonOrTooDeepIsRefused) {
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "1 2", "\"\xff\""}) {
    EXPECT_FALSE(Json::Parse(text).has_value()) << text;
  }
  EXPECT_TRUE(Json::Parse(std::string(500, '[') + std::string(500, ']')));
  EXPECT_FALSE(Json::Parse(std::string(501, '[') + std::string(501, ']')));
  EXPECT_FALSE(Json::Parse(std::string(1'000'000, '[')).has_value());
}

TEST(JsonTest, AScalarIsItsOnlyElement) {
  const Json json = Parsed("\"x\"");
  ASSERT_EQ(json.size(), 1);
  EXPECT_EQ(String(&json[0]), String(&json));
  EXPECT_EQ(json.Text(), "\"x\"");
  EXPECT_EQ(Parsed("[1]").Text(), "[…]");
}

}  // namespace
}  // namespace refract::models::torch_export

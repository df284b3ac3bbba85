#include "base/json.h"

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace refract::base {
namespace {

TEST(JsonTest, TextThatIsNoJsonIsDiscarded) {
  for (const std::string text : {"", "{", "{\"a\": 1} x", "\"\xff\"", "nan"}) {
    EXPECT_TRUE(ParseJson(text).is_discarded()) << text;
    EXPECT_TRUE(ParseOrderedJson(text).is_discarded()) << text;
  }
}

TEST(JsonTest, OrderOfKeysIsKeptWhereAsked) {
  const std::string text = R"({"b":1,"a":[2.5,null]})";
  EXPECT_EQ(FormatJson(ParseOrderedJson(text)), text);
  EXPECT_EQ(FormatJson(ParseJson(text)), R"({"a":[2.5,null],"b":1})");
}

TEST(JsonTest, IndentIsSpacesPerLevel) {
  EXPECT_EQ(FormatJson(ParseJson(R"({"a":[1]})"), 2),
            "{\n  \"a\": [\n    1\n  ]\n}");
}

TEST(JsonTest, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(FormatJson(nlohmann::json("a\xff"
                                      "b")),
            "\"a\xEF\xBF\xBD"
            "b\"");
}

}  // namespace
}  // namespace refract::base

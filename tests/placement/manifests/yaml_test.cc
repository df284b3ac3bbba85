#include "placement/manifests/yaml.h"

#include "gtest/gtest.h"

namespace refract::placement {
namespace {

TEST(YamlTest, WritesMapsAndListsInBlocks) {
  const Yaml document =
      Yaml::Map({{"kind", "Service"},
                 {"ports", Yaml::List({Yaml::Map({{"port", 1}, {"name", "a"}}),
                                       Yaml::Map({{"port", int64_t{2}}})})},
                 {"spec", Yaml::Map({{"deep", Yaml::Map({{"on", true}})},
                                     {"none", Yaml::Map()},
                                     {"words", Yaml::List({"x", "y z"})},
                                     {"empty", Yaml::List()}})}});
  EXPECT_EQ(document.Text(),
            "kind: Service\n"
            "ports:\n"
            "- port: 1\n"
            "  name: a\n"
            "- port: 2\n"
            "spec:\n"
            "  deep:\n"
            "    \"on\": true\n"
            "  none: {}\n"
            "  words:\n"
            "  - x\n"
            "  - \"y z\"\n"
            "  empty: []\n");
}

TEST(YamlTest, QuotesWhatWouldBeReadAsSomethingElse) {
  for (const char* plain :
       {"a", "ranker-cn", "apps/v1", "/models", "a:b", "8080a", "x.y_z"}) {
    const bool digit = plain[0] == '8';
    EXPECT_EQ(Yaml(plain).Text(),
              digit ? std::string("\"8080a\"\n") : std::string(plain) + "\n");
  }
  for (const char* quoted :
       {"", "true", "No", "null", "~", "1", "1e3", "0x10", ".inf", "a: b",
        "a #b", "- a", "{a}", "a:", "*a", "--port=8100", "y"}) {
    EXPECT_EQ(Yaml(quoted).Text(), std::string("\"") + quoted + "\"\n");
  }
  EXPECT_EQ(Yaml("a\"b\\c\n").Text(), "\"a\\\"b\\\\c\\x0a\"\n");
}

TEST(YamlTest, SetReplacesAndKeepsTheOrder) {
  Yaml map = Yaml::Map({{"a", 1}, {"b", 2}});
  map.Set("a", 3).Set("c", Yaml::Map({{"d", 4}}));
  map["c"].Set("d", 5);
  EXPECT_EQ(map.Text(), "a: 3\nb: 2\nc:\n  d: 5\n");
}

}  // namespace
}  // namespace refract::placement

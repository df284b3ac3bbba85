#include "tools/loadgen/criteo.h"

#include <cmath>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::loadgen {
namespace {

using ::testing::HasSubstr;

// 1, I1 … I13 = 1 … 13, C1 … C26 = 0000000a each.
std::vector<std::string> GoodFields() {
  std::vector<std::string> fields = {"1"};
  for (int i = 1; i <= 13; ++i) fields.push_back(absl::StrCat(i));
  for (int i = 0; i < 26; ++i) fields.push_back("0000000a");
  return fields;
}

std::string Line(const std::vector<std::string>& fields) {
  return absl::StrJoin(fields, "\t");
}

TEST(CriteoLineTest, ReadsEveryField) {
  std::vector<std::string> fields = GoodFields();
  fields[2] = "-2";
  fields[3] = "";
  fields[14] = "ffffffff";
  fields[15] = "";
  fields[39] = "68FD1e64";
  const auto row = ParseCriteoLine(Line(fields));
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_FLOAT_EQ(row->dense[0], 0.69314718f);  // log 2
  EXPECT_EQ(row->dense[1], 0);                  // negative
  EXPECT_EQ(row->dense[2], 0);                  // empty
  EXPECT_FLOAT_EQ(row->dense[12], 2.6390573f);  // log 14
  EXPECT_EQ(row->categories[0], 0xffffffffu);
  EXPECT_EQ(row->categories[1], std::nullopt);
  EXPECT_EQ(row->categories[25], 0x68fd1e64u);
}

TEST(CriteoLineTest, AllButTheLabelMayBeEmpty) {
  const auto row = ParseCriteoLine("0" + std::string(39, '\t'));
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_EQ(row->dense[5], 0);
  EXPECT_EQ(row->categories[5], std::nullopt);
}

TEST(CriteoLineTest, TakesWindowsLineEnds) {
  EXPECT_TRUE(ParseCriteoLine(Line(GoodFields()) + "\r").ok());
}

TEST(CriteoIdTest, IsTheCategoryModuloTheRows) {
  EXPECT_EQ(CriteoId(0xffffffffu, 1000), 4294967295 % 1000);
  EXPECT_EQ(CriteoId(10u, 4), 2);
  EXPECT_EQ(CriteoId(10u, 1), 0);
  EXPECT_EQ(CriteoId(0xffffffffu, 40'000'000'000), 4294967295);
  EXPECT_EQ(CriteoId(std::nullopt, 4), 0);
}

TEST(CriteoLineTest, NamesTheBadField) {
  struct Case {
    int field;
    const char* text;
    const char* named;
  };
  for (const Case& c :
       {Case{0, "2", "field 1 (Label)"}, Case{0, "", "field 1 (Label)"},
        Case{1, "x", "field 2 (I1)"}, Case{13, "1.5", "field 14 (I13)"},
        Case{3, "99999999999999999999", "field 4 (I3)"},
        Case{14, "0x12", "field 15 (C1)"}, Case{14, "-1", "field 15 (C1)"},
        Case{20, "123456789", "field 21 (C7)"},
        Case{39, "zz", "field 40 (C26)"}}) {
    std::vector<std::string> fields = GoodFields();
    fields[c.field] = c.text;
    const auto row = ParseCriteoLine(Line(fields));
    EXPECT_EQ(row.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(row.status().message()), HasSubstr(c.named));
    EXPECT_THAT(std::string(row.status().message()), HasSubstr(c.text));
  }
}

TEST(CriteoLineTest, NamesMissingAndSurplusFields) {
  std::vector<std::string> fields = GoodFields();
  fields.push_back("1");
  EXPECT_THAT(std::string(ParseCriteoLine(Line(fields)).status().message()),
              HasSubstr("41 fields"));
  fields.resize(39);
  EXPECT_THAT(std::string(ParseCriteoLine(Line(fields)).status().message()),
              HasSubstr("field 40 (C26) is missing"));
  EXPECT_FALSE(ParseCriteoLine("").ok());
}

class CriteoFileTest : public testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = absl::StrCat(
        testing::TempDir(), "/criteo_",
        testing::UnitTest::GetInstance()->current_test_info()->name(), ".tsv");
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(CriteoFileTest, ReadsUpToTheLimit) {
  const std::string good = Line(GoodFields()) + "\n";
  const std::string path = Write(good + good + "bad\n");
  const auto rows = ReadCriteo(path, 2);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->size(), 2u);
}

TEST_F(CriteoFileTest, ProcessesShareTheRows) {
  std::string text;
  for (const char* integer : {"0", "1", "2", "3", "4"}) {
    std::vector<std::string> fields = GoodFields();
    fields[1] = integer;
    absl::StrAppend(&text, Line(fields), "\n");
  }
  const std::string path = Write(text);
  const auto integers = [&](size_t most, size_t part, size_t parts) {
    std::vector<int> found;
    const auto rows = ReadCriteo(path, most, part, parts);
    for (const CriteoRow& row : *rows) {
      found.push_back(static_cast<int>(std::lround(std::expm1(row.dense[0]))));
    }
    return found;
  };
  EXPECT_EQ(integers(10, 0, 2), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(integers(10, 1, 2), (std::vector<int>{1, 3}));
  EXPECT_EQ(integers(1, 2, 3), (std::vector<int>{2}));
  EXPECT_THAT(std::string(ReadCriteo(path, 10, 5, 6).status().message()),
              HasSubstr(path + ": has 5 rows only for --processes 6"));
}

TEST_F(CriteoFileTest, NeedsNoNewlineAtTheEnd) {
  const auto rows = ReadCriteo(Write(Line(GoodFields())), 10);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->size(), 1u);
}

TEST_F(CriteoFileTest, NamesFileLineAndField) {
  std::vector<std::string> fields = GoodFields();
  fields[20] = "what";
  const std::string path = Write(Line(GoodFields()) + "\n" + Line(fields));
  const auto rows = ReadCriteo(path, 10);
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(rows.status().message()),
              HasSubstr(path + ":2: field 21 (C7): 'what'"));
}

TEST_F(CriteoFileTest, RefusesFilesOfAnotherKind) {
  const auto line = ReadCriteo(Write(std::string(100'000, 'a')), 10);
  EXPECT_THAT(std::string(line.status().message()), HasSubstr(":1: the line"));
  EXPECT_FALSE(ReadCriteo(Write(""), 10).ok());
  EXPECT_FALSE(ReadCriteo(testing::TempDir(), 10).ok());
  EXPECT_FALSE(ReadCriteo("/nowhere/at/all", 10).ok());
}

}  // namespace
}  // namespace refract::loadgen

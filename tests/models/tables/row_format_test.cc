#include "models/tables/row_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace refract::models {
namespace {

using ::testing::HasSubstr;

// Bytes by hand, for rows of 64 elements.
struct FormatCase {
  std::string name;
  int64_t bytes;
  int64_t payload;
  int64_t parameters;
};

TEST(RowFormatTest, LaysOutEachNamedFormat) {
  for (const FormatCase& c :
       std::vector<FormatCase>{{"fp32", 256, 0, 0},
                               {"fp16", 128, 0, 0},
                               {"bf16", 128, 0, 0},
                               {"tbe-int8", 68, 4, 0},
                               {"tbe-int4", 36, 4, 0},
                               {"tbe-int2", 20, 4, 0},
                               {"fused-8bit", 72, 0, 64},
                               {"fused-4bit", 36, 0, 32},
                               {"fused-2bit", 20, 0, 16}}) {
    SCOPED_TRACE(c.name);
    const auto format = RowFormatNamed(c.name);
    ASSERT_TRUE(format.ok()) << format.status();
    EXPECT_EQ(NameOf(*format), c.name);
    EXPECT_EQ(RowBytes(*format, 64), c.bytes);
    const auto layout = LayoutOf(*format, 64);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->stride, c.bytes);
    EXPECT_EQ(layout->payload, c.payload);
    EXPECT_EQ(layout->parameters, c.parameters);
    EXPECT_THAT(RowFormatNames(), HasSubstr(c.name));
    // The text form and the stride give the layout back, padding included.
    const auto padded = LayoutOf(*format, 64, 0, 128);
    ASSERT_TRUE(padded.ok()) << padded.status();
    EXPECT_EQ(padded->stride % 128, 0);
    EXPECT_EQ(padded->parameters, c.parameters);
    const auto parsed = ParseRowsText(RowsText(*padded), padded->stride);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, *padded);
  }
}

TEST(RowFormatTest, RefusesKnownFormatsThatAreNotReadByName) {
  for (const char* name :
       {"tbe-fp8", "tbe-nfp8", "tbe-mx4", "tbe-pruned", "nve-int8"}) {
    const auto format = RowFormatNamed(name);
    EXPECT_TRUE(absl::IsInvalidArgument(format.status()));
    EXPECT_THAT(
        std::string(format.status().message()),
        HasSubstr(std::string("row format ") + name + " is not served: "));
  }
  EXPECT_THAT(std::string(RowFormatNamed("int3").status().message()),
              HasSubstr("'int3' is unknown; known are fp32, fp16"));
}

TEST(RowFormatTest, RefusesLayoutsThatDoNotFit) {
  const auto message = [](absl::string_view name, int64_t dim, int64_t stride,
                          int64_t alignment = 1) {
    const auto layout = LayoutOf(*RowFormatNamed(name), dim, stride, alignment);
    EXPECT_TRUE(absl::IsInvalidArgument(layout.status())) << layout.status();
    return std::string(layout.status().message());
  };
  EXPECT_THAT(message("tbe-int4", 7, 0), HasSubstr("no multiple of the 2"));
  EXPECT_THAT(message("fused-2bit", 6, 0), HasSubstr("no multiple of the 4"));
  EXPECT_THAT(message("fp32", 0, 0), HasSubstr("0 elements"));
  EXPECT_THAT(message("fp32", int64_t{1} << 31, 0), HasSubstr("elements"));
  EXPECT_THAT(message("tbe-int8", 64, 67),
              HasSubstr("64 elements take 68 bytes, the table's rows have 67"));
  EXPECT_THAT(message("tbe-int8", 64, 68 + 4097), HasSubstr("take 68 bytes"));
  EXPECT_THAT(message("fp32", 4, 18), HasSubstr("no multiple of 4"));
  EXPECT_THAT(message("tbe-int8", 64, 0, 24), HasSubstr("no power of two"));
}

TEST(RowFormatTest, RefusesTextThatIsNoRowFormat) {
  for (const char* text :
       {"", "tbe-int8", "tbe-int8 dim=", "tbe-int8 dim=x", "tbe-int8 dim=64 ",
        "tbe-int8 rows=64", "tbe-int8 dim=99999999999999999999"}) {
    EXPECT_THAT(std::string(ParseRowsText(text, 68).status().message()),
                HasSubstr("are not of the form"))
        << text;
  }
  EXPECT_FALSE(ParseRowsText("tbe-fp8 dim=64", 64).ok());
  EXPECT_FALSE(ParseRowsText("tbe-int8 dim=64", 0).ok());
  EXPECT_FALSE(ParseRowsText("tbe-int8 dim=64", 60).ok());
}

}  // namespace
}  // namespace refract::models

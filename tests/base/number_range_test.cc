#include "base/number_range.h"

#include <string>

#include "gtest/gtest.h"

namespace refract::base {
namespace {

TEST(NumberRangeTest, TakesNumbersWithinTheRange) {
  for (const char* text : {"0", "0.5", "1e3", "1000", "-0"}) {
    EXPECT_EQ(NumberIn(0, 1000)(text), "") << text;
  }
}

TEST(NumberRangeTest, RefusesWhatIsNoNumberOrBeyondIt) {
  for (const char* text : {"", "nan", "-nan", "inf", "-inf", "-1", "1000.5",
                           "1 2", "0x", "lots"}) {
    EXPECT_EQ(NumberIn(0, 1000)(text),
              std::string(text) + " is no number from 0 to 1000");
  }
}

}  // namespace
}  // namespace refract::base

#include "base/shorten.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

TEST(ShortenTest, LeavesShortTextAlone) {
  EXPECT_EQ(Shorten(""), "");
  EXPECT_EQ(Shorten("abc", 3), "abc");
  EXPECT_EQ(Shorten(std::string(kMaxNameTextBytes, 'x')),
            std::string(kMaxNameTextBytes, 'x'));
}

TEST(ShortenTest, CutsLongTextAndSaysHowLongItWas) {
  EXPECT_EQ(Shorten("abcd", 3), "abc…(4 bytes)");
  EXPECT_EQ(Shorten(std::string(100000, 'x')),
            absl::StrCat(std::string(kMaxNameTextBytes, 'x'),
                         "…(100000 bytes)"));
}

TEST(ShortenTest, DoesNotCutInsideACharacter) {
  // ≥ has three bytes, 𝄞 four.
  EXPECT_EQ(Shorten("a≥b", 1), "a…(5 bytes)");
  EXPECT_EQ(Shorten("a≥b", 2), "a…(5 bytes)");
  EXPECT_EQ(Shorten("a≥b", 3), "a…(5 bytes)");
  EXPECT_EQ(Shorten("a≥b", 4), "a≥…(5 bytes)");
  EXPECT_EQ(Shorten("𝄞b", 3), "…(5 bytes)");
  // Not UTF-8: cut where at most three bytes are lost.
  EXPECT_EQ(Shorten(std::string(9, '\x80'), 8),
            absl::StrCat(std::string(5, '\x80'), "…(9 bytes)"));
}

}  // namespace
}  // namespace refract::base

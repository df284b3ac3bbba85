#include "tools/sizes.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(PrintSizesTest, FewGuessesAreWarnedOfAndTheRestIsCounted) {
  AssumedSizes sizes;
  sizes.all.push_back({"known", 5, SizeSource::kGiven, {"known"}});
  for (int i = 0; i < 3; ++i) {
    const std::string name = absl::StrCat("ids_", i);
    sizes.all.push_back({name, 1, SizeSource::kGuessed, {name}});
  }
  std::ostringstream out, err;
  PrintSizes(sizes, out, err);
  EXPECT_THAT(err.str(), HasSubstr("warning: ids_2 is guessed as 1 per item"));
  EXPECT_THAT(err.str(), Not(HasSubstr("more sizes")));
  for (int i = 3; i < 60; ++i) {
    const std::string name = absl::StrCat("ids_", i);
    sizes.all.push_back({name, 1, SizeSource::kGuessed, {name}});
  }
  err.str("");
  PrintSizes(sizes, out, err);
  const std::string text = err.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;
  EXPECT_THAT(text, HasSubstr("warning: 57 more sizes are guessed"));
  EXPECT_THAT(out.str(), HasSubstr("ids_48 1 (guessed), and 11 more, 1 to 1"));
}

}  // namespace
}  // namespace refract::tools

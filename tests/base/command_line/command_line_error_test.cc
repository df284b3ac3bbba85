#include "base/command_line/command_line_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace refract::base {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CommandLineErrorTest : public ::testing::Test {
 protected:
  CommandLineErrorTest() {
    app_.add_option("--folder", folder_)->required();
    app_.add_option("--port", port_)->check(CLI::Range(1, 9));
    auto* serve = app_.add_subcommand("serve");
    serve->add_option("--model", model_)->required();
  }
  std::string Why(std::vector<std::string> arguments) {
    try {
      app_.parse(
          std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ParseError& error) {
      return CommandLineError(app_, error);
    }
    return "";
  }

  CLI::App app_;
  std::string folder_, model_;
  int port_ = 0;
};

TEST_F(CommandLineErrorTest, AnUnknownOptionIsNamedBesideTheOneThatIsMissing) {
  const std::string why = Why({"--foldr", "x"});
  EXPECT_THAT(why, HasSubstr("--folder is required"));
  EXPECT_THAT(why, HasSubstr("--foldr is no option"));
  EXPECT_THAT(Why({"--folder", "x", "serve", "--mdel", "y"}),
              HasSubstr("--mdel is no option"));
}

TEST_F(CommandLineErrorTest, OtherErrorsAreCli11s) {
  EXPECT_EQ(Why({"--folder", "x"}), "");
  EXPECT_EQ(Why({}), "--folder is required");
  EXPECT_EQ(Why({"stray"}), "--folder is required");
  EXPECT_THAT(Why({"--folder", "x", "--prt", "3"}), HasSubstr("--prt"));
  const std::string why = Why({"--port", "12", "--prt", "3"});
  EXPECT_THAT(why, HasSubstr("--port"));
  EXPECT_THAT(why, Not(HasSubstr("is no option")));
}

}  // namespace
}  // namespace refract::base

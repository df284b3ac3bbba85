#include "base/command_line/program_pages.h"

#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ProgramPagesTest : public testing::Test {
 protected:
  ProgramPagesTest() : app_("Does this\\that.", "tool") {
    app_.add_option("--repository", repository_, ".hidden files, too")
        ->required();
    CLI::App* send = app_.add_subcommand("send", "Sends 'all' of it");
    send->add_option("what", what_, "What to send")->required();
    send->add_option("--order,-o", order_, "Which first")
        ->check(CLI::IsMember({"new", "old"}));
    send->add_flag("--quiet", quiet_, "Print nothing");
    AddProgramPages(app_, "1.2");
  }

  // The text that the program prints instead of running.
  std::string Printed(std::vector<std::string> reversed) {
    try {
      app_.parse(std::move(reversed));
    } catch (const CLI::CallForVersion& pages) {
      return pages.what();
    }
    ADD_FAILURE() << "nothing was printed";
    return "";
  }

  CLI::App app_;
  std::string repository_, what_, order_;
  bool quiet_ = false;
};

TEST_F(ProgramPagesTest, NeedNoRequiredOption) {
  EXPECT_EQ(Printed({"--version"}), "tool 1.2");
  EXPECT_EQ(Printed({"--man"}), ManPage(app_, "1.2"));
  EXPECT_EQ(Printed({"bash", "--completion"}), BashCompletion(app_));
  EXPECT_EQ(Printed({"--completion=zsh"}), ZshCompletion(app_));
  EXPECT_EQ(Printed({"--completion=fish"}), FishCompletion(app_));
}

TEST_F(ProgramPagesTest, AnUnknownShellIsRefused) {
  EXPECT_THROW(app_.parse(std::vector<std::string>{"--completion=tcsh"}),
               CLI::ValidationError);
}

// Backslashes, leading points and hyphens are commands to groff.
TEST_F(ProgramPagesTest, ManPageEscapesText) {
  const std::string page = ManPage(app_, "1.2");
  EXPECT_THAT(page, HasSubstr("tool \\- Does this\\ethat."));
  EXPECT_THAT(page, HasSubstr("\n\\&.hidden files, too (required)\n"));
  EXPECT_THAT(page,
              HasSubstr(".TP\n\\fB\\-\\-order, \\-o TEXT:{new,old}\\fR\n"));
  EXPECT_THAT(page, HasSubstr(".SS tool send\nSends 'all' of it\n"));
}

TEST_F(ProgramPagesTest, BashScriptHasWordsOfEachCommand) {
  const std::string script = BashCompletion(app_);
  EXPECT_THAT(script, HasSubstr("'tool send:--order'|'tool send:-o') "
                                "words='new old' ;;"));
  EXPECT_THAT(script, HasSubstr("'tool send') options='"));
  EXPECT_THAT(script, HasSubstr("complete -o default -F _tool tool\n"));
}

TEST_F(ProgramPagesTest, FishScriptQuotesDescriptions) {
  const std::string script = FishCompletion(app_);
  EXPECT_THAT(script, HasSubstr("-f -a send -d 'Sends '\\''all'\\'' of it'\n"));
  EXPECT_THAT(
      script,
      HasSubstr("complete -c tool -n '__fish_seen_subcommand_from send' "
                "-l order -s o -x -a 'new old' -d 'Which first'\n"));
  EXPECT_THAT(script, Not(HasSubstr("-l what")));
}

}  // namespace
}  // namespace refract::base

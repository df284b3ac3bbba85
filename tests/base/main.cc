// main() of test programs: GoogleTest's, with an option for one file of a
// program that has several (cmake/RefractTest.cmake).
//
//   --file=tests/base/json_test.cc  only the tests of this file. With
//                                   --gtest_filter the tests that it names,
//                                   of any file. GTEST_OUTPUT=xml:FOLDER/
//                                   writes FOLDER/base_json_test.xml.
//
// Exit status 1 also when the program has no test of the file, or when two
// files have a test of the same name.
#include <cstdio>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// The names of the file's tests as a filter; empty if there is none.
std::string FilterOf(absl::string_view file) {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  std::string filter;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(j);
      if (absl::EndsWith(test.file(), absl::StrCat("/", file))) {
        absl::StrAppend(&filter, filter.empty() ? "" : ":", suite.name(), ".",
                        test.name());
      }
    }
  }
  return filter;
}

// Whether --file can tell the tests apart: each is of a *_test.cc, since the
// tests of a header would be of no file, and no two have the same name. Prints
// what is not so.
bool FilesTellTestsApart() {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  std::map<std::string, std::string> files;
  bool apart = true;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string name = absl::StrCat(suite.name(), ".", test.name());
      const auto [known, is_new] = files.emplace(name, test.file());
      if (!absl::EndsWith(test.file(), "_test.cc")) {
        std::fprintf(stderr,
                     "%s of %s needs a program that has no other file\n",
                     name.c_str(), test.file());
        apart = false;
      }
      if (!is_new) {
        std::fprintf(stderr, "%s and %s both have the test %s\n",
                     known->second.c_str(), test.file(), name.c_str());
        apart = false;
      }
    }
  }
  return apart;
}

}  // namespace

int main(int argc, char** argv) {
  std::string file;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--file=")) file = std::string(argument);
  }
  const std::string output = GTEST_FLAG_GET(output);
  if (!file.empty() && absl::EndsWith(output, "/")) {
    absl::string_view name = file;
    absl::ConsumePrefix(&name, "tests/");
    absl::ConsumeSuffix(&name, ".cc");
    GTEST_FLAG_SET(
        output,
        absl::StrCat(output, absl::StrReplaceAll(name, {{"/", "_"}}), ".xml"));
  }
  ::testing::InitGoogleMock(&argc, argv);
  if (!file.empty() && !FilesTellTestsApart()) return 1;
  if (!file.empty() && std::string(GTEST_FLAG_GET(filter)) == "*") {
    const std::string filter = FilterOf(file);
    if (filter.empty()) {
      std::fprintf(stderr, "the program has no test of %s\n", file.c_str());
      return 1;
    }
    GTEST_FLAG_SET(filter, filter);
  }
  return RUN_ALL_TESTS();
}

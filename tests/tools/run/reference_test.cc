#include "tools/run/reference.h"

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/tiny_model.h"

namespace refract::tools {
namespace {

using testing::HasSubstr;

// A shell script stands in for Python: what matters here is how the process is
// started and how its end is told.
class ReferenceTest : public testing::Test {
 protected:
  ReferenceTest() {
    std::filesystem::create_directories(folder_ / "root/models/zoo");
    std::ofstream(folder_ / "root/models/zoo/reference.py") << "";
    setenv("REFRACT_SOURCE_DIR", (folder_ / "root").c_str(), 1);
    setenv("REFRACT_PYTHON", (folder_ / "python").c_str(), 1);
  }

  void Python(const std::string& script) {
    const std::string path = folder_ / "python";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  }

  // The error of a run that failed as a whole.
  std::string Error() const {
    return std::string(RunReference(run_).status().message());
  }

  // Lines that reference.py prints with --report, for Python().
  static constexpr char kLoaded[] = "\necho refract-reference: loaded >&2";
  static constexpr char kOk[] = "\necho refract-reference: ok >&2";

  const ReferenceRun run_ = {.model_file = "m odel.pt2",
                             .tables_dir = "tables",
                             .inputs = {"a", "b"},
                             .outputs = {"c", "d"},
                             .op_libraries = {"ops.so"}};
  TempFolder folder_;
};

TEST_F(ReferenceTest, PassesTheArguments) {
  Python("shift 2; printf '%s|' \"$@\" > '" + (folder_ / "seen") + "'" +
         kLoaded + kOk + kOk);
  const auto requests = RunReference(run_);
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_THAT(*requests,
              testing::ElementsAre(absl::OkStatus(), absl::OkStatus()));
  std::ifstream file(folder_ / "seen");
  const std::string seen((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  EXPECT_THAT(
      seen,
      testing::MatchesRegex(
          (folder_ / "root") +
          R"(\|m odel.pt2\|--report\|--tables\|tables\|--op-library\|ops.so\|)"
          R"(--inputs\|a\|--outputs\|c\|--inputs\|b\|--outputs\|d\|)"));
}

TEST_F(ReferenceTest, BadInputIsPassedOnWithItsLine) {
  Python(
      "echo warning >&2; echo 'x.safetensors: input y is missing' >&2; exit 2");
  const absl::Status status = RunReference(run_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "x.safetensors: input y is missing");
}

TEST_F(ReferenceTest, ARequestThatIsRefusedFailsAlone) {
  Python(std::string(kLoaded) +
         "\necho 'refract-reference: failed: a: no such id' >&2" + kOk +
         "\necho 'the first error: a: no such id' >&2; exit 2");
  const auto requests = RunReference(run_);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[0], absl::InvalidArgumentError("a: no such id"));
  EXPECT_TRUE((*requests)[1].ok());
}

// PyTorch reads beyond its memory for some requests.
TEST_F(ReferenceTest, ARequestThatEndsTheProcessFailsAlone) {
  Python(std::string(kLoaded) +
         "\ncase \"$*\" in *'--inputs a'*) kill -9 $$;; esac" + kOk);
  const auto requests = RunReference(run_);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[0].code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string((*requests)[0].message()), HasSubstr("signal 9"));
  EXPECT_TRUE((*requests)[1].ok());
}

TEST_F(ReferenceTest, OtherEndsAreFailures) {
  Python("echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1");
  absl::Status status = RunReference(run_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'torch'"));
  Python("exit 3");
  EXPECT_THAT(Error(), HasSubstr("status 3"));
  Python("kill -9 $$");
  EXPECT_THAT(Error(), HasSubstr("signal 9"));
}

TEST_F(ReferenceTest, AFloodOfErrorsIsBoundedAndItsEndIsKept) {
  Python(
      "i=0; while [ $i -lt 20000 ]; do echo 'line of noise' >&2; "
      "i=$((i+1)); done; echo 'the point' >&2; exit 2");
  EXPECT_EQ(Error(), "the point");
}

TEST_F(ReferenceTest, MissingInterpreterIsNamed) {
  setenv("REFRACT_PYTHON", "/no/such/python", 1);
  const absl::Status status = RunReference(run_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/python"));
}

}  // namespace
}  // namespace refract::tools

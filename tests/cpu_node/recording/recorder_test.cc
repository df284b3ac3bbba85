#include "cpu_node/recording/recorder.h"

#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cpu_node/served_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "metrics/exposition.h"
#include "nlohmann/json.hpp"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {
namespace {

using ::testing::HasSubstr;

class RecorderTest : public ::testing::Test {
 protected:
  RecorderTest()
      : model_(*ServedModel::Create(
            testing_models::MakeSmallModel({.split = false}), {})) {}

  RecorderOptions Options() const {
    return {.path = absl::StrCat(
                ::testing::TempDir(), "/",
                ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                ".jsonl"),
            .rate = 1};
  }
  void Offer(Recorder& recorder, int64_t items) {
    recorder.Offer(*model_, MakeRequest("small", items), items, absl::Now());
  }
  // The lines after the first.
  std::vector<nlohmann::json> Lines() const {
    std::ifstream file(Options().path);
    std::string line;
    std::getline(file, line);
    std::vector<nlohmann::json> lines;
    while (std::getline(file, line)) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }
  static std::vector<int64_t> IdsOf(const nlohmann::json& line) {
    std::string bytes;
    EXPECT_EQ(line["inputs"][1]["name"], "ids");
    EXPECT_TRUE(absl::Base64Unescape(
        line["inputs"][1]["data"].get<std::string>(), &bytes));
    const auto* const ids = reinterpret_cast<const int64_t*>(bytes.data());
    return {ids, ids + bytes.size() / sizeof(int64_t)};
  }

  std::unique_ptr<ServedModel> model_;
};

TEST_F(RecorderTest, RequestsThatWaitAreWrittenAtTheEnd) {
  {
    const auto recorder = *Recorder::Create(Options());
    for (int64_t items = 1; items <= 50; ++items) Offer(*recorder, items);
  }
  const std::vector<nlohmann::json> lines = Lines();
  ASSERT_EQ(lines.size(), 50u);
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(lines[i]["items"], i + 1);
  EXPECT_EQ(IdsOf(lines[1]),
            (std::vector<int64_t>{testing_models::IdValue(0),
                                  testing_models::IdValue(1)}));
}

TEST_F(RecorderTest, ARequestWithoutRoomIsCounted) {
  {
    RecorderOptions options = Options();
    options.max_waiting = 1000;
    const auto recorder = *Recorder::Create(options);
    Offer(*recorder, 1000);
    Offer(*recorder, 1);
    metrics::Exposition out;
    recorder->Collect(out);
    EXPECT_THAT(out.Text(), HasSubstr("refract_recording_dropped_total 1"));
  }
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_EQ(Lines()[0]["items"], 1);
}

TEST_F(RecorderTest, RequestsOfContradictorySizesAreNotWritten) {
  {
    const auto recorder = *Recorder::Create(Options());
    InferRequest request = MakeRequest("small", 3);
    InferRequest shorter = MakeRequest("small", 2);
    std::swap(request.inputs[1], shorter.inputs[1]);
    recorder->Offer(*model_, request, 3, absl::Now());
    Offer(*recorder, 2);
  }
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_EQ(Lines()[0]["items"], 2);
}

// As on a full disk: the file takes a part of a line.
TEST_F(RecorderTest, AFailedWriteEndsTheFileAfterAWholeLine) {
  // A write beyond the limit returns an error instead of a signal.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  {
    const auto recorder = *Recorder::Create(Options());
    rlimit low = before;
    low.rlim_cur = 4000;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
    for (int i = 0; i < 50; ++i) Offer(*recorder, 10);
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  // Lines() parses each of them.
  EXPECT_GT(Lines().size(), 1u);
  EXPECT_LT(Lines().size(), 50u);
}

// The version is gone before its requests are written.
TEST_F(RecorderTest, RedactedIdsAreIdsOfTheirTable) {
  {
    RecorderOptions options = Options();
    options.key = "key";
    const auto recorder = *Recorder::Create(options);
    Offer(*recorder, 30);
    Offer(*recorder, 30);
    model_.reset();
  }
  const std::vector<nlohmann::json> lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  const std::vector<int64_t> ids = IdsOf(lines[0]);
  EXPECT_EQ(ids, IdsOf(lines[1]));
  std::vector<int64_t> sent;
  for (int64_t i = 0; i < 30; ++i) {
    sent.push_back(testing_models::IdValue(i));
    EXPECT_EQ(ids[i], ids[i % testing_models::kRows]);
    EXPECT_LT(ids[i], testing_models::kRows);
    EXPECT_GE(ids[i], 0);
  }
  EXPECT_NE(ids, sent);
}

}  // namespace
}  // namespace refract::cpu_node

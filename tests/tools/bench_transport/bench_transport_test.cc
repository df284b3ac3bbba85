// `refract bench transport` as a user runs it.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/command_line_fixture.h"

namespace refract::tools {
namespace {

using testing::HasSubstr;

Ran RunBench(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"bench", "transport"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return Refract(all);
}

TEST(BenchTransportOptionsTest, AreRefusedByName) {
  for (const auto& [option, value] :
       std::vector<std::pair<std::string, std::string>>{
           {"--paths", "udp"},
           {"--levels", "wire"},
           {"--ops", "ping"},
           {"--modes", "lazy"},
           {"--sizes", "0"},
           {"--sizes", "many"},
           {"--rounds", "0"},
           {"--rounds", "x"},
           {"--time-ms", "0"},
           {"--time-ms", "nan"},
           {"--iterations", "0"},
           {"--window", "0"},
           {"--eager-bytes", "999999999"},
           {"--cpus", "0"},
           {"--cpus", "100000,100001"},
           {"--json", "/nonexistent/x.json"},
           {"--csv", "/nonexistent/x.csv"},
           {"--frobnicate", "1"}}) {
    const Ran ran = RunBench({option, value});
    EXPECT_EQ(ran.exit_status, 2) << option << " " << value;
    const std::string named = value[0] == '/' ? value : option;
    EXPECT_THAT(ran.err, HasSubstr(named)) << option << " " << value;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1);
    EXPECT_EQ(ran.out, "");
  }
}

// One short run of everything, whose rows are then looked at.
class BenchTransportTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::filesystem::path folder =
        std::filesystem::path(testing::TempDir()) / "bench_transport";
    std::filesystem::create_directories(folder);
    const std::string json = folder / "t.json";
    const std::string csv = folder / "t.csv";
    ran_ = new Ran(RunBench({"--sizes", "64,100K", "--rounds", "3", "--time-ms",
                             "2", "--window", "1000000", "--json", json,
                             "--csv", csv, "--seed", "7"}));
    std::ifstream json_file(json);
    json_ =
        new nlohmann::json(nlohmann::json::parse(json_file, nullptr, false));
    std::ifstream csv_file(csv);
    std::stringstream csv_text;
    csv_text << csv_file.rdbuf();
    csv_ = new std::string(csv_text.str());
  }
  static void TearDownTestSuite() {
    delete ran_;
    delete json_;
    delete csv_;
  }

  static Ran* ran_;
  static nlohmann::json* json_;
  static std::string* csv_;
};
Ran* BenchTransportTest::ran_ = nullptr;
nlohmann::json* BenchTransportTest::json_ = nullptr;
std::string* BenchTransportTest::csv_ = nullptr;

std::string OpModeOf(const nlohmann::json& row) {
  return absl::StrCat(row["op"].get<std::string>(), " ",
                      row["mode"].get<std::string>());
}

TEST_F(BenchTransportTest, MeasuresEveryRowInEveryRound) {
  ASSERT_EQ(ran_->exit_status, 0) << ran_->err;
  ASSERT_TRUE(json_->is_object());
  std::map<std::string, std::map<std::string, int>> rows;
  for (const nlohmann::json& row : (*json_)["rows"]) {
    SCOPED_TRACE(row.dump());
    ++rows[OpModeOf(row)][absl::StrCat(row["level"].get<std::string>(), " ",
                                       row["name"].get<std::string>())];
    const bool stream = row.contains("bytes_per_s");
    const char* primary = stream ? "bytes_per_s" : "p50_us";
    EXPECT_EQ(
        row["op"].get<std::string>().find("stream") != std::string::npos ||
            row["op"] == "fan-in",
        stream);
    ASSERT_EQ(row["rounds"].size(), 3u);
    for (const nlohmann::json& round : row["rounds"]) {
      ASSERT_TRUE(round[primary].is_number());
      EXPECT_GT(round[primary].get<double>(), 0);
    }
    EXPECT_FALSE(row.contains("error"));
    EXPECT_GT(row["iterations"].get<int>(), 0);
  }
  const std::map<std::string, int> path_and_message = {
      {"path shm", 2}, {"path tcp", 2}, {"message shm", 2}, {"message tcp", 2}};
  std::map<std::string, int> with_socket = path_and_message;
  with_socket["raw socket"] = 2;
  std::map<std::string, int> with_both = with_socket;
  with_both["raw memory"] = 2;
  EXPECT_EQ(rows["pingpong busy"], with_both);
  EXPECT_EQ(rows["pingpong event"], with_socket);
  EXPECT_EQ(rows["stream busy"], with_socket);
  EXPECT_EQ(rows["pingpong adaptive"],
            (std::map<std::string, int>{{"raw memory", 2},
                                        {"raw socket", 2},
                                        {"channel shm", 2},
                                        {"channel tcp", 2}}));
  EXPECT_EQ(rows["pull event"], path_and_message);
  EXPECT_EQ(rows["fan-in busy"],
            (std::map<std::string, int>{
                {"one flow", 4}, {"message shm", 2}, {"message tcp", 2}}));
  EXPECT_EQ(rows.count("fan-in event"), 0u);
  EXPECT_EQ(rows["get-stream busy"],
            (std::map<std::string, int>{{"path shm", 2}, {"path tcp", 2}}));
}

TEST_F(BenchTransportTest, HoldsPathsAgainstYardsticks) {
  ASSERT_TRUE(json_->is_object());
  int ratios = 0;
  std::set<std::string> of;
  for (const nlohmann::json& row : (*json_)["rows"]) {
    SCOPED_TRACE(row.dump());
    if (row["level"] == "raw" || row["level"] == "one") {
      EXPECT_EQ(row["ratios"].size(), 0u);
      // Rows of equal names are told apart by it.
      const nlohmann::json key = {row["op"],    row["mode"],
                                  row["bytes"], row["level"],
                                  row["name"],  row["yardstick_of"]};
      EXPECT_TRUE(of.insert(key.dump()).second);
      continue;
    }
    // Shared memory alone has no way of sleeping and no streams.
    const bool tcp = row["name"] == "tcp";
    const bool has_baseline =
        row["op"] == "fan-in" ||
        (row["op"] == "pingpong" && (tcp || row["mode"] != "event")) ||
        (row["op"] == "stream" && tcp);
    EXPECT_EQ(row["ratios"].size(), has_baseline ? 1u : 0u);
    for (const nlohmann::json& ratio : row["ratios"]) {
      ++ratios;
      EXPECT_EQ(ratio["yardstick"], row["op"] == "fan-in"  ? "one flow"
                                    : row["name"] == "shm" ? "raw memory"
                                                           : "raw socket");
      EXPECT_EQ(ratio["rounds"], 3);
      EXPECT_EQ(ratio["discarded"], 0);
      for (const char* part : {"q25", "median", "q75"}) {
        ASSERT_TRUE(ratio[part].is_number());
        EXPECT_GT(ratio[part].get<double>(), 0);
      }
      EXPECT_LE(ratio["q25"], ratio["median"]);
      EXPECT_LE(ratio["median"], ratio["q75"]);
    }
  }
  EXPECT_GT(ratios, 0);
}

TEST_F(BenchTransportTest, SaysHowToRunItAgain) {
  ASSERT_TRUE(json_->is_object());
  EXPECT_EQ((*json_)["benchmark"], "transport");
  EXPECT_EQ((*json_)["seed"], 7);
  EXPECT_EQ((*json_)["options"]["sizes"], "64,100K");
  EXPECT_EQ((*json_)["options"]["window"], 1000000);
  EXPECT_EQ((*json_)["cpus"].size(), 2u);
  for (const char* field : {"version", "revision", "time", "machine"}) {
    EXPECT_TRUE(json_->contains(field)) << field;
  }
}

TEST_F(BenchTransportTest, WritesTheSameRowsAsCsvAndText) {
  const std::vector<std::string> lines =
      absl::StrSplit(*csv_, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), (*json_)["rows"].size() + 1);
  for (size_t i = 1; i < lines.size(); ++i) {
    const nlohmann::json& row = (*json_)["rows"][i - 1];
    EXPECT_EQ(lines[i].rfind(absl::StrCat(row["op"].get<std::string>(), ",",
                                          row["mode"].get<std::string>(), ",",
                                          row["bytes"].get<int>(), ",",
                                          row["level"].get<std::string>(), ",",
                                          row["name"].get<std::string>(), ","),
                             0),
              0u)
        << lines[i];
  }
  EXPECT_THAT(ran_->out, HasSubstr("pingpong, busy, µs one way"));
  EXPECT_THAT(ran_->out, HasSubstr("get-stream, busy, MB/s"));
  // Progress is for terminals.
  EXPECT_EQ(ran_->err, "");
}

}  // namespace
}  // namespace refract::tools

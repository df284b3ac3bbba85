// `refract bench serving` as a user runs it, against a server in this process.

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "models/repository/files/safetensors.h"
#include "nlohmann/json.hpp"
#include "proto/inference/grpc_service.grpc.pb.h"
#include "tests/tools/command_line_fixture.h"

namespace refract::tools {
namespace {

using testing::HasSubstr;

// Answers each item's input `x` [-1] as `y`, or fails as told.
class Echo : public inference::GRPCInferenceService::Service {
 public:
  grpc::Status ModelReady(grpc::ServerContext*,
                          const inference::ModelReadyRequest* request,
                          inference::ModelReadyResponse* response) override {
    if (request->name() != "echo") {
      return {grpc::StatusCode::NOT_FOUND, "no model " + request->name()};
    }
    response->set_ready(true);
    return grpc::Status::OK;
  }
  grpc::Status ModelMetadata(
      grpc::ServerContext*, const inference::ModelMetadataRequest*,
      inference::ModelMetadataResponse* response) override {
    auto& input = *response->add_inputs();
    input.set_name("x");
    input.set_datatype("FP32");
    input.add_shape(-1);
    return grpc::Status::OK;
  }
  grpc::Status ModelInfer(grpc::ServerContext* context,
                          const inference::ModelInferRequest* request,
                          inference::ModelInferResponse* response) override {
    const int number = requests_++;
    while (number >= hold_after_ && !context->IsCancelled()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    if (number >= fail_after_) return failure_;
    response->set_id(request->id());
    auto& output = *response->add_outputs();
    output.set_name("y");
    output.set_datatype("FP32");
    *output.mutable_shape() = request->inputs(0).shape();
    response->add_raw_output_contents(request->raw_input_contents(0));
    return grpc::Status::OK;
  }

  std::atomic<int> requests_ = 0;
  int fail_after_ = 1 << 30;
  int hold_after_ = 1 << 30;  // further requests end with their client
  grpc::Status failure_;
};

class BenchServingTest : public testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&server_);
    running_ = builder.BuildAndStart();
    ASSERT_NE(running_, nullptr);
  }

  Ran Bench(const std::vector<std::string>& more,
            const std::string& model = "echo") {
    std::vector<std::string> arguments = {
        "bench",   "serving", "--target", absl::StrCat("127.0.0.1:", port_),
        "--model", model};
    // Unless the test has its own.
    for (const auto& [option, value] :
         {std::pair("--qps", "200"), std::pair("--duration", "0.3"),
          std::pair("--warmup", "0.1")}) {
      if (!defaults_ ||
          std::find(more.begin(), more.end(), option) != more.end()) {
        continue;
      }
      arguments.insert(arguments.end(), {option, value});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Refract(arguments);
  }

  nlohmann::json Report(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = more;
    arguments.insert(arguments.end(), {"--json", folder_ / "report.json"});
    const Ran ran = Bench(arguments);
    EXPECT_EQ(ran.exit_status, 0) << ran.err;
    std::ifstream file(folder_ / "report.json");
    return nlohmann::json::parse(file);
  }

  // One line, and the exit status of something that the user can put right.
  void ExpectRefused(const Ran& ran, const std::string& what) {
    EXPECT_EQ(ran.exit_status, 2) << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(what));
  }

  bool defaults_ = true;
  TempFolder folder_;
  Echo server_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> running_;
};

TEST_F(BenchServingTest, ReportsWhatTheServerSaw) {
  const nlohmann::json report = Report({"--query-sizes", "fixed:7"});
  const int64_t queries = report["queries"];
  EXPECT_GT(queries, 20);
  EXPECT_EQ(report["sent"], queries);
  EXPECT_EQ(report["dropped"], 0);
  EXPECT_EQ(report["succeeded"], queries);
  EXPECT_EQ(report["errors"], 0);
  // One more than the schedule's: the request before the load.
  EXPECT_EQ(report["sent_requests"], server_.requests_ - 1);
  const double window_s = report["window_s"];
  EXPECT_NEAR(report["items_per_s"], 7 * queries / window_s, 1e-6);
  EXPECT_NEAR(report["achieved_qps"], queries / window_s, 1e-6);
  const nlohmann::json& ms = report["latency_ms"];
  EXPECT_GT(ms["p50"], 0);
  EXPECT_LE(ms["p50"], ms["p95"]);
  EXPECT_LE(ms["p95"], ms["p99"]);
  EXPECT_LE(ms["p99"], ms["p99.9"]);
  EXPECT_LE(ms["p99.9"], ms["max"]);
  EXPECT_EQ(report["options"]["query_sizes"], "fixed:7");
  for (const char* key : {"revision", "machine", "seed"}) {
    EXPECT_TRUE(report.contains(key)) << key;
  }
}

TEST_F(BenchServingTest, RecordsRequestsWithTheirAnswers) {
  const std::string records = folder_ / "records";
  const Ran ran = Bench({"--record", records, "--record-count", "3"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  std::set<std::string> requests;
  for (int i = 0; i < 3; ++i) {
    const auto file = [&](const char* kind) {
      return models::SafetensorsFile::Open(
          absl::StrCat(records, "/", kind, "_", i, ".safetensors"));
    };
    const auto request = file("request");
    const auto response = file("response");
    ASSERT_TRUE(request.ok()) << request.status();
    ASSERT_TRUE(response.ok()) << response.status();
    const models::SafetensorsEntry* x = request->Find("x");
    const models::SafetensorsEntry* y = response->Find("y");
    ASSERT_NE(x, nullptr);
    ASSERT_NE(y, nullptr);
    const auto text = [](base::TensorView view) {
      return std::string(reinterpret_cast<const char*>(view.data), view.bytes);
    };
    EXPECT_EQ(text(request->View(*x)), text(response->View(*y)));
    requests.insert(text(request->View(*x)));
  }
  EXPECT_EQ(requests.size(), 3u) << "three different requests";
  EXPECT_FALSE(std::filesystem::exists(records + "/request_3.safetensors"));
}

TEST_F(BenchServingTest, AServerThatRefusesTheRequestIsBadInput) {
  server_.fail_after_ = 0;
  server_.failure_ = {grpc::StatusCode::INVALID_ARGUMENT, "input 'x' is odd"};
  ExpectRefused(Bench({}), "input 'x' is odd");
  EXPECT_EQ(server_.requests_, 1) << "no load after the refusal";
}

TEST_F(BenchServingTest, ErrorsOfTheServerAreResultsNotFailures) {
  server_.fail_after_ = 11;
  server_.failure_ = {grpc::StatusCode::UNAVAILABLE, "gone"};
  const nlohmann::json report = Report({"--warmup", "0"});
  EXPECT_EQ(report["succeeded"], 10);
  EXPECT_EQ(report["errors_by_code"]["UNAVAILABLE"], report["errors"]);
  EXPECT_EQ(report["first_errors"]["UNAVAILABLE"], "ModelInfer: gone");
  EXPECT_EQ(report["dropped"], 0);
}

TEST_F(BenchServingTest, FailsWhenNothingIsAnswered) {
  server_.fail_after_ = 0;
  server_.failure_ = {grpc::StatusCode::UNAVAILABLE, "gone"};
  const std::string path = folder_ / "failed.json";
  const Ran ran = Bench({"--json", path});
  EXPECT_EQ(ran.exit_status, 1);
  EXPECT_THAT(ran.err, HasSubstr("gone"));
  EXPECT_THAT(ran.out, testing::ContainsRegex("latency +-\n"));
  std::ifstream file(path);
  const nlohmann::json report = nlohmann::json::parse(file);
  for (const auto& [key, latency] : report["latency_ms"].items()) {
    EXPECT_TRUE(latency.is_null()) << key;
  }
  EXPECT_TRUE(report["timeline"][0]["p99_ms"].is_null());
  EXPECT_TRUE(report["sent_late_ms"]["p99"].is_number());
}

TEST_F(BenchServingTest, AFullDiskLosesItsOwnFilesAlone) {
  const std::string path = folder_ / "kept.json";
  const Ran ran = Bench({"--csv", "/dev/full", "--json", path});
  EXPECT_EQ(ran.exit_status, 1);
  EXPECT_THAT(ran.err,
              HasSubstr("/dev/full: cannot be written: No space left"));
  std::ifstream file(path);
  EXPECT_TRUE(nlohmann::json::accept(file));
}

TEST_F(BenchServingTest, FailsWhenNoQueryWasDue) {
  const Ran ran = Bench({"--qps", "0.001", "--warmup", "0"});
  EXPECT_EQ(ran.exit_status, 1);
  EXPECT_THAT(ran.err, HasSubstr("no query was due after --warmup"));
}

TEST_F(BenchServingTest, TheBoundInFlightIsExact) {
  // The request before the load is answered; after it the server holds one.
  server_.hold_after_ = 1;
  const Ran ran = Bench({"--max-in-flight", "1", "--warmup", "0", "--timeout",
                         "0.6", "--arrivals", "constant"});
  EXPECT_EQ(ran.exit_status, 1);
  EXPECT_THAT(ran.out, HasSubstr("1 failed, 59 dropped unsent"));
}

TEST_F(BenchServingTest, FailedQueriesFailARateOfTheSearch) {
  // The request before the load, one try, and not all of the next.
  const int64_t one_try = Report({})["sent_requests"];
  server_.requests_ = 0;
  server_.fail_after_ = static_cast<int>(1 + one_try);
  server_.failure_ = {grpc::StatusCode::UNAVAILABLE, "gone"};
  const nlohmann::json report = Report({"--find-max", "--slo-ms", "9000"});
  EXPECT_EQ(report["max_qps"], 200);
  EXPECT_TRUE(report["tries"][0]["passed"]);
  EXPECT_EQ(report["tries"][0]["queries"], report["tries"][0]["succeeded"]);
  EXPECT_LT(report["tries"][1]["succeeded"], report["tries"][1]["queries"]);
  for (size_t i = 1; i < report["tries"].size(); ++i) {
    EXPECT_FALSE(report["tries"][i]["passed"]) << i;
  }
}

TEST_F(BenchServingTest, ASearchWithoutARateKeepsItsTries) {
  server_.fail_after_ = 1;
  server_.failure_ = {grpc::StatusCode::UNAVAILABLE, "gone"};
  const std::string path = folder_ / "none.json";
  const Ran ran = Bench({"--find-max", "--slo-ms", "9000", "--qps", "3000",
                         "--warmup", "0", "--json", path});
  EXPECT_EQ(ran.exit_status, 1);
  EXPECT_THAT(ran.err, HasSubstr("--find-max: p99 exceeds 9000 ms, or queries "
                                 "fail, even at the lowest rate"));
  std::ifstream file(path);
  const nlohmann::json report = nlohmann::json::parse(file);
  EXPECT_TRUE(report["max_qps"].is_null());
  EXPECT_EQ(report["tries"].size(), 11u);
  EXPECT_EQ(report["tries"][0]["qps"], 3000);
  EXPECT_EQ(report["qps"], report["tries"].back()["qps"]);
}

TEST_F(BenchServingTest, ArrivalsFollowTheProfile) {
  const nlohmann::json report =
      Report({"--arrivals", "constant", "--qps", "100", "--duration", "0.5"});
  EXPECT_EQ(report["queries"], 50);
  EXPECT_EQ(report["options"]["arrivals"], "constant");
}

TEST_F(BenchServingTest, ReplaysATrace) {
  const std::string trace = folder_ / "trace.jsonl";
  std::ofstream file(trace);
  file << R"({"refract_trace":1})" << "\n";
  for (int i = 0; i < 20; ++i) {
    file << "{\"at_s\":" << 3 + 0.01 * i << ",\"items\":" << i + 1 << "}\n";
    file << "{\"at_s\":" << 3 + 0.01 * i << ",\"model\":\"other\"}\n";
  }
  // Two raw floats, 1 and 2.
  file << R"({"at_s":3.25,"model":"echo","inputs":[{"name":"x",)"
       << R"("datatype":"FP32","shape":[2],"data":"AACAPwAAAEA="}]})" << "\n";
  file.close();
  // The trace's own times and length: 21 requests in 0.25 s and a mean gap.
  defaults_ = false;
  nlohmann::json report =
      Report({"--arrivals", "trace:" + trace, "--warmup", "0", "--record",
              folder_ / "r", "--record-count", "50"});
  EXPECT_EQ(report["queries"], 21);
  EXPECT_EQ(report["succeeded"], 21);
  EXPECT_EQ(report["distinct_requests"], 21);
  EXPECT_NEAR(report["qps"], 80, 1e-6);
  EXPECT_NEAR(report["items_per_s"].get<double>() *
                  report["window_s"].get<double>(),
              210 + 2, 1e-6);
  const auto last =
      models::SafetensorsFile::Open(folder_ / "r/request_20.safetensors");
  ASSERT_TRUE(last.ok()) << last.status();
  const base::TensorView x = last->View(*last->Find("x"));
  ASSERT_EQ(x.bytes, 8u);
  EXPECT_EQ(reinterpret_cast<const float*>(x.data)[0], 1);
  EXPECT_EQ(reinterpret_cast<const float*>(x.data)[1], 2);
  // At another rate, twice and a bit.
  report = Report({"--arrivals", "trace:" + trace, "--qps", "210", "--warmup",
                   "0", "--duration", "0.2095"});
  EXPECT_EQ(report["queries"], 45);
  EXPECT_EQ(report["distinct_requests"], 21);

  std::ofstream(trace) << "{\"at_s\":0,\"items\":3}\n{\"at_s\":";
  ExpectRefused(Bench({"--arrivals", "trace:" + trace}),
                "trace.jsonl:2: position 9: not JSON");
}

TEST_F(BenchServingTest, SendsTheRequestsOfFilesInTurn) {
  const std::string a = folder_ / "a.safetensors";
  const std::string b = folder_ / "b.safetensors";
  const auto write = [](const std::string& path, const std::string& name,
                        std::vector<float> values) {
    const base::TensorView view{
        .dtype = base::DType::kFloat32,
        .dims = {static_cast<int64_t>(values.size())},
        .data = reinterpret_cast<std::byte*>(values.data()),
        .bytes = values.size() * sizeof(float)};
    EXPECT_TRUE(models::WriteSafetensors(path, {{name, view}}).ok());
  };
  write(a, "x", {1, 2});
  write(b, "x", {3, 4, 5});
  const nlohmann::json report =
      Report({"--requests", a, b, "--record", folder_ / "r"});
  EXPECT_EQ(report["distinct_requests"], 2);
  EXPECT_EQ(report["succeeded"], report["queries"]);
  EXPECT_EQ(report["options"]["requests"], nlohmann::json({a, b}));
  for (const auto& [file, value] :
       {std::pair("r/request_0.safetensors", 1.f),
        std::pair("r/response_1.safetensors", 3.f)}) {
    const auto recorded = models::SafetensorsFile::Open(folder_ / file);
    ASSERT_TRUE(recorded.ok()) << recorded.status();
    const base::TensorView x = recorded->View(recorded->entries()[0]);
    EXPECT_EQ(reinterpret_cast<const float*>(x.data)[0], value);
  }

  ExpectRefused(Bench({"--requests", a, "--arrivals", "trace:/absent"}),
                "--requests: a trace has requests of its own");
  ExpectRefused(Bench({"--requests", a, "--ids", "meta"}),
                "--ids excludes --requests");
  write(b, "z", {1});
  ExpectRefused(Bench({"--requests", a, b}), b + ": input x is missing");
  std::ofstream(b) << "no tensors";
  ExpectRefused(Bench({"--requests", b}), b);
}

TEST_F(BenchServingTest, NamesTheOptionThatIsWrong) {
  ExpectRefused(Bench({"--arrivals", "sometimes"}),
                "--arrivals: 'sometimes'");
  ExpectRefused(Bench({"--arrivals", "trace:/absent"}), "/absent");
  ExpectRefused(Bench({"--qps", "0"}), "--qps: must");
  ExpectRefused(Bench({}, "another"), "no model another");
  ExpectRefused(Bench({"--duration", "0"}), "--duration: must");
  ExpectRefused(Bench({"--max-in-flight", "0"}), "--max-in-flight: must");
  ExpectRefused(Bench({"--query-sizes", "many"}), "--query-sizes");
  ExpectRefused(Bench({"--find-max"}), "--slo-ms");
  ExpectRefused(Bench({"--criteo", folder_ / "absent"}), folder_ / "absent");
}

}  // namespace
}  // namespace refract::tools

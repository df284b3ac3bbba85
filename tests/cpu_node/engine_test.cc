#include "cpu_node/engine.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/limited_memory.h"
#include "tests/cpu_node/engine_fixture.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EngineTest, RunsAnUnsplitModelWithoutAGpuNode) {
  const auto model =
      testing_models::MakeSmallModel({.name = "whole", .split = false});
  const auto engine = MakeEngine({model}, {});
  EXPECT_TRUE(engine->Ready());
  for (const int64_t batch : {1, 2, 33}) {
    const Answer answer = Infer(*engine, MakeRequest("whole", batch));
    ExpectRight(answer, batch);
    EXPECT_EQ(answer.model, "whole");
    EXPECT_EQ(answer.version, 1);
    EXPECT_THAT(answer.names, ElementsAre("score", "echo", "twice"));
  }
}

class EnginePathTest
    : public ::testing::TestWithParam<transport::PathPreference> {};

TEST_P(EnginePathTest, SplitAnswersAreBitIdenticalToWholeOnes) {
  const auto split = Split();
  const auto whole =
      testing_models::MakeSmallModel({.name = "whole", .split = false});
  TestGpuNode node({split});
  EngineOptions options;
  options.nodes.path = GetParam();
  const auto engine = MakeEngine({split, whole}, {node.address()}, options);
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  // The last batch is long enough for messages that are pulled.
  for (const int64_t batch : {1, 2, 33, 270, 20000}) {
    const Answer a = Infer(*engine, MakeRequest("split", batch));
    const Answer b = Infer(*engine, MakeRequest("whole", batch));
    ExpectRight(a, batch);
    ASSERT_TRUE(b.status.ok()) << b.status;
    for (size_t i = 0; i < a.outputs.size(); ++i) {
      ASSERT_EQ(a.outputs[i].bytes(), b.outputs[i].bytes());
      EXPECT_EQ(std::memcmp(a.outputs[i].data(), b.outputs[i].data(),
                            a.outputs[i].bytes()),
                0)
          << "batch " << batch << ", output " << i;
    }
  }
  engine->Stop();
}

INSTANTIATE_TEST_SUITE_P(Paths, EnginePathTest,
                         ::testing::Values(transport::PathPreference::kShm,
                                           transport::PathPreference::kTcp),
                         [](const auto& info) {
                           return info.param == transport::PathPreference::kShm
                                      ? "Shm"
                                      : "Tcp";
                         });

TEST(EngineTest, PadsBatchesThatTheGraphIsTooSmallFor) {
  const auto model =
      testing_models::MakeSmallModel({.name = "split", .min_batch = 4});
  TestGpuNode node({model});
  const auto engine = MakeEngine({model}, {node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  for (const int64_t batch : {1, 3, 4, 5}) {
    ExpectRight(Infer(*engine, MakeRequest("split", batch)), batch);
  }
  engine->Stop();
}

TEST(EngineTest, EveryResponseMatchesItsOwnRequestUnderManyThreads) {
  const auto a = testing_models::MakeSmallModel({.name = "a"});
  const auto b = testing_models::MakeSmallModel({.name = "b", .variant = 1});
  TestGpuNode first({a, b});
  TestGpuNode second({a, b});
  const auto engine = MakeEngine({a, b}, {first.address(), second.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  std::vector<std::thread> clients;
  for (int t = 0; t < 8; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const int variant = (t + i) % 2;
        const int64_t batch = 1 + (t * 31 + i * 17) % 90;
        const int64_t first_row = t * 1000 + i;
        ExpectRight(Infer(*engine, MakeRequest(variant == 0 ? "a" : "b", batch,
                                               first_row)),
                    batch, first_row, variant);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  engine->Stop();
  const auto catalog = engine->catalog();
  const auto& entries = catalog->entries();
  EXPECT_EQ(entries[0].model->statistics().snapshot().success.count, 200);
  EXPECT_EQ(entries[1].model->statistics().snapshot().success.count, 200);
}

TEST(EngineTest, ServesSeveralVersionsAndTheNewestByDefault) {
  const auto v1 = testing_models::MakeSmallModel({.name = "m", .split = false});
  const auto v12 = testing_models::MakeSmallModel(
      {.name = "m", .version = 12, .split = false, .variant = 1});
  const auto engine = MakeEngine({v12, v1}, {});
  InferRequest request = MakeRequest("m", 2);
  EXPECT_EQ(Infer(*engine, std::move(request)).version, 12);
  request = MakeRequest("m", 2);
  request.model_version = "1";
  ExpectRight(Infer(*engine, std::move(request)), 2, 0, /*variant=*/0);
  for (const char* version : {"2", "0", "-1", "one", "99999999999999999999"}) {
    request = MakeRequest("m", 2);
    request.model_version = version;
    EXPECT_EQ(Infer(*engine, std::move(request)).status.code(),
              absl::StatusCode::kNotFound)
        << version;
  }
}

TEST(EngineTest, NamesTheTableOfAnIdOutsideIt) {
  const auto model = Split();
  TestGpuNode node({model});
  const auto engine = MakeEngine({model}, {node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  InferRequest request = MakeRequest("split", 3);
  request.inputs[0].tensor.as<int64_t>()[2] = testing_models::kRows;
  const Answer answer = Infer(*engine, std::move(request));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answer.status.message()),
              AllOf(HasSubstr("table"), HasSubstr("10")));
  // The refusal costs later requests nothing.
  ExpectRight(Infer(*engine, MakeRequest("split", 3)), 3);
  engine->Stop();
}

TEST(EngineTest, RefusesBatchesThatDisagree) {
  const auto model =
      testing_models::MakeSmallModel({.name = "whole", .split = false});
  const auto engine = MakeEngine({model}, {});
  InferRequest request = MakeRequest("whole", 3);
  request.inputs[0].tensor = testing_models::MakeIds(4);
  EXPECT_EQ(Infer(*engine, std::move(request)).status.code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(EngineTest, CountsRequestsThatCouldNotBeDecoded) {
  const auto model =
      testing_models::MakeSmallModel({.name = "whole", .split = false});
  const auto engine = MakeEngine({model}, {});
  const absl::Status bad = absl::InvalidArgumentError("bad");
  EXPECT_EQ(engine->Refuse("whole", "", bad), bad);
  EXPECT_EQ(engine->Refuse("other", "", bad).code(),
            absl::StatusCode::kNotFound);
  const ModelStatistics::Snapshot sums =
      engine->catalog()->entries()[0].model->statistics().snapshot();
  EXPECT_EQ(sums.fail.count, 1);
}

TEST(EngineTest, DeadlinePassesAtTheGpuNode) {
  const auto model = Split();
  Holder holder;
  TestGpuNode node({model}, 0, holder.function());
  const auto engine = MakeEngine({model}, {node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  InferRequest request = MakeRequest("split", 2);
  request.deadline = engine->clock().Now() + absl::Milliseconds(200);
  EXPECT_EQ(Infer(*engine, std::move(request)).status.code(),
            absl::StatusCode::kDeadlineExceeded);
  engine->Stop();
}

TEST(EngineTest, WhatIsGivenUpAtTheGpuNodeIsDroppedThere) {
  const auto model = Split();
  Holder holder;
  TestGpuNode node({model}, 0, holder.function());
  const auto engine = MakeEngine({model}, {node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  // The first message is eager, the second pulled.
  for (const int64_t batch : {2, 20000}) {
    std::stop_source cancel;
    InferRequest request = MakeRequest("split", batch);
    request.cancel = cancel.get_token();
    PendingAnswer unwanted(*engine, std::move(request));
    PendingAnswer wanted(*engine, MakeRequest("split", 3));
    holder.Await(2);
    EXPECT_FALSE(unwanted.answered());
    cancel.request_stop();
    EXPECT_EQ(unwanted.Wait().status.code(), absl::StatusCode::kCancelled);
    auto calls = holder.Take();
    ASSERT_TRUE(node.AwaitAbandoned(batch == 2 ? 1 : 2));
    // The GPU node gets the calls late, as if its device had been busy.
    for (auto& call : calls) node.node().OnRequest(std::move(call));
    ExpectRight(wanted.Wait(), 3);
  }
  EXPECT_TRUE(node.node().Drain(kPatience));
  EXPECT_EQ(node.node().stats().abandoned, 2);
  EXPECT_EQ(node.node().stats().succeeded, 2);
  EXPECT_EQ(engine->nodes().Members()[0].state.in_flight, 0);
  engine->Stop();
}

TEST(EngineTest, DoesNotStartWhatIsLateOrUnwanted) {
  const auto model =
      testing_models::MakeSmallModel({.name = "whole", .split = false});
  EngineOptions options;
  options.default_timeout = absl::Nanoseconds(1);
  const auto engine = MakeEngine({model}, {}, options);
  const Answer late = Infer(*engine, MakeRequest("whole", 2));
  EXPECT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.status.message()), HasSubstr("at CN queue"));

  InferRequest unwanted = MakeRequest("whole", 2);
  unwanted.deadline = engine->clock().Now() + kPatience;
  std::stop_source given_up;
  given_up.request_stop();
  unwanted.cancel = given_up.get_token();
  EXPECT_EQ(Infer(*engine, std::move(unwanted)).status.code(),
            absl::StatusCode::kCancelled);
}

TEST(EngineTest, RefusesMoreThanItMayHaveInFlight) {
  const auto model = Split();
  Holder holder;
  TestGpuNode node({model}, 0, holder.function());
  EngineOptions options;
  options.max_in_flight = 2;
  const auto engine = MakeEngine({model}, {node.address()}, options);
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  PendingAnswer first(*engine, MakeRequest("split", 2));
  PendingAnswer second(*engine, MakeRequest("split", 2));
  holder.Await(2);
  EXPECT_EQ(Infer(*engine, MakeRequest("split", 2)).status.code(),
            absl::StatusCode::kResourceExhausted);
  for (auto& call : holder.Take()) node.node().OnRequest(std::move(call));
  ExpectRight(first.Wait(), 2);
  ExpectRight(second.Wait(), 2);
  engine->Stop();
}

// CN-post reads values that are in no message. A valid request of kRows rows
// has more bytes of these values than the process may allocate.
TEST(EngineTest, ARequestWithoutMemoryFailsAlone) {
  if (!base::LimitedMemory::kWorks) {
    GTEST_SKIP() << "a sanitizer ends the process when memory runs short";
  }
  constexpr int64_t kRows = 2'200'000;
  const auto model = std::make_shared<models::LoadedModel>(*Split());
  for (models::SymbolRange& range : model->graph.symbols) range.max = kRows;
  TestGpuNode node({model});
  const auto engine = MakeEngine({model}, {node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  ExpectRight(Infer(*engine, MakeRequest("split", 2)), 2);
  InferRequest large = MakeRequest("split", kRows);
  {
    const base::LimitedMemory limited(1 << 20);
    const absl::Status status = Infer(*engine, std::move(large)).status;
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no memory"));
    ExpectRight(Infer(*engine, MakeRequest("split", 3, 1)), 3, 1);
  }
  EXPECT_EQ(node.requests(), 2);
  engine->Stop();
}

TEST(EngineTest, DrainsWhatIsInFlightAndRefusesTheRest) {
  const auto model = Split();
  Holder holder;
  TestGpuNode node({model}, 0, holder.function());
  const auto engine = MakeEngine({model}, {node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  PendingAnswer pending(*engine, MakeRequest("split", 2));
  holder.Await(1);
  engine->StopAdmitting();
  EXPECT_FALSE(engine->Ready());
  EXPECT_EQ(Infer(*engine, MakeRequest("split", 2)).status.code(),
            absl::StatusCode::kUnavailable);
  EXPECT_FALSE(engine->Drain(absl::ZeroDuration()));
  for (auto& call : holder.Take()) node.node().OnRequest(std::move(call));
  EXPECT_TRUE(engine->Drain(kPatience));
  EXPECT_TRUE(pending.answered());
  ExpectRight(pending.Wait(), 2);
  engine->Stop();
}

TEST(EngineTest, StopFailsWhatIsStillAtTheGpuNode) {
  const auto model = Split();
  Holder holder;
  TestGpuNode node({model}, 0, holder.function());
  const auto engine = MakeEngine({model}, {node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  PendingAnswer pending(*engine, MakeRequest("split", 2));
  holder.Await(1);
  engine->Stop();
  EXPECT_TRUE(pending.answered());
  EXPECT_EQ(pending.Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine->Drain(absl::ZeroDuration()));
}

TEST(EngineTest, RefusesOptionsOutOfRange) {
  for (const auto& spoil : std::vector<void (*)(EngineOptions&)>{
           [](EngineOptions& o) { o.workers = 0; },
           [](EngineOptions& o) { o.max_queue = 0; },
           [](EngineOptions& o) { o.max_in_flight = 0; },
           [](EngineOptions& o) {
             o.default_timeout = absl::ZeroDuration();
           }}) {
    EngineOptions options;
    spoil(options);
    EXPECT_EQ(Engine::Create(Catalog({}), options).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(EngineTest, CountsStagesOfSplitRequests) {
  const auto model = Split();
  TestGpuNode node({model});
  const auto engine = MakeEngine({model}, {node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  ExpectRight(Infer(*engine, MakeRequest("split", 3)), 3);
  ExpectRight(Infer(*engine, MakeRequest("split", 4)), 4);
  InferRequest bad = MakeRequest("split", 2);
  bad.inputs.pop_back();
  EXPECT_FALSE(Infer(*engine, std::move(bad)).status.ok());
  engine->Stop();
  const ModelStatistics::Snapshot sums =
      engine->catalog()->entries()[0].model->statistics().snapshot();
  EXPECT_EQ(sums.success.count, 2);
  EXPECT_EQ(sums.fail.count, 1);
  EXPECT_EQ(sums.rows, 7);
  EXPECT_EQ(sums.executions, 2);
  for (const ModelStatistics::Sum& stage :
       {sums.queue, sums.compute_input, sums.compute_infer,
        sums.compute_output}) {
    EXPECT_EQ(stage.count, 2);
    EXPECT_GT(stage.ns, 0);
  }
  EXPECT_GE(sums.success.ns, sums.compute_input.ns + sums.compute_infer.ns +
                                 sums.compute_output.ns);
}

TEST(EngineTest, AnswersSayThatTheyWereRetried) {
  const auto model = Split();
  TestGpuNode failing({model}, 0, [](std::unique_ptr<transport::ServerCall> c) {
    c->Fail(absl::UnavailableError("not now"));
  });
  TestGpuNode good({model});
  const auto engine = MakeEngine({model}, {failing.address(), good.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  // A retry needs the other node.
  while (!engine->nodes().Members()[0].state.connected ||
         !engine->nodes().Members()[1].state.connected) {
    std::this_thread::yield();
  }
  int retried = 0;
  for (int i = 0; i < 20; ++i) {
    const Answer answer = Infer(*engine, MakeRequest("split", 3));
    ExpectRight(answer, 3);
    retried += answer.retries;
    EXPECT_FALSE(answer.ran_locally);
  }
  const auto sums =
      (*engine->catalog()->Find("split", ""))->statistics().snapshot();
  EXPECT_EQ(static_cast<uint64_t>(retried), sums.retries);
  EXPECT_EQ(retried, failing.requests());
  engine->Stop();
}

TEST(EngineTest, AnswersSayThatTheyRanLocally) {
  const auto model = Split();
  const auto engine = MakeEngine({model}, {}, {}, {.local_fallback = true});
  const Answer answer = Infer(*engine, MakeRequest("split", 3));
  ExpectRight(answer, 3);
  EXPECT_TRUE(answer.ran_locally);
  EXPECT_EQ(answer.retries, 0);
  const auto whole =
      testing_models::MakeSmallModel({.name = "whole", .split = false});
  const auto other = MakeEngine({whole}, {});
  EXPECT_FALSE(Infer(*other, MakeRequest("whole", 3)).ran_locally);
}

TEST(EngineTest, AnswersSayThatANewerVersionShouldHaveGivenThem) {
  const auto first = testing_models::MakeSmallModel(
      {.name = "m", .version = 1, .split = true});
  const auto second = testing_models::MakeSmallModel(
      {.name = "m", .version = 2, .split = true, .variant = 1});
  TestGpuNode node({first});  // does not have the second
  EngineOptions options;
  options.readiness.when = ReadinessRule::When::kAny;
  const auto engine = MakeEngine({first, second}, {node.address()}, options);
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  const Answer answer = Infer(*engine, MakeRequest("m", 3));
  ExpectRight(answer, 3);
  EXPECT_EQ(answer.version, 1);
  EXPECT_EQ(answer.newest_version, 2);
  InferRequest request = MakeRequest("m", 3);
  request.model_version = "1";
  EXPECT_EQ(Infer(*engine, std::move(request)).newest_version, 0);
  const auto sums =
      (*engine->catalog()->Find("m", "1"))->statistics().snapshot();
  EXPECT_EQ(sums.older_answers, 1);
  engine->Stop();
}

}  // namespace
}  // namespace refract::cpu_node

// Requests whose GPU nodes are missing, refuse, fail or answer wrongly.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cpu_node/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/engine_fixture.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(EngineTest, IsUnavailableUntilAGpuNodeAppears) {
  const auto model = Split();
  // A port that was free a moment ago.
  const int port = TestGpuNode({model}).port();
  const auto engine = MakeEngine({model}, {absl::StrCat("127.0.0.1:", port)});
  ReadinessWatch watch(*engine);
  EXPECT_FALSE(engine->Ready());
  EXPECT_EQ(Infer(*engine, MakeRequest("split", 2)).status.code(),
            absl::StatusCode::kUnavailable);
  {
    TestGpuNode node({model}, port);
    ASSERT_TRUE(watch.Await(true));
    ExpectRight(Infer(*engine, MakeRequest("split", 2)), 2);
  }
  ASSERT_TRUE(watch.Await(false));
  EXPECT_EQ(Infer(*engine, MakeRequest("split", 2)).status.code(),
            absl::StatusCode::kUnavailable);
  // Another process on the same address is found again.
  TestGpuNode again({model}, port);
  ASSERT_TRUE(watch.Await(true));
  ExpectRight(Infer(*engine, MakeRequest("split", 2)), 2);
  engine->Stop();
}

TEST(EngineTest, RefusesAGpuNodeWithAnotherModel) {
  const auto ours = Split();
  const auto other =
      testing_models::MakeSmallModel({.name = "split", .variant = 1});
  TestGpuNode wrong({other});
  TestGpuNode right({ours});
  const auto engine = MakeEngine({ours}, {wrong.address(), right.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  for (int i = 0; i < 20; ++i) {
    ExpectRight(Infer(*engine, MakeRequest("split", 2)), 2);
  }
  engine->Stop();
}

TEST(EngineTest, RunsAsAWholeWithoutGpuNodesWhenAllowed) {
  const auto model = Split();
  const auto engine =
      MakeEngine({model}, {"127.0.0.1:1"}, {}, {.local_fallback = true});
  EXPECT_TRUE(engine->Ready());
  ExpectRight(Infer(*engine, MakeRequest("split", 5)), 5);
}

TEST(EngineTest, TriesAnotherNodeOnceWhenOneFails) {
  const auto model = Split();
  std::atomic<int> refused = 0;
  TestGpuNode bad({model}, 0, [&](auto call) {
    ++refused;
    call->Fail(absl::UnavailableError("going away"));
  });
  TestGpuNode good({model});
  const auto engine = MakeEngine({model}, {bad.address(), good.address()});
  ReadinessWatch watch(*engine);
  // Both, so that the bad one is really tried.
  ASSERT_TRUE(watch.Await(true));
  while (!engine->nodes().Members()[0].state.connected ||
         !engine->nodes().Members()[1].state.connected) {
    std::this_thread::yield();
  }
  for (int i = 0; i < 40; ++i) {
    ExpectRight(Infer(*engine, MakeRequest("split", 2, i)), 2, i);
  }
  EXPECT_GE(refused, 1);
  engine->Stop();
}

TEST(EngineTest, GivesUpAfterTheSecondFailure) {
  const auto model = Split();
  std::atomic<int> refused = 0;
  TestGpuNode bad({model}, 0, [&](auto call) {
    ++refused;
    call->Fail(absl::UnavailableError("out of order"));
  });
  const auto engine = MakeEngine({model}, {bad.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  const Answer answer = Infer(*engine, MakeRequest("split", 2));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answer.status.message()),
              AllOf(HasSubstr(bad.address()), HasSubstr("out of order")));
  EXPECT_EQ(refused, 2);
  engine->Stop();
}

TEST(EngineTest, ANodeThatIsFullIsNotAskedAgain) {
  const auto model = Split();
  std::atomic<int> calls = 0;
  TestGpuNode full({model}, 0, [&](auto call) {
    ++calls;
    call->Fail(absl::ResourceExhaustedError("no room"));
  });
  const auto engine = MakeEngine({model}, {full.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  const Answer answer = Infer(*engine, MakeRequest("split", 2));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(answer.status.message()),
              AllOf(HasSubstr(full.address()), HasSubstr("no room")));
  EXPECT_EQ(calls, 1);
  engine->Stop();
}

TEST(EngineTest, DoesNotRepeatWhatIsTheRequestsFault) {
  const auto model = Split();
  std::atomic<int> calls = 0;
  TestGpuNode node({model}, 0, [&](auto call) {
    ++calls;
    call->Fail(absl::InvalidArgumentError("such data"));
  });
  const auto engine = MakeEngine({model}, {node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  EXPECT_EQ(Infer(*engine, MakeRequest("split", 2)).status.code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(calls, 1);
  engine->Stop();
}

TEST(EngineTest, AnswersOfTheWrongShapeAreAnErrorNotAScore) {
  const auto model = Split();
  TestGpuNode node({model}, 0, [&](auto call) {
    // [B, 2] where the plan says [B, 1].
    const base::TensorSpec spec{base::DType::kFloat32, {2, 2}};
    auto reply = call->AllocateReply({spec});
    ASSERT_TRUE(reply.ok());
    std::memset(reply->data(0), 0, 16);
    call->Reply(*std::move(reply));
  });
  const auto engine = MakeEngine({model}, {node.address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  EXPECT_EQ(Infer(*engine, MakeRequest("split", 2)).status.code(),
            absl::StatusCode::kInternal);
  engine->Stop();
}

TEST(EngineTest, FailsWithUnavailableWhenTheNodeDiesUnderARequest) {
  const auto model = Split();
  Holder holder;
  auto node =
      std::make_unique<TestGpuNode>(ModelList{model}, 0, holder.function());
  const auto engine = MakeEngine({model}, {node->address()});
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  PendingAnswer pending(*engine, MakeRequest("split", 2));
  holder.Await(1);
  node.reset();
  EXPECT_EQ(pending.Wait().status.code(), absl::StatusCode::kUnavailable);
  engine->Stop();
}

}  // namespace
}  // namespace refract::cpu_node

// Traces of requests over a CPU node and a GPU node whose clock is wrong.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/serving_fixture.h"
#include "tracing/tracer.h"

namespace refract::cpu_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tracing::Span;
using tracing::Trace;

class ShiftedClock final : public base::Clock {
 public:
  explicit ShiftedClock(absl::Duration by) : by_(by) {}
  absl::Time Now() override { return Real().Now() + by_; }
  bool AwaitWithDeadline(absl::Mutex& mu, const absl::Condition& condition,
                         absl::Time deadline) override {
    return Real().AwaitWithDeadline(mu, condition, deadline - by_);
  }

 private:
  const absl::Duration by_;
};

// Keeps traces.
class Collected {
 public:
  class Exporter final : public tracing::Exporter {
   public:
    explicit Exporter(Collected* to) : to_(*to) {}
    absl::Status Export(absl::Span<const Trace> traces) override {
      absl::MutexLock lock(&to_.mu_);
      to_.traces_.insert(to_.traces_.end(), traces.begin(), traces.end());
      return absl::OkStatus();
    }

   private:
    Collected& to_;
  };

  Trace Next() {
    absl::MutexLock lock(&mu_);
    const auto any = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return !traces_.empty();
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&any), kPatience));
    if (traces_.empty()) return {};
    Trace trace = std::move(traces_.front());
    traces_.erase(traces_.begin());
    return trace;
  }

 private:
  absl::Mutex mu_;
  std::vector<Trace> traces_ ABSL_GUARDED_BY(mu_);
};

class EngineTraceTest : public ::testing::Test {
 protected:
  EngineTraceTest() : there_(absl::Hours(5)) {
    tracing::Settings settings;
    settings.on = true;
    settings.rate = 1;
    settings.delay = absl::Milliseconds(1);
    settings.file = "traces";  // the exporter is a test's
    tracer_ = *tracing::Tracer::Create(
        settings, base::Clock::Real(),
        std::make_unique<Collected::Exporter>(&collected_));
    gpu_node::GpuNodeOptions node;
    node.clock = &there_;
    node_ = std::make_unique<TestGpuNode>(ModelList{split_}, 0, nullptr, node);
    EngineOptions options;
    options.workers = 2;
    options.nodes.addresses = {node_->address()};
    options.tracer = tracer_.get();
    engine_ =
        *Engine::Create(MakeCatalog({split_, whole_}), std::move(options));
    EXPECT_TRUE(ReadinessWatch(*engine_).Await(true));
  }
  ~EngineTraceTest() override { engine_->Stop(); }

  InferRequest Request(const std::string& model, absl::string_view parent) {
    InferRequest request = MakeRequest(model, 3);
    request.id = "r\xff";
    request.received = base::Clock::Real().Now();
    request.trace = tracer_->Begin(parent);
    return request;
  }
  static std::map<std::string, Span> ByName(const Trace& trace) {
    std::map<std::string, Span> spans;
    for (const Span& span : trace.spans) spans[span.name] = span;
    EXPECT_EQ(spans.size(), trace.spans.size());
    return spans;
  }

  const std::shared_ptr<const models::LoadedModel> split_ =
      testing_models::MakeSmallModel({.name = "split"});
  const std::shared_ptr<const models::LoadedModel> whole_ =
      testing_models::MakeSmallModel({.name = "whole", .split = false});
  ShiftedClock there_;
  Collected collected_;
  std::unique_ptr<tracing::Tracer> tracer_;
  std::unique_ptr<TestGpuNode> node_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTraceTest, HasAStageAfterTheOtherOnBothNodes) {
  const absl::Time before = absl::Now();
  ExpectRight(
      Infer(*engine_,
            Request("split",
                    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")),
      3);
  const Trace trace = collected_.Next();
  EXPECT_TRUE(trace.sampled);
  EXPECT_EQ(trace.id[1], 0xf7);
  std::map<std::string, Span> spans = ByName(trace);
  const Span& root = spans["request"];
  EXPECT_EQ(root.parent[0], 0xb7);
  EXPECT_FALSE(root.failed);
  EXPECT_THAT(root.attributes,
              testing::Contains(testing::Pair(
                  "refract.request_id", Span::Value(std::string("r\xef\xbf\xbd")))));
  // Calendar time, whatever the clocks of the nodes show.
  EXPECT_GE(root.start, before - absl::Milliseconds(1));
  EXPECT_LE(root.end, absl::Now() + absl::Milliseconds(1));

  absl::Time at = root.start;
  for (const char* name : {"decode", "cn_queue", "cn_pre", "gpu_node", "resume",
                           "cn_post", "encode"}) {
    ASSERT_TRUE(spans.contains(name)) << name;
    EXPECT_EQ(spans[name].parent, root.id) << name;
    EXPECT_EQ(spans[name].start, at) << name;
    EXPECT_EQ(spans[name].node, "") << name;
    at = spans[name].end;
  }
  EXPECT_EQ(at, root.end);

  const Span& away = spans["gpu_node"];
  const Span& there = spans["hn_request"];
  EXPECT_EQ(there.parent, away.id);
  EXPECT_EQ(there.node, node_->address());
  EXPECT_GE(there.start, away.start);
  EXPECT_LE(there.end, away.end);
  at = there.start;
  for (const char* name : {"hn_queue", "hn_execute", "hn_answer"}) {
    EXPECT_EQ(spans[name].parent, there.id) << name;
    EXPECT_EQ(spans[name].start, at) << name;
    EXPECT_EQ(spans[name].node, node_->address()) << name;
    at = spans[name].end;
  }
  EXPECT_EQ(at, there.end);
  EXPECT_GT(spans["hn_execute"].end, spans["hn_execute"].start);
  EXPECT_EQ(spans.size(), 12u);
  // Off by the way that the request took at most.
  EXPECT_LE(
      absl::AbsDuration(tracer_->AheadOf(node_->address()) - absl::Hours(5)),
      away.end - away.start);
}

TEST_F(EngineTraceTest, WholeModelsAndFailuresAreTraced) {
  ExpectRight(Infer(*engine_, Request("whole", "")), 3);
  std::map<std::string, Span> spans = ByName(collected_.Next());
  EXPECT_EQ(spans["whole"].start, spans["cn_queue"].end);
  EXPECT_EQ(spans["whole"].end, spans["encode"].start);

  ASSERT_TRUE(tracer_->Change({{"trace_rate", {"0"}}}).ok());
  InferRequest wrong = Request("split", "");
  wrong.inputs.pop_back();
  EXPECT_FALSE(Infer(*engine_, std::move(wrong)).status.ok());
  Trace trace = collected_.Next();
  EXPECT_FALSE(trace.sampled);
  ASSERT_EQ(trace.spans.size(), 1u);
  EXPECT_TRUE(trace.spans[0].failed);
  EXPECT_THAT(trace.spans[0].message, HasSubstr("dense"));

  InferRequest late = Request("split", "");
  late.deadline = base::Clock::Real().Now() - absl::Seconds(1);
  EXPECT_FALSE(Infer(*engine_, std::move(late)).status.ok());
  trace = collected_.Next();
  EXPECT_TRUE(trace.spans[0].failed);
  EXPECT_THAT(trace.spans[0].message, HasSubstr("deadline"));

  // Neither sampled, slow nor failed: the next trace is of a later request.
  ExpectRight(Infer(*engine_, Request("split", "")), 3);
  EXPECT_FALSE(Infer(*engine_, Request("unknown", "")).status.ok());
  trace = collected_.Next();
  EXPECT_EQ(trace.spans[0].message, "unknown model 'unknown'");
  // The text is UTF-8, whatever the client sends.
  EXPECT_FALSE(Infer(*engine_, Request("\xff\xe2\x89\xa5", "")).status.ok());
  trace = collected_.Next();
  EXPECT_EQ(trace.spans[0].message, "unknown model '\xef\xbf\xbd≥'");
}

}  // namespace
}  // namespace refract::cpu_node

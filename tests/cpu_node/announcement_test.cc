// Long requests that a GPU node refuses before their payload moves, over a real
// link.
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gpu_node/gpu_node.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::gpu_node {
namespace {

using ::testing::HasSubstr;

// Executes nothing until it is let go.
class HeldDevice : public Device {
 public:
  const DeviceTraits& traits() const override { return traits_; }
  void Start(int, Done done) override { done(absl::OkStatus()); }
  void Upload(int, int, Batch*, Done done) override { done(absl::OkStatus()); }
  void Execute(int, int, Batch* batch, Done done) override {
    for (BatchMember& member : batch->members) {
      member.status = absl::AbortedError("let go");
    }
    {
      absl::MutexLock lock(&mu_);
      if (!free_) {
        held_ = std::move(done);
        return;
      }
    }
    done(absl::OkStatus());
  }
  void Download(int, int, Batch*, Done done) override {
    done(absl::OkStatus());
  }
  void LoadWeights(size_t, absl::Span<const size_t>, Done done) override {
    done(absl::OkStatus());
  }
  void LetGo() {
    Done done;
    {
      absl::MutexLock lock(&mu_);
      free_ = true;
      done = std::move(held_);
    }
    if (done != nullptr) done(absl::OkStatus());
  }

 private:
  const DeviceTraits traits_{.name = "held"};
  absl::Mutex mu_;
  bool free_ ABSL_GUARDED_BY(mu_) = false;
  Done held_ ABSL_GUARDED_BY(mu_);
};

// A millisecond passes with each look at it.
class TickingClock : public base::Clock {
 public:
  absl::Time Now() override {
    return base::Clock::Real().Now() + absl::Milliseconds(++looks_);
  }
  bool AwaitWithDeadline(absl::Mutex& mu, const absl::Condition& condition,
                         absl::Time deadline) override {
    return base::Clock::Real().AwaitWithDeadline(
        mu, condition, deadline - absl::Milliseconds(looks_.load()));
  }

 private:
  std::atomic<int64_t> looks_ = 0;
};

// A request that runs alone.
struct Sent {
  absl::Notification done;
  absl::Status status;
};

class AnnouncementTest : public ::testing::Test {
 protected:
  void Start(GpuNodeOptions options) {
    model_ = testing_models::MakeSmallModel({});
    options.max_queue = 1;
    node_ = std::make_unique<cpu_node::TestGpuNode>(
        cpu_node::ModelList{model_}, 0, nullptr, options,
        [this](const DeviceModels&) {
          auto device = std::make_unique<HeldDevice>();
          device_ = device.get();
          return device;
        });
    transport::ClientOptions client;
    client.address = node_->address();
    client.models.push_back(
        {model_->name, model_->version, model_->digest,
         models::SchemaDigest(model_->graph, *model_->plan)});
    client_ = *transport::Client::Create(client, [this] {
      absl::MutexLock lock(&mu_);
      ++changes_;
    });
    const auto changed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return changes_ > 0;
    };
    absl::MutexLock lock(&mu_);
    ASSERT_TRUE(
        mu_.AwaitWithTimeout(absl::Condition(&changed), cpu_node::kPatience));
  }
  void TearDown() override {
    if (device_ != nullptr) device_->LetGo();
    client_.reset();
  }
  std::shared_ptr<Sent> Send(int64_t rows, absl::Time deadline) {
    auto sent = std::make_shared<Sent>();
    auto message = client_->Allocate(
        0, {{base::DType::kFloat32, {rows, testing_models::kDense}},
            {base::DType::kFloat32, {rows, testing_models::kDim}}});
    EXPECT_TRUE(message.ok()) << message.status();
    client_->Send(*std::move(message), deadline, [sent](auto response) {
      sent->status = response.status();
      sent->done.Notify();
    });
    return sent;
  }
  static absl::Status Wait(Sent& sent) {
    EXPECT_TRUE(sent.done.WaitForNotificationWithTimeout(cpu_node::kPatience));
    return sent.status;
  }
  // Waits until this many requests have arrived with their payloads.
  void AwaitRequests(int count) {
    const absl::Time give_up = absl::Now() + cpu_node::kPatience;
    while (node_->requests() < count && absl::Now() < give_up) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    ASSERT_EQ(node_->requests(), count);
  }

  static constexpr int64_t kLong = 20000;  // 28 bytes each: pulled
  TickingClock clock_;
  std::shared_ptr<const models::LoadedModel> model_;
  std::unique_ptr<cpu_node::TestGpuNode> node_;
  HeldDevice* device_ = nullptr;
  absl::Mutex mu_;
  int changes_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<transport::Client> client_;
};

TEST_F(AnnouncementTest, AFullQueueTakesNoPayload) {
  Start({});
  const auto executes = Send(1, absl::InfiniteFuture());
  AwaitRequests(1);
  const auto waits = Send(kLong, absl::InfiniteFuture());
  AwaitRequests(2);
  const auto refused = Send(kLong, absl::InfiniteFuture());
  const absl::Status status = Wait(*refused);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("queue is full"));
  EXPECT_EQ(node_->requests(), 2);
  EXPECT_EQ(node_->node().stats(0).queue_full, 1);
  device_->LetGo();
  EXPECT_EQ(Wait(*executes).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Wait(*waits).code(), absl::StatusCode::kAborted);
}

TEST_F(AnnouncementTest, ADeadlineThatCannotBeMetTakesNoPayload) {
  // A row at a time, each at least a millisecond by the clock at load: 20 s.
  Start({.max_batch = 1, .clock = &clock_});
  const auto refused =
      Send(kLong, base::Clock::Real().Now() + absl::Seconds(10));
  const absl::Status status = Wait(*refused);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("an idle HN could not finish in time"));
  EXPECT_EQ(node_->requests(), 0);
  EXPECT_EQ(node_->node().stats(0).refused, 1);
}

}  // namespace
}  // namespace refract::gpu_node

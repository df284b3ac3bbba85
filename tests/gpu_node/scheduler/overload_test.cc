// Twice the load that a GPU node can carry, over a real connection and in
// virtual time: the effect of deadlines that travel with requests, of
// cancellations and of the scheduler, against first come, first served.
#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "gpu_node/scheduler/scheduler.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"
#include "tests/gpu_node/scheduler/fake_device.h"
#include "tests/transport/testing/channel_fixture.h"

namespace refract::gpu_node {
namespace {

using transport::Call;
using transport::Eventually;

constexpr absl::Duration kService = absl::Milliseconds(10);
constexpr int kSlots = 300;  // times that the node could serve one request
constexpr int kPerSlot = 2;  // requests that come meanwhile

// Time left when it is sent, in service times: some are urgent, some have room,
// some have no deadline.
struct Arrival {
  int slot = 0;
  int deadline = 0;  // 0: none
};

std::vector<Arrival> Arrivals(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Arrival> arrivals;
  for (int slot = 0; slot < kSlots; ++slot) {
    for (int i = 0; i < kPerSlot; ++i) {
      const uint32_t kind = random() % 10;
      arrivals.push_back({slot, kind == 0  ? 0
                                : kind < 6 ? 3 + static_cast<int>(random() % 4)
                                           : 30});
    }
  }
  return arrivals;
}

// Deadlines met by a queue that serves in order of arrival; with `drop` it at
// least skips what is too late already.
int MetFirstComeFirstServed(const std::vector<Arrival>& arrivals, bool drop) {
  int met = 0;
  std::deque<Arrival> queue;
  size_t next = 0;
  for (int slot = 0; slot < kSlots; ++slot) {
    while (next < arrivals.size() && arrivals[next].slot <= slot) {
      queue.push_back(arrivals[next++]);
    }
    while (drop && !queue.empty() && queue.front().deadline != 0 &&
           queue.front().slot + queue.front().deadline <= slot) {
      queue.pop_front();
    }
    if (queue.empty()) continue;
    const Arrival served = queue.front();
    queue.pop_front();
    met += served.deadline != 0 && slot + 1 <= served.slot + served.deadline;
  }
  return met;
}

TEST(OverloadTest, TwiceTheLoadStillMeetsDeadlinesAndStarvesNobody) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const std::vector<Arrival> arrivals = Arrivals(seed);
  base::ManualClock clock(absl::FromUnixSeconds(1000));
  // Ends just before the next slot begins, so that the answer is under way
  // before a deadline at that time passes.
  const absl::Duration kExecution = kService - absl::Microseconds(1);
  FakeDevice::Options device_options;
  device_options.execute = [=](const Batch&) { return kExecution; };
  std::optional<absl::Time> served_deadline;
  device_options.on_execute = [&](Batch& batch) {
    served_deadline = batch.members[0].call->deadline();
    BatchMember& member = batch.members[0];
    auto reply =
        member.call->AllocateReply(transport::SpecsOf(member.call->tensors()));
    member.status = reply.status();  // of a client that has gone, at the end
    if (reply.ok()) member.reply = *std::move(reply);
  };
  FakeDevice device(clock, device_options);
  ScheduledModel model;
  model.label = "model";
  model.times.Prime(1, kExecution);
  Scheduler scheduler({.max_queue = 2 * arrivals.size()}, {model}, &device,
                      clock);
  scheduler.Start();
  device.RunDue();
  // Called on the poller's thread, which then works on the device, too: the
  // test moves on only when it has done so.
  std::atomic<uint64_t> submitted = 0;
  transport::FunctionHandler handler(
      [&](std::unique_ptr<transport::ServerCall> call) {
        scheduler.Submit(0, std::move(call), 1, "");
        ++submitted;
      });
  transport::ServerOptions server_options;
  server_options.host = "127.0.0.1";
  server_options.path = transport::PathPreference::kTcp;
  server_options.clock = &clock;
  server_options.liveness_timeout = absl::Hours(1);
  server_options.limits.max_in_flight = 2000;
  auto server = transport::Server::Create(server_options, &handler);
  ASSERT_TRUE(server.ok()) << server.status();
  transport::ClientOptions options;
  options.address = "127.0.0.1:" + std::to_string((*server)->port());
  options.path = transport::PathPreference::kTcp;
  options.clock = &clock;
  options.liveness_timeout = absl::Hours(1);
  options.limits.max_in_flight = 2000;
  options.models.push_back({"model", 1, {}, {}});
  auto client = transport::Client::Create(options, nullptr);
  ASSERT_TRUE(client.ok());
  ASSERT_TRUE(Eventually([&] { return (*client)->state().connected; }))
      << (*client)->state().last_error;

  const std::vector<base::TensorSpec> specs = {{base::DType::kFloat32, {16}}};
  std::vector<Call> calls(arrivals.size());
  uint64_t sent = 0;
  int served_without_deadline = 0;
  int last_without_deadline = 0;
  int longest_wait_without_deadline = 0;
  for (int slot = 0; slot < kSlots; ++slot) {
    const uint64_t before = submitted;
    uint64_t fresh = 0;
    for (; sent < arrivals.size() && arrivals[sent].slot == slot; ++sent) {
      auto request = (*client)->Allocate(0, specs);
      ASSERT_TRUE(request.ok()) << request.status();
      const int deadline = arrivals[sent].deadline;
      (*client)->Send(*std::move(request),
                      deadline == 0 ? absl::InfiniteFuture()
                                    : clock.Now() + deadline * kService,
                      calls[sent].callback());
      ++fresh;
    }
    ASSERT_TRUE(Eventually([&] { return submitted == before + fresh; }));
    const auto answered = [&] {
      return std::count_if(calls.begin(), calls.end(),
                           [](const Call& c) { return c.done(); });
    };
    const auto answered_before = answered();
    served_deadline.reset();
    clock.Advance(kExecution);
    device.RunDue();
    if (served_deadline.has_value()) {
      EXPECT_GE(*served_deadline, clock.Now()) << "work for nobody";
      if (*served_deadline == absl::InfiniteFuture()) {
        ++served_without_deadline;
        longest_wait_without_deadline = std::max(longest_wait_without_deadline,
                                                 slot - last_without_deadline);
        last_without_deadline = slot;
      }
      ASSERT_TRUE(Eventually([&] { return answered() > answered_before; }));
    }
    clock.Advance(absl::Microseconds(1));
  }
  int met = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (arrivals[i].deadline == 0 || !calls[i].done()) continue;
    const absl::Status status = calls[i].Await().status();
    met += status.ok();
    EXPECT_TRUE(status.ok() || absl::IsDeadlineExceeded(status) ||
                absl::IsResourceExhausted(status))
        << status;
  }
  const int plain = MetFirstComeFirstServed(arrivals, false);
  const int dropping = MetFirstComeFirstServed(arrivals, true);
  std::printf(
      "%d times service: %d deadlines met (%d first come first served, %d "
      "skipping the late), %d served without a deadline\n",
      kSlots, met, plain, dropping, served_without_deadline);
  EXPECT_GE(met, plain);
  EXPECT_GE(met, dropping);
  // At least one turn in twenty, and no long wait.
  EXPECT_GE(served_without_deadline, kSlots / 25);
  EXPECT_LE(longest_wait_without_deadline, 60);
  EXPECT_TRUE(device.violations().empty());
  // Waiting requests are answered to nobody; executions have to end.
  client->reset();
  server->reset();
  scheduler.Close();
  while (scheduler.pending() > 0) {
    clock.Advance(kExecution);
    device.RunDue();
  }
}

}  // namespace
}  // namespace refract::gpu_node

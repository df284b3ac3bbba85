// A client's link over a path without a peer: which answers belong to which
// requests, and the effect of requests' deadlines on their answers.
#include "transport/links/client_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/testing/fake_path.h"
#include "tests/transport/testing/link_memory_fixture.h"

namespace refract::transport {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr size_t kClientSlotBytes = size_t{32} << 10;
constexpr size_t kClientArenaBytes = size_t{4} << 20;
constexpr int kClientSlots = 5;
constexpr int kMaxInFlight = 4;
// Length of an answer that is pulled by one get.
constexpr size_t kLongBytes = size_t{64} << 10;

class ClientLinkTest : public testing::Test, public ClientLink::Owner {
 protected:
  void SetUp() override {
    auto waker = ThreadWaker::Create();
    ASSERT_TRUE(waker.ok());
    auto path = std::make_unique<FakePath>();
    path_ = path.get();
    const Region slots = *path->CreateRegion(kClientSlots * kClientSlotBytes,
                                             Access::kRemoteWrite);
    const Region source =
        *path->CreateRegion(2 * kClientArenaBytes, Access::kRemoteRead);
    const Region pulls = *path->CreateRegion(kClientArenaBytes, Access::kLocal);
    memory_ = NewLinkMemory(slots, source, pulls, kClientArenaBytes,
                            kClientArenaBytes, kClientSlots, *waker);
    std::array<int, 2> fds;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                         fds.data()),
              0);
    peer_ = SessionSocket(UniqueFd(fds[1]));
    path_->on_put = [this](const RemoteRegion&, uint64_t,
                           absl::Span<const std::byte> source,
                           std::optional<uint32_t> imm) {
      const auto decoded = DecodeImm(*imm);
      ASSERT_TRUE(decoded.has_value());
      if (decoded->kind == ImmKind::kCredit) {
        credited_.push_back(decoded->slot);
        return;
      }
      const auto header =
          DecodeHeader(source.first(kHeaderBytes), kClientArenaBytes);
      ASSERT_TRUE(header.ok()) << header.status();
      sent_ids_.push_back(header->id);
    };
    path_->on_get = [this](const RemoteRegion&,
                           const FakePath::PendingGet& get) {
      pulled_from_.push_back(get.offset);
    };
    Established established;
    established.session = SessionSocket(UniqueFd(fds[0]));
    established.path = std::move(path);
    established.heartbeat_interval = absl::Hours(1);
    established.suspect_after = absl::Hours(2);
    established.max_in_flight = kMaxInFlight;
    EndpointSetup& setup = established.setup;
    setup.memory = memory_;
    setup.peer_slots = {100, kClientSlots * kClientSlotBytes};
    setup.peer_source = {101, kClientArenaBytes};
    setup.peer_num_slots = setup.num_slots = kClientSlots;
    setup.peer_slot_bytes = setup.slot_bytes = kClientSlotBytes;
    setup.eager_bytes = kClientSlotBytes;
    setup.max_receive_bytes = kClientArenaBytes;
    setup.receives = MessageKind::kResponse;
    options_.clock = &clock_;
    // Without probes of the path, which would count among the gets.
    options_.liveness_timeout = absl::InfiniteDuration();
    link_ = std::make_unique<ClientLink>(options_, std::move(established), "",
                                         &counters_, &next_id_, this);
  }

  // A request whose outcome is noted under `name`. Returns its id.
  uint64_t Start(const std::string& name, absl::Time deadline,
                 std::stop_token cancel = {}) {
    StartUnsent(name, deadline, std::move(cancel));
    const size_t before = sent_ids_.size();
    Step();
    EXPECT_EQ(sent_ids_.size(), before + 1);
    path_->CompletePuts(100);
    // The peer has read it.
    path_->Notify(
        EncodeImm({ImmKind::kCredit, request_slot_, ++request_generation_}));
    Step();
    return sent_ids_.back();
  }
  // The same before the link's next step.
  void StartUnsent(const std::string& name, absl::Time deadline,
                   std::stop_token cancel) {
    auto message =
        NewMessage(memory_, MessageKind::kRequest,
                   std::vector<base::TensorSpec>{{base::DType::kUInt8, {64}}});
    EXPECT_TRUE(message.ok()) << message.status();
    auto token = RequestToken::Take(memory_, kMaxInFlight);
    EXPECT_TRUE(token.has_value());
    (*message)->token = *std::move(token);
    ++counters_.in_flight;
    link_->Start({*std::move(message), deadline, std::move(cancel),
                  [this, name](absl::StatusOr<IncomingMessage> response) {
                    order_.push_back(name);
                    outcomes_[name] = response.status();
                  }});
  }
  // Ids of the Cancel frames that have come since the last call.
  std::vector<uint64_t> CancelFrames() {
    std::vector<uint64_t> ids;
    while (true) {
      auto frame = peer_.Receive();
      EXPECT_TRUE(frame.ok()) << frame.status();
      if (!frame.ok() || !frame->has_value()) return ids;
      if ((*frame)->kind != FrameKind::kCancel) continue;
      proto::Cancel cancel;
      EXPECT_TRUE(cancel.ParseFromString((*frame)->body));
      ids.push_back(cancel.id());
    }
  }
  // An answer appears in the next slot: in it, or described as lying at
  // `pulled_at` of the peer's memory.
  void Answer(uint64_t id, std::optional<uint64_t> pulled_at = std::nullopt) {
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kUInt8,
         {pulled_at.has_value() ? static_cast<int64_t>(kLongBytes) : 64}}};
    const MessageLayout layout = *LayoutMessage(specs, 0, kClientArenaBytes);
    MessageHeader header;
    header.kind = MessageKind::kResponse;
    header.id = id;
    header.pulled = pulled_at.has_value();
    header.source_offset = pulled_at.value_or(0);
    header.tensor_count = 1;
    header.table_bytes = static_cast<uint32_t>(layout.table_bytes);
    header.total_bytes = layout.total_bytes;
    std::byte* const slot =
        memory_->slots.data() + next_slot_ * kClientSlotBytes;
    EncodeHeader(header, slot);
    EncodeTable(specs, layout, slot + kHeaderBytes);
    path_->Notify(EncodeImm({ImmKind::kMessage, next_slot_++, 0}));
  }
  void Step() { EXPECT_NE(link_->Step(clock_.Now()), PollTask::Result::kDone); }
  // Until every get that is asked for has come.
  void PullAll() {
    for (int i = 0; i < 100; ++i) {
      path_->CompleteGets(1, [](const FakePath::PendingGet&) {});
      clock_.Advance(absl::Microseconds(10));
      Step();
    }
  }

  base::ManualClock clock_{absl::FromUnixSeconds(1000)};
  ClientOptions options_;
  ClientCounters counters_;
  uint64_t next_id_ = 1;
  std::shared_ptr<LinkMemory> memory_;
  SessionSocket peer_;
  FakePath* path_ = nullptr;
  std::unique_ptr<ClientLink> link_;

  uint16_t next_slot_ = 0;
  const uint16_t request_slot_ = 0;  // always the lowest that is free
  uint16_t request_generation_ = 0;
  std::vector<uint64_t> sent_ids_;
  std::vector<uint16_t> credited_;
  std::vector<uint64_t> pulled_from_;
  std::vector<std::string> order_;
  std::map<std::string, absl::Status> outcomes_;

 private:
  void OnGoaway(ClientLink&) override {}
  void OnModels(ClientLink&) override {}
  std::vector<ClientOffer> offers() const override { return {}; }
  uint64_t offers_version() const override { return 0; }
  void OnSuspect(ClientLink&) override {}
  void OnEnd(ClientLink&, const absl::Status& why) override {
    ADD_FAILURE() << why;
  }
};

TEST_F(ClientLinkTest, AnswersArePulledInTheOrderOfTheirRequestsDeadlines) {
  const uint64_t never = Start("never", absl::InfiniteFuture());
  const uint64_t later = Start("later", clock_.Now() + absl::Seconds(20));
  const uint64_t soon = Start("soon", clock_.Now() + absl::Seconds(10));
  // All seen in one round.
  Answer(never, 0);
  Answer(later, kLongBytes);
  Answer(soon, 2 * kLongBytes);
  Step();
  PullAll();
  EXPECT_THAT(pulled_from_, ElementsAre(2 * kLongBytes, kLongBytes, 0));
  EXPECT_THAT(order_, ElementsAre("soon", "later", "never"));
  for (const auto& [name, status] : outcomes_) {
    EXPECT_TRUE(status.ok()) << name << ": " << status;
  }
}

TEST_F(ClientLinkTest, AnswersThatComeAfterTheDeadlineAreNotPulled) {
  const uint64_t late = Start("late", clock_.Now() + absl::Seconds(1));
  clock_.Advance(absl::Seconds(2));
  Step();
  EXPECT_TRUE(absl::IsDeadlineExceeded(outcomes_["late"])) << outcomes_["late"];
  Answer(late, 0);
  Step();
  PullAll();
  EXPECT_THAT(pulled_from_, IsEmpty());
  EXPECT_THAT(credited_, ElementsAre(0)) << "the peer's memory waits for it";
  EXPECT_THAT(order_, ElementsAre("late"));
}

TEST_F(ClientLinkTest, RequestsEndInTheOrderOfTheirDeadlines) {
  Start("third", clock_.Now() + absl::Seconds(3));
  Start("first", clock_.Now() + absl::Seconds(1));
  Start("never", absl::InfiniteFuture());
  Start("second", clock_.Now() + absl::Seconds(2));
  EXPECT_EQ(link_->next_timer(), clock_.Now() + absl::Seconds(1));
  clock_.Advance(absl::Milliseconds(1500));
  Step();
  EXPECT_THAT(order_, ElementsAre("first"));
  clock_.Advance(absl::Seconds(2));
  Step();
  EXPECT_THAT(order_, ElementsAre("first", "second", "third"));
  EXPECT_EQ(memory_->requests.load(), 1);
  // Their places are free again.
  for (const char* name : {"a", "b", "c"}) Start(name, absl::InfiniteFuture());
  link_->Close(absl::CancelledError("the test is over"));
  EXPECT_EQ(outcomes_.size(), 7u);
  EXPECT_EQ(memory_->requests.load(), 0);
  EXPECT_EQ(counters_.in_flight.load(), 0);
}

TEST_F(ClientLinkTest, AnswersToOtherIdsThanThoseInFlightAreDropped) {
  const uint64_t old = Start("old", absl::InfiniteFuture());
  Answer(old);
  Step();
  EXPECT_THAT(order_, ElementsAre("old"));
  const uint64_t present = Start("present", absl::InfiniteFuture());
  ASSERT_NE(present, old);
  // Ids of an earlier request in the same place, of no request, of no place.
  Answer(old);
  Answer(0);
  Answer(~uint64_t{0});
  Step();
  EXPECT_THAT(order_, ElementsAre("old"));
  Answer(present);
  Step();
  EXPECT_THAT(order_, ElementsAre("old", "present"));
}

TEST_F(ClientLinkTest, WhatIsGivenUpEndsAndTheServerIsToldOnce) {
  std::stop_source cancel;
  const uint64_t id =
      Start("given up", absl::InfiniteFuture(), cancel.get_token());
  const uint64_t wanted = Start("wanted", clock_.Now() + absl::Seconds(9));
  EXPECT_THAT(CancelFrames(), IsEmpty());
  EXPECT_TRUE(cancel.request_stop());
  EXPECT_THAT(order_, IsEmpty()) << "not on the thread that gives it up";
  Step();
  EXPECT_TRUE(absl::IsCancelled(outcomes_["given up"]))
      << outcomes_["given up"];
  EXPECT_THAT(CancelFrames(), ElementsAre(id));
  EXPECT_EQ(counters_.in_flight, 1);
  // Its answer was under way.
  Answer(id, 0);
  Answer(wanted, kLongBytes);
  Step();
  PullAll();
  EXPECT_THAT(pulled_from_, ElementsAre(kLongBytes));
  EXPECT_THAT(credited_, testing::UnorderedElementsAre(0, 1));
  EXPECT_THAT(order_, ElementsAre("given up", "wanted"));
  EXPECT_TRUE(outcomes_["wanted"].ok()) << outcomes_["wanted"];
  EXPECT_THAT(CancelFrames(), IsEmpty());
}

TEST_F(ClientLinkTest, WhatIsGivenUpBeforeItLeavesIsNotSent) {
  std::stop_source before;
  before.request_stop();
  std::stop_source after;
  StartUnsent("before", absl::InfiniteFuture(), before.get_token());
  StartUnsent("after", absl::InfiniteFuture(), after.get_token());
  after.request_stop();
  EXPECT_THAT(order_, IsEmpty());
  Step();
  EXPECT_THAT(order_, testing::UnorderedElementsAre("before", "after"));
  EXPECT_TRUE(absl::IsCancelled(outcomes_["before"]));
  EXPECT_TRUE(absl::IsCancelled(outcomes_["after"]));
  EXPECT_THAT(sent_ids_, IsEmpty());
  EXPECT_THAT(CancelFrames(), IsEmpty());
  EXPECT_EQ(memory_->requests.load(), 0);
}

TEST_F(ClientLinkTest, WhatWasAnsweredCannotBeGivenUp) {
  std::stop_source cancel;
  const uint64_t id =
      Start("answered", absl::InfiniteFuture(), cancel.get_token());
  Answer(id);
  Step();
  EXPECT_TRUE(outcomes_["answered"].ok()) << outcomes_["answered"];
  cancel.request_stop();
  Step();
  EXPECT_THAT(order_, ElementsAre("answered"));
  EXPECT_THAT(CancelFrames(), IsEmpty());
}

TEST_F(ClientLinkTest, AnAnswerThatIsBeingPulledIsLetGoOfWhenTheLastByteCame) {
  std::stop_source cancel;
  const uint64_t id =
      Start("given up", absl::InfiniteFuture(), cancel.get_token());
  Answer(id, 0);
  Step();
  ASSERT_THAT(pulled_from_, ElementsAre(0));
  cancel.request_stop();
  Step();
  EXPECT_TRUE(absl::IsCancelled(outcomes_["given up"]));
  EXPECT_THAT(CancelFrames(), ElementsAre(id));
  EXPECT_THAT(credited_, IsEmpty()) << "the get is still under way";
  PullAll();
  EXPECT_THAT(credited_, ElementsAre(0));
  EXPECT_THAT(order_, ElementsAre("given up"));
}

TEST_F(ClientLinkTest, AtItsDeadlineTheServerIsToldOnceThoughGivenUpToo) {
  std::stop_source cancel;
  const uint64_t id =
      Start("late", clock_.Now() + absl::Seconds(1), cancel.get_token());
  clock_.Advance(absl::Seconds(1));
  cancel.request_stop();
  Step();
  EXPECT_TRUE(absl::IsDeadlineExceeded(outcomes_["late"])) << outcomes_["late"];
  EXPECT_THAT(CancelFrames(), ElementsAre(id));
  EXPECT_THAT(order_, ElementsAre("late"));
}

TEST_F(ClientLinkTest, GivingUpWhatIsLostMeansNothing) {
  std::stop_source cancel;
  Start("lost", absl::InfiniteFuture(), cancel.get_token());
  link_->Close(absl::UnavailableError("the test ends it"));
  EXPECT_TRUE(absl::IsUnavailable(outcomes_["lost"])) << outcomes_["lost"];
  link_.reset();
  cancel.request_stop();
  EXPECT_THAT(order_, ElementsAre("lost"));
}

}  // namespace
}  // namespace refract::transport

// Pulled requests land where the handler says: transport/links/channel.h, Landing.
#include "transport/messages/landing.h"

#include <atomic>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "tests/base/random_seed.h"
#include "tests/transport/testing/channel_fixture.h"
#include "tests/transport/testing/fake_path.h"
#include "tests/transport/testing/function_sink.h"
#include "transport/messages/endpoint.h"

namespace refract::transport {
namespace {

TEST(RangeSetTest, RefusesWhatOverlapsAndForgetsWhatIsErased) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::vector<std::byte> memory(200);
  std::vector<int> owner(memory.size(), -1);
  std::vector<std::pair<size_t, size_t>> ranges;
  RangeSet set;
  size_t refused = 0;
  for (int i = 0; i < 50'000; ++i) {
    if (!ranges.empty() && random() % 2 == 0) {
      const size_t at = random() % ranges.size();
      const auto [begin, bytes] = ranges[at];
      set.Erase(memory.data() + begin);
      std::fill_n(owner.begin() + static_cast<ptrdiff_t>(begin), bytes, -1);
      ranges.erase(ranges.begin() + static_cast<ptrdiff_t>(at));
      continue;
    }
    const size_t begin = random() % memory.size();
    const size_t bytes =
        1 + random() % std::min<size_t>(20, memory.size() - begin);
    const bool free =
        std::all_of(owner.begin() + static_cast<ptrdiff_t>(begin),
                    owner.begin() + static_cast<ptrdiff_t>(begin + bytes),
                    [](int x) { return x < 0; });
    ASSERT_EQ(set.Insert(memory.data() + begin, bytes), free);
    refused += free ? 0 : 1;
    if (!free) continue;
    std::fill_n(owner.begin() + static_cast<ptrdiff_t>(begin), bytes, i);
    ranges.emplace_back(begin, bytes);
  }
  EXPECT_GT(refused, 1000u);
}

// Gives each request what `place` says and keeps the calls.
class LandingHandler : public Handler {
 public:
  using Place = std::function<void(const RequestDescriptor&, Landing*)>;
  explicit LandingHandler(Place place) : place_(std::move(place)) {}

  absl::StatusOr<size_t> OnOffer(const ModelOffer&) override {
    return size_t{7};
  }
  void OnDescriptor(const RequestDescriptor& request,
                    Landing* landing) override {
    place_(request, landing);
  }
  void OnRequest(std::unique_ptr<ServerCall> call) override {
    absl::MutexLock lock(&mu_);
    calls_.push_back(std::move(call));
  }
  size_t num_calls() {
    absl::MutexLock lock(&mu_);
    return calls_.size();
  }
  std::vector<std::unique_ptr<ServerCall>> TakeCalls() {
    absl::MutexLock lock(&mu_);
    return std::exchange(calls_, {});
  }

 private:
  const Place place_;
  absl::Mutex mu_;
  std::vector<std::unique_ptr<ServerCall>> calls_ ABSL_GUARDED_BY(mu_);
};

using LandingTest = ChannelTest;

// Each request is one row of a wide tensor and one of a narrow one, longer than
// the eager limit together; row lengths are no multiple of anything.
TEST_P(LandingTest, RowsOfSixteenClientsAreSideBySide) {
  constexpr size_t kClients = 16;
  constexpr size_t kWide = 70'001;
  constexpr size_t kNarrow = 13;
  std::atomic<int> leases = 0;
  std::atomic<size_t> next_row = 0;
  std::shared_ptr<LandingArea> area;
  // Atomic, as what the handler's thread reads comes from this one past the
  // transport.
  std::atomic<const LandingArea*> landing_area = nullptr;
  LandingHandler handler(
      [&](const RequestDescriptor& request, Landing* landing) {
        ASSERT_EQ(request.model, 7u);
        ASSERT_EQ(request.tensors.size(), 3u);
        ASSERT_EQ(request.tensors[0].bytes, kWide);
        ASSERT_EQ(request.tensors[0].data, nullptr);
        ASSERT_EQ(request.tensors[1].bytes, 0u);
        ASSERT_GE(request.payload_bytes, kWide + kNarrow);
        ASSERT_LT(request.deadline, absl::InfiniteFuture());
        const size_t row = next_row++;
        const absl::Span<std::byte> bytes = landing_area.load()->bytes();
        landing->tensors = {
            bytes.subspan(row * kWide, kWide),
            {},
            bytes.subspan(kClients * kWide + row * kNarrow, kNarrow)};
        ++leases;
        landing->lease = std::shared_ptr<const void>(
            &leases, [&leases](const void*) { --leases; });
      });
  ASSERT_NO_FATAL_FAILURE(StartServer(&handler));
  area = *server_->CreateLandingArea(kClients * (kWide + kNarrow));
  landing_area = area.get();
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t i = 0; i < kClients; ++i) {
    ASSERT_NO_FATAL_FAILURE(StartClient());
    clients.push_back(std::move(client_));
  }
  const std::vector<base::TensorSpec> specs = {
      {base::DType::kUInt8, {1, kWide}},
      {base::DType::kFloat32, {0, 4}},
      {base::DType::kUInt8, {1, kNarrow}}};
  for (uint32_t round = 0; round < 20; ++round) {
    next_row = 0;
    std::vector<Call> calls(kClients);
    for (size_t i = 0; i < kClients; ++i) {
      ASSERT_TRUE(Eventually([&] { return clients[i]->state().connected; }));
      auto request = clients[i]->Allocate(0, specs);
      ASSERT_TRUE(request.ok()) << request.status();
      std::vector<std::string> contents =
          Contents(round * 100 + static_cast<uint32_t>(i), specs);
      contents[2][0] = static_cast<char>(i);  // whose it is
      Fill(*request, contents);
      clients[i]->Send(*std::move(request),
                       base::Clock::Real().Now() + kPatience,
                       calls[i].callback());
    }
    ASSERT_TRUE(Eventually([&] { return handler.num_calls() == kClients; }));
    EXPECT_EQ(leases, static_cast<int>(kClients));
    auto answers = handler.TakeCalls();
    std::set<size_t> seen;
    for (const auto& call : answers) {
      const auto tensors = call->tensors();
      const auto at =
          static_cast<size_t>(tensors[0].data - area->bytes().data());
      ASSERT_EQ(at % kWide, 0u);
      const size_t row = at / kWide;
      ASSERT_TRUE(seen.insert(row).second);
      ASSERT_EQ(tensors[2].data,
                area->bytes().data() + kClients * kWide + row * kNarrow);
      const auto who = static_cast<uint32_t>(tensors[2].data[0]);
      std::vector<std::string> expected = Contents(round * 100 + who, specs);
      expected[2][0] = static_cast<char>(who);
      EXPECT_EQ(std::memcmp(tensors[0].data, expected[0].data(), kWide), 0);
      EXPECT_EQ(std::memcmp(tensors[2].data, expected[2].data(), kNarrow), 0);
      call->Fail(absl::NotFoundError("seen"));
    }
    EXPECT_EQ(seen.size(), kClients);
    for (Call& call : calls) {
      EXPECT_EQ(call.Await().status().code(), absl::StatusCode::kNotFound);
    }
    answers.clear();
    EXPECT_EQ(leases, 0) << "calls that are gone need their rows no more";
  }
}

TEST_P(LandingTest, BadPlacesFailTheRequestAndNothingElse) {
  constexpr size_t kBytes = 102'400;
  std::shared_ptr<LandingArea> area;
  std::atomic<const LandingArea*> landing_area = nullptr;
  std::vector<std::byte> foreign(2 * kBytes);
  std::atomic<int> mode = 0;
  LandingHandler handler([&](const RequestDescriptor&, Landing* landing) {
    const absl::Span<std::byte> good = landing_area.load()->bytes();
    const auto row = [](absl::Span<std::byte> from, size_t at, size_t bytes) {
      return from.subspan(at, bytes);
    };
    switch (mode) {
      case 0:  // outside
        landing->tensors = {row(absl::MakeSpan(foreign), 0, kBytes), {}};
        break;
      case 1:  // its end is outside
        landing->tensors = {{good.data() + good.size() - kBytes + 1, kBytes},
                            {}};
        break;
      case 2:  // too small
        landing->tensors = {row(good, 0, kBytes - 1), {}};
        break;
      case 3:  // overlap each other
        landing->tensors = {row(good, 0, kBytes),
                            row(good, kBytes - 1, kBytes)};
        break;
      case 4:  // overlaps a request that is open
        landing->tensors = {{}, row(good, 4 * kBytes - 1, kBytes)};
        break;
      case 5:  // not one for each
        landing->tensors = {row(good, 0, kBytes)};
        break;
      case 6:  // good, and left alone until the end
        landing->tensors = {row(good, 4 * kBytes, kBytes),
                            row(good, 5 * kBytes, kBytes)};
        break;
      case 7:  // good: one of two
        landing->tensors = {{}, row(good, 0, kBytes)};
        break;
      default:
        break;
    }
  });
  ASSERT_NO_FATAL_FAILURE(Start(&handler));
  area = *server_->CreateLandingArea(6 * kBytes);
  landing_area = area.get();
  EXPECT_EQ(server_->CreateLandingArea(0).status().code(),
            absl::StatusCode::kInvalidArgument);
  const int64_t bytes = kBytes;
  const std::vector<base::TensorSpec> specs = {{base::DType::kUInt8, {bytes}},
                                               {base::DType::kInt8, {bytes}}};
  const std::vector<std::string> contents = Contents(3, specs);
  const auto send = [&](Call& call) {
    auto request = client_->Allocate(0, specs);
    ASSERT_TRUE(request.ok()) << request.status();
    Fill(*request, contents);
    client_->Send(*std::move(request), absl::InfiniteFuture(), call.callback());
  };
  Call held;
  mode = 6;
  ASSERT_NO_FATAL_FAILURE(send(held));
  ASSERT_TRUE(Eventually([&] { return handler.num_calls() == 1; }));
  auto open = handler.TakeCalls();
  const std::pair<int, const char*> cases[] = {
      {0, "tensor 0 lies outside"},
      {1, "tensor 0 lies outside"},
      {2, "tensor 0 of 102400 B in 102399 B"},
      {3, "tensor 1 overlaps"},
      {4, "tensor 1 overlaps"},
      {5, "1 places for 2 tensors"}};
  for (const auto& [bad, reason] : cases) {
    mode = bad;
    Call call;
    ASSERT_NO_FATAL_FAILURE(send(call));
    const absl::Status status = call.Await().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << bad;
    EXPECT_TRUE(absl::StrContains(status.message(), reason)) << status;
    EXPECT_EQ(handler.num_calls(), 0u);
  }
  // The connection goes on, and what was refused left no claim behind.
  for (const int good : {7, 8}) {
    mode = good;
    Call call;
    ASSERT_NO_FATAL_FAILURE(send(call));
    ASSERT_TRUE(Eventually([&] { return handler.num_calls() == 1; }));
    auto calls = handler.TakeCalls();
    ExpectTensors(calls[0]->tensors(), specs, contents);
    EXPECT_EQ(calls[0]->tensors()[1].data == area->bytes().data(), good == 7);
    calls[0]->Fail(absl::NotFoundError("seen"));
    EXPECT_EQ(call.Await().status().code(), absl::StatusCode::kNotFound);
  }
  ExpectTensors(open[0]->tensors(), specs, contents);
  EXPECT_EQ(server_->stats().violations, 0u);
  open[0]->Fail(absl::NotFoundError("seen"));
  held.Await().IgnoreError();
}

INSTANTIATE_TEST_SUITE_P(Paths, LandingTest,
                         testing::Values(PathPreference::kShm,
                                         PathPreference::kTcp),
                         PathParamName);

// ------------------------------------- one connection, completions by hand

constexpr size_t kSlotBytes = kMinSlotBytes;

class LandingEndpointTest : public testing::Test {
 protected:
  class Sink final : public MessageSink {
   public:
    explicit Sink(LandingEndpointTest* test) : test_(test) {}
    absl::Status OnMessage(const MessageHeader&, absl::string_view,
                           IncomingMessage::ImplPtr message) override {
      test_->delivered_.push_back(std::move(message));
      return absl::OkStatus();
    }
    absl::Status OnRefused(const MessageHeader&,
                           const absl::Status& why) override {
      test_->refused_.push_back(why);
      return absl::OkStatus();
    }
    void OnDescriptor(const MessageHeader&, absl::Time,
                      absl::Span<const base::TensorView> tensors,
                      Landing* landing) override {
      landing->tensors = {test_->area_->bytes().first(tensors[0].bytes)};
      landing->lease = std::shared_ptr<const void>(
          this, [this](const void*) { test_->lease_dropped_ = true; });
    }

   private:
    LandingEndpointTest* const test_;
  };

  LandingEndpointTest() : landing_(std::make_shared<LandingAreas>()) {
    area_ = *landing_->Create(1 << 20);
    const auto waker = *ThreadWaker::Create();
    const Region slots =
        *path_->CreateRegion(4 * kSlotBytes, Access::kRemoteWrite);
    const Region arena = *path_->CreateRegion(1 << 20, Access::kLocal);
    const auto make_arena = [&] {
      return std::make_shared<Arena>(arena, 0, 1 << 20, waker);
    };
    memory_ = std::make_shared<LinkMemory>(slots, make_arena(), make_arena(),
                                           make_arena(), waker, 1 << 20, 1);
    EndpointSetup setup;
    setup.memory = memory_;
    setup.peer_slots = {1, 4 * kSlotBytes};
    setup.peer_source = {2, 1 << 20};
    setup.peer_num_slots = setup.num_slots = 4;
    setup.peer_slot_bytes = setup.slot_bytes = kSlotBytes;
    setup.eager_bytes = kSlotBytes;
    setup.max_receive_bytes = 1 << 20;
    setup.landing = landing_;
    endpoint_.emplace(path_.get(), std::move(setup), &sink_);
  }

  // A request of 256 KiB appears in slot 0.
  void Announce(uint32_t deadline_us) {
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kUInt8, {256 << 10}}};
    const MessageLayout layout = *LayoutMessage(specs, 0, 1 << 20);
    MessageHeader header;
    header.pulled = true;
    header.tensor_count = 1;
    header.table_bytes = static_cast<uint32_t>(layout.table_bytes);
    header.total_bytes = layout.total_bytes;
    header.deadline_us = deadline_us;
    EncodeHeader(header, memory_->slots.data());
    EncodeTable(specs, layout, memory_->slots.data() + kHeaderBytes);
    path_->Notify(EncodeImm({ImmKind::kMessage, 0, 0}));
  }
  absl::Status Progress() {
    int worked = 0;
    int heard = 0;
    return endpoint_->Progress(now_, &worked, &heard);
  }
  static void Fill(const FakePath::PendingGet& get) {
    std::fill(get.destination.begin(), get.destination.end(),
              static_cast<std::byte>(get.offset >> 16));
  }

  std::shared_ptr<LandingAreas> landing_;
  std::shared_ptr<LandingAreaImpl> area_;
  std::shared_ptr<LinkMemory> memory_;
  std::vector<IncomingMessage::ImplPtr> delivered_;
  std::vector<absl::Status> refused_;
  bool lease_dropped_ = false;
  Sink sink_{this};
  absl::Time now_ = absl::FromUnixSeconds(100);
  // As in Link: the path goes first.
  std::optional<Endpoint> endpoint_;
  std::unique_ptr<FakePath> path_ = std::make_unique<FakePath>();
};

TEST_F(LandingEndpointTest, PlacesStayTakenUntilThePathIsGone) {
  Announce(kNoDeadline);
  ASSERT_TRUE(Progress().ok());
  ASSERT_EQ(path_->gets.size(), 1u);
  EXPECT_EQ(path_->gets.front().destination.data(), area_->bytes().data());
  path_->Break(absl::UnavailableError("the client died"));
  EXPECT_FALSE(Progress().ok());
  EXPECT_FALSE(lease_dropped_) << "a late byte could still land";
  EXPECT_FALSE(area_->Claim(area_->bytes().first(1)));
  path_.reset();
  EXPECT_FALSE(lease_dropped_);
  endpoint_.reset();
  EXPECT_TRUE(lease_dropped_);
  EXPECT_TRUE(area_->Claim(area_->bytes().first(1)));
  EXPECT_TRUE(delivered_.empty());
}

TEST_F(LandingEndpointTest, PlacesOfACancelledPullStayTakenUntilItsGetsEnd) {
  Announce(kNoDeadline);
  ASSERT_TRUE(Progress().ok());
  endpoint_->Ignore(0);
  ASSERT_TRUE(Progress().ok());
  ASSERT_EQ(path_->gets.size(), 1u) << "no more were posted";
  EXPECT_FALSE(lease_dropped_);
  path_->CompleteGets(1, Fill);
  ASSERT_TRUE(Progress().ok());
  EXPECT_TRUE(lease_dropped_);
  EXPECT_TRUE(delivered_.empty() && refused_.empty());
}

TEST_F(LandingEndpointTest, PullsWhoseDeadlinePassesAreGivenUp) {
  Announce(1000);
  ASSERT_TRUE(Progress().ok());
  ASSERT_EQ(path_->gets.size(), 1u);
  now_ += absl::Milliseconds(2);
  path_->CompleteGets(1, Fill);
  ASSERT_TRUE(Progress().ok());
  EXPECT_TRUE(path_->gets.empty());
  ASSERT_TRUE(Progress().ok());
  ASSERT_EQ(refused_.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused_[0])) << refused_[0];
  EXPECT_TRUE(lease_dropped_);
}

TEST_F(LandingEndpointTest, BytesLandAndAreDeliveredFromThere) {
  Announce(kNoDeadline);
  for (int i = 0; i < 100 && delivered_.empty(); ++i) {
    ASSERT_TRUE(Progress().ok());
    path_->CompleteGets(10, Fill);
    now_ += absl::Microseconds(10);
  }
  ASSERT_EQ(delivered_.size(), 1u);
  const base::TensorView& tensor = delivered_[0]->tensors[0];
  ASSERT_EQ(tensor.data, area_->bytes().data());
  EXPECT_EQ(tensor.data[tensor.bytes - 1], std::byte{3});
  EXPECT_EQ(memory_->pulls->used_bytes(), 0u);
  delivered_.clear();
  EXPECT_TRUE(lease_dropped_);
}

}  // namespace
}  // namespace refract::transport

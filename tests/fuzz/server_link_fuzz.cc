// A server's end of an established connection against a client that gives up
// requests at any time: such as never were, that have not come, that are being
// pulled, wait for their answer or were answered. Beside it runs a plain model
// of what becomes of each id, which holds as long as the client uses no id
// twice at a time. Whatever the client does: each request is given to the
// handler or answered once, none that was given up before it came is given to
// it, no call learns of another's end, and nothing is lost.
#include <glog/logging.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/fuzz/target.h"
#include "tests/transport/testing/fake_path.h"
#include "tests/transport/testing/link_memory_fixture.h"
#include "transport/links/server_link.h"

namespace refract::fuzz {
namespace {

using namespace transport;

constexpr size_t kSlotBytes = kMinSlotBytes;
constexpr int kSlots = 4;      // ours
constexpr int kPeerSlots = 3;  // the client's
constexpr size_t kArenaBytes = size_t{256} << 10;
constexpr uint32_t kEpoch = 3;
constexpr int kMaxInFlight = 8;
constexpr size_t kMaxOpen = 2 * kMaxInFlight;     // ServerLink's
constexpr size_t kRemembered = 2 * kMaxOpen;      // ids given up early
constexpr uint64_t kIds = 16;                     // that requests have
constexpr size_t kSourceOfId = size_t{16} << 10;  // each has its own place
constexpr size_t kModel = 7;                      // the handler's
constexpr int64_t kBaseDim = 64;                  // dims[1] of id 0
// The link reads 64 at a time.
constexpr int kMostFrames = 48;

enum Op : uint8_t {
  kRequest,       // u8 id, u8 flags, u8 rows
  kCancel,        // u8 id
  kCancelAny,     // u64 id
  kFrame,         // u16 kind, text: body
  kAnswer,        // u8 which call, u8 how
  kCompleteGets,  // u8 count
  kCompletePuts,  // u8 count
  kCredit,        // u8 slot of the client's
  kStep,          // u8 milliseconds
  kRefuse,        // the next announcement
  kFull,          // u8 posts that find the path full
  kModelState,    // u8 status code
  kDrain,
  kSupersede,
  kNumOps,
};
enum Flags : uint8_t {
  kPulled = 1,
  kWrongModel = 2,
  kReuse = 4,  // of an id that is in use
};

class Harness final : private Handler {
 public:
  Harness() {
    shared_.options.clock = &clock_;
    shared_.handler = this;
    std::array<int, 2> ends;
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                        ends.data()),
             0);
    client_ = UniqueFd(ends[1]);
    auto waker = ThreadWaker::Create();
    CHECK(waker.ok());
    auto path = std::make_unique<FakePath>();
    path_ = path.get();
    const Region slots =
        *path_->CreateRegion(kSlots * kSlotBytes, Access::kRemoteWrite);
    const Region source =
        *path_->CreateRegion(2 * kArenaBytes, Access::kRemoteRead);
    const Region pulls = *path_->CreateRegion(kArenaBytes, Access::kLocal);
    memory_ = NewLinkMemory(slots, source, pulls, kArenaBytes, kArenaBytes,
                            kSlots, *waker);
    path_->on_put = [this](const RemoteRegion&, uint64_t,
                           absl::Span<const std::byte> bytes,
                           std::optional<uint32_t> imm) { OnPut(bytes, *imm); };
    path_->on_notify = [this](uint32_t imm) { OnNotify(imm); };
    Established established;
    established.session = SessionSocket(UniqueFd(ends[0]));
    established.path = std::move(path);
    established.setup.memory = memory_;
    established.setup.peer_slots = {100, kPeerSlots * kSlotBytes};
    established.setup.peer_source = {101, kIds * kSourceOfId};
    established.setup.peer_num_slots = kPeerSlots;
    established.setup.num_slots = kSlots;
    established.setup.peer_slot_bytes = established.setup.slot_bytes =
        established.setup.eager_bytes = kSlotBytes;
    established.setup.max_receive_bytes = kArenaBytes;
    established.setup.epoch = kEpoch;
    established.setup.receives = MessageKind::kRequest;
    established.heartbeat_interval = absl::Milliseconds(100);
    established.suspect_after = absl::Seconds(1);
    established.max_in_flight = kMaxInFlight;
    established.models = {absl::OkStatus(), absl::NotFoundError("none")};
    established.model_ids = {kModel, 0};
    established.takes_model_states = true;
    link_.emplace(&shared_, "client", ConnectionCount(&shared_, "client"),
                  shared_.clients.Add("client", 1, 1, *waker),
                  std::move(established));
    waker_ = *waker;
  }

  void Run(Input input) {
    while (!input.empty() && link_.has_value()) TakeOp(input);
    if (link_.has_value()) Drain();
    link_.reset();
    for (const Call& call : held_) CHECK(call.call->abandoned());
    held_.clear();
    CHECK_EQ(shared_.connections, 0);
    CHECK_EQ(memory_->source->used_bytes(), 0u);
    CHECK_EQ(memory_->texts->used_bytes(), 0u);
    CHECK_EQ(memory_->pulls->used_bytes(), 0u);
    CHECK_EQ(memory_.use_count(), 1);
  }

 private:
  enum class State : uint8_t {
    kFree,
    kSent,  // in a slot, not looked at yet
    kPulling,
    kIgnored,   // given up while it was pulled; a read may still be under way
    kOpen,      // the handler has it
    kAnswered,  // and the link has not looked
  };
  struct Id {
    State state = State::kFree;
    bool given_up = false;  // while kOpen or kAnswered
    int answers = 0;        // that are to be sent
  };
  struct Slot {
    uint16_t generation = 0;
    bool in_use = false;
    uint64_t id = 0;
    bool pulled = false;
  };
  struct Call {
    uint64_t id = 0;
    std::unique_ptr<ServerCall> call;
  };

  void TakeOp(Input& input) {
    switch (input.U8() % kNumOps) {
      case kRequest: {
        const uint64_t id = input.U8() % kIds;
        const uint8_t flags = input.U8();
        Request(id, flags, 1 + input.U8() % 64);
        break;
      }
      case kCancel:
        Cancel(input.U8() % kIds);
        break;
      case kCancelAny:
        Cancel(input.U64());
        break;
      case kFrame: {
        const auto kind = static_cast<FrameKind>(input.U16() % 16);
        const absl::string_view body = input.Text();
        // The request that a cancel names is not tracked any more.
        if (kind == FrameKind::kCancel) tracked_ = false;
        Write(kind, body);
        break;
      }
      case kAnswer: {
        const size_t which = input.U8();
        const uint8_t how = input.U8();
        if (!held_.empty()) Answer(which % held_.size(), how);
        break;
      }
      case kCompleteGets:
        CompleteGets(input.U8());
        break;
      case kCompletePuts:
        path_->CompletePuts(input.U8());
        break;
      case kCredit:
        Credit(input.U8() % kPeerSlots);
        break;
      case kStep:
        now_ += absl::Milliseconds(input.U8());
        Step();
        break;
      case kRefuse:
        refuse_next_ = true;
        break;
      case kFull:
        path_->full_posts = input.U8() % 8;
        break;
      case kModelState:
        shared_.models.Set(
            kModel, absl::Status(static_cast<absl::StatusCode>(input.U8() % 17),
                                 "as it is told"));
        break;
      case kDrain:
        shared_.draining = true;
        tracked_ = false;  // calls are failed by the link itself
        break;
      default:
        superseding_.push_back(
            shared_.clients.Add("client", 2 + superseding_.size(),
                                2 + superseding_.size(), waker_));
    }
  }

  void Request(uint64_t id, uint8_t flags, int64_t rows) {
    uint16_t slot = 0;
    while (slot < kSlots && ours_[slot].in_use) ++slot;
    if (slot == kSlots) return;
    if ((flags & kReuse) == 0) {
      size_t busy = 0;
      for (const Id& other : ids_) {
        busy += (other.state != State::kFree ? 1 : 0) +
                static_cast<size_t>(other.answers);
      }
      if (ids_[id].state != State::kFree || busy >= kMaxOpen) return;
    } else {
      tracked_ = false;
    }
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kUInt8, {rows, kBaseDim + static_cast<int64_t>(id)}}};
    const MessageLayout layout = *LayoutMessage(specs, 0, kArenaBytes);
    MessageHeader header;
    header.id = id;
    header.epoch = kEpoch;
    header.model = (flags & kWrongModel) != 0 ? 1 : 0;
    header.tensor_count = 1;
    header.table_bytes = static_cast<uint32_t>(layout.table_bytes);
    header.total_bytes = layout.total_bytes;
    header.deadline_us = kNoDeadline;
    header.pulled = (flags & kPulled) != 0 || header.total_bytes > kSlotBytes;
    header.source_offset = header.pulled ? id * kSourceOfId : 0;
    std::byte* const place = memory_->slots.data() + slot * kSlotBytes;
    std::memset(place, static_cast<int>(id), kSlotBytes);
    EncodeHeader(header, place);
    EncodeTable(specs, layout, place + kHeaderBytes);
    if (header.model != 0) tracked_ = false;  // thrown out, or given up first
    ours_[slot].in_use = true;
    ours_[slot].id = id;
    ours_[slot].pulled = header.pulled;
    ids_[id].state = State::kSent;
    path_->Notify(EncodeImm({ImmKind::kMessage, slot, ours_[slot].generation}));
  }

  // The link looks at what came in a slot.
  void OnNotify(uint32_t bits) {
    const auto imm = DecodeImm(bits);
    CHECK(imm.has_value());
    if (imm->kind != ImmKind::kMessage || !tracked_) return;
    const Slot& slot = ours_[imm->slot];
    Id& id = ids_[slot.id];
    CHECK(id.state == State::kSent);
    if (!TakeEarly(slot.id)) return;
    // A call that the link answers itself, or not even that.
    id.given_up = false;
    id.state = slot.pulled ? State::kFree : State::kAnswered;
    if (slot.pulled) ++id.answers;
  }

  void Cancel(uint64_t id) {
    proto::Cancel cancel;
    cancel.set_id(id);
    if (Write(FrameKind::kCancel, cancel.SerializeAsString())) {
      cancels_.push_back(id);
    }
  }
  bool Write(FrameKind kind, absl::string_view body) {
    if (frames_ == kMostFrames) return false;
    ++frames_;
    const std::string bytes = EncodeSessionFrame(kind, body);
    CHECK_EQ(write(client_.get(), bytes.data(), bytes.size()),
             static_cast<ssize_t>(bytes.size()));
    return true;
  }

  void Answer(size_t which, uint8_t how) {
    Call call = std::move(held_[which]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(which));
    if (tracked_) {
      CHECK(ids_[call.id].state == State::kOpen);
      CHECK_EQ(call.call->abandoned(), ids_[call.id].given_up);
    }
    ids_[call.id].state = State::kAnswered;
    if (how % 4 == 0) return;  // destroyed: fails
    if (how % 4 != 1) {
      const std::vector<base::TensorSpec> specs = {
          {base::DType::kFloat32, {how}}};
      if (auto reply = call.call->AllocateReply(specs); reply.ok()) {
        return call.call->Reply(*std::move(reply));
      }
    }
    call.call->Fail(absl::InternalError("as it is told"));
  }

  void Step() {
    for (Id& id : ids_) {
      if (id.state != State::kAnswered) continue;
      if (!id.given_up) ++id.answers;
      id.state = State::kFree;
    }
    if (frames_ > 0) link_->OnControlEvent();
    if (link_->Step(now_) == PollTask::Result::kDone) {
      link_.reset();
      return;
    }
    std::array<char, 4096> said;
    while (read(client_.get(), said.data(), said.size()) > 0) {
    }
    // Answers that the client reads follow the contents of the slots.
    for (uint64_t name = 0; name < kIds; ++name) {
      Id& id = ids_[name];
      if (id.state == State::kIgnored && !IsRead(name)) id.state = State::kFree;
    }
    for (const uint64_t id : cancels_) NoteCancel(id);
    cancels_.clear();
    frames_ = 0;
    if (!tracked_) return;
    for (const Call& call : held_) {
      CHECK_EQ(call.call->abandoned(), ids_[call.id].given_up) << call.id;
    }
  }

  bool IsRead(uint64_t name) const {
    return std::any_of(path_->gets.begin(), path_->gets.end(),
                       [name](const FakePath::PendingGet& get) {
                         return get.offset / kSourceOfId == name;
                       });
  }
  void NoteCancel(uint64_t name) {
    if (name < kIds) {
      Id& id = ids_[name];
      if (id.state == State::kOpen || id.state == State::kAnswered) {
        id.given_up = true;
        return;
      }
      if (id.state == State::kPulling) {
        id.state = IsRead(name) ? State::kIgnored : State::kFree;
        return;
      }
      if (id.state == State::kIgnored) return;
    }
    for (const auto& [early, waits] : early_) {
      if (waits && early == name) return;
    }
    early_.emplace_back(name, true);
    if (early_.size() > kRemembered) early_.pop_front();
  }
  bool TakeEarly(uint64_t name) {
    for (auto& [early, waits] : early_) {
      if (early == name && std::exchange(waits, false)) return true;
    }
    return false;
  }

  void CompleteGets(size_t count) {
    path_->CompleteGets(count, [](const FakePath::PendingGet& get) {
      std::fill(get.destination.begin(), get.destination.end(),
                static_cast<std::byte>(get.offset / kSourceOfId));
    });
  }
  void Credit(uint16_t slot) {
    if (!theirs_[slot].in_use) return;
    theirs_[slot].in_use = false;
    path_->Notify(
        EncodeImm({ImmKind::kCredit, slot, ++theirs_[slot].generation}));
  }

  void OnPut(absl::Span<const std::byte> bytes, uint32_t bits) {
    const auto imm = DecodeImm(bits);
    CHECK(imm.has_value());
    if (imm->kind == ImmKind::kCredit) {
      Slot& slot = ours_[imm->slot];
      CHECK(slot.in_use);
      CHECK_EQ(imm->generation, static_cast<uint16_t>(slot.generation + 1));
      slot.generation = imm->generation;
      slot.in_use = false;
      return;
    }
    CHECK(!theirs_[imm->slot].in_use);
    theirs_[imm->slot].in_use = true;
    const auto header =
        DecodeHeader(bytes.subspan(0, kHeaderBytes), kArenaBytes);
    CHECK(header.ok()) << header.status();
    CHECK(header->kind == MessageKind::kResponse);
    CHECK_LT(header->id, kIds);
    if (!tracked_) return;
    CHECK_GT(ids_[header->id].answers, 0) << "nobody gave this answer";
    --ids_[header->id].answers;
  }

  // ------------------------------------------------------------------ Handler

  absl::StatusOr<size_t> OnOffer(const ModelOffer&) override { return kModel; }
  static uint64_t IdOf(absl::Span<const base::TensorView> tensors) {
    CHECK_EQ(tensors.size(), 1u);
    return static_cast<uint64_t>(tensors[0].dims[1] - kBaseDim);
  }
  absl::Status OnAnnounced(const RequestDescriptor& request) override {
    CHECK_EQ(request.model, kModel);
    Id& id = ids_[IdOf(request.tensors)];
    if (tracked_) CHECK(id.state == State::kSent);
    if (std::exchange(refuse_next_, false)) {
      id.state = State::kFree;
      ++id.answers;
      return absl::ResourceExhaustedError("as it is told");
    }
    id.state = State::kPulling;
    return absl::OkStatus();
  }
  void OnRequest(std::unique_ptr<ServerCall> call) override {
    CHECK_EQ(call->model(), kModel);
    const uint64_t name = IdOf(call->tensors());
    Id& id = ids_[name];
    if (tracked_) {
      CHECK(id.state == State::kSent || id.state == State::kPulling);
      CHECK(!call->abandoned());
    }
    const base::TensorView& tensor = call->tensors()[0];
    for (size_t i = 0; i < tensor.bytes && tracked_; ++i) {
      CHECK_EQ(static_cast<uint64_t>(tensor.data[i]), name);
    }
    id.state = State::kOpen;
    id.given_up = false;
    held_.push_back({name, std::move(call)});
  }
  void OnAbandoned(size_t model) override { CHECK_EQ(model, kModel); }
  void OnWithdrawn(size_t model) override { CHECK_EQ(model, kModel); }

  // A client that behaves from here on gets all answers, unless it is thrown
  // out for what it did before.
  void Drain() {
    path_->full_posts = 0;
    for (int round = 0; round < 200; ++round) {
      while (!held_.empty()) Answer(0, 2);
      path_->CompletePuts(path_->puts.size());
      CompleteGets(path_->gets.size());
      for (uint16_t slot = 0; slot < kPeerSlots; ++slot) Credit(slot);
      Step();
      if (!link_.has_value()) return;
    }
    CHECK(held_.empty() && link_->all_sent() && path_->idle());
    for (const Id& id : ids_) {
      if (!tracked_) break;
      CHECK(id.state == State::kFree) << static_cast<int>(id.state);
      CHECK_EQ(id.answers, 0) << "an answer was lost";
    }
  }

  base::ManualClock clock_;
  absl::Time now_ = clock_.Now();
  ServerShared shared_;
  UniqueFd client_;
  FakePath* path_ = nullptr;  // the link's
  std::shared_ptr<LinkMemory> memory_;
  std::shared_ptr<Waker> waker_;
  std::optional<ServerLink> link_;
  std::vector<ClientRegistry::Entry> superseding_;
  std::vector<Call> held_;
  std::array<Slot, kSlots> ours_;
  std::array<Slot, kPeerSlots> theirs_;
  std::array<Id, kIds> ids_;
  std::deque<std::pair<uint64_t, bool>> early_;  // id, and nothing took it yet
  std::vector<uint64_t> cancels_;                // written, not read
  int frames_ = 0;
  bool refuse_next_ = false;
  // The client keeps the rules, so that it is known what is to come.
  bool tracked_ = true;
};

}  // namespace

std::vector<Seed> Seeds() {
  const auto step = [](Script& script) { script.U8(kStep).U8(1); };
  Script open;  // given up while the handler has it, and after its answer
  for (uint8_t id = 0; id < 3; ++id) open.U8(kRequest).U8(id).U8(0).U8(2);
  step(open);
  open.U8(kCancel).U8(1);
  step(open);
  open.U8(kAnswer).U8(0).U8(2).U8(kAnswer).U8(0).U8(1).U8(kCancel).U8(0);
  step(open);
  Script early;  // before they come, small and large
  early.U8(kCancel).U8(4).U8(kCancel).U8(5).U8(kCancelAny).U64(~uint64_t{0});
  step(early);
  early.U8(kRequest).U8(4).U8(0).U8(2).U8(kRequest).U8(5).U8(kPulled).U8(60);
  early.U8(kRequest).U8(6).U8(0).U8(2);
  step(early);
  early.U8(kCancel).U8(4);
  step(early);
  Script pulled;  // before, while and after it is pulled
  for (uint8_t id = 7; id < 10; ++id) {
    pulled.U8(kRequest).U8(id).U8(kPulled).U8(63);
  }
  step(pulled);
  pulled.U8(kCancel).U8(8).U8(kCompleteGets).U8(1);
  step(pulled);
  pulled.U8(kCancel).U8(7).U8(kCompleteGets).U8(9);
  step(pulled);
  Script many;  // more than are remembered
  for (uint64_t id = 0; id < 40; ++id) many.U8(kCancelAny).U64(id);
  step(many);
  many.U8(kRequest).U8(0).U8(0).U8(1).U8(kRequest).U8(15).U8(0).U8(1);
  step(many);
  Script twice;  // an id that is in use
  twice.U8(kRequest).U8(1).U8(kPulled).U8(9).U8(kRequest).U8(1).U8(kReuse).U8(
      9);
  step(twice);
  twice.U8(kCancel).U8(1);
  step(twice);
  Script ends;
  ends.U8(kRequest).U8(3).U8(0).U8(1);
  step(ends);
  ends.U8(kModelState).U8(14).U8(kDrain).U8(kRequest).U8(4).U8(0).U8(1);
  step(ends);
  ends.U8(kFrame).U16(static_cast<uint16_t>(FrameKind::kCancel)).Text("\x08");
  ends.U8(kSupersede);
  step(ends);
  return {{"open", open.bytes()},     {"early", early.bytes()},
          {"pulled", pulled.bytes()}, {"many", many.bytes()},
          {"twice", twice.bytes()},   {"ends", ends.bytes()}};
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FLAGS_minloglevel = google::GLOG_ERROR;  // each end of a connection is told
  refract::fuzz::Harness().Run(refract::fuzz::Input(data, size));
  return 0;
}

// The bytes of a session: the same frames come out however they are cut, and
// every body can be parsed, judged and written again.
#include <glog/logging.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "proto/session.pb.h"
#include "tests/fuzz/target.h"
#include "transport/messages/byte_order.h"
#include "transport/messages/crc32c.h"
#include "transport/session/handshake.h"
#include "transport/paths/path_setup.h"
#include "transport/session/session_socket.h"

namespace refract::fuzz {
namespace {

using namespace transport;

constexpr uint8_t kFixChecksums = 1;

// Gives every frame of the stream the checksum of its body.
std::string FixChecksums(absl::string_view stream) {
  std::string fixed(stream);
  size_t at = 0;
  while (fixed.size() - at >= kSessionHeaderBytes) {
    auto* header = reinterpret_cast<std::byte*>(fixed.data() + at);
    const size_t length = LoadLittle<uint32_t>(header + 12);
    if (length > fixed.size() - at - kSessionHeaderBytes) break;
    StoreLittle<uint32_t>(header + 16,
                          Crc32c({header + kSessionHeaderBytes, length}));
    at += kSessionHeaderBytes + length;
  }
  return fixed;
}

template <typename Message>
void TryBody(const SessionFrame& frame) {
  Message message;
  if (!ParseBody(frame, "fuzzed frame", &message).ok()) return;
  Message again;
  CHECK(again.ParseFromString(message.SerializeAsString()));
}

void TryFrame(const SessionFrame& frame) {
  switch (frame.kind) {
    case FrameKind::kHello: {
      proto::Hello hello;
      if (!ParseBody(frame, "hello", &hello).ok()) return;
      if (CheckPeerLimits(hello.limits()).ok()) {
        // The product is what memory is asked for.
        CHECK_LE(hello.limits().num_slots() * hello.limits().slot_bytes(),
                 uint64_t{1} << 40);
      }
      const HeartbeatTimes times =
          AgreeOnHeartbeats(absl::Milliseconds(100), absl::Seconds(2),
                            hello.heartbeat_interval_us(),
                            hello.liveness_timeout_us(), hello.features());
      // A quarter of the shortest liveness timeout that is believed.
      CHECK(times.interval >= absl::Microseconds(2500) &&
            times.interval <= absl::Milliseconds(500));
      CHECK(times.suspect_after > absl::ZeroDuration() &&
            times.suspect_after <= absl::Seconds(2));
      return;
    }
    case FrameKind::kHelloReply: {
      proto::HelloReply reply;
      if (!ParseBody(frame, "reply", &reply).ok()) return;
      const absl::Status status = FromWire(reply.status());
      CHECK_EQ(status.ok(), reply.status().code() == 0);
      CHECK_LE(ToWire(status, 100).message().size(), 100u);
      return;
    }
    case FrameKind::kAttach:
      return TryBody<proto::Attach>(frame);
    case FrameKind::kPathStart:
      return TryBody<proto::PathStart>(frame);
    case FrameKind::kPathReply:
      return TryBody<proto::PathReply>(frame);
    case FrameKind::kReady:
      return TryBody<proto::Ready>(frame);
    case FrameKind::kHeartbeat:
      return TryBody<proto::Heartbeat>(frame);
    case FrameKind::kGoaway:
      return TryBody<proto::Goaway>(frame);
    case FrameKind::kCancel:
      return TryBody<proto::Cancel>(frame);
    case FrameKind::kClose:
      return TryBody<proto::Close>(frame);
    case FrameKind::kModelStates:
      return TryBody<proto::ModelStates>(frame);
    case FrameKind::kOffers:
      return TryBody<proto::Offers>(frame);
  }
  // No default above: the compiler names a kind that the switch lacks.
  LOG(FATAL) << "a frame of unknown kind was decoded: "
             << static_cast<int>(frame.kind);
}

struct Decoded {
  std::vector<SessionFrame> frames;
  absl::Status status;
};

Decoded DecodeWhole(absl::string_view stream) {
  Decoded result;
  while (true) {
    const size_t before = stream.size();
    auto frame = DecodeSessionFrame(stream);
    result.status = frame.status();
    if (!frame.ok() || !frame->has_value()) return result;
    CHECK_LT(stream.size(), before);
    CHECK_LE((*frame)->body.size(), kMaxSessionBodyBytes);
    result.frames.push_back(std::move(**frame));
  }
}

// Through a socket, `step` bytes at a time.
Decoded DecodePieces(absl::string_view stream, size_t step) {
  std::array<int, 2> fds;
  PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) == 0);
  const UniqueFd writer(fds[0]);
  SessionSocket reader{UniqueFd(fds[1])};
  Decoded result;
  while (true) {
    auto frame = reader.Receive();
    result.status = frame.status();
    if (!frame.ok()) return result;
    if (frame->has_value()) {
      result.frames.push_back(std::move(**frame));
      continue;
    }
    if (stream.empty()) return result;
    const ssize_t n =
        write(writer.get(), stream.data(), std::min(step, stream.size()));
    PCHECK(n > 0);
    stream.remove_prefix(static_cast<size_t>(n));
  }
}

proto::ReceiveLimits SomeLimits() {
  proto::ReceiveLimits limits;
  limits.set_num_slots(5);
  limits.set_slot_bytes(64 << 10);
  limits.set_max_message_bytes(1 << 20);
  limits.set_max_in_flight(4);
  return limits;
}

std::string StreamSeed(
    std::initializer_list<std::pair<FrameKind, std::string>> frames) {
  Script script;
  script.U8(kFixChecksums).U8(7);
  for (const auto& [kind, body] : frames) {
    script.Raw(EncodeSessionFrame(kind, body));
  }
  return script.bytes();
}

}  // namespace

std::vector<Seed> Seeds() {
  proto::Hello hello;
  hello.mutable_identity()->set_node("node");
  hello.mutable_identity()->set_boot_id("boot");
  hello.add_paths(proto::TRANSPORT_PATH_TCP);
  *hello.mutable_limits() = SomeLimits();
  hello.add_models()->set_name("model");
  hello.set_epoch(1);
  hello.set_liveness_timeout_us(2'000'000);
  proto::HelloReply reply;
  reply.add_paths(proto::TRANSPORT_PATH_TCP);
  *reply.mutable_limits() = SomeLimits();
  reply.add_models();
  reply.set_token(std::string(16, 't'));
  proto::HelloReply refusal;
  refusal.mutable_status()->set_code(9);
  refusal.mutable_status()->set_message("no");
  proto::Attach attach;
  attach.set_token(std::string(16, 't'));
  attach.set_path(proto::TRANSPORT_PATH_TCP);
  proto::PathStart start;
  start.set_path(proto::TRANSPORT_PATH_TCP);
  start.set_slots("tcp:0:327680");
  start.set_source("tcp:1:1048576");
  proto::PathReply path;
  path.set_slots("tcp:0:327680");
  path.set_source("tcp:1:1048576");
  proto::Cancel cancel;
  cancel.set_id(77);
  proto::ModelStates states;
  states.add_states();
  proto::Offers offers;
  offers.add_offers();
  offers.add_withdrawn(1);
  proto::Close close;
  close.mutable_status()->set_code(14);
  close.mutable_status()->set_message("bye");
  return {
      {"client", StreamSeed({{FrameKind::kHello, hello.SerializeAsString()},
                             {FrameKind::kPathStart, start.SerializeAsString()},
                             {FrameKind::kReady, ""},
                             {FrameKind::kHeartbeat, ""},
                             {FrameKind::kOffers, offers.SerializeAsString()},
                             {FrameKind::kCancel, cancel.SerializeAsString()},
                             {FrameKind::kClose, close.SerializeAsString()}})},
      {"server",
       StreamSeed({{FrameKind::kHelloReply, reply.SerializeAsString()},
                   {FrameKind::kPathReply, path.SerializeAsString()},
                   {FrameKind::kReady, ""},
                   {FrameKind::kModelStates, states.SerializeAsString()},
                   {FrameKind::kGoaway, ""}})},
      {"attach",
       StreamSeed({{FrameKind::kAttach, attach.SerializeAsString()}})},
      {"refusal",
       StreamSeed({{FrameKind::kHelloReply, refusal.SerializeAsString()}})},
      {"other_version", Script()
                            .U8(0)
                            .U8(1)
                            .Raw(EncodeSessionFrame(FrameKind::kHello, "", 9))
                            .bytes()}};
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace refract::fuzz;
  Input input(data, size);
  const uint8_t flags = input.U8();
  const size_t step = 1 + input.U8();
  std::string stream(input.Take(size));
  if ((flags & kFixChecksums) != 0) stream = FixChecksums(stream);
  const Decoded whole = DecodeWhole(stream);
  for (const auto& frame : whole.frames) TryFrame(frame);
  const Decoded pieces = DecodePieces(stream, step);
  CHECK_EQ(pieces.status.ToString(), whole.status.ToString());
  CHECK_EQ(pieces.frames.size(), whole.frames.size());
  for (size_t i = 0; i < whole.frames.size(); ++i) {
    CHECK(pieces.frames[i].kind == whole.frames[i].kind);
    CHECK_EQ(pieces.frames[i].body, whole.frames[i].body);
  }
  return 0;
}

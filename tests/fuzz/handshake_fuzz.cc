// The two sides of the handshake against a peer that follows a script: frames
// and bytes in any order on the session and on the data connection, with time
// passing in between. Whatever it does, the handshake ends, and what it ends
// with makes sense.
//
// The other side plays from inside the injected clock: whoever waits looks at
// the time, and each look is the peer's turn. So one thread is enough and every
// run of an input is the same.
#include <fcntl.h>
#include <glog/logging.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/target.h"
#include "transport/paths/path_setup.h"
#include "transport/session/handshake.h"
#include "transport/session/server_handshake.h"
#include "transport/tcp/frame.h"

namespace refract::fuzz {
namespace {

using namespace transport;

constexpr size_t kTokenBytes = 16;

enum Op : uint8_t {
  kFrame,      // u8 kind, text body
  kRaw,        // text on the session
  kAttach,     // u8 path: hands a data connection to the server
  kData,       // text on the data connection
  kDataFrame,  // u8 type, u32 imm, u8 region, u32 length, u32 offset, text
  kProbe,      // u8 region: the right probe, where it belongs
  kTime,       // u16 milliseconds
  kHangUp,     // u8 which: session, data connection
  kNumOps,
};

Limits SmallLimits() {
  Limits limits;
  limits.eager_bytes = 4096;
  limits.max_message_bytes = 64 << 10;
  limits.max_in_flight = 2;
  limits.source_arena_bytes = 64 << 10;
  return limits;
}

// The peer of a handshake. Wait::clock of the side under test.
class Peer : public base::Clock {
 public:
  enum class Role { kClient, kServer };
  Peer(Role role, Input input) : role_(role), input_(input) {}

  absl::Time Now() override {
    // The turn itself may ask for the time.
    if (!playing_) {
      playing_ = true;
      Turn();
      playing_ = false;
    }
    return now_;
  }
  bool AwaitWithDeadline(absl::Mutex&, const absl::Condition&,
                         absl::Time) override {
    LOG(FATAL) << "nothing in a handshake waits for a condition";
    return false;
  }

  void SetSession(UniqueFd fd) { session_ = std::move(fd); }
  void SetListener(int listener) { listener_ = listener; }
  void SetBroker(AttachBroker* broker) { broker_ = broker; }
  // A probe needs the token of the server.
  void SetToken(std::string token) { token_ = std::move(token); }

 private:
  void Turn() {
    Accept();
    Listen();
    if (input_.empty()) {
      // No input is left: the clock runs on to every time-out.
      now_ += absl::Hours(1);
      return;
    }
    // A client that is still connecting hears nothing yet.
    if (!session_.valid()) return;
    switch (input_.U8() % kNumOps) {
      case kFrame: {
        const auto kind = static_cast<FrameKind>(input_.U8());
        Write(session_, EncodeSessionFrame(kind, input_.Text()));
        break;
      }
      case kRaw:
        Write(session_, input_.Text());
        break;
      case kAttach:
        Attach(static_cast<proto::TransportPath>(input_.U8() % 5));
        break;
      case kData:
        Write(data_, input_.Text());
        break;
      case kDataFrame: {
        tcp::Frame frame;
        frame.type = static_cast<tcp::FrameType>(input_.U8());
        frame.imm = input_.U32();
        frame.region = input_.U8();
        frame.length = input_.U32();
        frame.offset = input_.U32();
        WriteFrame(frame, input_.Text());
        break;
      }
      case kProbe: {
        std::string probe =
            role_ == Role::kClient ? ClientProbe(token_) : ServerProbe(token_);
        probe.resize(64);
        tcp::Frame frame;
        frame.type = tcp::FrameType::kPutNotify;
        frame.imm = EncodeImm({ImmKind::kProbe, 0, 0});
        frame.region = input_.U8();
        frame.length = static_cast<uint32_t>(probe.size());
        WriteFrame(frame, probe);
        break;
      }
      case kTime:
        now_ += absl::Milliseconds(input_.U16());
        break;
      default:
        (input_.U8() % 2 == 0 ? session_ : data_).Reset(-1);
        // Without a session nothing more can happen to a client.
        if (!session_.valid()) input_ = Input(nullptr, 0);
    }
  }

  void Accept() {
    if (listener_ < 0) return;
    UniqueFd fd(
        accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) return;
    // No port stays in TIME_WAIT for a run that is over.
    const linger at_once = {1, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    (session_.valid() ? data_ : session_) = std::move(fd);
  }

  // Takes what was sent, and learns the token from it.
  void Listen() {
    std::array<char, 4096> bytes;
    ssize_t n;
    while (data_.valid() &&
           recv(data_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    while (session_.valid() && (n = recv(session_.get(), bytes.data(),
                                         bytes.size(), MSG_DONTWAIT)) > 0) {
      heard_.append(bytes.data(), static_cast<size_t>(n));
    }
    absl::string_view rest = heard_;
    const auto frame = DecodeSessionFrame(rest);
    // Frames from this side of the wire are never malformed.
    CHECK(frame.ok()) << frame.status();
    if (!frame->has_value()) return;
    heard_.erase(0, heard_.size() - rest.size());
    proto::HelloReply reply;
    if ((*frame)->kind == FrameKind::kHelloReply &&
        reply.ParseFromString((*frame)->body) && !reply.token().empty()) {
      token_ = reply.token();
    }
  }

  void Attach(proto::TransportPath path) {
    if (broker_ == nullptr) return;
    std::array<int, 2> fds;
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                      fds.data()) == 0);
    data_ = UniqueFd(fds[0]);
    broker_->Deliver(token_, path, UniqueFd(fds[1]));
  }

  static void Write(const UniqueFd& fd, absl::string_view bytes) {
    if (!fd.valid()) return;
    [[maybe_unused]] const ssize_t n =
        send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void WriteFrame(const tcp::Frame& frame, absl::string_view payload) {
    std::string bytes(tcp::kFrameBytes, '\0');
    tcp::EncodeFrame(frame, reinterpret_cast<std::byte*>(bytes.data()));
    bytes.append(payload.data(), payload.size());
    Write(data_, bytes);
  }

  const Role role_;
  Input input_;
  absl::Time now_ = absl::UnixEpoch();
  bool playing_ = false;
  int listener_ = -1;
  AttachBroker* broker_ = nullptr;
  UniqueFd session_;
  UniqueFd data_;
  std::string heard_;
  std::string token_;
};

void CheckEstablished(const Established& established) {
  const EndpointSetup& setup = established.setup;
  CHECK(established.path != nullptr);
  CHECK_GE(established.max_in_flight, 1);
  CHECK_LE(established.max_in_flight, SmallLimits().max_in_flight);
  CHECK_GE(setup.peer_num_slots, 1);
  CHECK_LE(setup.peer_num_slots, kMaxSlots);
  CHECK_GE(setup.peer_slot_bytes, kMinSlotBytes);
  CHECK_GE(setup.peer_slots.bytes,
           setup.peer_num_slots * setup.peer_slot_bytes);
  CHECK_LE(setup.max_receive_bytes, SmallLimits().max_message_bytes);
  CHECK(established.heartbeat_interval >= absl::Microseconds(2500) &&
        established.heartbeat_interval <= absl::Milliseconds(500));
  CHECK(established.suspect_after > absl::ZeroDuration() &&
        established.suspect_after <= absl::Seconds(2));
}

class NoRequests final : public Handler {
 public:
  absl::StatusOr<size_t> OnOffer(const ModelOffer& offer) override {
    if (offer.version == 2) return absl::NotFoundError("no such version");
    return size_t{1};
  }
  void OnRequest(std::unique_ptr<ServerCall>) override {
    LOG(FATAL) << "a request in the handshake";
  }
};

void FuzzServer(Input input) {
  const std::string hello(input.Text());
  Peer peer(Peer::Role::kClient, input);
  std::array<int, 2> fds;
  PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                    fds.data()) == 0);
  SessionSocket session{UniqueFd(fds[0])};
  peer.SetSession(UniqueFd(fds[1]));
  AttachBroker broker;
  peer.SetBroker(&broker);
  NoRequests handler;
  ServerOptions options;
  options.limits = SmallLimits();
  options.clock = &peer;
  const std::vector<proto::TransportPath> paths = {proto::TRANSPORT_PATH_SHM,
                                                   proto::TRANSPORT_PATH_TCP};
  const std::shared_ptr<ThreadWaker> waker = *ThreadWaker::Create();
  PathResources resources{waker};
  const ServerHandshakeContext context{
      options,          &handler,           &broker, paths,
      "no-such-socket", "a server's 16 B.", waker,   &resources};
  ServerHandshake handshake(
      context, std::move(session), {FrameKind::kHello, hello},
      absl::UnixEpoch() + options.handshake_timeout, waker);
  std::vector<pollfd> events;
  while (true) {
    const auto established = handshake.Step(peer.Now());
    if (!established.ok()) return;
    if (established->has_value()) {
      CheckEstablished(**established);
      CHECK_EQ((*established)->models.size(), (*established)->model_ids.size());
      return;
    }
    // Whether it would sleep or not, it is the peer's turn.
    events.clear();
    handshake.Arm(&events);
    CHECK_LE(events.size(), 2u);
    CHECK(handshake.next_timer() <=
          absl::UnixEpoch() + options.handshake_timeout);
  }
}

void FuzzClient(Input input) {
  static const Listener* const listener =
      new Listener(*ListenTcp({"127.0.0.1", 0}));
  // A run may end with a connection that nobody took.
  while (UniqueFd(accept4(listener->fd.get(), nullptr, nullptr, SOCK_CLOEXEC))
             .valid()) {
  }
  Peer peer(Peer::Role::kServer, input);
  peer.SetListener(listener->fd.get());
  peer.SetToken(std::string(kTokenBytes, 't'));
  ClientOptions options;
  options.limits = SmallLimits();
  options.clock = &peer;
  options.models.push_back({"model", 1, {}, {}});
  const std::shared_ptr<ThreadWaker> waker = *ThreadWaker::Create();
  PathResources resources{waker};
  const Wait wait{*waker, peer, [] { return absl::OkStatus(); }};
  const HostPort address{"127.0.0.1", listener->port};
  const Dial dial{
      .options = options,
      .address = address,
      .paths = {proto::TRANSPORT_PATH_SHM, proto::TRANSPORT_PATH_TCP},
      .epoch = 1,
      .offers = {{1, options.models[0]}},
      .link_waker = waker,
      .resources = &resources};
  DialReport report;
  const auto established = ClientHandshake(dial, wait, &report);
  if (established.ok()) {
    CheckEstablished(*established);
    CHECK_EQ(established->models.size(), 1u);
  }
}

proto::ReceiveLimits PeerLimits() {
  return AnnouncedLimits(SmallLimits(), SmallLimits().max_in_flight);
}

std::string Descriptor(int region, uint64_t bytes) {
  return absl::StrCat("tcp:", region, ":", bytes);
}

Script& AddFrame(Script& script, FrameKind kind, absl::string_view body) {
  return script.U8(kFrame).U8(static_cast<uint8_t>(kind)).Text(body);
}

// Frames up to the client's attachment and its regions.
Script ClientScript() {
  proto::Hello hello;
  hello.add_paths(proto::TRANSPORT_PATH_TCP);
  *hello.mutable_limits() = PeerLimits();
  hello.add_models()->set_name("model");
  hello.add_models()->set_version(2);
  hello.set_epoch(1);
  hello.set_liveness_timeout_us(1'000'000);
  proto::PathStart start;
  start.set_path(proto::TRANSPORT_PATH_TCP);
  start.set_slots(Descriptor(0, 3 * kMinSlotBytes));
  start.set_source(Descriptor(1, 1 << 20));
  Script script;
  script.U8(0).Text(hello.SerializeAsString());
  script.U8(kTime).U16(1).U8(kAttach).U8(proto::TRANSPORT_PATH_TCP);
  return AddFrame(script, FrameKind::kPathStart, start.SerializeAsString());
}

Script ServerScript() {
  proto::HelloReply reply;
  reply.add_paths(proto::TRANSPORT_PATH_TCP);
  *reply.mutable_limits() = PeerLimits();
  reply.add_models();
  reply.set_token(std::string(kTokenBytes, 't'));
  reply.set_liveness_timeout_us(1'000'000);
  proto::PathReply path;
  path.set_slots(Descriptor(0, 3 * kMinSlotBytes));
  path.set_source(Descriptor(1, 1 << 20));
  Script script;
  script.U8(1);
  AddFrame(script, FrameKind::kHelloReply, reply.SerializeAsString());
  return AddFrame(script, FrameKind::kPathReply, path.SerializeAsString());
}

}  // namespace

std::vector<Seed> Seeds() {
  Script client = ClientScript();
  client.U8(kProbe).U8(0);
  AddFrame(client, FrameKind::kReady, "");
  Script no_probe = ClientScript();
  AddFrame(no_probe, FrameKind::kReady, "").U8(kTime).U16(2000);
  Script wrong_probe = ClientScript();
  wrong_probe.U8(kDataFrame).U8(2).U32(EncodeImm({ImmKind::kProbe, 0, 0}));
  wrong_probe.U8(0).U32(64).U32(0).Text(std::string(64, 'x'));
  AddFrame(wrong_probe, FrameKind::kReady, "");
  Script gone = ClientScript();
  gone.U8(kHangUp).U8(1).U8(kHangUp).U8(0);
  Script server = ServerScript();
  server.U8(kProbe).U8(0);
  AddFrame(server, FrameKind::kReady, "");
  Script late = ServerScript();
  late.U8(kTime).U16(3000);
  Script refused;
  proto::HelloReply refusal;
  refusal.mutable_status()->set_code(8);
  refusal.mutable_status()->set_message("full");
  refused.U8(1);
  AddFrame(refused, FrameKind::kHelloReply, refusal.SerializeAsString());
  Script other;
  other.U8(1).U8(kRaw).Text("HTTP/1.1 400 Bad Request\r\n\r\n");
  return {{"client", client.bytes()},
          {"client_no_probe", no_probe.bytes()},
          {"client_wrong_probe", wrong_probe.bytes()},
          {"client_gone", gone.bytes()},
          {"server", server.bytes()},
          {"server_late", late.bytes()},
          {"server_refuses", refused.bytes()},
          {"server_is_none", other.bytes()}};
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  refract::fuzz::Input input(data, size);
  if (input.U8() % 2 == 0) {
    refract::fuzz::FuzzServer(input);
  } else {
    refract::fuzz::FuzzClient(input);
  }
  return 0;
}

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tls/tls_contexts.h"
#include "transport/paths/path_setup.h"
#include "transport/paths/paths.h"
#include "transport/session/handshake.h"
#include "transport/session/identity.h"

namespace refract::transport {
namespace {

proto::Hello MakeHello(const Dial& dial) {
  const ClientOptions& options = dial.options;
  proto::Hello hello;
  *hello.mutable_identity() = LocalIdentity();
  hello.set_features(kFeatures);
  for (const proto::TransportPath path : dial.paths) hello.add_paths(path);
  *hello.mutable_limits() =
      AnnouncedLimits(options.limits, options.limits.max_in_flight);
  for (const ClientOffer& offered : dial.offers) {
    *hello.add_models() = ToProto(offered.offer);
  }
  hello.set_epoch(dial.epoch);
  hello.set_client(dial.client);
  hello.set_oldest_live_epoch(dial.oldest_live_epoch);
  hello.set_heartbeat_interval_us(
      absl::ToInt64Microseconds(options.heartbeat_interval));
  hello.set_liveness_timeout_us(
      absl::ToInt64Microseconds(options.liveness_timeout));
  return hello;
}

// The state of a client handshake.
class ClientAttempt {
 public:
  ClientAttempt(const Dial& dial, const Wait& wait, DialReport* report)
      : dial_(dial),
        options_(dial.options),
        wait_(wait),
        deadline_(options_.clock->Now() + options_.handshake_timeout),
        report_(report) {}

  absl::StatusOr<Established> Run() {
    REFRACT_ASSIGN_OR_RETURN(Stream stream,
                             Connect(options_.ack_timeout, deadline_));
    session_ = SessionSocket(std::move(stream));
    REFRACT_RETURN_IF_ERROR(session_.Send(FrameKind::kHello, MakeHello(dial_)));
    REFRACT_RETURN_IF_ERROR(ReadReply());
    absl::Status last = absl::FailedPreconditionError(
        "the server offers no transport that this client has");
    more_starts_ = (reply_.features() & proto::FEATURE_MORE_PATH_STARTS) != 0
                       ? kMorePathStarts
                       : 0;
    for (const proto::TransportPath path : report_->offered) {
      // In the server's order, best first.
      absl::StatusOr<std::unique_ptr<PathSetup>> setup = TryAddresses(path);
      if (setup.ok()) return Finish(**setup);
      last = base::Annotate(setup.status(), PathName(path));
      // The session has ended: further paths cannot work.
      if (!session_status_.ok() || absl::IsCancelled(last)) return last;
      report_->failed.push_back({path, rail_, last});
    }
    return last;
  }

 private:
  // A connection to the HN's port, with TLS if the options say so.
  absl::StatusOr<Stream> Connect(absl::Duration ack_timeout,
                                 absl::Time deadline) {
    REFRACT_ASSIGN_OR_RETURN(UniqueFd fd,
                             ConnectTcp(dial_.address, wait_, deadline));
    TuneSocket(fd.get(), ack_timeout);
    if (options_.tls.contexts == nullptr) return Stream(std::move(fd));
    REFRACT_ASSIGN_OR_RETURN(
        Stream stream,
        Stream::DialTls(std::move(fd), options_.tls.contexts->context().get(),
                        options_.tls.name.empty() ? dial_.address.host
                                                  : options_.tls.name));
    REFRACT_RETURN_IF_ERROR(stream.ShakeHands(wait_, deadline));
    return stream;
  }

  absl::Status ReadReply() {
    REFRACT_ASSIGN_OR_RETURN(const SessionFrame frame,
                             AwaitFrame(session_, wait_, deadline_));
    if (frame.kind != FrameKind::kHelloReply) {
      return absl::InvalidArgumentError("the server did not answer the hello");
    }
    REFRACT_RETURN_IF_ERROR(ParseBody(frame, "hello reply", &reply_));
    REFRACT_RETURN_IF_ERROR(FromWire(reply_.status()));
    REFRACT_RETURN_IF_ERROR(CheckPeerLimits(reply_.limits()));
    if (reply_.models_size() != static_cast<int>(dial_.offers.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("the server answered ", reply_.models_size(), " of ",
                       dial_.offers.size(), " model offers"));
    }
    report_->server_process = reply_.identity().process();
    for (const int offered : reply_.paths()) {
      const auto path = static_cast<proto::TransportPath>(offered);
      const bool asked = std::find(dial_.paths.begin(), dial_.paths.end(),
                                   path) != dial_.paths.end();
      const bool again =
          std::find(report_->offered.begin(), report_->offered.end(), path) !=
          report_->offered.end();
      if (asked && !again) report_->offered.push_back(path);
    }
    return absl::OkStatus();
  }

  // A frame of the expected kind. A failed PathReply becomes its status; an
  // error that ends the session is also kept in session_status_.
  absl::StatusOr<SessionFrame> Expect(FrameKind kind) {
    absl::StatusOr<SessionFrame> frame = AwaitFrame(session_, wait_, deadline_);
    if (!frame.ok()) {
      session_status_ = frame.status();
      return frame;
    }
    if (frame->kind == FrameKind::kPathReply) {
      proto::PathReply reply;
      session_status_ = ParseBody(*frame, "path reply", &reply);
      REFRACT_RETURN_IF_ERROR(session_status_);
      REFRACT_RETURN_IF_ERROR(FromWire(reply.status()));
    }
    if (frame->kind != kind) {
      session_status_ = absl::InvalidArgumentError(
          absl::StrCat("unexpected frame of kind ",
                       static_cast<int>(frame->kind), " in the handshake"));
      return session_status_;
    }
    return frame;
  }

  absl::StatusOr<Stream> ConnectPath(proto::TransportPath path,
                                     absl::Time deadline) {
    const Attachment attachment = AttachmentOf(path);
    Stream stream;
    if (attachment == Attachment::kNone) return stream;
    if (attachment == Attachment::kUnix) {
      REFRACT_ASSIGN_OR_RETURN(stream, ConnectUnix(reply_.unix_socket()));
    } else {
      REFRACT_ASSIGN_OR_RETURN(stream,
                               Connect(options_.liveness_timeout, deadline));
    }
    proto::Attach attach;
    attach.set_token(reply_.token());
    attach.set_path(path);
    SessionSocket socket(std::move(stream));
    REFRACT_RETURN_IF_ERROR(socket.Send(FrameKind::kAttach, attach));
    // A new socket takes a few dozen bytes at once.
    if (socket.has_unsent()) {
      return absl::UnavailableError("the attach frame was not taken");
    }
    return socket.TakeStream();
  }

  // Tries one address after the other as long as the only failure is that there
  // is no route between the two ends.
  absl::StatusOr<std::unique_ptr<PathSetup>> TryAddresses(
      proto::TransportPath path) {
    PathChoice choice;
    choice.avoid = dial_.avoid_rails;
    rail_.clear();
    absl::Status first;
    while (true) {
      no_way_ = false;
      absl::StatusOr<std::unique_ptr<PathSetup>> setup = TryPath(path, choice);
      if (setup.ok()) return setup;
      // Keeps the reason of the last address: running out of addresses explains
      // nothing.
      if (choice.skip > 0 && absl::IsOutOfRange(setup.status())) return first;
      first.Update(setup.status());
      if (!session_status_.ok()) return setup.status();
      if (!no_way_ || more_starts_ == 0) return first;
      --more_starts_;
      ++choice.skip;
    }
  }

  // One attempt: make the own end, exchange regions (PathStart, PathReply),
  // connect both ends, send a probe each way, confirm (Ready). The client's
  // probe goes first: it shows the server that this end is connected and can
  // receive.
  absl::StatusOr<std::unique_ptr<PathSetup>> TryPath(proto::TransportPath path,
                                                     const PathChoice& choice) {
    const absl::Time deadline =
        std::min(deadline_, options_.clock->Now() + kProbeTimeout);
    REFRACT_ASSIGN_OR_RETURN(Stream stream, ConnectPath(path, deadline));
    REFRACT_ASSIGN_OR_RETURN(
        std::unique_ptr<PathSetup> setup,
        PathSetup::Create(
            path, std::move(stream), /*peer=*/"", options_.limits,
            AnnouncedLimits(options_.limits, options_.limits.max_in_flight),
            dial_.link_waker, dial_.resources, choice));
    rail_ = setup->rail();
    proto::PathStart start;
    start.set_path(path);
    start.set_slots(setup->slots_descriptor());
    start.set_source(setup->source_descriptor());
    session_status_ = session_.Send(FrameKind::kPathStart, start);
    REFRACT_RETURN_IF_ERROR(session_status_);
    const absl::StatusOr<SessionFrame> frame = Expect(FrameKind::kPathReply);
    // The server finds that there is no route (FailedPrecondition: none of its
    // addresses reaches ours), or the own device does, below.
    no_way_ = !rail_.empty() && (absl::IsUnavailable(frame.status()) ||
                                 absl::IsFailedPrecondition(frame.status()));
    REFRACT_RETURN_IF_ERROR(frame.status());
    proto::PathReply reply;
    REFRACT_RETURN_IF_ERROR(ParseBody(*frame, "path reply", &reply));
    const absl::Status imported =
        setup->ImportPeer(reply.slots(), reply.source(), reply_.limits());
    no_way_ = !rail_.empty() && absl::IsUnavailable(imported);
    REFRACT_RETURN_IF_ERROR(imported);
    REFRACT_RETURN_IF_ERROR(setup->PostProbe(ClientProbe(reply_.token())));
    // Making the regions may have taken long; the probe has its own time-out.
    REFRACT_RETURN_IF_ERROR(setup->AwaitProbe(
        ServerProbe(reply_.token()), wait_,
        std::min(deadline_, options_.clock->Now() + kProbeTimeout)));
    session_status_ = session_.Send(FrameKind::kReady, proto::Ready());
    REFRACT_RETURN_IF_ERROR(session_status_);
    REFRACT_RETURN_IF_ERROR(Expect(FrameKind::kReady).status());
    return setup;
  }

  Established Finish(PathSetup& setup) {
    Established established;
    setup.Finish(dial_.epoch, MessageKind::kResponse, &established);
    established.session = std::move(session_);
    established.peer = reply_.identity().node();
    const HeartbeatTimes heartbeats = AgreeOnHeartbeats(
        options_.heartbeat_interval, options_.liveness_timeout,
        reply_.heartbeat_interval_us(), reply_.liveness_timeout_us(),
        reply_.features());
    established.heartbeat_interval = heartbeats.interval;
    established.suspect_after = heartbeats.suspect_after;
    established.max_in_flight =
        std::min(options_.limits.max_in_flight,
                 static_cast<int>(reply_.limits().max_in_flight()));
    for (const proto::WireStatus& model : reply_.models()) {
      established.models.push_back(FromWire(model));
    }
    for (const ClientOffer& offered : dial_.offers) {
      established.offered_keys.push_back(offered.key);
    }
    established.takes_offers = (reply_.features() & proto::FEATURE_OFFERS) != 0;
    established.takes_request_ids =
        (reply_.features() & proto::FEATURE_REQUEST_IDS) != 0;
    established.sends_call_times =
        (reply_.features() & proto::FEATURE_CALL_TIMES) != 0;
    established.takes_priorities =
        (reply_.features() & proto::FEATURE_PRIORITIES) != 0;
    return established;
  }

  const Dial& dial_;
  const ClientOptions& options_;
  const Wait& wait_;
  const absl::Time deadline_;
  DialReport* const report_;
  SessionSocket session_;
  absl::Status session_status_;
  proto::HelloReply reply_;
  int more_starts_ = 0;  // further PathStarts that the server accepts
  std::string rail_;     // of the path tried last; empty: none
  bool no_way_ = false;  // no route: try another address
};

}  // namespace

absl::StatusOr<Established> ClientHandshake(const Dial& dial, const Wait& wait,
                                            DialReport* report) {
  *report = DialReport();
  report->asked = dial.paths;
  return ClientAttempt(dial, wait, report).Run();
}

}  // namespace refract::transport

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/handshake.h"
#include "transport/identity.h"
#include "transport/path_setup.h"
#include "transport/paths.h"

namespace refract::transport {
namespace {

// A path that works answers within milliseconds; the next one should get its
// turn well before the handshake times out.
constexpr absl::Duration kProbeTimeout = absl::Seconds(1);

proto::Hello MakeHello(const ClientOptions& options,
                       const std::vector<proto::TransportPath>& paths,
                       uint64_t epoch) {
  proto::Hello hello;
  *hello.mutable_identity() = LocalIdentity();
  for (const proto::TransportPath path : paths) hello.add_paths(path);
  *hello.mutable_limits() =
      AnnouncedLimits(options.limits, options.limits.max_in_flight);
  for (const ModelOffer& offer : options.models) {
    proto::OfferedModel* model = hello.add_models();
    model->set_name(offer.name);
    model->set_version(offer.version);
    model->mutable_model()->set_low(offer.model.low);
    model->mutable_model()->set_high(offer.model.high);
    model->mutable_schema()->set_low(offer.schema.low);
    model->mutable_schema()->set_high(offer.schema.high);
  }
  hello.set_epoch(epoch);
  hello.set_liveness_timeout_us(
      absl::ToInt64Microseconds(options.liveness_timeout));
  return hello;
}

// The state of one client handshake.
class Attempt {
 public:
  Attempt(const ClientOptions& options, const HostPort& address, uint64_t epoch,
          std::shared_ptr<Waker> waker, const Wait& wait)
      : options_(options),
        address_(address),
        epoch_(epoch),
        waker_(std::move(waker)),
        wait_(wait),
        deadline_(options.clock->Now() + options.handshake_timeout) {}

  absl::StatusOr<Established> Run(
      const std::vector<proto::TransportPath>& paths) {
    REFRACT_ASSIGN_OR_RETURN(UniqueFd fd,
                             ConnectTcp(address_, wait_, deadline_));
    TuneSession(fd.get(), options_.liveness_timeout);
    session_ = SessionSocket(std::move(fd));
    REFRACT_RETURN_IF_ERROR(
        session_.Send(FrameKind::kHello, MakeHello(options_, paths, epoch_)));
    REFRACT_RETURN_IF_ERROR(ReadReply());
    absl::Status last = absl::FailedPreconditionError(
        "the server offers no transport that this client has");
    for (const int offered : reply_.paths()) {
      const auto path = static_cast<proto::TransportPath>(offered);
      if (std::find(paths.begin(), paths.end(), path) == paths.end()) continue;
      absl::StatusOr<std::unique_ptr<PathSetup>> setup = TryPath(path);
      if (setup.ok()) return Finish(**setup);
      last = base::Annotate(setup.status(), PathName(path));
      // The session itself is over: no use in trying further.
      if (!session_status_.ok()) return last;
    }
    return last;
  }

 private:
  absl::Status ReadReply() {
    REFRACT_ASSIGN_OR_RETURN(const SessionFrame frame,
                             AwaitFrame(session_, wait_, deadline_));
    if (frame.kind != FrameKind::kHelloReply) {
      return absl::InvalidArgumentError("the server did not answer the hello");
    }
    REFRACT_RETURN_IF_ERROR(ParseBody(frame, "hello reply", &reply_));
    REFRACT_RETURN_IF_ERROR(FromWire(reply_.status()));
    REFRACT_RETURN_IF_ERROR(CheckPeerLimits(reply_.limits()));
    if (reply_.models_size() != static_cast<int>(options_.models.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("the server answered ", reply_.models_size(), " of ",
                       options_.models.size(), " model offers"));
    }
    return absl::OkStatus();
  }

  // A frame of the kind expected. A failed PathReply becomes its status; what
  // ends the session is also kept in session_status_.
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

  absl::StatusOr<UniqueFd> ConnectPath(proto::TransportPath path,
                                       absl::Time deadline) {
    absl::StatusOr<UniqueFd> fd = AttachesLocally(path)
                                      ? ConnectUnix(reply_.unix_socket())
                                      : ConnectTcp(address_, wait_, deadline);
    REFRACT_RETURN_IF_ERROR(fd.status());
    proto::Attach attach;
    attach.set_token(reply_.token());
    attach.set_path(path);
    SessionSocket socket(*std::move(fd));
    REFRACT_RETURN_IF_ERROR(socket.Send(FrameKind::kAttach, attach));
    // A fresh socket takes a few dozen bytes at once.
    if (socket.has_unsent()) {
      return absl::UnavailableError("the attach frame was not taken");
    }
    return socket.TakeFd();
  }

  absl::StatusOr<std::unique_ptr<PathSetup>> TryPath(
      proto::TransportPath path) {
    const absl::Time deadline =
        std::min(deadline_, options_.clock->Now() + kProbeTimeout);
    REFRACT_ASSIGN_OR_RETURN(UniqueFd fd, ConnectPath(path, deadline));
    REFRACT_ASSIGN_OR_RETURN(
        std::unique_ptr<PathSetup> setup,
        PathSetup::Create(
            path, std::move(fd), options_.limits,
            AnnouncedLimits(options_.limits, options_.limits.max_in_flight),
            waker_));
    proto::PathStart start;
    start.set_path(path);
    start.set_slots(setup->slots_descriptor());
    start.set_source(setup->source_descriptor());
    session_status_ = session_.Send(FrameKind::kPathStart, start);
    REFRACT_RETURN_IF_ERROR(session_status_);
    REFRACT_ASSIGN_OR_RETURN(const SessionFrame frame,
                             Expect(FrameKind::kPathReply));
    proto::PathReply reply;
    REFRACT_RETURN_IF_ERROR(ParseBody(frame, "path reply", &reply));
    REFRACT_RETURN_IF_ERROR(
        setup->ImportPeer(reply.slots(), reply.source(), reply_.limits()));
    REFRACT_RETURN_IF_ERROR(setup->PostProbe(ClientProbe(reply_.token())));
    REFRACT_RETURN_IF_ERROR(
        setup->AwaitProbe(ServerProbe(reply_.token()), wait_, deadline));
    session_status_ = session_.Send(FrameKind::kReady, proto::Ready());
    REFRACT_RETURN_IF_ERROR(session_status_);
    REFRACT_RETURN_IF_ERROR(Expect(FrameKind::kReady).status());
    return setup;
  }

  Established Finish(PathSetup& setup) {
    Established established;
    setup.Finish(epoch_, MessageKind::kResponse, &established);
    established.session = std::move(session_);
    established.peer = reply_.identity().node();
    established.peer_liveness_timeout =
        PeerLiveness(reply_.liveness_timeout_us());
    established.max_in_flight =
        std::min(options_.limits.max_in_flight,
                 static_cast<int>(reply_.limits().max_in_flight()));
    for (const proto::WireStatus& model : reply_.models()) {
      established.models.push_back(FromWire(model));
    }
    return established;
  }

  const ClientOptions& options_;
  const HostPort& address_;
  const uint64_t epoch_;
  const std::shared_ptr<Waker> waker_;
  const Wait& wait_;
  const absl::Time deadline_;
  SessionSocket session_;
  absl::Status session_status_;
  proto::HelloReply reply_;
};

}  // namespace

absl::StatusOr<Established> ClientHandshake(
    const ClientOptions& options, const HostPort& address,
    const std::vector<proto::TransportPath>& paths, uint64_t epoch,
    std::shared_ptr<Waker> waker, const Wait& wait) {
  return Attempt(options, address, epoch, std::move(waker), wait).Run(paths);
}

}  // namespace refract::transport

#include "transport/session/handshake.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::transport {

void AttachBroker::Open(const std::string& token,
                        std::shared_ptr<Waker> waker) {
  absl::MutexLock lock(&mu_);
  // A data socket names its session by the token, which is random and which
  // only the client was told: nobody else can attach a socket to the session.
  waiting_[token].waker = std::move(waker);
}

void AttachBroker::Close(const std::string& token) {
  absl::MutexLock lock(&mu_);
  waiting_.erase(token);
}

bool AttachBroker::Deliver(const std::string& token, proto::TransportPath path,
                           Stream socket) {
  std::shared_ptr<Waker> waker;
  {
    absl::MutexLock lock(&mu_);
    const auto found = waiting_.find(token);
    if (found == waiting_.end()) return false;
    // A second socket for the same path replaces the first, which is closed.
    found->second.sockets[path] = std::move(socket);
    waker = found->second.waker;
  }
  waker->Wake();
  return true;
}

Stream AttachBroker::Take(const std::string& token, proto::TransportPath path) {
  absl::MutexLock lock(&mu_);
  const auto found = waiting_.find(token);
  if (found == waiting_.end()) return Stream();
  const auto socket = found->second.sockets.find(path);
  if (socket == found->second.sockets.end()) return Stream();
  Stream taken = std::move(socket->second);
  found->second.sockets.erase(socket);
  return taken;
}

absl::StatusOr<std::optional<SessionFrame>> TryFrame(SessionSocket& session) {
  REFRACT_RETURN_IF_ERROR(session.Flush());
  REFRACT_ASSIGN_OR_RETURN(std::optional<SessionFrame> frame,
                           session.Receive());
  if (!frame.has_value() || frame->kind != FrameKind::kClose) return frame;
  proto::Close close;
  REFRACT_RETURN_IF_ERROR(ParseBody(*frame, "close frame", &close));
  const absl::Status reason = FromWire(close.status());
  return reason.ok() ? absl::UnavailableError("closed by the peer") : reason;
}

absl::StatusOr<SessionFrame> AwaitFrame(SessionSocket& session,
                                        const Wait& wait, absl::Time deadline) {
  while (true) {
    REFRACT_ASSIGN_OR_RETURN(std::optional<SessionFrame> frame,
                             TryFrame(session));
    if (frame.has_value()) return *std::move(frame);
    REFRACT_RETURN_IF_ERROR(
        wait.For(session.fd(), FrameEvents(session), deadline));
  }
}

std::string ClientProbe(absl::string_view token) {
  return absl::StrCat("client", token);
}
std::string ServerProbe(absl::string_view token) {
  return absl::StrCat("server", token);
}

namespace {

// A peer that asks for more than 100 signs of life a second would overload this
// side; less than one an hour is useless.
absl::Duration Interval(uint64_t announced_us) {
  constexpr uint64_t kMinUs = 10'000;
  constexpr uint64_t kMaxUs = 3'600'000'000;
  return absl::Microseconds(std::clamp(announced_us, kMinUs, kMaxUs));
}

}  // namespace

HeartbeatTimes AgreeOnHeartbeats(absl::Duration own_interval,
                                 absl::Duration own_liveness,
                                 uint64_t peer_interval_us,
                                 uint64_t peer_liveness_us,
                                 uint64_t peer_features) {
  // Three signs before either side gives up; peers without wishes get just
  // these.
  const absl::Duration quarter =
      std::min(own_liveness, Interval(peer_liveness_us)) / 4;
  HeartbeatTimes times;
  times.interval = peer_interval_us == 0
                       ? quarter
                       : std::min(quarter, Interval(peer_interval_us));
  const bool keeps_wishes =
      (peer_features & proto::FEATURE_HEARTBEAT_INTERVAL) != 0;
  const absl::Duration expected =
      keeps_wishes ? std::min(own_interval, quarter) : quarter;
  // Three missed signs, and half an interval for the third to arrive.
  times.suspect_after = std::min(expected * 3.5, own_liveness);
  return times;
}

proto::WireStatus ToWire(const absl::Status& status, size_t max_text_bytes) {
  proto::WireStatus wire;
  wire.set_code(static_cast<uint32_t>(status.code()));
  wire.set_message(std::string(status.message().substr(0, max_text_bytes)));
  return wire;
}

proto::OfferedModel ToProto(const ModelOffer& offer) {
  proto::OfferedModel model;
  model.set_name(offer.name);
  model.set_version(offer.version);
  model.mutable_model()->set_low(offer.model.low);
  model.mutable_model()->set_high(offer.model.high);
  model.mutable_schema()->set_low(offer.schema.low);
  model.mutable_schema()->set_high(offer.schema.high);
  if (!offer.settings.has_value()) return model;
  proto::ModelSettings* const settings = model.mutable_settings();
  for (const auto& [name, value] : *offer.settings) {
    proto::ModelSetting* const setting = settings->add_settings();
    setting->set_name(name);
    setting->set_value(value);
  }
  return model;
}

ModelOffer FromProto(const proto::OfferedModel& model) {
  ModelOffer offer;
  offer.name = model.name();
  offer.version = model.version();
  offer.model = {model.model().low(), model.model().high()};
  offer.schema = {model.schema().low(), model.schema().high()};
  if (!model.has_settings()) return offer;
  offer.settings.emplace();
  for (const proto::ModelSetting& setting : model.settings().settings()) {
    offer.settings->emplace_back(setting.name(), setting.value());
  }
  return offer;
}

absl::Status CheckOfferedModel(const proto::OfferedModel& model) {
  if (model.name().size() > kMaxModelNameBytes) {
    return absl::InvalidArgumentError("an offer with an overlong model name");
  }
  for (const proto::ModelSetting& setting : model.settings().settings()) {
    if (setting.name().size() > kMaxSettingBytes ||
        setting.value().size() > kMaxSettingBytes) {
      return absl::InvalidArgumentError(
          "an offer with an overlong setting of a model");
    }
  }
  return absl::OkStatus();
}

absl::Status FromWire(const proto::WireStatus& status) {
  if (status.code() == 0) return absl::OkStatus();
  // A later release may know further codes (16 is the last of absl).
  const auto code = status.code() > 16
                        ? absl::StatusCode::kUnknown
                        : static_cast<absl::StatusCode>(status.code());
  return absl::Status(code, status.message());
}

}  // namespace refract::transport

// The part of the client that decides when to dial and over which paths, and
// handles the outcome.
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "transport/client.h"
#include "transport/paths/paths.h"

namespace refract::transport {
namespace {

template <typename T>
bool Contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

// While disconnected: every path that may be used. While connected: paths that
// are better than the present one, or all paths if that is about to fail, and
// that the server may have. In both cases only healthy paths; while
// disconnected and without a healthy path, all of them.
std::vector<proto::TransportPath> ClientImpl::PathsToOffer(
    absl::Time now) const {
  std::vector<proto::TransportPath> candidates;
  for (const proto::TransportPath path : paths_) {
    if (current_ != nullptr) {
      if (path == current_->facts().path && !current_is_down()) break;
      if (Contains(not_offered_, path)) continue;
    }
    candidates.push_back(path);
  }
  std::vector<proto::TransportPath> healthy;
  for (const proto::TransportPath path : candidates) {
    if (Usable(path, now)) healthy.push_back(path);
  }
  return healthy.empty() && current_ == nullptr ? candidates : healthy;
}

bool ClientImpl::Usable(proto::TransportPath path, absl::Time now) const {
  if (!rails_.usable(PathName(path), now)) return false;
  if (path != proto::TRANSPORT_PATH_VERBS || ports_.empty()) return true;
  return std::any_of(ports_.begin(), ports_.end(),
                     [&](const std::string& rail) {
                       return rails_.usable(RailName(path, rail), now);
                     });
}

bool ClientImpl::current_is_down() const {
  return current_ != nullptr &&
         rails_.down(RailName(current_->facts().path, current_->facts().rail));
}

absl::Time ClientImpl::next_dial() const {
  // The end of an attempt wakes the hub.
  if (dialer_->busy()) return absl::InfiniteFuture();
  return current_ == nullptr ? next_attempt_ : next_probe_;
}

void ClientImpl::Dial(absl::Time now) {
  std::vector<proto::TransportPath> paths = PathsToOffer(now);
  if (current_ != nullptr) {
    ScheduleProbe(now);
    if (paths.empty()) return;
  }
  const size_t links = draining_.size() + (current_ != nullptr);
  // Reserved before the attempt, so that a finished handshake never lacks a
  // seat.
  absl::StatusOr<PollLoop::Seat> seat = hub_->loop().Reserve();
  if (links + 1 > ClientHub::kMaxLinksPerClient || !seat.ok()) {
    // Old links still use all seats. Later some of them have ended.
    next_attempt_ = now + options_.last_backoff;
    return;
  }
  transport::Dial dial{options_, address_, std::move(paths), client_id_};
  dial.epoch = ++attempts_;
  // The server ends connections of this client with a lower epoch: they are
  // links that this side has lost, and the server may not know it yet.
  dial.oldest_live_epoch = dial.epoch;
  const auto note = [&dial](const ClientLink& link) {
    dial.oldest_live_epoch =
        std::min(dial.oldest_live_epoch, link.facts().epoch);
  };
  if (current_ != nullptr) note(*current_);
  for (const ClientLink* link : draining_) note(*link);
  dial.offers = offers();
  dial.resources = hub_->resources();
  for (const std::string& rail : ports_) {
    if (!rails_.usable(RailName(proto::TRANSPORT_PATH_VERBS, rail), now)) {
      dial.avoid_rails.push_back(rail);
    }
  }
  hub_->OnDialStarted();
  dialer_->Start(std::move(dial), *std::move(seat));
}

void ClientImpl::TakeDialled(absl::Time now) {
  std::optional<Dialer::Outcome> outcome = dialer_->Take();
  if (!outcome.has_value()) return;
  hub_->OnDialEnded();
  OnDialled(*std::move(outcome), now);
}

void ClientImpl::ScheduleProbe(absl::Time now) {
  // Jitter, so that the clients of a node do not all dial at once.
  next_probe_ = now + probe_interval_ * (0.75 + 0.5 * Draw());
  probe_interval_ = std::min(2 * probe_interval_, options_.probe_interval);
}

void ClientImpl::OnPorts(const std::vector<verbs::PortState>& ports,
                         absl::Time now) {
  const auto name = [](const std::string& rail) {
    return RailName(proto::TRANSPORT_PATH_VERBS, rail);
  };
  // A broken device reports nothing any more, so only an attempt shows that it
  // is back.
  for (const std::string& rail : std::exchange(ports_, {})) {
    const bool gone = std::none_of(
        ports.begin(), ports.end(),
        [&](const verbs::PortState& port) { return port.rail == rail; });
    if (gone && rails_.down(name(rail))) rails_.SetDown(name(rail), false);
  }
  bool came_up = false;
  for (const verbs::PortState& port : ports) {
    ports_.push_back(port.rail);
    if (port.up != rails_.down(name(port.rail))) continue;
    rails_.SetDown(name(port.rail), !port.up);
    came_up |= port.up;
    LOG(INFO) << "RDMA port " << port.rail << " is "
              << (port.up ? "up" : "down") << ", for " << options_.address;
  }
  // An attempt under way may still succeed, but a later attempt need not wait
  // for the time-outs of a dead port.
  if (current_is_down()) {
    probe_interval_ = std::min(options_.last_backoff, options_.probe_interval);
    DialWithin(absl::ZeroDuration(), now);
  } else if (came_up) {
    // Errors from before a path had a port are explained as well.
    rails_.SetDown(PathName(proto::TRANSPORT_PATH_VERBS), false);
    // The other end, and the network between, may need a moment longer, so
    // these intervals grow from a short one.
    probe_interval_ =
        std::min(4 * options_.first_backoff, options_.probe_interval);
    DialWithin(options_.first_backoff * (0.5 + Draw()), now);
  }
}

void ClientImpl::DialWithin(absl::Duration delay, absl::Time now) {
  absl::Time& next = current_ == nullptr ? next_attempt_ : next_probe_;
  next = std::min(next, now + delay);
  hub_->Attend();
}

void ClientImpl::OnDialled(Dialer::Outcome outcome, absl::Time now) {
  LearnFromReport(outcome.report, now);
  const bool connected = current_ != nullptr;
  const absl::Status status = outcome.established.ok()
                                  ? Adopt(std::move(outcome), now)
                                  : outcome.established.status();
  if (status.ok()) return;
  if (connected) {
    VLOG(1) << "no better path to " << options_.address << ": " << status;
    return;
  }
  next_attempt_ = now + health_.OnAttemptFailed(status, Draw());
  SetDisconnected(status);
}

void ClientImpl::LearnFromReport(const DialReport& report, absl::Time now) {
  // Without an answer nothing is known about paths.
  if (report.server_process.empty()) return;
  if (suspicion_.has_value()) {
    // The process whose connection was lost over this path is alive.
    if (suspicion_->server_process == report.server_process) {
      OnRailError(suspicion_->path, suspicion_->rail, suspicion_->when);
    }
    suspicion_.reset();
  }
  if (server_process_ != report.server_process) {
    server_process_ = report.server_process;
    not_offered_.clear();
  }
  for (const proto::TransportPath path : report.asked) {
    if (!Contains(report.offered, path) && !Contains(not_offered_, path)) {
      not_offered_.push_back(path);
    }
  }
  for (const DialReport::Failure& failure : report.failed) {
    LOG(WARNING) << "path " << RailName(failure.path, failure.rail) << " to "
                 << options_.address << " does not work: " << failure.why;
    ++counters_.path_failures;
    OnRailError(failure.path, failure.rail, now);
  }
}

void ClientImpl::OnRailError(proto::TransportPath path, absl::string_view rail,
                             absl::Time when) {
  const uint64_t before = rails_.pauses();
  const std::string name = RailName(path, rail);
  rails_.OnError(name, when);
  if (rails_.pauses() == before) return;
  ++counters_.rail_pauses;
  LOG(WARNING) << "path " << name << " to " << options_.address
               << " failed repeatedly and is not used for "
               << rails_.paused_until(name) - when;
}

absl::Status ClientImpl::Adopt(Dialer::Outcome outcome, absl::Time now) {
  auto link = std::make_unique<ClientLink>(
      options_, *std::move(outcome.established),
      std::move(outcome.report.server_process), &counters_, &next_id_, this);
  ClientLink* const raw = link.get();
  REFRACT_RETURN_IF_ERROR(
      hub_->loop().Add(std::move(outcome.seat), std::move(link)));
  const bool switched = current_ != nullptr;
  if (switched) {
    ++counters_.path_switches;
    draining_.push_back(current_);
    current_->Drain();
    current_->memory()->waker->Wake();
  }
  current_ = raw;
  // Before listeners are called, which then read the state.
  health_.OnConnected(now);
  // From here on allocations belong to the new link.
  SetConnected(*raw, switched);
  probe_interval_ = options_.probe_interval;
  ScheduleProbe(now);
  // The port may have gone down during the attempt.
  if (current_is_down()) DialWithin(options_.first_backoff, now);
  return absl::OkStatus();
}

}  // namespace refract::transport

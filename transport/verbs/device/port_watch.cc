#include "transport/verbs/device/port_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/statusor.h"

namespace refract::transport::verbs {

// Follows one device. Its destructor waits for running calls, so it must not be
// destroyed under a lock that they take: mu_ here is its own.
class PortWatch::Follower final : public DeviceListener {
 public:
  Follower(PortWatch* watch, std::shared_ptr<DeviceContext> context)
      : watch_(watch), context_(std::move(context)) {
    // In this order, so that no change is missed between.
    context_->AddListener(this);
    Look();
  }
  ~Follower() override { context_->RemoveListener(this); }

  const DeviceContext* context() const { return context_.get(); }
  bool gone() const {
    absl::MutexLock lock(&mu_);
    return gone_;
  }
  void AppendTo(std::vector<PortState>* out) const {
    absl::MutexLock lock(&mu_);
    out->insert(out->end(), ports_.begin(), ports_.end());
  }

  void OnDeviceEvent(absl::string_view, const AsyncEvent& event) override {
    switch (event.type) {
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_DEVICE_FATAL:
        if (Look()) watch_->OnChange();
        break;
      default:
        break;
    }
  }

 private:
  // An event only triggers a look: two threads may look at once, and the later
  // look counts. Returns whether it saw a change.
  bool Look() {
    absl::MutexLock lock(&mu_);
    std::vector<PortState> seen;
    const auto ports = context_->device().Ports();
    // A device that does not answer counts as dead. Soft-RoCE sends no event
    // when it is removed, but its network interface usually goes down with it.
    gone_ = context_->dead() || !ports.ok() ||
            !watch_->IsListed(context_->device().name());
    if (!gone_) {
      for (const PortInfo& port : *ports) {
        const AddressPreference& allowed = watch_->preference_;
        if (allowed.port != 0 && allowed.port != port.number) continue;
        seen.push_back({RailOf(context_->device().name(), port.number),
                        port.attributes.state == IBV_PORT_ACTIVE});
      }
    }
    const bool changed = gone_ || seen != ports_;
    ports_ = std::move(seen);
    return changed;
  }

  PortWatch* const watch_;
  const std::shared_ptr<DeviceContext> context_;
  mutable absl::Mutex mu_;
  std::vector<PortState> ports_ ABSL_GUARDED_BY(mu_);
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
};

PortWatch::PortWatch(DeviceRegistry& registry,
                     const AddressPreference& preference)
    : registry_(registry), preference_(preference) {}

PortWatch::~PortWatch() {
  // Followers are destroyed after the lock is released, and before the members
  // that their calls use.
  std::vector<std::unique_ptr<Follower>> followers;
  {
    absl::MutexLock lock(&mu_);
    followers.swap(followers_);
  }
}

void PortWatch::Start(std::shared_ptr<Waker> waker) {
  absl::MutexLock lock(&mu_);
  waker_ = std::move(waker);
}

void PortWatch::Follow(const std::shared_ptr<DeviceContext>& context) {
  {
    absl::MutexLock lock(&mu_);
    if (waker_ == nullptr || Follows(*context)) return;
  }
  // Outside of the lock, which the follower's calls take.
  auto follower = std::make_unique<Follower>(this, context);
  {
    absl::MutexLock lock(&mu_);
    // Two threads may have come here.
    if (!Follows(*context)) followers_.push_back(std::move(follower));
  }
  follower.reset();
  OnChange();
}

bool PortWatch::Follows(const DeviceContext& context) const {
  return std::any_of(followers_.begin(), followers_.end(),
                     [&](const std::unique_ptr<Follower>& follower) {
                       return follower->context() == &context;
                     });
}

std::optional<std::vector<PortState>> PortWatch::Take() {
  if (!changed_.load(std::memory_order_relaxed) || !changed_.exchange(false)) {
    return std::nullopt;
  }
  std::vector<std::unique_ptr<Follower>> gone;  // go after the lock
  std::vector<PortState> ports;
  absl::MutexLock lock(&mu_);
  gone = TakeGone();
  for (const std::unique_ptr<Follower>& follower : followers_) {
    follower->AppendTo(&ports);
  }
  return ports;
}

std::vector<std::unique_ptr<PortWatch::Follower>> PortWatch::TakeGone() {
  std::vector<std::unique_ptr<Follower>> gone;
  const auto end = std::stable_partition(
      followers_.begin(), followers_.end(),
      [](const std::unique_ptr<Follower>& x) { return !x->gone(); });
  std::move(end, followers_.end(), std::back_inserter(gone));
  followers_.erase(end, followers_.end());
  return gone;
}

bool PortWatch::IsListed(absl::string_view device) const {
  const auto names = registry_.DeviceNames();
  return names.ok() &&
         std::find(names->begin(), names->end(), device) != names->end();
}

void PortWatch::OnChange() {
  std::shared_ptr<Waker> waker;
  {
    absl::MutexLock lock(&mu_);
    waker = waker_;
  }
  changed_ = true;
  if (waker != nullptr) waker->Wake();
}

}  // namespace refract::transport::verbs

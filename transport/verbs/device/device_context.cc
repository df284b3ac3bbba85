#include "transport/verbs/device/device_context.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/process/thread.h"
#include "base/status_macros.h"
#include "transport/verbs/device/ibv_library.h"

namespace refract::transport::verbs {

int AccessFlags(Access access) {
  // Relaxed ordering: packets of one transfer may reach memory in any order,
  // because this side reads the memory only after the completion.
  constexpr int kAlways = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
  switch (access) {
    case Access::kLocal:
      return kAlways;
    case Access::kRemoteRead:
      return kAlways | IBV_ACCESS_REMOTE_READ;
    case Access::kRemoteWrite:
      return kAlways | IBV_ACCESS_REMOTE_WRITE;
  }
  return kAlways;
}

absl::StatusOr<std::shared_ptr<DeviceContext>> DeviceContext::Create(
    std::unique_ptr<Device> device, Events events) {
  UniqueFd stop;
  if (events == Events::kWatched) {
    stop.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!stop.valid()) return ErrnoStatus(errno, "eventfd");
  }
  std::shared_ptr<DeviceContext> context(
      new DeviceContext(std::move(device), std::move(stop)));
  if (events == Events::kWatched) {
    REFRACT_ASSIGN_OR_RETURN(
        context->watcher_,
        base::StartThread([watched = context.get()] { watched->Watch(); }));
  }
  return context;
}

DeviceContext::DeviceContext(std::unique_ptr<Device> device, UniqueFd stop)
    : device_(std::move(device)), stop_(std::move(stop)) {}

DeviceContext::~DeviceContext() {
  if (!watcher_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(stop_.get(), &one, sizeof(one));
  watcher_.join();
}

void DeviceContext::Watch() {
  while (true) {
    std::array<pollfd, 2> fds = {
        {{device_->async_fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) {
      PLOG(ERROR) << "waiting for events of " << device_->name();
      return;
    }
    if (fds[1].revents != 0) return;
    if (fds[0].revents != 0 && PumpEvents() == 0 &&
        (fds[0].revents & POLLIN) == 0) {
      // The device was closed: no event will come any more.
      return;
    }
  }
}

int DeviceContext::PumpEvents() {
  int count = 0;
  while (const std::optional<AsyncEvent> event = device_->TakeAsyncEvent()) {
    ++count;
    LOG(INFO) << device_->name() << ": " << ibv_event_type_str(event->type)
              << (event->port != 0 ? absl::StrCat(", port ", event->port) : "");
    // First: a listener may open another device.
    if (event->type == IBV_EVENT_DEVICE_FATAL) dead_ = true;
    Tell(*event);
  }
  return count;
}

void DeviceContext::Tell(const AsyncEvent& event) {
  const std::thread::id self = std::this_thread::get_id();
  absl::MutexLock lock(&listeners_mu_);
  // Listeners come and go during the calls. A listener that was removed is not
  // called any more; a listener that was added does not get earlier events.
  const std::vector<DeviceListener*> told = listeners_;
  for (DeviceListener* listener : told) {
    if (std::find(listeners_.begin(), listeners_.end(), listener) ==
        listeners_.end()) {
      continue;
    }
    running_.push_back({listener, self});
    listeners_mu_.Unlock();
    listener->OnDeviceEvent(device_->name(), event);
    listeners_mu_.Lock();
    running_.erase(std::find_if(
        running_.begin(), running_.end(), [&](const RunningCall& call) {
          return call.listener == listener && call.thread == self;
        }));
  }
}

void DeviceContext::AddListener(DeviceListener* listener) {
  absl::MutexLock lock(&listeners_mu_);
  listeners_.push_back(listener);
}

void DeviceContext::RemoveListener(DeviceListener* listener) {
  const std::thread::id self = std::this_thread::get_id();
  absl::MutexLock lock(&listeners_mu_);
  std::erase(listeners_, listener);
  // Waits for calls on other threads only: a listener may remove itself, or be
  // destroyed, during its own call.
  const auto quiet = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(listeners_mu_) {
    return std::none_of(
        running_.begin(), running_.end(), [&](const RunningCall& call) {
          return call.listener == listener && call.thread != self;
        });
  };
  listeners_mu_.Await(absl::Condition(&quiet));
}

namespace {
std::atomic<DeviceRegistry*> g_instead_of_system = nullptr;
}  // namespace

DeviceRegistry& DeviceRegistry::System() {
  if (DeviceRegistry* const instead = g_instead_of_system) return *instead;
  static DeviceRegistry* const registry = new DeviceRegistry(SystemLibrary());
  return *registry;
}

void DeviceRegistry::ReplaceSystem(DeviceRegistry* registry) {
  g_instead_of_system = registry;
}

absl::StatusOr<std::shared_ptr<DeviceContext>> DeviceRegistry::Open(
    absl::string_view name) {
  absl::MutexLock lock(&mu_);
  // A dead context is never used again: the device is opened anew, in case it
  // came back.
  std::weak_ptr<DeviceContext>& open = open_[std::string(name)];
  if (std::shared_ptr<DeviceContext> context = open.lock();
      context != nullptr && !context->dead()) {
    return context;
  }
  REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, library_.Open(name));
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<DeviceContext> context,
                           DeviceContext::Create(std::move(device), events_));
  open = context;
  return context;
}

}  // namespace refract::transport::verbs

#include "transport/verbs/device_context.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/status_macros.h"
#include "transport/verbs/ibv_library.h"

namespace refract::transport::verbs {

struct DeviceContext::Registration {
  std::shared_ptr<const Mapping> memory;
  std::unique_ptr<MemoryRegion> region;  // goes first
};

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
    context->watcher_ =
        std::thread([watched = context.get()] { watched->Watch(); });
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
      // Closed under us: nothing will come any more.
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
    absl::MutexLock lock(&listeners_mu_);
    for (DeviceListener* listener : listeners_) {
      listener->OnDeviceEvent(device_->name(), *event);
    }
  }
  return count;
}

absl::StatusOr<std::shared_ptr<MemoryRegion>> DeviceContext::Register(
    const std::shared_ptr<const Mapping>& memory, int access) {
  absl::MutexLock lock(&registrations_mu_);
  std::weak_ptr<Registration>& known = registrations_[{memory.get(), access}];
  std::shared_ptr<Registration> registration = known.lock();
  if (registration == nullptr) {
    REFRACT_ASSIGN_OR_RETURN(
        std::unique_ptr<MemoryRegion> region,
        device_->Register(memory->data(), memory->size(), access));
    registration = std::make_shared<Registration>();
    registration->memory = memory;
    registration->region = std::move(region);
    known = registration;
  }
  // Those whose users have gone; there are as many as regions ever were, so
  // only now and then.
  std::erase_if(registrations_,
                [](const auto& entry) { return entry.second.expired(); });
  return std::shared_ptr<MemoryRegion>(registration,
                                       registration->region.get());
}

void DeviceContext::AddListener(DeviceListener* listener) {
  absl::MutexLock lock(&listeners_mu_);
  listeners_.push_back(listener);
}

void DeviceContext::RemoveListener(DeviceListener* listener) {
  absl::MutexLock lock(&listeners_mu_);
  listeners_.erase(std::remove(listeners_.begin(), listeners_.end(), listener),
                   listeners_.end());
}

DeviceRegistry& DeviceRegistry::System() {
  static DeviceRegistry* const registry = new DeviceRegistry(SystemLibrary());
  return *registry;
}

absl::StatusOr<std::shared_ptr<DeviceContext>> DeviceRegistry::Open(
    absl::string_view name) {
  absl::MutexLock lock(&mu_);
  std::weak_ptr<DeviceContext>& open = open_[std::string(name)];
  if (std::shared_ptr<DeviceContext> context = open.lock()) return context;
  REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, library_.Open(name));
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<DeviceContext> context,
                           DeviceContext::Create(std::move(device), events_));
  open = context;
  return context;
}

}  // namespace refract::transport::verbs

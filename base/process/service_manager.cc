#include "base/process/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace refract::base {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  ServiceManager manager;
  manager.socket_ = Environment("NOTIFY_SOCKET");
  if (manager.socket_.empty()) return manager;
  int64_t microseconds = 0;
  if (!absl::SimpleAtoi(Environment("WATCHDOG_USEC"), &microseconds) ||
      microseconds <= 0) {
    return manager;
  }
  // The watchdog of another process of the service is none of ours.
  const std::string pid = Environment("WATCHDOG_PID");
  if (pid.empty() || pid == absl::StrCat(getpid())) {
    manager.watchdog_ = absl::Microseconds(microseconds);
  }
  return manager;
}

void ServiceManager::Ready() const { Send("READY=1"); }

void ServiceManager::Stopping(absl::Duration longest) const {
  Send(absl::StrCat("STOPPING=1\nEXTEND_TIMEOUT_USEC=",
                    absl::ToInt64Microseconds(longest)));
}

int ServiceManager::WaitForSignal(ShutdownSignal& signal,
                                  absl::FunctionRef<bool()> lives) const {
  if (watchdog_ == absl::InfiniteDuration()) return signal.Wait();
  while (true) {
    // Half the period, as sd_watchdog_enabled(3) recommends. No message while
    // the daemon does not live: the manager then restarts it.
    if (lives()) Send("WATCHDOG=1");
    if (const int number = signal.WaitFor(watchdog_ / 2); number != 0) {
      return number;
    }
  }
}

void ServiceManager::Send(const std::string& text) const {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket_.empty() || socket_.size() >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  // Linux: the first byte of an abstract name is 0.
  if (socket_[0] == '@') address.sun_path[0] = '\0';
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  // A message that is lost costs at most a restart by the manager.
  sendto(
      fd, text.data(), text.size(), MSG_NOSIGNAL,
      reinterpret_cast<const sockaddr*>(&address),
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size()));
  close(fd);
}

}  // namespace refract::base

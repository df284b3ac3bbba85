#ifndef REFRACT_BASE_PROCESS_SERVICE_MANAGER_H_
#define REFRACT_BASE_PROCESS_SERVICE_MANAGER_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/process/shutdown_signal.h"

namespace refract::base {

// Reports a daemon's state to systemd by the protocol of sd_notify(3):
// datagrams of "KEY=value" to the socket that the environment names. Without
// such a socket the methods do nothing. Never waits for an unreachable manager.
class ServiceManager {
 public:
  // From NOTIFY_SOCKET (a path, or "@" and an abstract name), WATCHDOG_USEC and
  // WATCHDOG_PID, which sd_watchdog_enabled(3) describes.
  static ServiceManager FromEnvironment();

  // The daemon serves now; systemd then counts units of Type=notify as started.
  void Ready() const;
  // The daemon stops within `longest`; the manager waits that long.
  void Stopping(absl::Duration longest) const;

  // Waits for a signal and returns its number. If the manager has a watchdog,
  // calls `lives` twice in each of its periods, and reports to the manager if
  // the result is true: the manager restarts a daemon that does not report.
  int WaitForSignal(ShutdownSignal& signal,
                    absl::FunctionRef<bool()> lives) const;

 private:
  void Send(const std::string& text) const;

  std::string socket_;  // empty: no manager
  absl::Duration watchdog_ = absl::InfiniteDuration();
};

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_SERVICE_MANAGER_H_

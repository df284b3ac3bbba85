#ifndef REFRACT_BASE_PROCESS_SERVICE_MANAGER_H_
#define REFRACT_BASE_PROCESS_SERVICE_MANAGER_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/process/shutdown_signal.h"

namespace refract::base {

// Tells systemd how a daemon is, by the protocol of sd_notify(3): datagrams of
// "KEY=value" to the socket that the environment names. Without such a socket
// every call does nothing. A manager that cannot be reached is not waited for.
class ServiceManager {
 public:
  // From NOTIFY_SOCKET (a path, or "@" and an abstract name), WATCHDOG_USEC and
  // WATCHDOG_PID, which sd_watchdog_enabled(3) describes.
  static ServiceManager FromEnvironment();

  // The daemon serves. Units of Type=notify are started from now on.
  void Ready() const;
  // The daemon stops, in `longest` at most; the manager waits as long.
  void Stopping(absl::Duration longest) const;

  // Waits for a signal and returns its number. Where the manager has a
  // watchdog, asks `lives` twice in each of its periods, and tells the manager
  // if the answer is true: a daemon that does not live is started again.
  int WaitForSignal(ShutdownSignal& signal,
                    absl::FunctionRef<bool()> lives) const;

 private:
  void Send(const std::string& text) const;

  std::string socket_;  // empty: there is no manager
  absl::Duration watchdog_ = absl::InfiniteDuration();
};

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_SERVICE_MANAGER_H_

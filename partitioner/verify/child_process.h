#ifndef REFRACT_PARTITIONER_VERIFY_CHILD_PROCESS_H_
#define REFRACT_PARTITIONER_VERIFY_CHILD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/loop/fd.h"

namespace refract::partitioner {

// A daemon that this process started and that does not outlive it: killed by
// the destructor, and by the kernel if this process dies first. Signals of the
// terminal do not reach it. Belongs to the thread that started it.
class ChildProcess {
 public:
  // Runs `arguments` (the program's path first); its standard error goes to the
  // file `log`. AwaitAddress() reports errors of exec().
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::vector<std::string>& arguments, const std::string& log);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // HOST:PORT of the line "… listening on HOST:PORT" that Refract's daemons
  // print. Unavailable: the daemon ended before, or printed no line in time.
  // Cancelled: InterruptGuard.
  absl::StatusOr<std::string> AwaitAddress(absl::Duration timeout);

  // Unavailable if the daemon has ended, with its exit status or signal.
  absl::Status CheckAlive();

  pid_t pid() const { return pid_; }
  // The text of its log so far.
  std::string Log() const;

 private:
  ChildProcess(pid_t pid, std::string program, std::string log,
               transport::UniqueFd output);

  const pid_t pid_;
  const std::string program_;
  const std::string log_;
  const transport::UniqueFd output_;  // its standard output
  std::string printed_;
  bool ended_ = false;  // and waited for
  std::string how_;
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_CHILD_PROCESS_H_

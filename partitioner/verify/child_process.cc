#include "partitioner/verify/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "partitioner/verify/interrupt.h"

namespace refract::partitioner {
namespace {

// Interval of the checks that the child lives and the user has not interrupted.
constexpr int kPollMs = 50;
// Exit status of a program that cannot be run, as shells use it.
constexpr int kExecFailed = 127;

// Runs in the child. Nothing here may take a lock or allocate, because other
// threads of the parent may have held the locks at the fork.
[[noreturn]] void Exec(char* const* arguments, int output, int log,
                       pid_t parent) {
  // The child ends with its parent. The parent may have ended before prctl():
  // then getppid() names another process.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExecFailed);
  // A process group of its own: Ctrl-C at the terminal reaches the parent
  // alone, which ends the child.
  setpgid(0, 0);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    signal(number, SIG_DFL);
  }
  // Handlers of the parent do not survive execv(), but ignored and blocked
  // signals do.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int input = open("/dev/null", O_RDONLY);
  if (input < 0 || dup2(input, STDIN_FILENO) < 0 ||
      dup2(output, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0) {
    _exit(kExecFailed);
  }
  execv(arguments[0], arguments);
  _exit(kExecFailed);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& arguments, const std::string& log) {
  int ends[2];
  // Closed at execv() in this child, and in children that other threads start.
  // dup2() makes copies that stay open.
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return transport::ErrnoStatus(errno, "pipe2");
  }
  transport::UniqueFd output(ends[0]);
  const transport::UniqueFd childs_output(ends[1]);
  const transport::UniqueFd log_file(
      open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (log_file.get() < 0) return transport::ErrnoStatus(errno, log);
  // Allocated before the fork, because the child must not allocate.
  std::vector<char*> raw;
  for (const std::string& argument : arguments) {
    raw.push_back(const_cast<char*>(argument.c_str()));
  }
  raw.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return transport::ErrnoStatus(errno, "fork");
  if (child == 0) {
    Exec(raw.data(), childs_output.get(), log_file.get(), parent);
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(child, arguments[0], log, std::move(output)));
}

ChildProcess::ChildProcess(pid_t pid, std::string program, std::string log,
                           transport::UniqueFd output)
    : pid_(pid),
      program_(std::filesystem::path(program).filename()),
      log_(std::move(log)),
      output_(std::move(output)) {}

ChildProcess::~ChildProcess() {
  if (ended_) return;
  // SIGKILL is safe: the daemon has no other client and no files of its own.
  kill(pid_, SIGKILL);
  int status;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

absl::Status ChildProcess::CheckAlive() {
  if (!ended_) {
    int status = 0;
    // The child is reaped once. Later calls repeat how it ended, and the
    // destructor does not signal a process id that may be another process by
    // then.
    if (waitpid(pid_, &status, WNOHANG) != pid_) return absl::OkStatus();
    ended_ = true;
    if (WIFSIGNALED(status)) {
      how_ = absl::StrCat("signal ", WTERMSIG(status));
    } else if (WEXITSTATUS(status) == kExecFailed) {
      how_ = "the program could not be started";
    } else {
      how_ = absl::StrCat("exit status ", WEXITSTATUS(status));
    }
  }
  return absl::UnavailableError(absl::StrCat(program_, " has ended: ", how_));
}

absl::StatusOr<std::string> ChildProcess::AwaitAddress(absl::Duration timeout) {
  const std::string before = "listening on ";
  base::Clock& clock = base::Clock::Real();
  const absl::Time deadline = clock.Now() + timeout;
  while (clock.Now() < deadline) {
    REFRACT_RETURN_IF_ERROR(InterruptGuard::Check());
    // A daemon prints "listening on HOST:PORT" when it accepts connections. The
    // line may arrive in pieces.
    const size_t at = printed_.find(before);
    const size_t end = at == std::string::npos ? at : printed_.find('\n', at);
    if (end != std::string::npos) {
      return printed_.substr(at + before.size(), end - at - before.size());
    }
    // At the end of the pipe poll() returns at once and read() gives 0; then
    // CheckAlive() says how the child ended.
    pollfd fd = {output_.get(), POLLIN, 0};
    char bytes[256];
    const ssize_t got = poll(&fd, 1, kPollMs) == 1
                            ? read(output_.get(), bytes, sizeof(bytes))
                            : 0;
    if (got > 0) {
      printed_.append(bytes, static_cast<size_t>(got));
    } else {
      REFRACT_RETURN_IF_ERROR(CheckAlive());
    }
  }
  return absl::UnavailableError(absl::StrCat(program_,
                                             " did not start to listen within ",
                                             absl::FormatDuration(timeout)));
}

std::string ChildProcess::Log() const {
  return base::ReadText(log_).value_or("");
}

}  // namespace refract::partitioner

#include "tools/transport_meter/peer_process.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/loop/fd.h"

namespace refract::transport_meter {
namespace {

struct Command {
  enum class Kind : uint8_t { kOpen, kRun, kClose };
  Kind kind = Kind::kOpen;
  size_t subject = 0;
  Work work;
};
static_assert(std::is_trivially_copyable_v<Command>);

std::string Encode(const Command& command) {
  return std::string(reinterpret_cast<const char*>(&command), sizeof(command));
}

// Runs in the child.
class Responder {
 public:
  Responder(const std::vector<Measured>& subjects, Control control)
      : subjects_(subjects),
        control_(std::move(control)),
        sessions_(subjects.size()) {}

  // Returns when the parent is gone.
  void Serve() {
    while (true) {
      const absl::StatusOr<std::string> text = control_.Receive();
      // The initiator is still busy with its own step.
      if (absl::IsDeadlineExceeded(text.status())) continue;
      if (!text.ok() || text->size() != sizeof(Command)) return;
      Command command;
      std::memcpy(static_cast<void*>(&command), text->data(), sizeof(command));
      if (!Obey(command).ok()) return;
    }
  }

 private:
  absl::Status Obey(const Command& command) {
    std::unique_ptr<Session>& session = sessions_[command.subject];
    switch (command.kind) {
      case Command::Kind::kOpen: {
        // Both sides open and tell each other the result; the session is kept
        // only if both succeeded.
        absl::StatusOr<std::unique_ptr<Session>> opened =
            subjects_[command.subject].subject->Open(
                {Side::kResponder, command.work, &control_});
        REFRACT_RETURN_IF_ERROR(control_.SendStatus(opened.status()));
        // The initiator's part may have failed.
        const absl::Status both = control_.ReceiveStatus();
        if (opened.ok() && both.ok()) session = *std::move(opened);
        return absl::OkStatus();
      }
      case Command::Kind::kRun: {
        absl::Status ready = session == nullptr
                                 ? absl::FailedPreconditionError("not open")
                                 : session->Prepare(command.work);
        REFRACT_RETURN_IF_ERROR(control_.SendStatus(ready));
        if (!ready.ok()) return absl::OkStatus();
        Recorder ignored(0);
        const absl::Status done = session->Run(command.work, ignored);
        if (!done.ok()) session.reset();
        return control_.SendStatus(done);
      }
      case Command::Kind::kClose:
        session.reset();
        return absl::OkStatus();
    }
    return absl::InternalError("unknown command");
  }

  const std::vector<Measured>& subjects_;
  Control control_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

[[noreturn]] void RunChild(const std::vector<Measured>& subjects,
                           Control control, int cpu, pid_t parent) {
  // Without a parent, nothing would end a spinning child.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const auto pinned = PinnedThread::Pin(cpu);
  if (!control.SendStatus(pinned.status()).ok() || !pinned.ok()) _exit(1);
  Responder(subjects, std::move(control)).Serve();
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PinnedThread>> PinnedThread::Pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return transport::ErrnoStatus(errno, "sched_getaffinity");
  }
  std::vector<int> before;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) before.push_back(i);
  }
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    return transport::ErrnoStatus(errno, absl::StrCat("processor ", cpu));
  }
  return std::unique_ptr<PinnedThread>(new PinnedThread(std::move(before)));
}

PinnedThread::~PinnedThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : before_) CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

absl::StatusOr<std::unique_ptr<PeerProcess>> PeerProcess::Start(
    const std::vector<Measured>* subjects, int cpu) {
  REFRACT_ASSIGN_OR_RETURN(auto ends, Control::MakePair());
  // Before the fork, so that the child does not measure it again.
  Ticks::PerNanosecond();
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return transport::ErrnoStatus(errno, "fork");
  if (child == 0) {
    // A copy of the parent's end would keep the connection open.
    { const Control parents = std::move(ends.first); }
    RunChild(*subjects, std::move(ends.second), cpu, parent);
  }
  std::unique_ptr<PeerProcess> process(
      new PeerProcess(subjects, child, std::move(ends.first)));
  // This end would keep the connection open after the child's end.
  { const Control childs = std::move(ends.second); }
  REFRACT_RETURN_IF_ERROR(process->control_.ReceiveStatus());
  return process;
}

PeerProcess::PeerProcess(const std::vector<Measured>* subjects, pid_t child,
                         Control control)
    : subjects_(subjects),
      child_(child),
      control_(std::move(control)),
      sessions_(subjects->size()) {}

PeerProcess::~PeerProcess() {
  // The peer process holds no state that needs an orderly end.
  kill(child_, SIGKILL);
  int status;
  while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
}

absl::Status PeerProcess::Open(size_t index, const Work& work) {
  REFRACT_RETURN_IF_ERROR(
      control_.Send(Encode({Command::Kind::kOpen, index, work})));
  absl::StatusOr<std::unique_ptr<Session>> opened =
      (*subjects_)[index].subject->Open({Side::kInitiator, work, &control_});
  REFRACT_RETURN_IF_ERROR(control_.SendStatus(opened.status()));
  const absl::Status peer = control_.ReceiveStatus();
  if (opened.ok() && peer.ok()) {
    sessions_[index] = *std::move(opened);
    return absl::OkStatus();
  }
  return opened.ok() ? peer : opened.status();
}

absl::Status PeerProcess::Run(size_t index, const Work& work,
                              Recorder& recorder) {
  std::unique_ptr<Session>& session = sessions_[index];
  if (session == nullptr) return absl::FailedPreconditionError("not open");
  REFRACT_RETURN_IF_ERROR(
      control_.Send(Encode({Command::Kind::kRun, index, work})));
  absl::Status own = session->Prepare(work);
  absl::Status peer = control_.ReceiveStatus();
  if (peer.ok()) {
    if (own.ok()) own = session->Run(work, recorder);
    // Lets the peer see at once that nothing more will come.
    if (!own.ok()) session.reset();
    peer = control_.ReceiveStatus();
  }
  // Wrong bytes that the peer found count more than this side's own error,
  // which is usually a consequence: the peer left.
  const absl::Status status = absl::IsDataLoss(peer) || own.ok() ? peer : own;
  // Data of a broken run may still be on the way, so the connection is not used
  // again.
  if (!status.ok()) Close(index);
  return status;
}

void PeerProcess::Close(size_t index) {
  sessions_[index].reset();
  // A child that is gone is found at the next step.
  control_.Send(Encode({Command::Kind::kClose, index, {}})).IgnoreError();
}

}  // namespace refract::transport_meter

#include "tools/bench_serving/worker_processes.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace refract::tools {
namespace {

// Time from the order to the first query: by then all processes have read the
// order and asked for the server's statistics.
constexpr absl::Duration kStartDelay = absl::Milliseconds(200);

class OneProcess final : public LoadSource {
 public:
  OneProcess(const ServingOptions& options, std::ostream& out)
      : worker_(options, out, 0, 1) {}

  absl::Status Connect() override { return worker_.Connect(); }
  absl::Duration duration() const override { return worker_.duration(); }
  double qps() const override { return worker_.qps(); }
  absl::StatusOr<LoadRun> Run(double qps) override {
    REFRACT_RETURN_IF_ERROR(worker_.Prepare(qps));
    return worker_.Run(absl::InfinitePast());
  }
  absl::Status WriteRecords() override { return worker_.WriteRecords(); }

 private:
  LoadWorker worker_;
};

bool WriteAll(int file, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool ReadAll(int file, char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t count = read(file, bytes, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

// An order to a child. Its number is a rate, or a time of the steady clock,
// which all processes of a machine share.
enum class Command : int64_t { kConnect, kPrepare, kRun, kWriteRecords };
struct Order {
  Command command;
  double qps = 0;
  int64_t start_ns = 0;
};

// Before the text of an answer: a message of a failed status, the notes of
// kConnect, or the run of kRun.
struct AnswerHead {
  int64_t code = 0;
  double qps = 0;
  int64_t duration_ns = 0;
  uint64_t bytes = 0;
};

// Runs a child: follows orders until the pipe ends.
void Serve(const ServingOptions& options, int part, int orders, int answers) {
  std::ostringstream notes;
  LoadWorker worker(options, notes, part, options.processes);
  Order order;
  while (ReadAll(orders, reinterpret_cast<char*>(&order), sizeof(order))) {
    absl::Status status;
    std::string text;
    switch (order.command) {
      case Command::kConnect:
        status = worker.Connect();
        text = notes.str();
        break;
      case Command::kPrepare:
        status = worker.Prepare(order.qps);
        break;
      case Command::kRun:
        text = EncodeRun(
            worker.Run(absl::UnixEpoch() + absl::Nanoseconds(order.start_ns)));
        break;
      case Command::kWriteRecords:
        status = worker.WriteRecords();
        break;
    }
    if (!status.ok()) text = std::string(status.message());
    const AnswerHead head = {
        .code = static_cast<int64_t>(status.code()),
        .qps = worker.qps(),
        .duration_ns = absl::ToInt64Nanoseconds(worker.duration()),
        .bytes = text.size()};
    if (!WriteAll(answers,
                  {reinterpret_cast<const char*>(&head), sizeof(head)}) ||
        !WriteAll(answers, text)) {
      return;
    }
  }
}

class ChildProcesses final : public LoadSource {
 public:
  ChildProcesses(const ServingOptions& options, std::ostream& out)
      : options_(options), out_(out) {}
  ~ChildProcesses() override;

  absl::Status Connect() override;
  absl::Duration duration() const override { return duration_; }
  double qps() const override { return qps_; }
  absl::StatusOr<LoadRun> Run(double qps) override;
  absl::Status WriteRecords() override {
    REFRACT_RETURN_IF_ERROR(Tell(children_[0], {Command::kWriteRecords}));
    return Hear(children_[0]).status();
  }

 private:
  struct Child {
    pid_t pid = -1;
    int orders = -1;   // written
    int answers = -1;  // read
  };

  absl::Status Fork(int part);
  static absl::Status Gone(const Child& child) {
    return absl::UnavailableError(
        absl::StrCat("generator process ", child.pid, " ended"));
  }
  static absl::Status Tell(const Child& child, const Order& order) {
    return WriteAll(child.orders, {reinterpret_cast<const char*>(&order),
                                   sizeof(order)})
               ? absl::OkStatus()
               : Gone(child);
  }
  // The text of the answer.
  absl::StatusOr<std::string> Hear(const Child& child);
  absl::StatusOr<std::vector<std::string>> Ask(const Order& order);

  const ServingOptions& options_;
  std::ostream& out_;
  std::vector<Child> children_;
  absl::Duration duration_;
  double qps_ = 0;
};

// Without orders a child ends.
ChildProcesses::~ChildProcesses() {
  for (const Child& child : children_) {
    close(child.orders);
    close(child.answers);
  }
  for (const Child& child : children_) waitpid(child.pid, nullptr, 0);
}

absl::Status ChildProcesses::Fork(int part) {
  int orders[2], answers[2];
  if (pipe(orders) != 0) return absl::InternalError("pipe failed");
  if (pipe(answers) != 0) {
    close(orders[0]);
    close(orders[1]);
    return absl::InternalError("pipe failed");
  }
  out_.flush();
  // The child inherits text that is still buffered, and would write it again.
  std::cout.flush();
  const pid_t pid = fork();
  if (pid == 0) {
    // Copies of the other children's pipe ends would keep those pipes open after
    // the parent has closed them.
    for (const Child& child : children_) {
      close(child.orders);
      close(child.answers);
    }
    close(orders[1]);
    close(answers[0]);
    Serve(options_, part, orders[0], answers[1]);
    _exit(0);
  }
  close(orders[0]);
  close(answers[1]);
  if (pid < 0) {
    close(orders[1]);
    close(answers[0]);
    return absl::ResourceExhaustedError(
        absl::StrCat("--processes: fork failed: ", std::strerror(errno)));
  }
  children_.push_back({.pid = pid, .orders = orders[1], .answers = answers[0]});
  return absl::OkStatus();
}

absl::StatusOr<std::string> ChildProcesses::Hear(const Child& child) {
  AnswerHead head;
  if (!ReadAll(child.answers, reinterpret_cast<char*>(&head), sizeof(head))) {
    return Gone(child);
  }
  std::string text(head.bytes, '\0');
  if (!ReadAll(child.answers, text.data(), text.size())) return Gone(child);
  if (head.code != 0) {
    return absl::Status(static_cast<absl::StatusCode>(head.code), text);
  }
  qps_ = head.qps;
  duration_ = absl::Nanoseconds(head.duration_ns);
  return text;
}

absl::StatusOr<std::vector<std::string>> ChildProcesses::Ask(
    const Order& order) {
  for (const Child& child : children_) {
    REFRACT_RETURN_IF_ERROR(Tell(child, order));
  }
  // All children first hear the order and then work at the same time. Every
  // answer is read even after an error: an unread answer would be taken for the
  // next one.
  std::vector<std::string> texts;
  absl::Status first_error;
  for (const Child& child : children_) {
    absl::StatusOr<std::string> text = Hear(child);
    if (!text.ok()) {
      first_error.Update(text.status());
      continue;
    }
    texts.push_back(*std::move(text));
  }
  REFRACT_RETURN_IF_ERROR(first_error);
  return texts;
}

absl::Status ChildProcesses::Connect() {
  // A child that ended must not end this process.
  std::signal(SIGPIPE, SIG_IGN);
  for (int part = 0; part < options_.processes; ++part) {
    REFRACT_RETURN_IF_ERROR(Fork(part));
  }
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> notes,
                           Ask({Command::kConnect}));
  out_ << notes.front();
  return absl::OkStatus();
}

absl::StatusOr<LoadRun> ChildProcesses::Run(double qps) {
  REFRACT_RETURN_IF_ERROR(
      Ask({.command = Command::kPrepare, .qps = qps}).status());
  // Preparation may take long, so the common start is chosen when all children
  // are prepared.
  const absl::Time start = base::Clock::Real().Now() + kStartDelay;
  REFRACT_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      Ask({.command = Command::kRun,
           .start_ns = absl::ToInt64Nanoseconds(start - absl::UnixEpoch())}));
  std::vector<LoadRun> runs;
  for (const std::string& text : texts) {
    REFRACT_ASSIGN_OR_RETURN(LoadRun run, DecodeRun(text));
    runs.push_back(std::move(run));
  }
  return MergeRuns(std::move(runs));
}

}  // namespace

std::unique_ptr<LoadSource> LoadSource::Create(const ServingOptions& options,
                                               std::ostream& out) {
  if (options.processes > 1) {
    return std::make_unique<ChildProcesses>(options, out);
  }
  return std::make_unique<OneProcess>(options, out);
}

}  // namespace refract::tools

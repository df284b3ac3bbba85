#include "tools/run/reference.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

extern char** environ;

namespace refract::tools {
namespace {

// Most bytes of a process's stderr that are kept: enough for a traceback.
constexpr size_t kMaxErrorBytes = 64 << 10;

// Runs models.zoo.reference of the folder in argv[1], whatever other package
// `models` the working folder may hold.
constexpr char kBootstrap[] =
    "import runpy, sys; sys.path[0] = sys.argv.pop(1); "
    "runpy.run_module('models.zoo.reference', run_name='__main__', "
    "alter_sys=True)";

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string Interpreter() {
  std::string python = Environment("REFRACT_PYTHON");
  if (!python.empty()) return python;
  std::error_code error;
  if (std::filesystem::exists(REFRACT_TORCH_PYTHON, error)) {
    return REFRACT_TORCH_PYTHON;
  }
  return "python3";
}

// The folder that holds models/zoo/reference.py.
absl::StatusOr<std::string> ScriptRoot() {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path installed =
      program.parent_path().parent_path() / "share" / "refract";
  for (const std::filesystem::path& root :
       {std::filesystem::path(Environment("REFRACT_SOURCE_DIR")), installed,
        std::filesystem::path(REFRACT_BUILT_FROM)}) {
    if (!root.empty() &&
        std::filesystem::exists(root / "models/zoo/reference.py", error)) {
      return root.string();
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("reference mode needs models/zoo/reference.py: neither in ",
                   installed.string(), " nor in ", REFRACT_BUILT_FROM,
                   "; set REFRACT_SOURCE_DIR to a checkout"));
}

std::string LastLine(absl::string_view text) {
  std::string last;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view stripped = absl::StripAsciiWhitespace(line);
    if (!stripped.empty()) last = std::string(stripped);
  }
  return last;
}

// Begins the lines of --report: "loaded", then for each request "ok" or
// "failed: …".
constexpr absl::string_view kReport = "refract-reference: ";

struct Ended {
  int wait_status = 0;
  std::string errors;  // stderr but for the report, its last kMaxErrorBytes
  bool loaded = false;
  std::vector<absl::Status> requests;  // that were reported
};

void TakeLine(absl::string_view line, Ended& ended) {
  if (!absl::ConsumePrefix(&line, kReport)) {
    absl::StrAppend(&ended.errors, line, "\n");
    // Only at twice the limit: erasing moves the rest of the text.
    if (ended.errors.size() > 2 * kMaxErrorBytes) {
      ended.errors.erase(0, ended.errors.size() - kMaxErrorBytes);
    }
  } else if (line == "loaded") {
    ended.loaded = true;
  } else if (absl::ConsumePrefix(&line, "failed: ")) {
    ended.requests.push_back(absl::InvalidArgumentError(line));
  } else {
    ended.requests.push_back(absl::OkStatus());
  }
}

void ReadAll(int fd, Ended& ended) {
  std::string text;
  char buffer[4096];
  // The report's lines and Python's own messages come mixed on stderr. A line
  // is taken as soon as it is complete, and an endless line without a break is
  // dropped, so that memory stays bounded whatever the process writes.
  while (true) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end = text.find('\n'); end != std::string::npos;
         end = text.find('\n', begin)) {
      TakeLine(absl::string_view(text).substr(begin, end - begin), ended);
      begin = end + 1;
    }
    text.erase(0, begin);
    if (text.size() > kMaxErrorBytes) text.clear();  // no line of words
  }
  if (!text.empty()) TakeLine(text, ended);
}

absl::StatusOr<Ended> RunProcess(const std::vector<std::string>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const absl::Cleanup destroy_actions = [&actions] {
    posix_spawn_file_actions_destroy(&actions);
  };
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                   O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& part : command) {
    argv.push_back(const_cast<char*>(part.c_str()));
  }
  argv.push_back(nullptr);
  pid_t child = 0;
  const int failure =
      posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  // The child alone holds the writing end now: reading ends when the child
  // does.
  close(ends[1]);
  if (failure != 0) {
    close(ends[0]);
    return absl::FailedPreconditionError(absl::StrCat(
        "reference mode needs Python with PyTorch: cannot start ", command[0],
        ": ", std::strerror(failure), " (REFRACT_PYTHON names another)"));
  }
  Ended ended;
  ReadAll(ends[0], ended);
  close(ends[0]);
  while (waitpid(child, &ended.wait_status, 0) < 0) {
    if (errno != EINTR) {
      return absl::InternalError(
          absl::StrCat("waitpid: ", std::strerror(errno)));
    }
  }
  return ended;
}

// Why a process that did not succeed ended.
absl::Status EndOf(const Ended& ended) {
  if (WIFSIGNALED(ended.wait_status)) {
    return absl::InternalError(
        absl::StrCat("the reference process was killed by signal ",
                     WTERMSIG(ended.wait_status),
                     "; PyTorch does not check every size and offset of a "
                     "request: --mode whole says which are wrong"));
  }
  const int exit_status = WEXITSTATUS(ended.wait_status);
  std::string line = LastLine(ended.errors);
  if (line.empty()) {
    line =
        absl::StrCat("the reference process ended with status ", exit_status);
  }
  return exit_status == 2 ? absl::InvalidArgumentError(line)
                          : absl::InternalError(line);
}

}  // namespace

absl::StatusOr<std::vector<absl::Status>> RunReference(
    const ReferenceRun& run) {
  REFRACT_ASSIGN_OR_RETURN(std::string root, ScriptRoot());
  std::vector<std::string> command = {Interpreter(),  "-c",
                                      kBootstrap,     std::move(root),
                                      run.model_file, "--report"};
  if (!run.tables_dir.empty()) {
    command.insert(command.end(), {"--tables", run.tables_dir});
  }
  for (const std::string& library : run.op_libraries) {
    command.insert(command.end(), {"--op-library", library});
  }
  std::vector<absl::Status> requests;
  // PyTorch may crash on a request that is malformed. Each process takes all
  // requests that are left and reports them one by one. If it ends early, the
  // request after the last reported one is charged with the end, and a further
  // process takes the rest. A process that ends before it has loaded the model
  // would do so again.
  while (requests.size() < run.inputs.size()) {
    std::vector<std::string> process = command;
    for (size_t i = requests.size(); i < run.inputs.size(); ++i) {
      process.insert(process.end(),
                     {"--inputs", run.inputs[i], "--outputs", run.outputs[i]});
    }
    REFRACT_ASSIGN_OR_RETURN(Ended ended, RunProcess(process));
    const bool complete =
        requests.size() + ended.requests.size() >= run.inputs.size();
    for (absl::Status& status : ended.requests) {
      requests.push_back(std::move(status));
    }
    if (complete) continue;
    const absl::Status end = EndOf(ended);
    if (!ended.loaded) return end;
    // The request that was under way.
    requests.push_back(base::Annotate(end, run.inputs[requests.size()]));
  }
  return requests;
}

}  // namespace refract::tools

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
#include "base/status_macros.h"

extern char** environ;

namespace refract::tools {
namespace {

// What a process had to say: enough for a traceback, bounded against floods.
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

// Reads to the end; keeps the last kMaxErrorBytes.
std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > 2 * kMaxErrorBytes) {
      text.erase(0, text.size() - kMaxErrorBytes);
    }
  }
  return text;
}

struct Ended {
  int wait_status = 0;
  std::string errors;  // stderr
};

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
  close(ends[1]);
  if (failure != 0) {
    close(ends[0]);
    return absl::FailedPreconditionError(absl::StrCat(
        "reference mode needs Python with PyTorch: cannot start ", command[0],
        ": ", std::strerror(failure), " (REFRACT_PYTHON names another)"));
  }
  Ended ended;
  ended.errors = ReadAll(ends[0]);
  close(ends[0]);
  while (waitpid(child, &ended.wait_status, 0) < 0) {
    if (errno != EINTR) {
      return absl::InternalError(
          absl::StrCat("waitpid: ", std::strerror(errno)));
    }
  }
  return ended;
}

}  // namespace

absl::Status RunReference(const ReferenceRun& run) {
  REFRACT_ASSIGN_OR_RETURN(std::string root, ScriptRoot());
  std::vector<std::string> command = {Interpreter(), "-c", kBootstrap,
                                      std::move(root), run.model_file};
  if (!run.tables_dir.empty()) {
    command.insert(command.end(), {"--tables", run.tables_dir});
  }
  for (const std::string& library : run.op_libraries) {
    command.insert(command.end(), {"--op-library", library});
  }
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    command.insert(command.end(),
                   {"--inputs", run.inputs[i], "--outputs", run.outputs[i]});
  }
  REFRACT_ASSIGN_OR_RETURN(const Ended ended, RunProcess(command));
  if (WIFSIGNALED(ended.wait_status)) {
    return absl::InternalError(
        absl::StrCat("the reference process was killed by signal ",
                     WTERMSIG(ended.wait_status),
                     "; PyTorch does not check every size and offset of a "
                     "request: --mode whole says which are wrong"));
  }
  const int exit_status = WEXITSTATUS(ended.wait_status);
  if (exit_status == 0) return absl::OkStatus();
  std::string line = LastLine(ended.errors);
  if (line.empty()) {
    line =
        absl::StrCat("the reference process ended with status ", exit_status);
  }
  return exit_status == 2 ? absl::InvalidArgumentError(line)
                          : absl::InternalError(line);
}

}  // namespace refract::tools

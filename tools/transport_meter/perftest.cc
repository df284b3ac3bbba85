#include "tools/transport_meter/perftest.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "tools/transport_meter/control.h"
#include "transport/loop/fd.h"
#include "transport/loop/socket.h"

#if REFRACT_HAVE_VERBS
#include "transport/verbs/device/device_choice.h"
#include "transport/verbs/device/ibv_library.h"
#endif

extern char** environ;

namespace refract::transport_meter {
namespace {

using transport::UniqueFd;

constexpr double kMegabyte = 1 << 20;
// Longer than a measurement in an emulated machine takes.
constexpr absl::Duration kPerftestPatience = absl::Seconds(100);
// The client gives up at once if its server does not listen yet; starting a
// server takes a second in an emulated machine.
constexpr int kConnectTries = 60;
constexpr absl::Duration kBetweenTries = absl::Milliseconds(100);
// As the data path's (transport/verbs/options.h).
constexpr int kInlineBytes = 220;
// The programs refuse fewer iterations.
constexpr int kMinIterations = 5;

bool IsBandwidth(const std::string& program) {
  return absl::EndsWith(program, "_bw");
}

bool ReportsHalves(const std::string& program) {
  return program == "ib_send_lat" || program == "ib_write_lat";
}

// A program and its output. Killed if it still runs at the end.
class Program {
 public:
  static absl::StatusOr<std::unique_ptr<Program>> Start(
      const std::vector<std::string>& arguments) {
    std::array<int, 2> ends;
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      return transport::ErrnoStatus(errno, "pipe");
    }
    UniqueFd output(ends[0]);
    const UniqueFd input(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, input.get(), STDERR_FILENO);
    std::vector<char*> argv;
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    pid_t child = 0;
    const int error =
        posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) return transport::ErrnoStatus(error, arguments[0]);
    return std::unique_ptr<Program>(new Program(child, std::move(output)));
  }
  ~Program() {
    if (child_ > 0) kill(child_, SIGKILL);
    Wait();
  }

  // All output until its end. Unavailable: it failed, with the last line;
  // DeadlineExceeded: it did not end.
  absl::StatusOr<std::string> Finish() {
    std::string text;
    const absl::Time deadline = base::Clock::Real().Now() + kPerftestPatience;
    std::array<char, 4096> buffer;
    while (true) {
      const absl::Duration left = deadline - base::Clock::Real().Now();
      pollfd fd = {output_.get(), POLLIN, 0};
      const int ready =
          poll(&fd, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
      if (left <= absl::ZeroDuration() || ready == 0) {
        return absl::DeadlineExceededError("perftest does not end");
      }
      if (ready < 0) continue;  // a signal
      const ssize_t got = read(fd.fd, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      text.append(buffer.data(), static_cast<size_t>(got));
    }
    const int status = Wait();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
    const std::vector<std::string> lines =
        absl::StrSplit(text, '\n', absl::SkipWhitespace());
    return absl::UnavailableError(
        absl::StrCat("perftest failed: ", lines.empty() ? "" : lines.back()));
  }

 private:
  Program(pid_t child, UniqueFd output)
      : child_(child), output_(std::move(output)) {}
  int Wait() {
    int status = 0;
    if (child_ <= 0) return status;
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    child_ = 0;
    return status;
  }

  pid_t child_;
  const UniqueFd output_;
};

class PerftestSession : public Session {
 public:
  PerftestSession(Side side, std::string program, VerbsPort port, int tcp_port)
      : side_(side),
        program_(std::move(program)),
        port_(std::move(port)),
        tcp_port_(tcp_port) {}

  absl::Status Run(const Work& work, Recorder& recorder) override {
    // perftest cannot check payloads.
    if (work.verify) return absl::OkStatus();
    const std::vector<std::string> arguments = Arguments(work);
    absl::StatusOr<std::string> output = RunOnce(arguments);
    // The responder's program may not listen yet; its client then fails at
    // once.
    for (int i = 1; side_ == Side::kInitiator && i < kConnectTries &&
                    absl::IsUnavailable(output.status());
         ++i) {
      absl::SleepFor(kBetweenTries);
      output = RunOnce(arguments);
    }
    REFRACT_RETURN_IF_ERROR(output.status());
    if (side_ == Side::kResponder) return absl::OkStatus();
    REFRACT_ASSIGN_OR_RETURN(const Figures figures,
                             ParsePerftest(program_, *output));
    recorder.Report(figures);
    return absl::OkStatus();
  }

 private:
  std::vector<std::string> Arguments(const Work& work) const {
    std::vector<std::string> arguments = {
        program_, "-F",
        "-d",     port_.device,
        "-i",     absl::StrCat(port_.port),
        "-x",     absl::StrCat(port_.gid_index),
        "-m",     absl::StrCat(port_.mtu_bytes),
        "-s",     absl::StrCat(work.point.bytes),
        "-n",     absl::StrCat(std::max(work.iterations, kMinIterations)),
        "-p",     absl::StrCat(tcp_port_)};
    if (work.point.mode == Mode::kEvent) arguments.push_back("-e");
    if (IsBandwidth(program_)) {
      arguments.insert(arguments.end(), {"-t", absl::StrCat(work.outstanding)});
    }
    if (ReportsHalves(program_)) {
      arguments.insert(arguments.end(), {"-I", absl::StrCat(kInlineBytes)});
    }
    if (side_ == Side::kInitiator) arguments.push_back("127.0.0.1");
    return arguments;
  }
  static absl::StatusOr<std::string> RunOnce(
      const std::vector<std::string>& arguments) {
    REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<Program> program,
                             Program::Start(arguments));
    return program->Finish();
  }

  const Side side_;
  const std::string program_;
  const VerbsPort port_;
  const int tcp_port_;
};

class PerftestSubject : public Subject {
 public:
  PerftestSubject(std::string program, VerbsPort port)
      : program_(std::move(program)), port_(std::move(port)) {}

  bool Supports(const Point& point) const override {
    // The receiver of ib_write_lat polls memory and therefore cannot sleep.
    if (program_ == "ib_write_lat" && point.mode == Mode::kEvent) return false;
    switch (point.op) {
      case Op::kPingPong:
        return ReportsHalves(program_);
      case Op::kPull:
      case Op::kGet:
        return program_ == "ib_read_lat";
      case Op::kStream:
        return program_ == "ib_write_bw";
      case Op::kGetStream:
        return program_ == "ib_read_bw";
      case Op::kFanIn:
        return false;
    }
    return false;
  }

  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    int tcp_port = 0;
    if (setup.side == Side::kResponder) {
      // The port is free now, and perftest takes it shortly after.
      REFRACT_ASSIGN_OR_RETURN(const transport::Listener listener,
                               transport::ListenTcp({"127.0.0.1", 0}));
      tcp_port = listener.port;
      REFRACT_RETURN_IF_ERROR(setup.control->Send(absl::StrCat(tcp_port)));
    } else {
      REFRACT_ASSIGN_OR_RETURN(const std::string text,
                               setup.control->Receive());
      if (!absl::SimpleAtoi(text, &tcp_port)) {
        return absl::InternalError("not a port");
      }
    }
    return std::make_unique<PerftestSession>(setup.side, program_, port_,
                                             tcp_port);
  }

 private:
  const std::string program_;
  const VerbsPort port_;
};

}  // namespace

#if REFRACT_HAVE_VERBS
absl::StatusOr<VerbsPort> ChooseVerbsPort(absl::string_view preference) {
  namespace verbs = transport::verbs;
  REFRACT_ASSIGN_OR_RETURN(const verbs::AddressPreference wanted,
                           verbs::ParseAddressPreference(preference));
  const verbs::Library& library = verbs::SystemLibrary();
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           library.DeviceNames());
  std::vector<verbs::DevicePorts> devices;
  for (const std::string& name : names) {
    REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<verbs::Device> device,
                             library.Open(name));
    REFRACT_ASSIGN_OR_RETURN(std::vector<verbs::PortInfo> ports,
                             device->Ports());
    devices.push_back({name, std::move(ports)});
  }
  REFRACT_ASSIGN_OR_RETURN(const std::vector<verbs::LocalAddress> addresses,
                           verbs::RankAddresses(devices, wanted, std::nullopt));
  const verbs::LocalAddress& best = addresses.front();
  return VerbsPort{best.device, best.port, best.gid.index,
                   128 << static_cast<int>(best.attributes.active_mtu)};
}
#else
absl::StatusOr<VerbsPort> ChooseVerbsPort(absl::string_view) {
  return absl::UnimplementedError("Refract was built without libibverbs");
}
#endif

std::vector<std::string> InstalledPerftest() {
  const char* path = std::getenv("PATH");
  std::vector<std::string> found;
  if (path == nullptr) return found;
  const std::vector<std::string> folders = absl::StrSplit(path, ':');
  for (const char* program : {"ib_send_lat", "ib_write_lat", "ib_read_lat",
                              "ib_write_bw", "ib_read_bw"}) {
    for (const std::string& folder : folders) {
      if (access(absl::StrCat(folder, "/", program).c_str(), X_OK) != 0) {
        continue;
      }
      found.push_back(program);
      break;
    }
  }
  return found;
}

std::unique_ptr<Subject> PerftestBaseline(const std::string& program,
                                          const VerbsPort& port) {
  return std::make_unique<PerftestSubject>(program, port);
}

absl::StatusOr<Figures> ParsePerftest(const std::string& program,
                                      absl::string_view output) {
  bool header = false;
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    if (absl::StartsWith(absl::StripAsciiWhitespace(line), "#bytes")) {
      header = true;
      continue;
    }
    if (!header) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    // Latency: size, iterations, minimum, maximum, median, mean, deviation, 99
    // and 99.9 percentiles. Bandwidth: size, iterations, peak, mean, messages.
    const size_t wanted = IsBandwidth(program) ? 5 : 9;
    std::vector<double> numbers(words.size());
    bool good = words.size() == wanted;
    for (size_t i = 0; good && i < words.size(); ++i) {
      good = absl::SimpleAtod(words[i], &numbers[i]);
    }
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat(program, " printed: ", line));
    }
    Figures figures = NoFigures();
    if (IsBandwidth(program)) {
      figures.bytes_per_s = numbers[3] * kMegabyte;
      return figures;
    }
    // Send and write programs report half of a round trip, while Figures are of
    // whole operations.
    const double whole = ReportsHalves(program) ? 2 : 1;
    figures.p50_us = whole * numbers[4];
    figures.mean_us = whole * numbers[5];
    figures.p99_us = whole * numbers[7];
    return figures;
  }
  return absl::InvalidArgumentError(absl::StrCat(program, " has no results"));
}

}  // namespace refract::transport_meter

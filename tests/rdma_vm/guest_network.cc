#include "tests/rdma_vm/guest_network.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

extern char** environ;

namespace refract::rdma_vm {

std::vector<std::string> RdmaInterfaces() {
  const char* interfaces = std::getenv("REFRACT_RDMA_INTERFACES");
  if (interfaces == nullptr) return {};
  return absl::StrSplit(interfaces, ',', absl::SkipEmpty());
}

std::string RunCommand(const std::string& command) {
  FILE* pipe = popen(absl::StrCat(command, " 2>&1").c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << command << ": " << std::strerror(errno);
    return "";
  }
  std::string output;
  std::array<char, 4096> buffer;
  while (const size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  EXPECT_EQ(status, 0) << command << ": " << output;
  return output;
}

BackgroundCommand::BackgroundCommand(const std::string& command)
    : command_(command) {
  std::vector<std::string> words = absl::StrSplit(command, ' ');
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int error =
      posix_spawnp(&child_, argv[0], nullptr, nullptr, argv.data(), environ);
  if (error != 0) {
    child_ = -1;
    ADD_FAILURE() << command << ": " << std::strerror(error);
  }
}

BackgroundCommand::~BackgroundCommand() {
  if (child_ < 0) return;
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
}

bool BackgroundCommand::ended() {
  if (child_ < 0) return true;
  int status = 0;
  if (waitpid(child_, &status, WNOHANG) == 0) return false;
  child_ = -1;
  EXPECT_EQ(status, 0) << command_;
  return true;
}

Netem::Netem(std::string interface, const std::string& how)
    : interface_(std::move(interface)) {
  // The default of 1000 packets drops some of what a delay keeps.
  RunCommand(absl::StrCat("tc qdisc add dev ", interface_,
                          " root netem limit 100000 ", how));
}

Netem::~Netem() {
  RunCommand(absl::StrCat("tc qdisc del dev ", interface_, " root"));
}

int64_t Netem::Read(const std::string& counter) const {
  const std::string shown =
      RunCommand(absl::StrCat("tc -s -j qdisc show dev ", interface_, " root"));
  const std::vector<std::string> parts =
      absl::StrSplit(shown, absl::StrCat("\"", counter, "\":"));
  int64_t value = 0;
  const bool found =
      parts.size() == 2 &&
      absl::SimpleAtoi(parts[1].substr(0, parts[1].find_first_of(",}")),
                       &value);
  EXPECT_TRUE(found) << counter << " in " << shown;
  return value;
}

}  // namespace refract::rdma_vm

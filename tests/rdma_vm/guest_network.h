#ifndef REFRACT_TESTS_RDMA_VM_GUEST_NETWORK_H_
#define REFRACT_TESTS_RDMA_VM_GUEST_NETWORK_H_

// Changes to the network of the guest that a test runs in, by the tools of
// iproute2. Needs root; must not run on any other machine.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace refract::rdma_vm {

// The interfaces under the devices, in the same order; empty outside of
// run_in_vm and where it uses the machine's own devices.
std::vector<std::string> RdmaInterfaces();

// Words between single spaces, no quoting: "ip link set refract0 down". Returns
// its output; a failure of the command is a test failure.
std::string RunCommand(const std::string& command);

// A command that may wait for something. Killed at the end of this object.
class BackgroundCommand {
 public:
  explicit BackgroundCommand(const std::string& command);
  ~BackgroundCommand();
  BackgroundCommand(const BackgroundCommand&) = delete;
  BackgroundCommand& operator=(const BackgroundCommand&) = delete;

  // Whether the command has ended; its failure is a test failure.
  bool ended();

 private:
  const std::string command_;
  pid_t child_ = -1;
};

// Applies netem to packets that `interface` sends, until destruction.
class Netem {
 public:
  // `how` as after `netem`: "loss 1%", "delay 2ms 1ms", …
  Netem(std::string interface, const std::string& how);
  ~Netem();
  Netem(const Netem&) = delete;
  Netem& operator=(const Netem&) = delete;

  int64_t dropped() const { return Read("drops"); }
  // Packets that it has taken and not sent yet.
  int64_t waiting() const { return Read("qlen"); }

 private:
  int64_t Read(const std::string& counter) const;
  const std::string interface_;
};

}  // namespace refract::rdma_vm

#endif  // REFRACT_TESTS_RDMA_VM_GUEST_NETWORK_H_

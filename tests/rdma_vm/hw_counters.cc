#include "tests/rdma_vm/hw_counters.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

namespace refract::rdma_vm {
namespace {

// The default `lifespan` of a device's counters.
constexpr std::chrono::milliseconds kCacheLifetime(10);

}  // namespace

std::map<std::string, int64_t> ReadHwCounters(const std::string& device) {
  // The kernel serves values of this age; no thread is waited for.
  std::this_thread::sleep_for(2 * kCacheLifetime);
  std::map<std::string, int64_t> counters;
  std::error_code error;
  std::filesystem::directory_iterator files(
      "/sys/class/infiniband/" + device + "/ports/1/hw_counters", error);
  if (error) return counters;
  for (const auto& file : files) {
    const std::string name = file.path().filename();
    int64_t value = 0;
    if (name != "lifespan" && std::ifstream(file.path()) >> value) {
      counters[name] = value;
    }
  }
  return counters;
}

int64_t ReadReceiverNotReady(const std::string& device) {
  int64_t sum = 0;
  for (const auto& [name, value] : ReadHwCounters(device)) {
    // Soft-RoCE also counts as sent what it answers when it cannot get its own
    // response to a long read out of the interface.
    if (name == "send_rnr_err") continue;
    if (name.find("rnr") != std::string::npos || name == "out_of_buffer") {
      sum += value;
    }
  }
  return sum;
}

}  // namespace refract::rdma_vm

#include "placement/cluster/usage.h"

#include <algorithm>

namespace refract::placement {
namespace {

bool HasNic(const Node& node, const NodeFree& free, int percent) {
  for (int i = 0; i < node.nics; ++i) {
    if (free.nic_percent[i] >= percent) return true;
  }
  return false;
}

// Takes (−1) or returns (1) an instance's resources. MIG slices are a set, and
// taking or returning a member toggles its bits.
void Move(const Demand& demand, const Devices& devices, int sign,
          NodeFree& free) {
  free.cpu_milli += sign * demand.cpu_milli;
  free.memory_mib += sign * demand.memory_mib;
  free.disk_mib += sign * demand.disk_mib;
  for (int i = 0; i < kMaxSockets; ++i) {
    free.socket_cpu_milli[i] += sign * devices.socket_cpu_milli[i];
  }
  for (unsigned left = devices.gpus; left != 0; left &= left - 1) {
    const int gpu = __builtin_ctz(left);
    free.gpu_milli[gpu] += static_cast<int16_t>(sign * demand.gpu_milli);
    free.mig_used[gpu] ^= devices.mig_slices;
  }
  if (devices.nic >= 0) {
    free.nic_percent[devices.nic] +=
        static_cast<int16_t>(sign * demand.nic_percent);
  }
}

}  // namespace

NodeFree AllFree(const Node& node) {
  NodeFree free;
  free.cpu_milli = node.cpu_milli;
  free.memory_mib = node.memory_mib;
  free.disk_mib = node.disk_mib;
  for (int i = 0; i < node.sockets; ++i) {
    // Differences of cumulative shares, so that the sum is exact.
    free.socket_cpu_milli[i] =
        static_cast<int32_t>(node.cpu_milli * (i + 1) / node.sockets -
                             node.cpu_milli * i / node.sockets);
  }
  for (int i = 0; i < node.gpus; ++i) free.gpu_milli[i] = kWholeGpu;
  for (int i = 0; i < node.nics; ++i) free.nic_percent[i] = kWholeNic;
  return free;
}

absl::string_view Name(Obstacle obstacle) {
  switch (obstacle) {
    case Obstacle::kNothing:
      return "nothing";
    case Obstacle::kGpuModel:
      return "GPU model";
    case Obstacle::kGpu:
      return "GPU";
    case Obstacle::kCpu:
      return "CPU";
    case Obstacle::kMemory:
      return "memory";
    case Obstacle::kDisk:
      return "disk";
    case Obstacle::kNic:
      return "NIC";
    case Obstacle::kPod:
      return "pod";
    case Obstacle::kDensity:
      return "density";
    case Obstacle::kLeafQuota:
      return "leaf quota";
  }
  return "";
}

Obstacle ObstacleOf(const Node& node, const NodeFree& free,
                    const Demand& demand) {
  if (demand.gpus > 0) {
    if (demand.gpu_models != 0 &&
        (node.gpus == 0 || (demand.gpu_models >> node.gpu_model & 1) == 0)) {
      return Obstacle::kGpuModel;
    }
    // The order of the checks is that of Obstacle: the first scarce resource
    // names the obstacle.
    int room = 0;
    for (int gpu = 0; gpu < node.gpus && room < demand.gpus; ++gpu) {
      room += GpuHasRoom(node, free, gpu, demand);
    }
    if (room < demand.gpus) return Obstacle::kGpu;
  }
  if (demand.cpu_milli > free.cpu_milli) return Obstacle::kCpu;
  if (demand.memory_mib > free.memory_mib) return Obstacle::kMemory;
  if (demand.disk_mib > free.disk_mib) return Obstacle::kDisk;
  if (demand.nic_percent > 0 && !HasNic(node, free, demand.nic_percent)) {
    return Obstacle::kNic;
  }
  return Obstacle::kNothing;
}

void TakeCores(const Node& node, const NodeFree& free, int64_t cpu_milli,
               int first, Devices& devices) {
  for (int i = 0; i < node.sockets; ++i) {
    // The preferred socket, then the others in a circle; the caller knows that
    // all of them together have enough.
    const int socket = (first + i) % node.sockets;
    const int64_t taken =
        std::min<int64_t>(cpu_milli, free.socket_cpu_milli[socket]);
    devices.socket_cpu_milli[socket] = static_cast<int32_t>(taken);
    cpu_milli -= taken;
  }
}

void Take(const Demand& demand, const Devices& devices, NodeFree& free) {
  Move(demand, devices, -1, free);
}

void GiveBack(const Demand& demand, const Devices& devices, NodeFree& free) {
  Move(demand, devices, 1, free);
}

}  // namespace refract::placement

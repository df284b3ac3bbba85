#include "placement/simulator/validate.h"

#include <algorithm>
#include <bitset>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace refract::placement {
namespace {

// Sums over the instances on a node, counted anew. Unlike the placer, which
// counts down free amounts, this uses maps and positive sums.
struct Load {
  int64_t cpu_milli = 0;
  int64_t memory_mib = 0;
  int64_t disk_mib = 0;
  std::map<int, int64_t> socket_cpu_milli;
  std::map<int, int> gpu_milli;
  std::map<int, int> nic_percent;
  std::map<int, int> fractions;              // instances without MIG, by GPU
  std::map<int, std::multiset<int>> slices;  // MIG slices in use, by GPU
};

class Validator {
 public:
  Validator(const Cluster& cluster, const InstanceList& list,
            const std::vector<Stay>& stays, const ValidationRules& rules,
            int most)
      : cluster_(cluster),
        list_(list),
        stays_(stays),
        rules_(rules),
        most_(most),
        loads_(cluster.nodes.size()) {}

  std::vector<Violation> Run() {
    // At equal times departures come first, as in Replay(). Only arrivals can
    // break a rule, so only they are checked.
    std::vector<std::tuple<double, int, size_t>> events;  // leaving first
    std::set<int> seen;
    for (size_t i = 0; i < stays_.size(); ++i) {
      events.push_back({stays_[i].from, 1, i});
      if (stays_[i].to < kNeverDeleted) events.push_back({stays_[i].to, -1, i});
      if (!seen.insert(stays_[i].instance).second) {
        Report(stays_[i].from, stays_[i], "is placed twice");
      }
    }
    std::sort(events.begin(), events.end());
    for (const auto& [time, sign, index] : events) {
      if (static_cast<int>(found_.size()) >= most_) break;
      const Stay& stay = stays_[index];
      Change(stay, sign);
      if (sign > 0) CheckAfter(time, stay);
    }
    return std::move(found_);
  }

 private:
  void Report(double time, const Stay& stay, const std::string& what) {
    if (static_cast<int>(found_.size()) >= most_) return;
    found_.push_back(
        {time, absl::StrCat("instance ", list_.instances[stay.instance].name,
                            " on node ", cluster_.nodes[stay.node].name, " at ",
                            time, " s: ", what)});
  }

  void Change(const Stay& stay, int sign) {
    const Instance& instance = list_.instances[stay.instance];
    const Demand& demand = instance.demand;
    const Node& node = cluster_.nodes[stay.node];
    Load& load = loads_[stay.node];
    load.cpu_milli += sign * demand.cpu_milli;
    load.memory_mib += sign * demand.memory_mib;
    load.disk_mib += sign * demand.disk_mib;
    for (int socket = 0; socket < kMaxSockets; ++socket) {
      load.socket_cpu_milli[socket] +=
          sign * int64_t{stay.devices.socket_cpu_milli[socket]};
    }
    const std::bitset<16> gpus(stay.devices.gpus);
    for (int gpu = 0; gpu < 16; ++gpu) {
      if (!gpus[gpu]) continue;
      load.gpu_milli[gpu] += sign * demand.gpu_milli;
      if (demand.mig == MigProfile::kNone) {
        load.fractions[gpu] += sign;
        continue;
      }
      for (int slice = 0; slice < 8; ++slice) {
        if ((stay.devices.mig_slices >> slice & 1) == 0) continue;
        if (sign > 0) {
          load.slices[gpu].insert(slice);
        } else {
          // A multiset: a slice that two instances have stays in it twice.
          load.slices[gpu].erase(load.slices[gpu].find(slice));
        }
      }
    }
    if (stay.devices.nic >= 0) {
      load.nic_percent[stay.devices.nic] += sign * demand.nic_percent;
      leaf_gbps_[node.leaf] += sign * demand.nic_percent * node.nic_gbps / 100;
    }
    if (instance.app >= 0) {
      per_node_[{instance.app, instance.role, stay.node}] += sign;
      auto& pods = pods_[instance.app];
      const int pod = cluster_.leaves[node.leaf].pod;
      // The size of the map is the number of pods in which the app runs now.
      if ((pods[pod] += sign) == 0) pods.erase(pod);
    }
  }

  void CheckAfter(double time, const Stay& stay) {
    const Instance& instance = list_.instances[stay.instance];
    const Demand& demand = instance.demand;
    const Node& node = cluster_.nodes[stay.node];
    const Load& load = loads_[stay.node];
    const auto check = [&](bool good, const std::string& what) {
      if (!good) Report(time, stay, what);
    };
    check(load.cpu_milli <= node.cpu_milli, "CPU is oversubscribed");
    check(load.memory_mib <= node.memory_mib, "memory is oversubscribed");
    check(load.disk_mib <= node.disk_mib, "disk is oversubscribed");
    int64_t cores = 0;
    for (const auto& [socket, milli] : load.socket_cpu_milli) {
      if (milli == 0) continue;
      // A socket has ⌊CPU ÷ sockets⌋ or a little more, where the quotient is no
      // whole number (AllFree).
      check(socket < node.sockets &&
                milli <= node.cpu_milli / node.sockets + node.sockets,
            "a socket's CPU is oversubscribed");
    }
    for (const int32_t milli : stay.devices.socket_cpu_milli) cores += milli;
    check(cores == demand.cpu_milli,
          "the cores of its sockets do not add up to its demand");
    check(static_cast<int>(std::bitset<16>(stay.devices.gpus).count()) ==
              demand.gpus,
          "has more or fewer GPUs than its demand");
    for (const auto& [gpu, milli] : load.gpu_milli) {
      check(milli == 0 || gpu < node.gpus, "has a GPU that does not exist");
      check(milli <= 1000, "a GPU is oversubscribed");
    }
    CheckMig(time, stay, check);
    if (demand.gpus > 0 && demand.gpu_models != 0) {
      check((demand.gpu_models >> node.gpu_model & 1) != 0,
            "has GPUs of another model");
    }
    check((stay.devices.nic >= 0) == (demand.nic_percent > 0),
          "has a NIC without a demand for one, or lacks the demanded one");
    for (const auto& [nic, percent] : load.nic_percent) {
      check(percent == 0 || nic < node.nics, "has a NIC that does not exist");
      check(percent <= 100, "a NIC is oversubscribed");
    }
    if (instance.app >= 0) {
      check(instance.max_per_node < 0 ||
                per_node_[{instance.app, instance.role, stay.node}] <=
                    instance.max_per_node,
            "density: more than max_per_node instances");
      check(!rules_.pods || pods_[instance.app].size() <= 1,
            "the app runs in two pods");
    }
    if (rules_.leaf_quota > 0 && demand.nic_percent > 0) {
      check(
          leaf_gbps_[node.leaf] <=
              rules_.leaf_quota * cluster_.leaves[node.leaf].uplink_gbps + 1e-3,
          "the leaf's quota is exceeded");
    }
  }

  void CheckMig(double time, const Stay& stay, const auto& check) {
    const Demand& demand = list_.instances[stay.instance].demand;
    const Node& node = cluster_.nodes[stay.node];
    if (demand.mig == MigProfile::kNone) {
      check(stay.devices.mig_slices == 0,
            "has MIG slices without a demand for them");
    } else {
      // NVIDIA's table, as begin and length of memory slices.
      static const std::map<MigProfile, std::pair<std::set<int>, int>> kTable =
          {{MigProfile::k1g, {{0, 1, 2, 3, 4, 5, 6}, 1}},
           {MigProfile::k2g, {{0, 2, 4}, 2}},
           {MigProfile::k3g, {{0, 4}, 4}},
           {MigProfile::k4g, {{0}, 4}},
           {MigProfile::k7g, {{0}, 8}}};
      const auto& [starts, length] = kTable.at(demand.mig);
      const std::bitset<8> slices(stay.devices.mig_slices);
      int first = 0;
      while (first < 8 && !slices[first]) ++first;
      // The slices must be one run of the profile's length that begins at a
      // legal position.
      bool run = static_cast<int>(slices.count()) == length;
      for (int i = first; i < first + length; ++i) {
        run = run && i < 8 && slices[i];
      }
      check(node.mig_capable, "the node's GPUs have no MIG");
      check(run && starts.count(first) != 0,
            "has MIG slices where MIG does not place that profile");
    }
    const Load& load = loads_[stay.node];
    for (const auto& [gpu, slices] : load.slices) {
      check(slices.size() == std::set<int>(slices.begin(), slices.end()).size(),
            "a MIG slice is given twice");
      const auto fractions = load.fractions.find(gpu);
      check(slices.empty() || fractions == load.fractions.end() ||
                fractions->second == 0,
            "a GPU is both divided by MIG and shared by fractions");
    }
  }

  const Cluster& cluster_;
  const InstanceList& list_;
  const std::vector<Stay>& stays_;
  const ValidationRules rules_;
  const int most_;
  std::vector<Load> loads_;
  std::map<int, double> leaf_gbps_;
  std::map<std::tuple<int, Role, int>, int> per_node_;
  std::map<int, std::map<int, int>> pods_;
  std::vector<Violation> found_;
};

}  // namespace

std::vector<Violation> Validate(const Cluster& cluster,
                                const InstanceList& list,
                                const std::vector<Stay>& stays,
                                const ValidationRules& rules, int most) {
  return Validator(cluster, list, stays, rules, most).Run();
}

}  // namespace refract::placement

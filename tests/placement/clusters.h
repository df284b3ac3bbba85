#ifndef REFRACT_TESTS_PLACEMENT_CLUSTERS_H_
#define REFRACT_TESTS_PLACEMENT_CLUSTERS_H_

// Small clusters and instances for tests.

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "placement/cluster/cluster.h"
#include "placement/cluster/instance.h"

namespace refract::placement {

// Nodes are added under leaf 0 of pod 0 unless told otherwise.
class ClusterBuilder {
 public:
  ClusterBuilder() {
    cluster_.pods = {"pod-0"};
    cluster_.leaves = {{.name = "leaf-0"}};
  }

  Node& Add(int cores, int gpus, int leaf = 0,
            const std::string& model = "A100") {
    Node node;
    node.name = absl::StrCat("n", cluster_.nodes.size());
    node.cpu_milli = cores * 1000;
    node.gpus = gpus;
    node.nics = gpus > 1 ? gpus / 2 : 1;
    if (gpus > 0) {
      node.gpu_model = GpuModelIndex(cluster_, model);
      node.mig_capable = IsMigCapable(model);
    }
    node.leaf = leaf;
    AttachEvenly(node, 2);
    cluster_.nodes.push_back(node);
    return cluster_.nodes.back();
  }
  // Returns the number of the new leaf.
  int AddLeaf(int pod) {
    while (static_cast<int>(cluster_.pods.size()) <= pod) {
      cluster_.pods.push_back(absl::StrCat("pod-", cluster_.pods.size()));
    }
    const int leaf = static_cast<int>(cluster_.leaves.size());
    cluster_.leaves.push_back(
        {.name = absl::StrCat("leaf-", leaf), .pod = pod});
    return leaf;
  }
  Cluster& cluster() { return cluster_; }

 private:
  Cluster cluster_;
};

inline Demand Asks(int cores, int gpus, int gpu_milli = kWholeGpu) {
  Demand demand;
  demand.cpu_milli = cores * 1000;
  demand.gpus = gpus;
  demand.gpu_milli = gpus > 0 ? gpu_milli : 0;
  return demand;
}

inline Demand AsksMig(int cores, MigProfile profile) {
  Demand demand = Asks(cores, 1, MigGpuMilli(profile));
  demand.mig = profile;
  return demand;
}

inline Instance Of(const Demand& demand, int app = -1,
                   Role role = Role::kWhole) {
  Instance instance;
  instance.name = "i";
  instance.demand = demand;
  instance.app = app;
  instance.role = role;
  return instance;
}

}  // namespace refract::placement

#endif  // REFRACT_TESTS_PLACEMENT_CLUSTERS_H_

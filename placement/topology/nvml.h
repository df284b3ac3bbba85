#ifndef REFRACT_PLACEMENT_TOPOLOGY_NVML_H_
#define REFRACT_PLACEMENT_TOPOLOGY_NVML_H_

#include <memory>
#include <string>

#include "placement/topology/sysfs_tree.h"

namespace refract::placement {

// `tree`, which outlives the result, with one more folder: refract.nvml has a
// file per GPU, named by its PCI address, with the GPU's model. The models come
// from NVIDIA's management library, which is loaded from `library` and need not
// be there; sysfs has no such names. Dumps keep them.
std::unique_ptr<SysfsTree> WithNvml(
    SysfsTree* tree, const std::string& library = "libnvidia-ml.so.1");

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_NVML_H_

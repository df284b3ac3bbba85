#ifndef REFRACT_PLACEMENT_FRAGMENTATION_FRAGMENTATION_H_
#define REFRACT_PLACEMENT_FRAGMENTATION_FRAGMENTATION_H_

// How much free GPU and CPU a target workload cannot use.
//
// GPU fragment of a node for one shape m (FGD, section 3.2): all free GPU if
// the node cannot run m or if m needs no GPU, else the free parts of the GPUs
// that have no room for m. The node's fragment is the mean over the workload.
// CPU fragment is the same rule transposed, as Prism (NSDI '25, figure 19) uses
// it: all free CPU if the node cannot run m, else nothing.

#include <array>
#include <cstdint>
#include <vector>

#include "placement/cluster/cluster.h"
#include "placement/cluster/usage.h"
#include "placement/fragmentation/workload.h"

namespace refract::placement {

// Why free GPU is a fragment.
enum class Cause : uint8_t {
  kNoGpuWanted,  // the shape needs no GPU
  kGpuModel,     // GPUs of another model
  kGpu,          // too little GPU, or single GPUs too small
  kCpu,          // enough GPU, but too little CPU: stranded
  kGpuAndCpu,
  kMemory,  // enough GPU and CPU
};
inline constexpr int kCauses = 6;
absl::string_view Name(Cause cause);

using GpuFragment = std::array<double, kCauses>;  // thousandths of a GPU

// Fragments of one node: thousandths of a GPU, thousandths of a core.
struct Fragments {
  double gpu_milli = 0;
  double cpu_milli = 0;
};

// Thread-safe once constructed.
class FragmentMeter {
 public:
  explicit FragmentMeter(const TargetWorkload& workload);

  Fragments Measure(const Node& node, const NodeFree& free) const;
  // The GPU fragment by cause; the sum equals Measure()'s.
  GpuFragment GpuMilliByCause(const Node& node, const NodeFree& free) const;

 private:
  // Shapes that ask for the same of GPUs. Whether they fit depends only on
  // their CPU and memory, so one pass over the GPUs serves all.
  struct GpuClass {
    Demand gpu;  // its GPU fields alone
    bool with_memory = false;
    std::vector<int64_t> cpu_milli;  // ascending
    std::vector<int64_t> memory_mib;
    std::vector<double> popularity;
    std::vector<double> cumulative;  // popularity of the first i shapes
  };

  double FittingPopularity(const GpuClass& shapes, const NodeFree& free) const;

  std::vector<GpuClass> classes_;
  std::vector<Shape> shapes_;
};

// Free GPU of a node, thousandths of a GPU.
int64_t FreeGpuMilli(const Node& node, const NodeFree& free);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_FRAGMENTATION_FRAGMENTATION_H_

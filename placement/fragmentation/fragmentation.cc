#include "placement/fragmentation/fragmentation.h"

#include <algorithm>
#include <numeric>

namespace refract::placement {
namespace {

bool HasModel(const Node& node, const Demand& demand) {
  return demand.gpu_models == 0 ||
         (node.gpus > 0 && (demand.gpu_models >> node.gpu_model & 1) != 0);
}

// A node's GPUs as one demand sees them.
struct GpuView {
  bool enough = false;      // as many GPUs with room as the demand needs
  int64_t small_milli = 0;  // free parts of the GPUs without room
};

GpuView ViewOf(const Node& node, const NodeFree& free, const Demand& demand) {
  GpuView view;
  int room = 0;
  for (int gpu = 0; gpu < node.gpus; ++gpu) {
    if (GpuHasRoom(node, free, gpu, demand)) {
      ++room;
    } else {
      view.small_milli += free.gpu_milli[gpu];
    }
  }
  view.enough = room >= demand.gpus;
  return view;
}

}  // namespace

absl::string_view Name(Cause cause) {
  switch (cause) {
    case Cause::kNoGpuWanted:
      return "no GPU wanted";
    case Cause::kGpuModel:
      return "GPU model";
    case Cause::kGpu:
      return "GPU";
    case Cause::kCpu:
      return "CPU";
    case Cause::kGpuAndCpu:
      return "GPU and CPU";
    case Cause::kMemory:
      return "memory";
  }
  return "";
}

int64_t FreeGpuMilli(const Node& node, const NodeFree& free) {
  return std::accumulate(free.gpu_milli.begin(),
                         free.gpu_milli.begin() + node.gpus, int64_t{0});
}

FragmentMeter::FragmentMeter(const TargetWorkload& workload)
    : shapes_(workload.shapes) {
  // Classes of shapes with equal GPU demands. Within a class shapes ascend by
  // CPU, so the shapes whose CPU fits are a prefix, whose popularity
  // `cumulative` has.
  std::vector<Shape> by_cpu = workload.shapes;
  std::stable_sort(by_cpu.begin(), by_cpu.end(),
                   [](const Shape& a, const Shape& b) {
                     return a.demand.cpu_milli < b.demand.cpu_milli;
                   });
  for (const Shape& shape : by_cpu) {
    Demand gpu;
    gpu.gpus = shape.demand.gpus;
    gpu.gpu_milli = shape.demand.gpu_milli;
    gpu.mig = shape.demand.mig;
    gpu.gpu_models = shape.demand.gpu_models;
    auto found = std::find_if(classes_.begin(), classes_.end(),
                              [&](const GpuClass& c) { return c.gpu == gpu; });
    if (found == classes_.end()) {
      found = classes_.insert(classes_.end(), GpuClass{.gpu = gpu});
      found->cumulative = {0};
    }
    found->with_memory |= shape.demand.memory_mib > 0;
    found->cpu_milli.push_back(shape.demand.cpu_milli);
    found->memory_mib.push_back(shape.demand.memory_mib);
    found->popularity.push_back(shape.popularity);
    found->cumulative.push_back(found->cumulative.back() + shape.popularity);
  }
}

double FragmentMeter::FittingPopularity(const GpuClass& shapes,
                                        const NodeFree& free) const {
  const size_t count =
      std::upper_bound(shapes.cpu_milli.begin(), shapes.cpu_milli.end(),
                       free.cpu_milli) -
      shapes.cpu_milli.begin();
  // Without memory the prefix is the answer; with memory each of its shapes is
  // looked at.
  if (!shapes.with_memory) return shapes.cumulative[count];
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    if (shapes.memory_mib[i] <= free.memory_mib) sum += shapes.popularity[i];
  }
  return sum;
}

Fragments FragmentMeter::Measure(const Node& node, const NodeFree& free) const {
  const auto all = static_cast<double>(FreeGpuMilli(node, free));
  // For a shape that does not fit, all free GPU is a fragment; for a shape that
  // fits, the free parts of GPUs without room for it. CPU by the same rule: all
  // of it for shapes that do not fit, none for the others.
  Fragments sums;
  double lacking = 0;  // popularity of the shapes that do not fit
  for (const GpuClass& shapes : classes_) {
    const double total = shapes.cumulative.back();
    if (shapes.gpu.gpus == 0) {
      sums.gpu_milli += total * all;
      lacking += total - FittingPopularity(shapes, free);
      continue;
    }
    const GpuView view = ViewOf(node, free, shapes.gpu);
    if (!view.enough || !HasModel(node, shapes.gpu)) {
      sums.gpu_milli += total * all;
      lacking += total;
      continue;
    }
    const double fitting = FittingPopularity(shapes, free);
    lacking += total - fitting;
    sums.gpu_milli += (total - fitting) * all +
                      fitting * static_cast<double>(view.small_milli);
  }
  sums.cpu_milli = lacking * static_cast<double>(free.cpu_milli);
  return sums;
}

GpuFragment FragmentMeter::GpuMilliByCause(const Node& node,
                                           const NodeFree& free) const {
  // The same sum, shape by shape. The first reason in this order counts: no GPU
  // wanted, model, GPU (with or without CPU), CPU, memory.
  GpuFragment sums{};
  const auto all = static_cast<double>(FreeGpuMilli(node, free));
  const auto add = [&](Cause cause, double milli) {
    sums[static_cast<int>(cause)] += milli;
  };
  for (const Shape& shape : shapes_) {
    const Demand& demand = shape.demand;
    const double weight = shape.popularity;
    if (demand.gpus == 0) {
      add(Cause::kNoGpuWanted, weight * all);
      continue;
    }
    if (!HasModel(node, demand)) {
      add(Cause::kGpuModel, weight * all);
      continue;
    }
    const GpuView view = ViewOf(node, free, demand);
    const bool lacks_cpu = demand.cpu_milli > free.cpu_milli;
    if (!view.enough) {
      add(lacks_cpu ? Cause::kGpuAndCpu : Cause::kGpu, weight * all);
    } else if (lacks_cpu) {
      add(Cause::kCpu, weight * all);
    } else if (demand.memory_mib > free.memory_mib) {
      add(Cause::kMemory, weight * all);
    } else {
      add(Cause::kGpu, weight * static_cast<double>(view.small_milli));
    }
  }
  return sums;
}

}  // namespace refract::placement

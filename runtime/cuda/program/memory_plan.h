#ifndef REFRACT_RUNTIME_CUDA_PROGRAM_MEMORY_PLAN_H_
#define REFRACT_RUNTIME_CUDA_PROGRAM_MEMORY_PLAN_H_

// Fixed addresses of all memory that a batch bucket's graph uses.

#include <cstdint>
#include <vector>

#include "runtime/cuda/program/device_program.h"

namespace refract::runtime::cuda {

// Alignment of cudaMalloc; enough for every vector access.
inline constexpr int64_t kAllocationAlignBytes = 256;

// A piece of memory that is needed from one step to another, both included.
struct Lifetime {
  int first_step = 0;
  int last_step = 0;
  int64_t bytes = 0;
};

struct Arena {
  std::vector<int64_t> offsets;  // per lifetime, aligned
  int64_t bytes = 0;
};

// Places the largest first, each at the lowest offset that is free during its
// life: within a few per cent of the optimum on networks whose sizes differ,
// and O(n²). Lifetimes that share a step never overlap.
Arena PlanArena(const std::vector<Lifetime>& lifetimes);

// Bytes of root `id` at `batch`.
int64_t RootBytes(const DeviceProgram& program, ValueId id, int64_t batch);

// Aligned bytes that a staged input of `batch` items takes.
int64_t StagedBytes(const Value& input, int64_t batch);

// Addresses of the roots. Offsets are -1 for values that are no roots or live
// elsewhere.
struct MemoryPlan {
  // Intermediates of a run, planned at one batch size: an arena that all
  // buckets of an instance share, since only one runs at a time.
  std::vector<int64_t> arena_offsets;
  int64_t arena_bytes = 0;
  // Inputs and outputs, at the largest batch: the same addresses in every
  // bucket.
  std::vector<int64_t> slot_offsets;
  int64_t slot_bytes = 0;
  // Where the slot's staged inputs arrive (StagedInputs()), as the host wrote
  // them: the same offset in every bucket.
  int64_t staging_offset = 0;
  std::vector<int64_t> weight_offsets;
  int64_t weight_bytes = 0;
};
MemoryPlan PlanMemory(const DeviceProgram& program, int64_t batch,
                      int64_t max_batch);

// Batch sizes to compile for: 1, 2, 4, …, and `max_batch` itself.
std::vector<int64_t> Buckets(int64_t max_batch);
// Index of the smallest bucket of at least `batch`; -1: there is none.
int BucketOf(const std::vector<int64_t>& buckets, int64_t batch);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_PROGRAM_MEMORY_PLAN_H_

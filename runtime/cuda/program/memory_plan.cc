#include "runtime/cuda/program/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "runtime/cuda/calls/index_math.h"

namespace refract::runtime::cuda {

Arena PlanArena(const std::vector<Lifetime>& lifetimes) {
  // Large pieces first: a small piece fits into the gaps that they leave.
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return lifetimes[a].bytes > lifetimes[b].bytes;
  });
  Arena arena;
  arena.offsets.assign(lifetimes.size(), 0);
  std::vector<size_t> placed;  // by ascending offset
  for (size_t i : order) {
    const Lifetime& lifetime = lifetimes[i];
    // The lowest gap between the neighbours in time, which come by offset.
    int64_t offset = 0;
    for (size_t other : placed) {
      const Lifetime& neighbour = lifetimes[other];
      if (neighbour.last_step < lifetime.first_step ||
          lifetime.last_step < neighbour.first_step) {
        continue;
      }
      if (offset + lifetime.bytes <= arena.offsets[other]) break;
      offset = std::max(offset, RoundUp(arena.offsets[other] + neighbour.bytes,
                                        kAllocationAlignBytes));
    }
    arena.offsets[i] = offset;
    arena.bytes = std::max(
        arena.bytes, RoundUp(offset + lifetime.bytes, kAllocationAlignBytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) {
                                     return arena.offsets[a] < arena.offsets[b];
                                   }),
                  i);
  }
  return arena;
}

int64_t RootBytes(const DeviceProgram& program, ValueId id, int64_t batch) {
  const Value& value = program.value(id);
  return value.rows.At(batch) * value.ld * SizeOf(value.dtype);
}

int64_t StagedBytes(const Value& input, int64_t batch) {
  return RoundUp(
      input.rows.At(batch) * input.cols * SizeOf(input.host_dtype),
      kAllocationAlignBytes);
}

namespace {

// Consecutive, aligned.
int64_t Append(int64_t bytes, int64_t& total) {
  const int64_t offset = total;
  total += RoundUp(bytes, kAllocationAlignBytes);
  return offset;
}

}  // namespace

MemoryPlan PlanMemory(const DeviceProgram& program, int64_t batch,
                      int64_t max_batch) {
  const size_t count = program.values.size();
  MemoryPlan plan;
  plan.arena_offsets.assign(count, -1);
  plan.slot_offsets.assign(count, -1);
  plan.weight_offsets.assign(count, -1);
  const std::vector<bool> in_slot = InSlot(program);

  // A root lives from the first to the last operator that touches it or any of
  // its views.
  std::vector<int> first(count, -1), last(count, -1);
  for (size_t step = 0; step < program.ops.size(); ++step) {
    std::vector<ValueId> touched = InputsOf(program.ops[step]);
    for (ValueId id : OutputsOf(program.ops[step])) touched.push_back(id);
    for (ValueId id : touched) {
      const auto root = static_cast<size_t>(program.value(id).root);
      if (first[root] < 0) first[root] = static_cast<int>(step);
      last[root] = static_cast<int>(step);
    }
  }

  std::vector<Lifetime> lifetimes;
  std::vector<size_t> roots;
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<ValueId>(i);
    const Value& value = program.value(id);
    if (value.root != id) continue;
    // Weights and slots have one layout for all buckets: weights are shared,
    // and a slot's copies do not depend on the bucket. Intermediates are
    // planned for this batch. A root that no operator touches needs no memory.
    if (value.kind == ValueKind::kWeight) {
      plan.weight_offsets[i] =
          Append(RootBytes(program, id, 0), plan.weight_bytes);
    } else if (in_slot[i]) {
      plan.slot_offsets[i] =
          Append(RootBytes(program, id, max_batch), plan.slot_bytes);
    } else if (first[i] >= 0) {
      lifetimes.push_back({first[i], last[i], RootBytes(program, id, batch)});
      roots.push_back(i);
    }
  }
  plan.staging_offset = plan.slot_bytes;
  for (const size_t i : StagedInputs(program)) {
    plan.slot_bytes += StagedBytes(program.value(program.inputs[i]), max_batch);
  }
  const Arena arena = PlanArena(lifetimes);
  for (size_t i = 0; i < roots.size(); ++i) {
    plan.arena_offsets[roots[i]] = arena.offsets[i];
  }
  plan.arena_bytes = arena.bytes;
  return plan;
}

std::vector<int64_t> Buckets(int64_t max_batch) {
  std::vector<int64_t> buckets;
  for (int64_t size = 1; size < max_batch; size *= 2) buckets.push_back(size);
  if (max_batch >= 1) buckets.push_back(max_batch);
  return buckets;
}

int BucketOf(const std::vector<int64_t>& buckets, int64_t batch) {
  const auto it = std::lower_bound(buckets.begin(), buckets.end(), batch);
  return batch < 1 || it == buckets.end()
             ? -1
             : static_cast<int>(it - buckets.begin());
}

}  // namespace refract::runtime::cuda

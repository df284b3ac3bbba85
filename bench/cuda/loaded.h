#ifndef REFRACT_BENCH_CUDA_LOADED_H_
#define REFRACT_BENCH_CUDA_LOADED_H_

// A model in an instance, for measurements.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "bench/cuda/dense_models.h"
#include "bench/cuda/measure.h"
#include "runtime/cuda/device/cuda_runtime.h"
#include "runtime/cuda/instance/instance.h"

namespace refract::bench {

// An instance whose slots all hold a computed request of `batch` items.
class Loaded {
 public:
  Loaded(runtime::cuda::CudaRuntime& device, const DenseModel& model,
         int64_t batch, int num_slots, bool use_graphs = true)
      : model_(model),
        instance_(Must(runtime::cuda::Instance::Create(
            device, model_.program, model_.weight_data(),
            {.max_batch = batch,
             .num_slots = num_slots,
             .use_graphs = use_graphs}))) {
    Must(instance_->Load());
    std::mt19937 random(3);
    for (int i = 0; i < num_slots; ++i) {
      const runtime::cuda::SlotId slot = Must(instance_->Acquire(batch));
      Fill(slot, random);
      Must(instance_->Submit(slot));
      Must(instance_->Wait(slot));
      slots_.push_back(slot);
    }
  }

  runtime::cuda::Instance& instance() { return *instance_; }
  const std::vector<runtime::cuda::SlotId>& slots() const { return slots_; }
  // `runs` computations, slot after slot, then waits.
  void Compute(int runs) {
    for (int i = 0; i < runs; ++i) {
      Must(instance_->ComputeAgain(slots_[next_]));
      next_ = (next_ + 1) % slots_.size();
    }
    Must(instance_->WaitForCompute());
  }
  // `runs` requests, one after another: upload, computation, download.
  void Serve(int64_t batch, int runs) {
    for (const runtime::cuda::SlotId slot : slots_) instance_->Release(slot);
    slots_.clear();
    for (int i = 0; i < runs; ++i) {
      // The slot's memory has the inputs of the request before.
      const runtime::cuda::SlotId slot = Must(instance_->Acquire(batch));
      Must(instance_->Submit(slot));
      Must(instance_->Wait(slot));
      instance_->Release(slot);
    }
  }
  int64_t bytes_up() const {
    int64_t bytes = 0;
    for (size_t i = 0; i < model_.program.inputs.size(); ++i) {
      bytes += instance_->input_bytes(slots_[0], i);
    }
    return bytes;
  }

 private:
  void Fill(runtime::cuda::SlotId slot, std::mt19937& random) {
    std::uniform_real_distribution<float> values(-1, 1);
    for (size_t i = 0; i < model_.program.inputs.size(); ++i) {
      const runtime::cuda::DType dtype =
          model_.program.value(model_.program.inputs[i]).host_dtype;
      const int64_t count =
          instance_->input_bytes(slot, i) / runtime::cuda::SizeOf(dtype);
      for (int64_t e = 0; e < count; ++e) {
        runtime::cuda::Store(values(random), instance_->input(slot, i), dtype,
                             e);
      }
    }
  }

  const DenseModel model_;
  std::unique_ptr<runtime::cuda::Instance> instance_;
  std::vector<runtime::cuda::SlotId> slots_;
  size_t next_ = 0;
};

// Slots whose inputs together exceed the L2 cache.
inline int SlotsFor(const runtime::cuda::CudaRuntime& device, int64_t batch) {
  const int64_t bytes_per_item = 27 * 128 * 2;
  const int64_t wanted = 2 * device.properties().l2_bytes;
  return static_cast<int>(
      std::clamp<int64_t>(wanted / (batch * bytes_per_item), 2, 24));
}

// Bytes that a run must move at least: weights, inputs and outputs once, and
// each operator's result written and read.
inline double MinimumBytes(const runtime::cuda::DeviceProgram& program,
                           int64_t batch) {
  double bytes = 0;
  for (const auto& value : program.values) {
    if (value.root != &value - program.values.data()) continue;
    const auto size = static_cast<double>(value.rows.At(batch) * value.cols *
                                          runtime::cuda::SizeOf(value.dtype));
    const bool written_and_read =
        value.kind == runtime::cuda::ValueKind::kIntermediate;
    bytes += written_and_read ? 2 * size : size;
  }
  return bytes;
}

}  // namespace refract::bench

#endif  // REFRACT_BENCH_CUDA_LOADED_H_

#ifndef REFRACT_RUNTIME_CUDA_INSTANCE_INSTANCE_H_
#define REFRACT_RUNTIME_CUDA_INSTANCE_INSTANCE_H_

// A program loaded on a device: weights in its memory, one captured
// graph per batch bucket and slot, and a ring of slots for the
// requests.
//
// A slot is pinned host memory and device memory for the inputs and outputs of
// one request. Three streams work at once: uploads, computation, downloads; so
// with two or more slots the next request's copy overlaps the current kernels.
// All addresses are fixed at load. A request allocates nothing (with graphs,
// and unless the program has foreign operators). Foreign operators
// (foreign.h) run between captured pieces of the program.
//
//   Acquire(batch) ── fill input(slot, i) ── Submit(slot) ── Wait(slot)
//       ── read output(slot, i) ── Release(slot)
//
// Upload(slot) may come before Submit(), while another slot computes.
//
// Only the batch of a program varies. Where other sizes differ between
// requests, a variant (the same model at other sizes) is added while the
// instance serves (AddVariant()): it uses the memory of the first program,
// which is for the largest sizes, and as large batches as fit there. Its
// kernels are launched one by one at first, and captured when a bucket has come
// again a few times.
//
// Requests compute in the order of Submit(). Rows of a bucket beyond the batch
// are computed from whatever the slot held before, and never leave the device:
// rows must not depend on each other.
//
// States: unloaded → Load() → ready → (any device error) → failed → Unload() →
// unloaded. A failed instance answers every call with the error that ended it.
// When that is kUnavailable, DeviceApi::Reset() must come before the next
// Load(), and after Unload() of all instances of the device.
//
// Not thread-safe. The device and the memory of the weights must outlive it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/instance/device_api.h"
#include "runtime/cuda/program/device_program.h"
#include "runtime/cuda/program/lowering.h"
#include "runtime/cuda/program/memory_plan.h"
#include "runtime/cuda/program/weights.h"
#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

struct InstanceOptions {
  int64_t max_batch = 1024;
  // Most requests between Acquire() and Release(). 1 forbids overlap.
  int num_slots = 2;
  // Scratch memory of matrix products: cuBLAS's own default on Hopper. Fewer
  // bytes leave fewer algorithms to choose from.
  int64_t workspace_bytes = int64_t{32} << 20;
  // False: the same kernels, launched one by one (to measure what graphs save).
  bool use_graphs = true;
  // Most programs that AddVariant() may add at a time, each with its graphs;
  // and the largest batch that they may have, if memory suffices.
  int max_variants = 0;
  int64_t max_variant_batch = 0;
};

// Runs of a bucket of an added program, in a slot, before it is captured: a
// capture costs about as much as a few launches of the same kernels, and pays
// only for sizes that come again.
inline constexpr int kRunsBeforeCapture = 3;

// Device memory of an instance.
struct MemoryReport {
  int64_t weight_bytes = 0;  // other instances may share them
  int64_t arena_bytes = 0;   // intermediates, the largest bucket's
  int64_t slot_bytes = 0;    // over all slots
  int64_t workspace_bytes = 0;
  int64_t pinned_bytes = 0;  // of the host
  // The planned memory.
  int64_t device_bytes() const {
    return weight_bytes + arena_bytes + slot_bytes + workspace_bytes;
  }
  // Memory outside the plan: the drop of the device's free memory while Load()
  // launched and captured. Includes CUDA graphs, code of kernels, and
  // allocations of other processes meanwhile.
  int64_t captured_bytes = 0;
  // Weights that only added programs have, without the memory of their graphs.
  int64_t added_weight_bytes = 0;
};

using SlotId = int;
// Number of a program of the instance.
using VariantId = int;
inline constexpr VariantId kFirstProgram = 0;

class Instance {
 public:
  enum class State : uint8_t { kUnloaded, kReady, kFailed };

  // Checks program, weights and options; does not touch the device. `weights`
  // in the program's order.
  static Result<std::unique_ptr<Instance>> Create(
      DeviceApi& device, DeviceProgram program, std::vector<WeightData> weights,
      const InstanceOptions& options);
  // With weights of this program that other instances share.
  static Result<std::unique_ptr<Instance>> Create(
      DeviceApi& device, DeviceProgram program,
      std::shared_ptr<DeviceWeights> weights, const InstanceOptions& options);
  // Unloads.
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // Allocates, uploads weights, prepares products, captures all graphs.
  // ResourceExhausted names the model, the bytes needed and free. After any
  // error everything is released and the state is kUnloaded.
  Status Load();
  // Waits for work in flight, then releases everything, added programs
  // included; the last instance loaded with shared weights frees their memory.
  // Never fails: a lost device has nothing to release.
  void Unload();

  // Adds the same model at other sizes; `weights` as at Create(). Weights
  // with the address of a weight of the first program are shared; others are
  // uploaded. ResourceExhausted, naming the cause: not even a batch of one
  // fits, there are max_variants already, or no memory for weights of its
  // own.
  Result<VariantId> AddVariant(DeviceProgram program,
                               std::vector<WeightData> weights);
  // FailedPrecondition: a slot uses the variant, or there is no such variant.
  Status DropVariant(VariantId variant);
  // Whether a slot uses the variant.
  bool InUse(VariantId variant) const;
  // 0: there is no such variant.
  int64_t MaxBatch(VariantId variant) const;

  State state() const { return state_; }
  // Number of successful Load() calls: programs added before the last Load()
  // are gone.
  uint64_t loads() const { return loads_; }
  // The first program, and its buckets.
  const DeviceProgram& program() const;
  const std::vector<int64_t>& buckets() const;
  const MemoryReport& memory() const { return memory_; }

  // A free slot for a request of `batch` items. InvalidArgument names the limit
  // if no bucket is large enough, ResourceExhausted: all slots are taken.
  Result<SlotId> Acquire(int64_t batch, VariantId variant = kFirstProgram);
  // Pinned memory for input `i`: dense rows of that batch, of the input's
  // host_dtype.
  std::byte* input(SlotId slot, size_t i);
  int64_t input_bytes(SlotId slot, size_t i) const;
  // Sets the number of elements of a counted input (Value::counted) in the
  // request, at most the input's columns. Before Upload(); the default is all
  // of them. The rest is not uploaded.
  void SetCount(SlotId slot, size_t i, int64_t count);

  // Starts only the upload. The input memory must not change until Wait()
  // returned.
  Status Upload(SlotId slot);
  // Whether the upload has ended.
  Result<bool> Uploaded(SlotId slot);
  // Starts upload (unless started), computation and download.
  Status Submit(SlotId slot);
  // Whether Wait() would return at once.
  Result<bool> Done(SlotId slot);
  // Blocks until the outputs are there. InvalidArgument: an index was out of
  // range, or a foreign operator refused its operands: the instance goes on,
  // but the outputs are invalid.
  Status Wait(SlotId slot);
  const std::byte* output(SlotId slot, size_t i) const;
  int64_t output_bytes(SlotId slot, size_t i) const;
  // For measurements: computes the slot's request again, without copies and
  // without waiting. Between Wait() and Release() of the slot.
  Status ComputeAgain(SlotId slot);
  // Waits for all of ComputeAgain().
  Status WaitForCompute();

  // Frees the slot; first waits if it was submitted and not waited for.
  void Release(SlotId slot);

 private:
  enum class Phase : uint8_t { kFree, kFilling, kUploading, kSubmitted, kDone };
  struct Slot;
  struct Variant;
  // A launch's bucket of a program, and its slot.
  struct Place {
    Variant& variant;
    size_t bucket;
    Slot& slot;
  };

  // Operators [begin, end): one CUDA graph, or one foreign operator.
  struct Segment {
    size_t begin = 0;
    size_t end = 0;
    bool foreign = false;
  };

  Instance(DeviceApi& device, DeviceProgram program,
           std::shared_ptr<DeviceWeights> weights,
           const InstanceOptions& options);
  const std::string& name() const;

  static std::vector<Segment> SegmentsOf(const DeviceProgram& program);
  Variant* Find(VariantId variant) const;
  // Fills in the program's buckets up to `max_batch`, with all addresses.
  static void PlanBuckets(int64_t max_batch, Variant& variant);
  // Assigns offsets in a slot's pinned memory; returns its size.
  static int64_t PlacePinned(const DeviceProgram& program, int64_t max_batch,
                             std::vector<int64_t>& inputs,
                             std::vector<int64_t>& outputs);
  // The largest batch for which everything fits into the free memory; 0 and the
  // reason if not even 1 fits.
  int64_t FittingBatch(const DeviceProgram& program, std::string* why) const;
  Status ShareWeights(std::vector<WeightData> weights, Variant& variant);
  void Discard(Variant& variant);

  Status LoadOrFail();
  Status AllocateAll();
  Status CaptureAll();
  // A graph per segment, none for a foreign operator.
  Status CaptureSegments(const Place& place, std::vector<Graph>& graphs);
  Result<Graph> Capture(const Segment& segment, const Place& place);
  void Destroy(const std::vector<Graph>& graphs);
  // `items`: number of items of the bucket for a foreign operator.
  Status LaunchSegment(const Segment& segment, const Place& place,
                       int64_t items);
  Place PlaceOf(Slot& slot) const;
  LoweringContext ContextOf(const Place& place) const;
  Call MakeCall(const Op& op, const Place& place) const;
  std::byte* Address(ValueId id, const Place& place) const;
  std::byte* DeviceControl(const Slot& slot) const;
  Status Name(const Status& status, const DeviceProgram& program, const Op& op,
              int64_t batch) const;
  Status StartUpload(Slot& slot);
  // Copies the staged inputs, and lays them out where operators read them.
  Status UploadStaged(Slot& slot);
  Status SubmitTo(Slot& slot);
  Status Compute(Slot& slot);
  Status Finish(Slot& slot);
  // Records the error that ended the instance.
  Status Fail(Status status);
  Status CheckSlot(SlotId slot, Phase phase) const;

  DeviceApi& device_;
  const std::shared_ptr<DeviceWeights> weights_;
  const InstanceOptions options_;
  // By id; null: dropped. The first is the instance's own program.
  std::vector<std::unique_ptr<Variant>> variants_;
  uint64_t next_serial_ = 0;
  // Sizes of a slot without its control block.
  int64_t slot_device_bytes_ = 0, slot_host_bytes_ = 0;
  MemoryReport memory_;

  State state_ = State::kUnloaded;
  uint64_t loads_ = 0;
  Status failure_;
  std::byte* weight_memory_ = nullptr;
  bool holds_weights_ = false;
  std::byte* arena_ = nullptr;
  std::byte* workspace_ = nullptr;
  Stream upload_, compute_, download_;
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_INSTANCE_INSTANCE_H_

#ifndef REFRACT_GPU_NODE_DEVICE_CUDA_BATCH_H_
#define REFRACT_GPU_NODE_DEVICE_CUDA_BATCH_H_

// A loaded model of a CudaDevice, a batch in a slot, and the copies of rows
// into the slot and out of it. Internal to the CUDA files of this folder.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "gpu_node/device/cuda_device.h"
#include "gpu_node/device/device_programs.h"
#include "models/repository/repository.h"
#include "runtime/cuda/instance/instance.h"
#include "runtime/program.h"

namespace refract::gpu_node {

// Batches that an instance holds: one computes, the next one is uploaded.
inline constexpr int kCudaSlots = 2;

absl::Status ToAbsl(const runtime::cuda::Status& status);
runtime::cuda_plan::Precision PrecisionOf(models::GpuPrecision precision);

// Largest allowed error of a served model, relative to the largest result: far
// above the effect of rounding on a recommendation model, far below the effect
// of a wrong kernel.
double WorstError(runtime::cuda_plan::Precision precision);

// Memory for decoding the requests of a model, one after the other.
struct ReadMemory {
  explicit ReadMemory(const runtime::Program& program) : context(program) {}
  runtime::RunContext context;  // never run
  std::vector<std::optional<base::TensorSpec>> specs;
};

// A model in all instances.
struct CudaDevice::Entry {
  const DeviceModel* model = nullptr;
  std::unique_ptr<DevicePrograms> programs;
  // Destroyed before the programs whose weights it reads. Shared by all
  // instances, so that the weights are on the device once.
  std::shared_ptr<runtime::cuda::DeviceWeights> weights;
  std::vector<std::unique_ptr<runtime::cuda::Instance>> instances;
  bool resident = true;
  std::unique_ptr<ReadMemory> memory;
};

// Inputs and results of one member of a batch.
struct MemberData {
  // On the heap, because its views may point into itself.
  std::unique_ptr<DeviceModel::Inputs> inputs;
  std::vector<base::TensorSpec> specs;  // of the results
  int64_t rows = 0;   // of its program: 1 where the batch is a size
  int64_t first = 0;  // its first row in the slot
  // Values of the sizes besides the rows.
  runtime::cuda_plan::SizeValues sizes;
  // Results of a member that ran alone; other results are in the slot.
  std::vector<base::Tensor> results;

  // Forgets the request. Memory stays for the next request, unless it depends
  // on the model.
  void Clear();
};

// The batch that a slot of an instance holds.
struct CudaDevice::HeldBatch {
  Batch* batch = nullptr;
  Entry* entry = nullptr;       // null: no batch, or the instance was lost
  absl::Span<MemberData> data;  // of `storage`, one per member
  std::vector<MemberData> storage;
  runtime::cuda::SlotId slot = -1;
  // The slot's program.
  const runtime::cuda_plan::Translation* translation = nullptr;

  // Forgets the batch; memory stays for the next batch.
  void Clear();
  void Resize(size_t members);
};

struct CudaDevice::Pending {
  int instance = 0;
  HeldBatch* held = nullptr;
  bool execute = false;  // else: upload
  Device::Done done;
};

// Number of operators that LibTorch computes.
size_t CountForeign(const runtime::cuda::DeviceProgram& program);

// Whether every output has rows, and every input has rows or is the same for
// all. For a program at certain sizes.
bool GoesByRows(const runtime::cuda_plan::Translation& translation);

// Decodes and checks a member's request. `sizes`: values besides the batch.
absl::Status ReadMember(const DeviceModel& model,
                        const runtime::cuda_plan::FreeSizes& sizes,
                        const BatchMember& member, ReadMemory& memory,
                        MemberData& data);
// Writes `count` rows of `inputs`, from row `from` on, to the slot's rows from
// `to` on; inputs without rows are written with the slot's first row. Errors as
// FillBags(): the slot must not be used then.
absl::Status FillSlot(const runtime::cuda_plan::Translation& translation,
                      runtime::cuda::Instance& instance,
                      runtime::cuda::SlotId slot,
                      absl::Span<const base::TensorView> inputs, int64_t to,
                      int64_t from, int64_t count);
// Ends of the pieces of a request of `rows` rows. No piece has more than
// `max_rows` rows or more bag entries than there is room for.
// InvalidArgument, naming the limit, if the request cannot be cut (`by_rows`)
// or a single row is too large. `device`: its name. CheckBags() must have
// passed the bags.
absl::StatusOr<std::vector<int64_t>> PiecesOf(
    const runtime::cuda_plan::Translation& translation,
    absl::Span<const base::TensorView> inputs, int64_t rows, int64_t max_rows,
    bool by_rows, const std::string& device);
// Whether a size is 0. No program exists for size 0: the CPU answers.
bool AnyIsZero(const runtime::cuda_plan::SizeValues& sizes);
// Copies the slot's results to the member's rows from `first` on.
void CopyResults(const runtime::cuda_plan::Translation& translation,
                 const runtime::cuda::Instance& instance,
                 runtime::cuda::SlotId slot, int64_t first, int64_t count,
                 MemberData& data);
// Computes a request that no program takes by the model's CPU program.
absl::Status RunOnCpu(const DeviceModel& model, MemberData& data);
// A member's results in its own memory or in the slot's; `translation` is the
// slot's program. Returned in the memory of `views`, whose contents are lost.
std::vector<base::TensorView> ResultsOf(
    const runtime::cuda_plan::Translation* translation,
    const runtime::cuda::Instance& instance, runtime::cuda::SlotId slot,
    const MemberData& data, std::vector<base::TensorView> views = {});
// Largest difference between the slot's results and the CPU's for the same
// inputs, relative to the CPU's largest (at least 1e-6); infinity if exactly
// one of two results is NaN.
absl::StatusOr<double> ErrorOf(
    const runtime::Program& program,
    const runtime::cuda_plan::Translation& translation,
    const runtime::cuda::Instance& instance, runtime::cuda::SlotId slot,
    absl::Span<const base::TensorView> inputs, runtime::RunContext& context);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_DEVICE_CUDA_BATCH_H_

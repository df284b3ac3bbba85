// A batch's steps on a CudaDevice: upload, execution, download, errors.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/finite.h"
#include "base/status_macros.h"
#include "gpu_node/device/cuda_batch.h"
#include "gpu_node/device/cuda_device.h"

namespace refract::gpu_node {

using runtime::cuda::Instance;
namespace cuda = runtime::cuda;
namespace cuda_plan = runtime::cuda_plan;

void CudaDevice::Upload(int instance, int slot, Batch* batch, Done done) {
  Post({Command::Kind::kUpload, instance, slot, batch, std::move(done)});
}

void CudaDevice::Execute(int instance, int slot, Batch* batch, Done done) {
  Post({Command::Kind::kExecute, instance, slot, batch, std::move(done)});
}

void CudaDevice::Download(int instance, int slot, Batch* batch, Done done) {
  Post({Command::Kind::kDownload, instance, slot, batch, std::move(done)});
}

void CudaDevice::Do(Command command) {
  if (command.kind == Command::Kind::kOther) return command.other();
  const int instance = command.instance;
  HeldBatch& held = HeldAt(instance, command.slot);
  if (command.kind == Command::Kind::kDownload) {
    if (held.entry == nullptr) {
      return command.done(absl::UnavailableError(
          "the device's instance failed while it executed this request"));
    }
    DownloadHere(instance, held);
    held.Clear();
    return command.done(absl::OkStatus());
  }
  const bool execute = command.kind == Command::Kind::kExecute;
  if (!execute) {
    held.Clear();
    held.batch = command.batch;
    held.entry = order_[command.batch->model];
  }
  // The device's thread never blocks on the GPU: steps under way go to
  // `pending_`, and Poll() finds its end.
  bool waits = false;
  const absl::Status status = execute ? ExecuteHere(instance, held, &waits)
                                      : UploadHere(instance, held, &waits);
  if (!status.ok()) return Fail(instance, status, std::move(command.done));
  if (!waits) return command.done(status);
  pending_.push_back({instance, &held, execute, std::move(command.done)});
}

absl::Status CudaDevice::UploadHere(int index, HeldBatch& held, bool* waits) {
  Entry& entry = *held.entry;
  Instance& instance = *entry.instances[index];
  if (instance.state() != Instance::State::kReady) {
    return absl::UnavailableError(absl::StrCat(
        "model ", entry.model->name(), " is not loaded in ", options_.name));
  }
  // The members go into one slot if they have the same sizes and fit together.
  // In any other case the slot stays -1, and each member runs alone, later. A
  // member that cannot be read fails by itself.
  int64_t total = 0;
  size_t good = 0;
  const runtime::cuda_plan::SizeValues* sizes = nullptr;
  bool together = true;
  held.Resize(held.batch->members.size());
  for (size_t i = 0; i < held.data.size(); ++i) {
    BatchMember& member = held.batch->members[i];
    member.non_finite = false;
    member.status =
        base::Annotate(ReadMember(*entry.model, entry.programs->sizes(), member,
                                  *entry.memory, held.data[i]),
                       "on the GPU node");
    if (!member.status.ok()) continue;
    total += held.data[i].rows;
    ++good;
    together &= (sizes == nullptr || *sizes == held.data[i].sizes) &&
                !AnyIsZero(held.data[i].sizes);
    sizes = &held.data[i].sizes;
  }
  // Otherwise each member is uploaded when it is executed.
  if (total < 1 || !together) return absl::OkStatus();
  const absl::StatusOr<DevicePrograms::Use> use =
      entry.programs->At(*sizes, static_cast<size_t>(index), instance);
  if (!use.ok()) {
    if (instance.state() == Instance::State::kFailed) {
      return Lost(use.status());
    }
    for (BatchMember& member : held.batch->members) {
      if (!member.status.ok()) continue;
      member.status = base::Annotate(use.status(), "on the GPU node");
    }
    return absl::OkStatus();
  }
  if (total > use->max_rows || (good > 1 && !use->by_rows)) {
    return absl::OkStatus();
  }
  // Entries of bags lie one after the other in the slot, in room of a fixed
  // length. Members whose entries do not fit together, or whose last bag is
  // open, run alone.
  std::vector<int64_t>& entries = entries_taken_;
  entries.clear();
  for (size_t i = 0; i < held.data.size(); ++i) {
    if (!held.batch->members[i].status.ok()) continue;
    const auto& views = held.data[i].inputs->views;
    if (!cuda_plan::EndWithEntries(use->translation->bags, views) ||
        !cuda_plan::HasRoom(use->translation->bags, views, entries)) {
      return absl::OkStatus();
    }
  }
  const auto slot = instance.Acquire(total, use->id);
  if (!slot.ok()) return Lost(slot.status());
  held.slot = *slot;
  held.translation = use->translation;
  // Members lie side by side: each begins at the row where the previous member
  // ends.
  int64_t first = 0;
  for (size_t i = 0; i < held.data.size(); ++i) {
    MemberData& data = held.data[i];
    if (!held.batch->members[i].status.ok()) continue;
    data.first = first;
    const absl::Status filled =
        FillSlot(*held.translation, instance, held.slot, data.inputs->views,
                 first, 0, data.rows);
    if (!filled.ok()) {
      // A single request is at fault: run alone it gets its error.
      instance.Release(held.slot);
      held.slot = -1;
      held.translation = nullptr;
      return absl::OkStatus();
    }
    first += data.rows;
  }
  const cuda::Status status = instance.Upload(held.slot);
  if (!status.ok()) return Lost(status);
  *waits = true;
  return absl::OkStatus();
}

absl::Status CudaDevice::ExecuteHere(int index, HeldBatch& held, bool* waits) {
  if (held.entry == nullptr) {
    return absl::UnavailableError(
        "the device's instance failed while it executed this request");
  }
  if (held.slot >= 0) {
    const cuda::Status status = held.entry->instances[index]->Submit(held.slot);
    if (!status.ok()) return Lost(status);
    *waits = true;
    return absl::OkStatus();
  }
  for (size_t i = 0; i < held.data.size(); ++i) {
    if (!held.batch->members[i].status.ok()) continue;
    REFRACT_RETURN_IF_ERROR(RunAlone(index, held, i));
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::FinishExecute(int index, HeldBatch& held) {
  Instance& instance = *held.entry->instances[index];
  // InvalidArgument: a kernel has found a wrong id or offset. Any other error
  // is the device's, and the instance is lost.
  const cuda::Status status = instance.Wait(held.slot);
  if (status.ok()) return absl::OkStatus();
  if (status.code() != cuda::Code::kInvalidArgument) return Lost(status);
  // A single request is at fault: the other requests must not fail with it.
  instance.Release(held.slot);
  held.slot = -1;
  for (size_t i = 0; i < held.data.size(); ++i) {
    if (!held.batch->members[i].status.ok()) continue;
    REFRACT_RETURN_IF_ERROR(RunAlone(index, held, i));
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::RunAlone(int index, HeldBatch& held, size_t i) {
  Entry& entry = *held.entry;
  Instance& instance = *entry.instances[index];
  BatchMember& member = held.batch->members[i];
  MemberData& data = held.data[i];
  // No program is made for a size of 0.
  if (AnyIsZero(data.sizes)) {
    member.status =
        base::Annotate(RunOnCpu(*entry.model, data), "on the GPU node");
    return absl::OkStatus();
  }
  const absl::StatusOr<DevicePrograms::Use> use =
      entry.programs->At(data.sizes, static_cast<size_t>(index), instance);
  if (!use.ok()) {
    if (instance.state() == Instance::State::kFailed) {
      return Lost(use.status());
    }
    member.status = base::Annotate(use.status(), "on the GPU node");
    return absl::OkStatus();
  }
  member.status = base::Annotate(
      cuda_plan::CheckBags(use->translation->bag_checks, data.inputs->views),
      "on the GPU node");
  if (!member.status.ok()) return absl::OkStatus();
  const absl::StatusOr<std::vector<int64_t>> pieces =
      PiecesOf(*use->translation, data.inputs->views, data.rows, use->max_rows,
               use->by_rows, options_.name);
  if (!pieces.ok()) {
    member.status = base::Annotate(pieces.status(), "on the GPU node");
    return absl::OkStatus();
  }
  data.results.clear();
  for (const base::TensorSpec& spec : data.specs) {
    absl::StatusOr<base::Tensor> result =
        base::Tensor::Allocate(spec.dtype, spec.dims);
    if (!result.ok()) {
      member.status = result.status();
      return absl::OkStatus();
    }
    data.results.push_back(*std::move(result));
  }
  int64_t first = 0;
  for (const int64_t end : *pieces) {
    const int64_t count = end - first;
    const auto slot = instance.Acquire(count, use->id);
    if (!slot.ok()) return Lost(slot.status());
    member.status =
        base::Annotate(FillSlot(*use->translation, instance, *slot,
                                data.inputs->views, 0, first, count),
                       "on the GPU node");
    if (!member.status.ok()) {
      instance.Release(*slot);
      return absl::OkStatus();
    }
    // Unlike a batch in a slot, a member that runs alone blocks the device's
    // thread. It is rare: sizes that differ, long requests, faulty ids.
    cuda::Status status = instance.Submit(*slot);
    if (status.ok()) status = instance.Wait(*slot);
    if (status.ok())
      CopyResults(*use->translation, instance, *slot, first, count, data);
    instance.Release(*slot);
    if (status.code() == cuda::Code::kInvalidArgument) {
      member.status = absl::InvalidArgumentError(
          absl::StrCat("on the GPU node: ", status.message()));
      return absl::OkStatus();
    }
    if (!status.ok()) return Lost(status);
    first = end;
  }
  return absl::OkStatus();
}

void CudaDevice::DownloadHere(int index, HeldBatch& held) {
  const Entry& entry = *held.entry;
  Instance& instance = *entry.instances[index];
  for (size_t i = 0; i < held.data.size(); ++i) {
    BatchMember& member = held.batch->members[i];
    if (!member.status.ok()) continue;
    results_ = ResultsOf(held.translation, instance, held.slot, held.data[i],
                         std::move(results_));
    member.non_finite =
        std::any_of(results_.begin(), results_.end(), base::HasNonFinite);
    absl::StatusOr<transport::OutgoingMessage> reply =
        entry.model->Answer(*member.call, results_);
    member.status = base::Annotate(reply.status(), "on the GPU node");
    if (reply.ok()) member.reply = *std::move(reply);
  }
  if (held.slot >= 0) instance.Release(held.slot);
}

bool CudaDevice::Poll() {
  for (size_t i = 0; i < pending_.size(); ++i) {
    Pending& pending = pending_[i];
    HeldBatch& held = *pending.held;
    Instance& instance = *held.entry->instances[pending.instance];
    const auto ended = pending.execute ? instance.Done(held.slot)
                                       : instance.Uploaded(held.slot);
    if (ended.ok() && !*ended) continue;
    const int index = pending.instance;
    const bool execute = pending.execute;
    Done done = std::move(pending.done);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    // One end per call, because Fail() may remove further elements of pending_.
    absl::Status status = ended.ok() ? absl::OkStatus() : Lost(ended.status());
    if (status.ok() && execute) status = FinishExecute(index, held);
    if (status.ok()) {
      done(status);
    } else {
      Fail(index, status, std::move(done));
    }
    return true;
  }
  return false;
}

void CudaDevice::Fail(int instance, const absl::Status& status, Done done) {
  const absl::Status why = absl::UnavailableError(
      absl::StrCat("device ", options_.name, ", instance ", instance, ": ",
                   status.message()));
  std::vector<Done> all;
  all.push_back(std::move(done));
  // The scheduler expects an answer for each call: steps of the instance that
  // are still under way end here, too.
  for (size_t i = pending_.size(); i-- > 0;) {
    if (pending_[i].instance != instance) continue;
    all.push_back(std::move(pending_[i].done));
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // Cleared before the scheduler takes back the calls that these views read.
  for (int slot = 0; slot < kCudaSlots; ++slot) HeldAt(instance, slot).Clear();
  for (const auto& entry : entries_) {
    if (entry->instances[instance]->state() != Instance::State::kUnloaded) {
      entry->instances[instance]->Unload();
    }
  }
  for (const Done& one : all) one(why);
}

}  // namespace refract::gpu_node

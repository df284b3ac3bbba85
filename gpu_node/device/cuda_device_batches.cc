// A batch's steps on a CudaDevice: upload, execution, download, errors.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/finite.h"
#include "base/status_macros.h"
#include "gpu_node/device/cuda_device.h"
#include "gpu_node/device/cuda_work.h"

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
  Work& work = WorkOf(instance, command.slot);
  if (command.kind == Command::Kind::kDownload) {
    if (work.entry == nullptr) {
      return command.done(absl::UnavailableError(
          "the device's instance failed while it executed this request"));
    }
    DownloadHere(instance, work);
    work.Clear();
    return command.done(absl::OkStatus());
  }
  const bool execute = command.kind == Command::Kind::kExecute;
  if (!execute) {
    work.Clear();
    work.batch = command.batch;
    work.entry = order_[command.batch->model];
  }
  // The device's thread never blocks on the GPU: work under way goes to
  // `pending_`, and Poll() finds its end.
  bool waits = false;
  const absl::Status status = execute ? ExecuteHere(instance, work, &waits)
                                      : UploadHere(instance, work, &waits);
  if (!status.ok()) return Fail(instance, status, std::move(command.done));
  if (!waits) return command.done(status);
  pending_.push_back({instance, &work, execute, std::move(command.done)});
}

absl::Status CudaDevice::UploadHere(int index, Work& work, bool* waits) {
  Entry& entry = *work.entry;
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
  work.Resize(work.batch->members.size());
  for (size_t i = 0; i < work.parts.size(); ++i) {
    BatchMember& member = work.batch->members[i];
    member.non_finite = false;
    member.status =
        base::Annotate(ReadMember(*entry.model, entry.programs->sizes(), member,
                                  *entry.memory, work.parts[i]),
                       "on the GPU node");
    if (!member.status.ok()) continue;
    total += work.parts[i].rows;
    ++good;
    together &= (sizes == nullptr || *sizes == work.parts[i].sizes) &&
                !AnyIsZero(work.parts[i].sizes);
    sizes = &work.parts[i].sizes;
  }
  // Otherwise each member is uploaded when it is executed.
  if (total < 1 || !together) return absl::OkStatus();
  const absl::StatusOr<DevicePrograms::Use> use =
      entry.programs->At(*sizes, static_cast<size_t>(index), instance);
  if (!use.ok()) {
    if (instance.state() == Instance::State::kFailed) {
      return Lost(use.status());
    }
    for (BatchMember& member : work.batch->members) {
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
  for (size_t i = 0; i < work.parts.size(); ++i) {
    if (!work.batch->members[i].status.ok()) continue;
    const auto& views = work.parts[i].inputs->views;
    if (!cuda_plan::EndWithEntries(use->translation->bags, views) ||
        !cuda_plan::HasRoom(use->translation->bags, views, entries)) {
      return absl::OkStatus();
    }
  }
  const auto slot = instance.Acquire(total, use->id);
  if (!slot.ok()) return Lost(slot.status());
  work.slot = *slot;
  work.translation = use->translation;
  // Members lie side by side: each begins at the row where the previous member
  // ends.
  int64_t first = 0;
  for (size_t i = 0; i < work.parts.size(); ++i) {
    CudaPart& part = work.parts[i];
    if (!work.batch->members[i].status.ok()) continue;
    part.first = first;
    const absl::Status filled =
        FillSlot(*work.translation, instance, work.slot, part.inputs->views,
                 first, 0, part.rows);
    if (!filled.ok()) {
      // A single request is at fault: run alone it gets its error.
      instance.Release(work.slot);
      work.slot = -1;
      work.translation = nullptr;
      return absl::OkStatus();
    }
    first += part.rows;
  }
  const cuda::Status status = instance.Upload(work.slot);
  if (!status.ok()) return Lost(status);
  *waits = true;
  return absl::OkStatus();
}

absl::Status CudaDevice::ExecuteHere(int index, Work& work, bool* waits) {
  if (work.entry == nullptr) {
    return absl::UnavailableError(
        "the device's instance failed while it executed this request");
  }
  if (work.slot >= 0) {
    const cuda::Status status = work.entry->instances[index]->Submit(work.slot);
    if (!status.ok()) return Lost(status);
    *waits = true;
    return absl::OkStatus();
  }
  for (size_t i = 0; i < work.parts.size(); ++i) {
    if (!work.batch->members[i].status.ok()) continue;
    REFRACT_RETURN_IF_ERROR(RunAlone(index, work, i));
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::FinishExecute(int index, Work& work) {
  Instance& instance = *work.entry->instances[index];
  // InvalidArgument: a kernel has found a wrong id or offset. Any other error
  // is the device's, and the instance is lost.
  const cuda::Status status = instance.Wait(work.slot);
  if (status.ok()) return absl::OkStatus();
  if (status.code() != cuda::Code::kInvalidArgument) return Lost(status);
  // A single request is at fault: the other requests must not fail with it.
  instance.Release(work.slot);
  work.slot = -1;
  for (size_t i = 0; i < work.parts.size(); ++i) {
    if (!work.batch->members[i].status.ok()) continue;
    REFRACT_RETURN_IF_ERROR(RunAlone(index, work, i));
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::RunAlone(int index, Work& work, size_t i) {
  Entry& entry = *work.entry;
  Instance& instance = *entry.instances[index];
  BatchMember& member = work.batch->members[i];
  CudaPart& part = work.parts[i];
  // No program is made for a size of 0.
  if (AnyIsZero(part.sizes)) {
    member.status =
        base::Annotate(RunOnCpu(*entry.model, part), "on the GPU node");
    return absl::OkStatus();
  }
  const absl::StatusOr<DevicePrograms::Use> use =
      entry.programs->At(part.sizes, static_cast<size_t>(index), instance);
  if (!use.ok()) {
    if (instance.state() == Instance::State::kFailed) {
      return Lost(use.status());
    }
    member.status = base::Annotate(use.status(), "on the GPU node");
    return absl::OkStatus();
  }
  member.status = base::Annotate(
      cuda_plan::CheckBags(use->translation->bag_checks, part.inputs->views),
      "on the GPU node");
  if (!member.status.ok()) return absl::OkStatus();
  const absl::StatusOr<std::vector<int64_t>> pieces =
      PiecesOf(*use->translation, part.inputs->views, part.rows, use->max_rows,
               use->by_rows, options_.name);
  if (!pieces.ok()) {
    member.status = base::Annotate(pieces.status(), "on the GPU node");
    return absl::OkStatus();
  }
  part.results.clear();
  for (const base::TensorSpec& spec : part.specs) {
    absl::StatusOr<base::Tensor> result =
        base::Tensor::Allocate(spec.dtype, spec.dims);
    if (!result.ok()) {
      member.status = result.status();
      return absl::OkStatus();
    }
    part.results.push_back(*std::move(result));
  }
  int64_t first = 0;
  for (const int64_t end : *pieces) {
    const int64_t count = end - first;
    const auto slot = instance.Acquire(count, use->id);
    if (!slot.ok()) return Lost(slot.status());
    member.status =
        base::Annotate(FillSlot(*use->translation, instance, *slot,
                                part.inputs->views, 0, first, count),
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
      CopyResults(*use->translation, instance, *slot, first, count, part);
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

void CudaDevice::DownloadHere(int index, Work& work) {
  const Entry& entry = *work.entry;
  Instance& instance = *entry.instances[index];
  for (size_t i = 0; i < work.parts.size(); ++i) {
    BatchMember& member = work.batch->members[i];
    if (!member.status.ok()) continue;
    results_ = ResultsOf(work.translation, instance, work.slot, work.parts[i],
                         std::move(results_));
    member.non_finite =
        std::any_of(results_.begin(), results_.end(), base::HasNonFinite);
    absl::StatusOr<transport::OutgoingMessage> reply =
        entry.model->Answer(*member.call, results_);
    member.status = base::Annotate(reply.status(), "on the GPU node");
    if (reply.ok()) member.reply = *std::move(reply);
  }
  if (work.slot >= 0) instance.Release(work.slot);
}

bool CudaDevice::Poll() {
  for (size_t i = 0; i < pending_.size(); ++i) {
    Pending& pending = pending_[i];
    Work& work = *pending.work;
    Instance& instance = *work.entry->instances[pending.instance];
    const auto ended = pending.execute ? instance.Done(work.slot)
                                       : instance.Uploaded(work.slot);
    if (ended.ok() && !*ended) continue;
    const int index = pending.instance;
    const bool execute = pending.execute;
    Done done = std::move(pending.done);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    // One end per call, because Fail() may remove further elements of pending_.
    absl::Status status = ended.ok() ? absl::OkStatus() : Lost(ended.status());
    if (status.ok() && execute) status = FinishExecute(index, work);
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
  // The scheduler expects an answer for each call: work of the instance that is
  // still under way ends here, too.
  for (size_t i = pending_.size(); i-- > 0;) {
    if (pending_[i].instance != instance) continue;
    all.push_back(std::move(pending_[i].done));
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // Cleared before the scheduler takes back the calls that these views read.
  for (int slot = 0; slot < kCudaSlots; ++slot) WorkOf(instance, slot).Clear();
  for (const auto& entry : entries_) {
    if (entry->instances[instance]->state() != Instance::State::kUnloaded) {
      entry->instances[instance]->Unload();
    }
  }
  for (const Done& one : all) one(why);
}

}  // namespace refract::gpu_node

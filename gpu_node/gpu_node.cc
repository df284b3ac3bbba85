#include "gpu_node/gpu_node.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/process/thread.h"
#include "base/process/within_memory.h"
#include "glog/logging.h"
#include "gpu_node/device/cpu_device.h"
#include "gpu_node/model/measured_times.h"
#include "gpu_node/model/warm_up.h"
#include "gpu_node/scheduler/resident_set.h"
#include "scheduling/deadline_queue.h"
#include "transport/messages/wire.h"

namespace refract::gpu_node {

static_assert(transport::kMaxPriority < scheduling::kPriorityLevels);
namespace {

// Enough lines to see a fault, too few to fill a disk or slow the node down.
constexpr int kFailureLinesPerSecond = 10;

constexpr char kDrained[] = "the GPU node is drained by command";

absl::Status CheckOptions(const GpuNodeOptions& options) {
  if (options.instances < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("instances is ", options.instances, ", wanted ≥ 1"));
  }
  if (options.max_queue < 1) {
    return absl::InvalidArgumentError("max_queue is 0, wanted ≥ 1");
  }
  if (options.max_batch < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_batch is ", options.max_batch, ", wanted ≥ 1"));
  }
  if (options.batching_window.value_or(absl::ZeroDuration()) <
      absl::ZeroDuration()) {
    return absl::InvalidArgumentError("batching_window is below 0");
  }
  return absl::OkStatus();
}

absl::Status Unloaded() {
  return absl::UnavailableError("the model was unloaded on this GPU node");
}

std::string TimesText(const scheduling::ExecutionTimes& times) {
  const absl::Time now = absl::UnixEpoch();  // a fixed time: no ageing
  if (!times.known(now)) return "its execution times are not known yet";
  return absl::StrCat("1 row takes ",
                      absl::FormatDuration(times.Typical(1, now)), ", 64 take ",
                      absl::FormatDuration(times.Typical(64, now)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuNode>> GpuNode::Create(
    DeviceModels models, const GpuNodeOptions& options,
    const MakeDevice& make_device) {
  const absl::Status valid = CheckOptions(options);
  if (!valid.ok()) return valid;
  std::unique_ptr<GpuNode> node(new GpuNode(std::move(models), options));
  // Backwards, because LeaveOut() moves the models behind.
  for (size_t i = node->models_.size(); i > 0; --i) {
    const DeviceModel& model = node->models_[i - 1];
    // The device's own count where it has one: on a GPU all memory of a model
    // counts, not its weights alone.
    const absl::Status fits =
        node->CheckFits(model, options.facts ? options.facts(model).device_bytes
                                             : model.weight_bytes());
    if (fits.ok()) continue;
    const auto why = absl::StrCat(model.label(), ": ", fits.message());
    LOG(ERROR) << why << "; it is left out";
    node->models_.LeaveOut(i - 1, absl::FailedPreconditionError(why));
  }
  std::vector<ScheduledModel> described;
  // The order of `described` gives the scheduler's numbers and the device's
  // places 0, 1, …, which are the keys of versions_ as well.
  for (size_t i = 0; i < node->models_.size(); ++i) {
    const DeviceModel& model = node->models_[i];
    described.push_back(node->Describe(
        model, options.facts ? std::make_optional(options.facts(model))
                             : std::nullopt));
  }
  node->device_ =
      make_device != nullptr
          ? make_device(node->models_)
          : std::make_unique<CpuDevice>(
                node->models_,
                CpuDevice::Options{.instances = options.instances,
                                   .weight_memory = options.weight_memory});
  std::vector<Served> unmeasured;
  std::vector<std::shared_ptr<const DeviceModel>> all = node->models_.TakeAll();
  {
    absl::MutexLock lock(&node->models_mu_);
    for (size_t i = 0; i < all.size(); ++i) {
      if (described[i].measuring) unmeasured.push_back({i, all[i]});
      Version& version = node->versions_[i];
      version.name = all[i]->name();
      version.version = all[i]->version();
      version.model = std::move(all[i]);
      version.merges = described[i].batching.enabled;
    }
  }
  SchedulerOptions scheduler;
  scheduler.max_queue = options.max_queue;
  scheduler.first_backoff = options.first_backoff;
  scheduler.last_backoff = options.last_backoff;
  scheduler.isolation = options.isolation;
  scheduler.slow_after = options.slow_after;
  node->scheduler_ = std::make_unique<Scheduler>(
      scheduler, std::move(described), node->device_.get(), *options.clock);
  // Before the start, so that no change is missed.
  node->scheduler_->WatchReadiness(
      [raw = node.get()] { raw->TellReadiness(); });
  node->scheduler_->Start();
  node->timers_ =
      std::thread([raw = node->scheduler_.get()] { raw->RunTimers(); });
  node->StartWarmUps(std::move(unmeasured));
  if (!options.warm_up_in_background) node->AwaitWarmUps();
  if (options.load != nullptr) {
    node->keeper_ = std::thread([raw = node.get()] { raw->KeepModels(); });
  }
  return node;
}

GpuNode::GpuNode(DeviceModels models, const GpuNodeOptions& options)
    : options_(options),
      models_(std::move(models)),
      refusal_log_(kFailureLinesPerSecond, *options.clock),
      machine_(ThisMachine()) {}

absl::Status GpuNode::CheckFits(const DeviceModel& model,
                                size_t device_bytes) const {
  const int64_t least = model.model().graph.min_batch;
  if (!model.model().graph.batch_symbol.empty() && least > options_.max_batch) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model needs batches of ", least,
                     " rows or more, but executions have at most ",
                     options_.max_batch, " (--max-batch)"));
  }
  return ResidentSet(options_.weight_memory, {device_bytes}).CheckFits(0);
}

void GpuNode::StartWarmUps(std::vector<Served> models) {
  if (models.empty()) return;
  unmeasured_ = std::move(models);
  // CPU nodes send requests to the newest ready version. If an older version
  // became ready first, it would get them for a moment.
  absl::flat_hash_map<absl::string_view, int64_t> newest;
  for (const auto& [number, model] : unmeasured_) {
    int64_t& version = newest[model->name()];
    version = std::max(version, model->version());
  }
  const auto older = std::stable_partition(
      unmeasured_.begin(), unmeasured_.end(), [&](const Served& served) {
        return served.model->version() == newest[served.model->name()];
      });
  num_newest_ = static_cast<size_t>(older - unmeasured_.begin());
  newest_left_.store(num_newest_);
  // One model per CPU: more would measure each other's load.
  const size_t cpus = std::max(1u, std::thread::hardware_concurrency());
  const size_t threads =
      std::min(options_.warm_up_threads > 0
                   ? static_cast<size_t>(options_.warm_up_threads)
                   : cpus,
               unmeasured_.size());
  for (size_t i = 0; i < threads; ++i) {
    absl::StatusOr<std::thread> thread =
        base::StartThread([this] { WarmUpSome(); });
    if (thread.ok()) {
      warm_ups_.push_back(*std::move(thread));
      continue;
    }
    // Fewer threads take longer; without any, this thread measures all models.
    LOG(WARNING) << "warm-up: " << thread.status().message();
    if (warm_ups_.empty()) WarmUpSome();
    break;
  }
}

void GpuNode::AwaitWarmUps() {
  for (std::thread& thread : warm_ups_) thread.join();
  warm_ups_.clear();
}

void GpuNode::WarmUpSome() {
  while (!stop_warm_ups_.load(std::memory_order_relaxed)) {
    const size_t next = next_unmeasured_.fetch_add(1);
    // Numbers are handed out in order, and a thread measures each number that
    // it takes. So the wait below always ends: all newest versions have been
    // taken by then.
    if (next >= unmeasured_.size()) return;
    // Older versions wait until other threads have measured all newest
    // versions.
    size_t left = newest_left_.load();
    while (next >= num_newest_ && left > 0) {
      newest_left_.wait(left);
      left = newest_left_.load();
    }
    // Releases the model, so that it may be unloaded.
    const Served served = std::exchange(unmeasured_[next], {});
    scheduler_->SetTimes(served.number, Measure(*served.model));
    if (next < num_newest_) {
      --newest_left_;
      newest_left_.notify_all();
    }
  }
}

scheduling::ExecutionTimes GpuNode::Measure(const DeviceModel& model) const {
  WarmUpOptions warm_up;
  warm_up.max_rows = options_.max_batch;
  warm_up.budget = options_.warm_up;
  warm_up.clock = options_.clock;
  MeasuredTimes measured;
  const absl::Status enough = base::WithinMemory([&] {
    measured = WarmUp(model, warm_up);
    return absl::OkStatus();
  });
  const absl::Status kept =
      measured.empty()
          ? enough
          : TimesFile(model, machine_, options_.max_batch).Write(measured);
  LOG(INFO) << model.label() << ": " << TimesText(TimesOf(measured))
            << (kept.ok() ? "" : "; ") << kept.message();
  return TimesOf(measured);
}

void GpuNode::WatchReadiness(ReadinessListener listener) {
  {
    absl::MutexLock lock(&readiness_mu_);
    readiness_listener_ = std::move(listener);
  }
  TellReadiness();
}

void GpuNode::TellReadiness() {
  absl::MutexLock lock(&readiness_mu_);
  if (readiness_listener_ == nullptr) return;
  std::vector<size_t> numbers;
  {
    absl::ReaderMutexLock models_lock(&models_mu_);
    for (const auto& [number, version] : versions_) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  for (const size_t number : numbers) {
    // A drained node says so for every model: CPU nodes then send nothing.
    readiness_listener_(number, drained() ? absl::UnavailableError(kDrained)
                                          : scheduler_->ModelReady(number));
  }
}

void GpuNode::SetDrained(bool drained) {
  if (drained_.exchange(drained) == drained) return;
  LOG(INFO) << (drained ? "drained by command: CPU nodes are told to send no "
                          "more requests"
                        : "no longer drained: CPU nodes may send requests");
  TellReadiness();
}

GpuNode::~GpuNode() {
  if (scheduler_ == nullptr) return;
  WatchReadiness(nullptr);
  {
    absl::MutexLock lock(&models_mu_);
    stop_keeper_ = true;
  }
  if (keeper_.joinable()) keeper_.join();
  stop_warm_ups_.store(true, std::memory_order_relaxed);
  AwaitWarmUps();
  // The threads that ended above add and describe models of the scheduler. The
  // scheduler's destructor waits for the device's calls, and the device is
  // destroyed after it.
  scheduler_->StopTimers();
  timers_.join();
  scheduler_.reset();
}

ScheduledModel GpuNode::Describe(
    const DeviceModel& model, const std::optional<ModelOnDevice>& facts) const {
  const models::ServingConfig& serving = model.model().config.serving;
  ScheduledModel described;
  described.label = model.label();
  // Settings of the version's config.pbtxt; node-wide options follow.
  described.share = serving.share;
  described.max_instances = serving.max_instances;
  described.max_queue = serving.max_queue;
  described.weight_bytes = model.weight_bytes();
  const std::string& why_not = model.layout().why_not();
  scheduling::BatchingOptions& batching = described.batching;
  batching.max_rows = options_.max_batch;
  batching.enabled =
      serving.dynamic_batching || options_.batching_window.has_value();
  // config.pbtxt of the model goes before --batching-window-us.
  batching.window = serving.dynamic_batching
                        ? serving.max_queue_delay
                        : options_.batching_window.value_or(absl::Duration());
  batching.preferred_rows = serving.preferred_batch_sizes;
  if (why_not.empty()) {
    // Independent rows: a request may be cut into steps, and merged if batching
    // is on.
    described.splittable = true;
    // Without batching, other requests must not change a bit of an answer.
    described.stepwise = batching.enabled || model.row_difference() == 0;
    described.least_rows = std::max<int64_t>(model.model().graph.min_batch, 1);
    LOG(INFO)
        << described.label
        << ": results of a row computed alone and in a batch differ by at most "
        << model.row_difference();
    if (batching.enabled && !model.rows().may_coalesce) {
      LOG(INFO) << described.label
                << ": its requests are executed together only with requests "
                   "whose tensors without rows are equal: "
                << model.rows().why;
    }
  } else if (batching.enabled) {
    batching.enabled = false;
    LOG(WARNING) << described.label
                 << ": its requests are never executed together, whatever "
                    "dynamic_batching or --batching-window-us says: "
                 << why_not;
  }
  if (facts.has_value()) {
    described.times = facts->times;
    described.weight_bytes = facts->device_bytes;
  } else if (options_.warm_up > absl::ZeroDuration()) {
    const auto measured = TimesFile(model, machine_, options_.max_batch).Read();
    described.measuring = !measured.has_value();
    if (measured.has_value()) described.times = TimesOf(*measured);
  }
  LOG(INFO) << described.label << ": share " << described.share << ", "
            << described.weight_bytes << " bytes of weights, "
            << (described.measuring ? "to be measured"
                                    : TimesText(described.times))
            << ", "
            << (batching.enabled
                    ? absl::StrCat("batching window ",
                                   absl::FormatDuration(batching.window))
                    : "no batching");
  return described;
}

absl::Status GpuNode::OnAnnounced(const transport::RequestDescriptor& request) {
  bool merges = false;
  const auto model = ModelOf(request.model, &merges);
  if (model == nullptr) return Unloaded();
  // Decided by the tensor table alone: the payload of a refused request is
  // never pulled.
  return scheduler_->Admit(request.model, request.priority,
                           model->RowsOf(request.tensors),
                           request.deadline);
}

void GpuNode::OnRequest(std::unique_ptr<transport::ServerCall> call) {
  const size_t number = call->model();
  bool merges = false;
  const auto model = ModelOf(number, &merges);
  if (model == nullptr) return call->Fail(Unloaded());
  // A merge key compares inputs without rows byte by byte, which requests that
  // are executed alone need not pay for.
  if (!merges) {
    const int64_t rows = model->RowsOf(call->tensors());
    return scheduler_->Submit(number, std::move(call), rows, "");
  }
  const base::Pool<DeviceModel::Arrival>::Lease arrival = model->Look(*call);
  scheduler_->Submit(number, std::move(call), arrival->rows,
                     arrival->merge_key);
}

void GpuNode::OnAbandoned(size_t model) { scheduler_->OnAbandoned(model); }

void GpuNode::OnWithdrawn(size_t model) { scheduler_->OnWithdrawn(model); }

GpuNode::Stats GpuNode::stats() const {
  Stats sum;
  std::vector<ModelStats> all;
  for (const Served& served : served()) {
    all.push_back(scheduler_->stats(served.number));
  }
  {
    absl::ReaderMutexLock lock(&models_mu_);
    // Counters must not fall when a model is unloaded.
    all.push_back(unloaded_);
  }
  for (const ModelStats& model : all) {
    sum.succeeded += model.succeeded;
    sum.failed += model.failed;
    sum.expired += model.expired;
    sum.abandoned += model.abandoned;
    sum.refused += model.refused + model.queue_full + model.too_large;
    sum.unavailable += model.unavailable;
  }
  return sum;
}

std::string Summary(const ModelStats& stats) {
  return absl::StrCat(
      stats.succeeded, " succeeded, ", stats.failed, " failed, ", stats.expired,
      " expired, ", stats.abandoned, " given up by their clients, ",
      stats.refused, " refused as too late, ", stats.queue_full,
      " refused by a full queue, ", stats.too_large, " too large, ",
      stats.unavailable, " unavailable; ", stats.batches,
      " executions of up to ", stats.largest_batch, " requests, ", stats.merged,
      " requests shared an execution, ", stats.steps,
      " executions were of a part of a request; ", stats.non_finite,
      " answers with NaN or infinity; ", stats.loads, " loads and ",
      stats.evictions, " evictions of weights; ",
      absl::FormatDuration(stats.device_time), " of device time, ",
      absl::FormatDuration(stats.queue_time), " in the queue");
}

}  // namespace refract::gpu_node

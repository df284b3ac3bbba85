#include "gpu_node/device/cuda_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "gpu_node/device/cuda_batch.h"
#include "gpu_node/model/warm_up.h"
#include "models/rows/row_dependence.h"

namespace refract::gpu_node {

using runtime::cuda::Instance;
namespace cuda = runtime::cuda;
namespace cuda_plan = runtime::cuda_plan;

CudaDevice::CudaDevice(std::unique_ptr<cuda::DeviceApi> api,
                       const Options& options)
    : options_(options),
      traits_{.name = options.name,
              .instances = options.instances,
              .slots = kCudaSlots,
              .weight_memory = options.weight_memory},
      api_(std::move(api)) {
  for (int i = 0; i < options.instances * kCudaSlots; ++i) {
    held_.push_back(std::make_unique<HeldBatch>());
  }
  thread_ = std::thread([this] { Run(); });
}

CudaDevice::~CudaDevice() {
  // Freed on the thread that the GPU's runtime knows.
  Post([this] { entries_.clear(); });
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void CudaDevice::Post(Command command) {
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(command));
}

void CudaDevice::Run() {
  std::vector<Command> taken;
  while (true) {
    taken.clear();
    {
      absl::MutexLock lock(&mu_);
      // Sleeps only without work on the GPU: ends of uploads and executions
      // wake nobody and are found by polling.
      if (pending_.empty()) {
        mu_.Await(absl::Condition(this, &CudaDevice::HasWork));
      }
      taken.swap(queue_);
      if (taken.empty() && stop_ && pending_.empty()) return;
    }
    for (Command& command : taken) Do(std::move(command));
    // Commands first: the next execution is launched before results of the last
    // are looked for.
    if (taken.empty() && !Poll()) std::this_thread::yield();
  }
}

CudaDevice::HeldBatch& CudaDevice::HeldAt(int instance, int slot) {
  return *held_[static_cast<size_t>(instance) * kCudaSlots + slot];
}

// --- Loading ----------------------------------------------------------------

absl::StatusOr<CudaDevice::Loaded> CudaDevice::Add(const DeviceModel& model) {
  absl::StatusOr<Loaded> loaded =
      absl::InternalError("the device did not load the model");
  absl::Notification done;
  Post([&] {
    loaded = AddHere(model);
    done.Notify();
  });
  done.WaitForNotification();
  return loaded;
}

absl::StatusOr<CudaDevice::Loaded> CudaDevice::AddHere(
    const DeviceModel& model) {
  const models::Graph& graph = model.model().graph;
  const std::string label = model.label();
  auto entry = std::make_unique<Entry>();
  entry->model = &model;
  entry->memory = std::make_unique<ReadMemory>(model.program());
  // No bucket above the largest batch that the model declares.
  int64_t max_rows = options_.max_rows;
  for (const models::SymbolRange& range : graph.symbols) {
    if (range.symbol == graph.batch_symbol) {
      max_rows = std::min(max_rows, std::max<int64_t>(range.max, 1));
    }
  }
  Loaded loaded;
  loaded.precision = PrecisionOf(model.model().config.serving.gpu_precision);
  cuda_plan::TranslateOptions translate;
  translate.model = model.name();
  translate.device = options_.name;
  translate.precision = loaded.precision;
  translate.max_batch = max_rows;
  translate.max_size = options_.max_size;
  // A bucket has extra rows, which would change the results of others.
  translate.fix_batch = model.rows().use != models::RowUse::kAlone;
  translate.compile.config = model.model().config;
  translate.foreign = options_.foreign.get();
  REFRACT_ASSIGN_OR_RETURN(
      entry->programs,
      DevicePrograms::Create(graph, model.program().part(),
                             model.model().weights, translate,
                             {.max_rows = max_rows,
                              .instances = options_.instances,
                              .num_slots = kCudaSlots,
                              .workspace_bytes = options_.workspace_bytes,
                              .sized_memory = options_.sized_memory}));
  const cuda_plan::Translation& first = entry->programs->first();
  loaded.kernels = first.program.ops.size();
  loaded.foreign = CountForeign(first.program);
  loaded.sizes = entry->programs->Describe();
  uses_foreign_ |= loaded.foreign > 0;
  auto weights =
      cuda::DeviceWeights::Create(*api_, first.program, first.weights,
                                  {.keep_pinned = options_.weight_memory > 0});
  if (!weights.ok()) return base::Annotate(ToAbsl(weights.status()), label);
  entry->weights = *std::move(weights);
  for (int i = 0; i < options_.instances; ++i) {
    auto instance = Instance::Create(*api_, first.program, entry->weights,
                                     entry->programs->instance_options());
    if (!instance.ok()) {
      return base::Annotate(ToAbsl(instance.status()), label);
    }
    const cuda::Status status = (*instance)->Load();
    if (!status.ok()) {
      return absl::Status(
          ToAbsl(status).code(),
          absl::StrCat(label, " does not load into ", options_.name,
                       ", instance ", i + 1, " of ", options_.instances, ": ",
                       status.message()));
    }
    const cuda::MemoryReport& memory = (*instance)->memory();
    // The instances share the weights, which count once.
    loaded.device_bytes += static_cast<size_t>(
        memory.device_bytes() - (i > 0 ? memory.weight_bytes : 0));
    loaded.captured_bytes += static_cast<size_t>(memory.captured_bytes);
    entry->instances.push_back(*std::move(instance));
  }
  REFRACT_RETURN_IF_ERROR(base::Annotate(Measure(*entry, loaded), label));
  if (options_.weight_memory > 0) {
    for (const auto& instance : entry->instances) instance->Unload();
    // Where memory is limited, the scheduler decides which models are loaded,
    // by LoadWeights().
    entry->resident = false;
  }
  entries_.push_back(std::move(entry));
  return loaded;
}

absl::Status CudaDevice::Measure(Entry& entry, Loaded& loaded) {
  const DeviceModel& model = *entry.model;
  const models::Graph& graph = model.model().graph;
  Instance& instance = *entry.instances[0];
  const absl::Time begin = options_.clock->Now();
  // The node's CPU program may keep its weights in fewer bits.
  const runtime::Program* cpu = &model.program();
  std::unique_ptr<const runtime::Program> exact;
  if (model.model().config.dense_weights != models::DenseWeights::kFloat32) {
    runtime::CompileOptions compile;
    compile.config = model.model().config;
    compile.config.dense_weights = models::DenseWeights::kFloat32;
    REFRACT_ASSIGN_OR_RETURN(
        exact, runtime::Program::Compile(graph, cpu->part(),
                                         model.model().weights, compile));
    cpu = exact.get();
  }
  runtime::RunContext context(*cpu);
  // Sizes besides the batch at usual values: the largest would measure requests
  // that hardly come.
  const cuda_plan::SizeValues sizes = entry.programs->TypicalSizes();
  REFRACT_ASSIGN_OR_RETURN(const DevicePrograms::Use use,
                           entry.programs->At(sizes, 0, instance));
  // Rows may mix: each batch size is a program of its own, which takes one
  // "row".
  const bool fixed = entry.programs->sizes().has_batch();
  const models::SymbolBindings bound = entry.programs->sizes().Bind(sizes);
  const auto batch = bound.find(graph.batch_symbol);
  int64_t rows = std::min(std::max<int64_t>(graph.min_batch, 1), use.max_rows);
  // Sizes 1, 4, 16, … rows, each timed as the fastest of four runs. One size is
  // also compared with the CPU's results.
  bool compared = false;
  while (true) {
    // Rows of the request; a program of a fixed batch takes it as one row.
    const int64_t items = fixed && batch != bound.end() ? batch->second : rows;
    const auto inputs = MakeInputs(graph, model.program().part(), items, 1,
                                   bound, model.least_integer());
    // The model's times are learnt from requests instead.
    if (!inputs.ok()) return absl::OkStatus();
    std::vector<base::TensorView> views;
    for (const base::Tensor& input : *inputs) views.push_back(input.view());
    std::vector<int64_t> none_taken;
    if (!cuda_plan::HasRoom(use.translation->bags, views, none_taken)) {
      return absl::OkStatus();
    }
    absl::Duration fastest = absl::InfiniteDuration();
    for (int run = 0; run < 4; ++run) {
      const absl::Time from = options_.clock->Now();
      const auto slot = instance.Acquire(rows, use.id);
      if (!slot.ok()) return ToAbsl(slot.status());
      const absl::Status filled =
          FillSlot(*use.translation, instance, *slot, views, 0, 0, rows);
      if (!filled.ok()) {
        instance.Release(*slot);
        return filled;
      }
      cuda::Status status = instance.Submit(*slot);
      if (status.ok()) status = instance.Wait(*slot);
      if (!status.ok()) {
        instance.Release(*slot);
        // The model may reject generated inputs.
        if (status.code() == cuda::Code::kInvalidArgument) {
          return absl::OkStatus();
        }
        return ToAbsl(status);
      }
      fastest = std::min(fastest, options_.clock->Now() - from);
      // Compares a number of rows that fills neither one tile nor whole tiles,
      // if the model takes that number of rows.
      if (run == 0 && (rows >= 16 || rows == use.max_rows) && !compared) {
        compared = true;
        const absl::StatusOr<double> error =
            ErrorOf(*cpu, *use.translation, instance, *slot, views, context);
        if (error.ok()) loaded.error = *error;
        if (error.ok() && !(*error <= WorstError(loaded.precision))) {
          instance.Release(*slot);
          return absl::FailedPreconditionError(absl::StrCat(
              "results on ", options_.name, " in ",
              cuda_plan::Name(loaded.precision), " differ from the CPU's by ",
              *error, " of the largest value, more than ",
              WorstError(loaded.precision)));
        }
      }
      instance.Release(*slot);
    }
    if (options_.warm_up > absl::ZeroDuration()) {
      loaded.times.Prime(items, fastest);
    }
    const absl::Duration spent = options_.clock->Now() - begin;
    // The next size takes about 16 times as long: four runs, each of four times
    // the rows.
    if (rows >= use.max_rows ||
        (compared && spent + 16 * fastest > options_.warm_up)) {
      return absl::OkStatus();
    }
    rows = std::min(rows > use.max_rows / 4 ? use.max_rows : rows * 4,
                    use.max_rows);
  }
}

void CudaDevice::SetOrder(const DeviceModels& models) {
  for (size_t i = 0; i < models.size(); ++i) {
    const auto found = std::find_if(
        entries_.begin(), entries_.end(),
        [&](const auto& entry) { return entry->model == &models[i]; });
    CHECK(found != entries_.end()) << models[i].name() << " was not added";
    order_.push_back(found->get());
  }
}

absl::StatusOr<std::optional<ModelOnDevice>> CudaDevice::SetModel(
    size_t place, const DeviceModel* model) {
  absl::StatusOr<std::optional<ModelOnDevice>> result = std::nullopt;
  absl::Notification done;
  Post([&] {
    if (place >= order_.size()) order_.resize(place + 1);
    if (Entry* const before = std::exchange(order_[place], nullptr)) {
      std::erase_if(entries_, [before](const auto& entry) {
        return entry.get() == before;
      });
    }
    if (model != nullptr) {
      absl::StatusOr<Loaded> loaded = AddHere(*model);
      if (loaded.ok()) {
        order_[place] = entries_.back().get();
        LOG(INFO) << model->label() << " on " << options_.name << ": "
                  << loaded->Describe(options_);
        result = ModelOnDevice{std::move(loaded->times), loaded->device_bytes};
      } else {
        result = loaded.status();
      }
    }
    done.Notify();
  });
  done.WaitForNotification();
  return result;
}

std::string CudaDevice::Loaded::Describe(const Options& options) const {
  return absl::StrCat(
      cuda_plan::Name(precision), ", ", kernels, " kernels per execution",
      foreign == 0 ? std::string()
                   : absl::StrCat(" (", foreign, " by LibTorch)"),
      ", ", device_bytes, " bytes of device memory in ", options.instances,
      " instance(s), and about ", captured_bytes,
      " bytes for CUDA graphs and code, ",
      sizes.empty()
          ? std::string()
          : absl::StrCat("for sizes besides the batch: ", sizes, ", "),
      error < 0 ? std::string("not compared with the CPU")
                : absl::StrCat("results differ from the CPU's float32 by at "
                               "most ",
                               error, " of the largest value"));
}

void CudaDevice::Start(int instance, Done done) {
  Post([this, instance, done = std::move(done)] { done(StartHere(instance)); });
}

absl::Status CudaDevice::StartHere(int instance) {
  return lost_ ? ResetHere() : LoadResident(instance);
}

absl::Status CudaDevice::LoadResident(int instance) {
  for (const auto& entry : entries_) {
    Instance& model = *entry->instances[instance];
    if (!entry->resident || model.state() == Instance::State::kReady) continue;
    model.Unload();
    const cuda::Status status = model.Load();
    if (!status.ok()) return Lost(status);
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::ResetHere() {
  if (uses_foreign_) {
    return absl::UnavailableError(absl::StrCat(
        "device ", options_.name,
        " was lost, and LibTorch, which computes some operators of its models, "
        "does not survive its reset: this process must be started again"));
  }
  // A reset wipes everything that this process has on a lost GPU, so all
  // instances end.
  for (const auto& entry : entries_) {
    for (const auto& model : entry->instances) model->Unload();
    entry->weights->DropPinned();
  }
  const cuda::Status reset = api_->Reset();
  if (!reset.ok()) return ToAbsl(reset);
  lost_ = false;
  LOG(WARNING) << "device " << options_.name
               << " was reset; its models are loaded again";
  for (int i = 0; i < options_.instances; ++i) {
    REFRACT_RETURN_IF_ERROR(LoadResident(i));
  }
  return absl::OkStatus();
}

void CudaDevice::LoadWeights(size_t model, absl::Span<const size_t> evicted,
                             Done done) {
  std::vector<size_t> out(evicted.begin(), evicted.end());
  Post([this, model, out = std::move(out), done = std::move(done)] {
    done(LoadHere(model, out));
  });
}

absl::Status CudaDevice::LoadHere(size_t model,
                                  const std::vector<size_t>& evicted) {
  // Evicted first, so that their memory is free for the load.
  for (const size_t i : evicted) {
    for (const auto& instance : order_[i]->instances) instance->Unload();
    order_[i]->resident = false;
  }
  // An instance that holds batches notices the loss itself and is started
  // again. If no instance holds a batch, none would notice.
  const bool idle =
      std::all_of(held_.begin(), held_.end(),
                  [](const auto& held) { return held->entry == nullptr; });
  if (lost_ && idle) REFRACT_RETURN_IF_ERROR(ResetHere());
  Entry& entry = *order_[model];
  for (const auto& instance : entry.instances) {
    if (instance->state() == Instance::State::kReady) continue;
    instance->Unload();
    const cuda::Status status = instance->Load();
    if (status.ok()) continue;
    // In part of the instances the weights are of no use, and would take memory
    // that the scheduler counts as free.
    for (const auto& other : entry.instances) other->Unload();
    return Lost(status);
  }
  entry.resident = true;
  return absl::OkStatus();
}

absl::Status CudaDevice::Lost(const cuda::Status& status) {
  return Lost(ToAbsl(status));
}

absl::Status CudaDevice::Lost(const absl::Status& status) {
  lost_ |= absl::IsUnavailable(status);
  return status;
}

}  // namespace refract::gpu_node

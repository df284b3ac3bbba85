#include "gpu_node/device/device_programs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gpu_node/device/cuda_batch.h"
#include "runtime/compile/bag_inputs.h"
#include "runtime/cuda/program/memory_plan.h"

namespace refract::gpu_node {

namespace cuda = runtime::cuda;
using runtime::cuda_plan::FreeSize;
using runtime::cuda_plan::SizeValues;
using runtime::cuda_plan::Translator;

namespace {

// Value for warm-ups of the sizes of sequences and bags: usual in served
// models, where the model allows it.
constexpr int64_t kTypicalSize = 32;

}  // namespace

DevicePrograms::DevicePrograms(std::unique_ptr<Translator> translator,
                               const Options& options)
    : translator_(std::move(translator)), options_(options) {}

absl::StatusOr<std::unique_ptr<DevicePrograms>> DevicePrograms::Create(
    const models::Graph& graph, const runtime::Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const runtime::cuda_plan::TranslateOptions& translate,
    const Options& options) {
  runtime::cuda_plan::TranslateOptions with_bags = translate;
  // Half of the reserved memory is for entries of bags, and each slot has its
  // own.
  with_bags.entry_memory = options.sized_memory / 2 / options.num_slots;
  REFRACT_ASSIGN_OR_RETURN(
      std::unique_ptr<Translator> translator,
      Translator::Create(graph, part, std::move(weights), with_bags));
  Options own = options;
  if (translator->sizes().has_batch()) own.max_rows = 1;
  std::unique_ptr<DevicePrograms> programs(
      new DevicePrograms(std::move(translator), own));
  programs->goes_whole_ = !runtime::FindBagInputs(graph, part).why_not.empty();
  REFRACT_ASSIGN_OR_RETURN(programs->first_,
                           programs->Make(programs->sizes().Largest()));
  programs->first_rows_ = own.max_rows;
  if (programs->sizes().empty()) return programs;
  // The number of rows that fits into the memory of a model with other sizes.
  const cuda::DeviceProgram& program = programs->first().program;
  programs->first_rows_ = 1;
  // The largest bucket whose inputs, results (per slot) and intermediates
  // (shared) fit.
  for (const int64_t rows : cuda::Buckets(own.max_rows)) {
    if (!cuda::Validate(program, rows).ok()) break;
    const cuda::MemoryPlan plan = cuda::PlanMemory(program, rows, rows);
    if (rows > 1 && plan.arena_bytes + options.num_slots * plan.slot_bytes >
                        options.sized_memory) {
      break;
    }
    programs->first_rows_ = rows;
  }
  return programs;
}

absl::StatusOr<std::unique_ptr<DevicePrograms::Entry>> DevicePrograms::Make(
    const SizeValues& values) {
  auto entry = std::make_unique<Entry>();
  REFRACT_ASSIGN_OR_RETURN(entry->translation, translator_->Translate(values));
  entry->by_rows = !goes_whole_ && GoesByRows(entry->translation);
  entry->held.resize(static_cast<size_t>(options_.instances));
  return entry;
}

cuda::InstanceOptions DevicePrograms::instance_options() const {
  cuda::InstanceOptions options;
  options.max_batch = first_rows_;
  options.num_slots = options_.num_slots;
  options.workspace_bytes = options_.workspace_bytes;
  if (!sizes().empty()) {
    options.max_variants = static_cast<int>(options_.max_programs);
    options.max_variant_batch = options_.max_rows;
  }
  return options;
}

SizeValues DevicePrograms::TypicalSizes() const {
  SizeValues values;
  for (const FreeSize& size : sizes().all()) {
    values.push_back(std::clamp(kTypicalSize, std::max<int64_t>(size.min, 1),
                                std::max<int64_t>(size.max, 1)));
  }
  return values;
}

std::string DevicePrograms::Describe() const {
  std::string text;
  for (const FreeSize& size : sizes().all()) {
    absl::StrAppend(&text, size.symbol, " (of input '", size.input_name,
                    "') up to ", size.max,
                    size.declared ? ", " : " (--max-size), ");
  }
  if (sizes().has_batch()) {
    absl::StrAppend(&text, "a program per request size: rows may mix");
  } else if (!text.empty()) {
    absl::StrAppend(&text, first_rows_, " rows at these sizes");
  }
  const std::vector<runtime::cuda_plan::BagRoom>& bags = translator_->bags();
  const auto least = std::min_element(
      bags.begin(), bags.end(),
      [](const auto& a, const auto& b) { return a.capacity < b.capacity; });
  if (least != bags.end()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", "up to ", least->capacity,
                    " entries in the bags of input '", least->entries, "'",
                    least->declared ? "" : " (--max-size)",
                    bags.size() > 1 ? " and no fewer in others" : "");
  }
  return text;
}

absl::StatusOr<DevicePrograms::Use> DevicePrograms::At(
    const SizeValues& values, size_t index, cuda::Instance& instance) {
  if (values.empty()) {
    return Use{&first_->translation, cuda::kFirstProgram, first_rows_,
               first_->by_rows};
  }
  auto found = programs_.find(values);
  if (found == programs_.end()) {
    absl::StatusOr<std::unique_ptr<Entry>> made = Make(values);
    if (!made.ok()) {
      return base::Annotate(made.status(), sizes().ToString(values));
    }
    while (programs_.size() >= options_.max_programs) {
      const size_t before = programs_.size();
      DropOldest();
      if (programs_.size() == before) {
        return absl::ResourceExhaustedError(
            absl::StrCat("programs for ", before,
                         " combinations of sizes are in use at once, which is "
                         "the most that this node keeps"));
      }
    }
    found = programs_.emplace(values, *std::move(made)).first;
  }
  Entry& entry = *found->second;
  entry.last_use = ++uses_;
  Held& held = entry.held[index];
  if (!held.there()) {
    // Added late, per instance: most instances never get a request of these
    // sizes.
    auto added = instance.AddVariant(entry.translation.program,
                                     entry.translation.weights);
    if (!added.ok()) {
      return base::Annotate(ToAbsl(added.status()), sizes().ToString(values));
    }
    held = {&instance, instance.loads(), *added};
  }
  return Use{&entry.translation, held.id, instance.MaxBatch(held.id),
             entry.by_rows};
}

void DevicePrograms::DropOldest() {
  const auto in_use = [](const Entry& entry) {
    return std::any_of(entry.held.begin(), entry.held.end(),
                       [](const Held& held) {
                         return held.there() && held.instance->InUse(held.id);
                       });
  };
  auto oldest = programs_.end();
  for (auto it = programs_.begin(); it != programs_.end(); ++it) {
    if (in_use(*it->second)) continue;
    if (oldest == programs_.end() ||
        it->second->last_use < oldest->second->last_use) {
      oldest = it;
    }
  }
  if (oldest == programs_.end()) return;
  for (const Held& held : oldest->second->held) {
    // A variant of an instance that was loaded again is gone already.
    if (held.there()) (void)held.instance->DropVariant(held.id);
  }
  programs_.erase(oldest);
}

}  // namespace refract::gpu_node

#include "cpu_node/served_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory/usable_memory.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "models/repository/result_settings.h"
#include "models/repository/split_plan.h"
#include "models/rows/row_dependence.h"
#include "runtime/stable_inputs.h"

namespace refract::cpu_node {
namespace {

std::optional<size_t> IndexOf(absl::Span<const models::ValueId> ids,
                              models::ValueId id) {
  const auto found = std::find(ids.begin(), ids.end(), id);
  if (found == ids.end()) return std::nullopt;
  return found - ids.begin();
}

// Whether a tensor of the GPU node fits the value's type, rank and fixed sizes.
// Other sizes are checked by the program that reads it.
bool Matches(const models::Value& value, const base::TensorView& tensor) {
  if (value.kind == models::ValueKind::kSymInt) {
    return tensor.dtype == base::DType::kInt64 && tensor.dims.empty();
  }
  if (tensor.dtype != value.dtype) return false;
  if (!value.has_shape) return true;
  if (tensor.dims.size() != value.shape.size()) return false;
  for (size_t i = 0; i < value.shape.size(); ++i) {
    const std::optional<int64_t> fixed = value.shape[i].constant();
    if (fixed.has_value() && *fixed != tensor.dims[i]) return false;
  }
  return true;
}

runtime::CompileOptions OptionsOf(const models::LoadedModel& model,
                                  const TableStore* tables,
                                  const ShardedModel* sharded) {
  runtime::CompileOptions options;
  if (sharded != nullptr) options.sharded = sharded->tables();
  if (tables != nullptr) options.overlays = tables->overlays();
  options.config = model.config;
  return options;
}

}  // namespace

absl::StatusOr<CompiledPart> CompiledPart::Create(
    const models::LoadedModel& model, const models::Graph& graph,
    const runtime::Part& part, const TableStore* tables,
    const ShardedModel* sharded) {
  CompiledPart result;
  REFRACT_ASSIGN_OR_RETURN(
      result.program_,
      runtime::Program::Compile(graph, part, model.weights,
                                OptionsOf(model, tables, sharded)));
  result.sizes_depend_on_data_ = runtime::SizesDependOnData(graph, part);
  result.contexts_ = std::make_unique<runtime::ContextPool>(*result.program_);
  return result;
}

ServedModel::ServedModel(std::shared_ptr<const models::LoadedModel> model,
                         ModelInterface interface)
    : model_(std::move(model)),
      interface_(std::move(interface)),
      id_inputs_(std::make_shared<const std::vector<models::IdInput>>(
          models::FindIdInputs(model_->graph))),
      padding_(model_->graph),
      layout_(model_->graph, runtime::Part::Whole(model_->graph),
              models::RowDependenceOf(model_->graph)) {}

absl::StatusOr<std::unique_ptr<ServedModel>> ServedModel::Create(
    std::shared_ptr<const models::LoadedModel> model,
    const ServedModelOptions& options) {
  const std::string label =
      absl::StrCat("model '", model->name, "' version ", model->version);
  absl::StatusOr<ModelInterface> interface = ModelInterface::Of(model->graph);
  if (!interface.ok()) return base::Annotate(interface.status(), label);
  const bool split = model->plan.has_value() && model->plan->uses_hn();
  TableBytes table_bytes;
  const bool whole = !split || options.local_fallback;
  std::unique_ptr<const DiskTables> disk_tables;
  std::optional<size_t> own;
  if (options.shard.has_value()) own = options.shard->own;
  // Tables get their places first: the parts that are compiled below read them
  // there.
  if (options.table_memory == models::TableMemory::kDisk) {
    auto tables = DiskTables::Create(*model, whole, options.row_cache_bytes,
                                     own, base::AvailableMemory());
    if (!tables.ok()) return base::Annotate(tables.status(), label);
    disk_tables = *std::move(tables);
    table_bytes.disk = disk_tables->table_bytes();
    table_bytes.row_caches = disk_tables->cache_bytes();
    LOG(INFO) << label << ": " << disk_tables->sources().size()
              << " table(s) of " << table_bytes.disk
              << " bytes are read from disk ("
              << (base::ReadMethodOfProcess() == base::ReadMethod::kIoUring
                      ? "io_uring"
                      : "pread: this process may not use io_uring")
              << "), " << table_bytes.row_caches << " bytes of row cache";
  } else {
    auto placed = PlaceTables(std::move(model), options.table_memory, whole,
                              own, options.beside_requests, table_bytes);
    if (!placed.ok()) return base::Annotate(placed.status(), label);
    model = *std::move(placed);
  }

  std::unique_ptr<ServedModel> result(
      new ServedModel(std::move(model), *std::move(interface)));
  result->table_bytes_ = table_bytes;
  result->disk_tables_ = std::move(disk_tables);
  absl::StatusOr<std::unique_ptr<ShardedModel>> sharded = ShardedModel::Create(
      *result->model_, options.shard.has_value() ? &*options.shard : nullptr);
  if (!sharded.ok()) return base::Annotate(sharded.status(), label);
  std::optional<size_t> shard;
  if (*sharded != nullptr) shard = own;
  absl::StatusOr<IdIndexes> id_indexes = IndexIds(*result->model_, shard);
  if (!id_indexes.ok()) return base::Annotate(id_indexes.status(), label);
  for (const auto& [table, index] : *id_indexes) {
    result->table_bytes_.id_indexes += index->memory_bytes();
  }
  // The store is between look-ups and tables wherever a row may come from
  // another place than the mapped file: changed rows, rows by ids, rows on
  // disk.
  if (options.deltas || !id_indexes->empty() ||
      result->disk_tables_ != nullptr) {
    result->tables_ = std::make_unique<TableStore>(
        *result->model_, *id_indexes, shard, options.delta_new_ids);
  }
  if (result->disk_tables_ != nullptr) {
    result->tables_->SetSources(result->disk_tables_->sources());
  }
  if (shard.has_value() && result->tables_ != nullptr) {
    (*sharded)->SetChanges(result->tables_->overlays());
  }
  result->sharded_ = *std::move(sharded);
  // Alone, a shard can execute nothing. NodeChecks waits for the other shards.
  const bool has_all_rows = result->sharded_ == nullptr;
  absl::Status status;
  if (split) status = result->CompileSplit();
  if (status.ok() && (!split || options.local_fallback)) {
    status = result->CompileWhole();
  }
  if (status.ok()) status = result->PrepareChecks();
  if (!has_all_rows && !split) result->checks_.clear();
  // A model that can run here answers its check requests before anybody else
  // can ask.
  if (status.ok() && result->can_run_whole() && has_all_rows) {
    status = CheckWhole(*result);
  }
  if (!status.ok()) return base::Annotate(status, label);
  if (options.shadow && has_all_rows && !id_indexes->empty()) {
    LOG(WARNING) << label << ": --shadow-rate leaves it out, because LibTorch "
                 << "takes row numbers where its tables have ids";
  } else if (options.shadow && has_all_rows) {
    result->shadow_ = std::make_shared<ShadowVersion>(
        result->model_, result->check_settings_.golden_tolerance);
  }
  if (options.deltas) result->FollowDeltas(options.deltas_folder);
  return result;
}

absl::Status ServedModel::PrepareChecks() {
  REFRACT_ASSIGN_OR_RETURN(
      check_settings_, models::ReadCheckSettings(
                           model_->config_text, model_->graph, "config.pbtxt"));
  REFRACT_ASSIGN_OR_RETURN(checks_, CheckRequestsOf(*model_, check_settings_));
  return absl::OkStatus();
}

void ServedModel::FollowDeltas(const std::string& folder) {
  // A table may change only if every way of executing the model looks it up
  // with the store.
  std::vector<std::vector<const runtime::Program*>> ways;
  if (whole_) ways.push_back({&whole_->program()});
  if (pre_) ways.push_back({&pre_->program(), &post_->program()});
  tables_->CheckReaders(ways);
  deltas_ = std::make_unique<DeltaFeed>(
      name(), version(),
      folder.empty() ? absl::StrCat(model_->folder, "/deltas")
                     : absl::StrCat(folder, "/", name(), "/", version()),
      tables_.get());
}

absl::Status ServedModel::CompileWhole() {
  REFRACT_ASSIGN_OR_RETURN(
      whole_, CompiledPart::Create(*model_, model_->graph,
                                   runtime::Part::Whole(model_->graph),
                                   tables_.get(), sharded_.get()));
  REFRACT_ASSIGN_OR_RETURN(whole_sources_,
                           Resolve(whole_->part().inputs, {}, {}));
  return absl::OkStatus();
}

absl::Status ServedModel::CompileSplit() {
  const models::Graph& graph = model_->graph;
  const models::SplitPlan& plan = *model_->plan;
  const runtime::Part cn_pre = runtime::Part::CnPre(graph, plan);
  // Encoders take the values that cross as the first outputs (num_up()).
  if (cn_pre.outputs.size() < plan.up.size() ||
      !std::equal(plan.up.begin(), plan.up.end(), cn_pre.outputs.begin())) {
    return absl::InternalError(
        "the results of CN-pre do not begin with the values that cross");
  }
  REFRACT_ASSIGN_OR_RETURN(
      unique_, runtime::UniquePart::Create(
                   graph, plan, model_->weights,
                   OptionsOf(*model_, tables_.get(), sharded_.get())));
  REFRACT_ASSIGN_OR_RETURN(
      pre_, CompiledPart::Create(*model_,
                                 unique_ == nullptr ? graph : unique_->graph(),
                                 unique_ == nullptr ? cn_pre : unique_->part(),
                                 tables_.get(), sharded_.get()));
  REFRACT_ASSIGN_OR_RETURN(
      post_,
      CompiledPart::Create(*model_, graph, runtime::Part::CnPost(graph, plan),
                           tables_.get(), sharded_.get()));
  up_codec_.emplace(graph, plan.up, plan.up_forms);
  down_codec_.emplace(graph, plan.down, plan.down_forms);
  encoders_.emplace(*up_codec_);
  decoders_.emplace(*down_codec_);
  // Resolved once, at load: a request only copies views by these indexes.
  REFRACT_ASSIGN_OR_RETURN(pre_sources_, Resolve(cn_pre.inputs, {}, {}));
  REFRACT_ASSIGN_OR_RETURN(
      post_sources_, Resolve(post_->part().inputs, cn_pre.outputs, plan.down));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ServedModel::Source>> ServedModel::Resolve(
    absl::Span<const models::ValueId> inputs,
    absl::Span<const models::ValueId> pre_outputs,
    absl::Span<const models::ValueId> response) const {
  const models::Graph& graph = model_->graph;
  // Results of CN-pre are first the values that cross, then values that CN-post
  // reads. A value may come from both nodes: the answer is preferred.
  const size_t crossing = pre_outputs.empty() ? 0 : model_->plan->up.size();
  const absl::Span<const models::ValueId> kept = pre_outputs.subspan(crossing);
  std::vector<Source> sources;
  for (const models::ValueId id : inputs) {
    if (const auto down = IndexOf(response, id)) {
      sources.push_back({Source::Kind::kResponse, *down});
    } else if (const auto pre = IndexOf(kept, id)) {
      sources.push_back({Source::Kind::kPre, crossing + *pre});
    } else if (const auto input = IndexOf(graph.inputs, id)) {
      sources.push_back({Source::Kind::kRequest, *input});
    } else {
      return absl::InternalError(absl::StrCat(
          "nothing produces '", graph.value(id).name, "' before it is read"));
    }
  }
  return sources;
}

transport::ModelOffer ServedModel::offer() const {
  transport::ModelOffer offer;
  offer.name = name();
  offer.version = version();
  offer.model = model_->digest;
  offer.schema = models::SchemaDigest(model_->graph, *model_->plan);
  // Settings that change scores: the GPU node refuses the offer if its own
  // differ.
  offer.settings.emplace();
  for (const models::ResultSetting& setting :
       models::ResultSettingsOf(model_->config)) {
    offer.settings->emplace_back(setting.name, setting.value);
  }
  return offer;
}

void ServedModel::Gather(absl::Span<const Source> sources,
                         absl::Span<const base::TensorView> request,
                         absl::Span<const base::TensorView> pre_outputs,
                         absl::Span<const base::TensorView> response,
                         std::vector<base::TensorView>& views) {
  views.clear();
  for (const Source& source : sources) {
    switch (source.kind) {
      case Source::Kind::kRequest:
        views.push_back(request[source.index]);
        break;
      case Source::Kind::kPre:
        views.push_back(pre_outputs[source.index]);
        break;
      case Source::Kind::kResponse:
        views.push_back(response[source.index]);
        break;
    }
  }
}

void ServedModel::WholeInputs(absl::Span<const base::TensorView> request,
                              std::vector<base::TensorView>& inputs) const {
  Gather(whole_sources_, request, {}, {}, inputs);
}

void ServedModel::PreInputs(absl::Span<const base::TensorView> request,
                            std::vector<base::TensorView>& inputs) const {
  Gather(pre_sources_, request, {}, {}, inputs);
}

void ServedModel::PostInputs(absl::Span<const base::TensorView> request,
                             absl::Span<const base::TensorView> pre_outputs,
                             absl::Span<const base::TensorView> response,
                             std::vector<base::TensorView>& inputs) const {
  Gather(post_sources_, request, pre_outputs, response, inputs);
}

absl::StatusOr<absl::Span<const base::TensorView>> ServedModel::ReadAnswer(
    const transport::IncomingMessage& answer, runtime::wire::Decoder& decoder,
    runtime::StableInputs& stable) const {
  absl::StatusOr<absl::Span<const base::TensorView>> values =
      decoder.Decode(answer.tensors());
  if (!values.ok()) {
    return absl::InternalError(
        absl::StrCat("of the GPU node's answer: ", values.status().message()));
  }
  // The GPU node must not change values between this check and their use.
  if (!answer.settled()) {
    *values = stable.Hold(*values, post_->sizes_depend_on_data());
  }
  REFRACT_RETURN_IF_ERROR(CheckResponse(*values));
  return values;
}

absl::Status ServedModel::CheckResponse(
    absl::Span<const base::TensorView> response) const {
  const std::vector<models::ValueId>& down = model_->plan->down;
  if (response.size() != down.size()) {
    return absl::InternalError(absl::StrCat("the GPU node sent ",
                                            response.size(),
                                            " tensors, wanted ", down.size()));
  }
  for (size_t i = 0; i < down.size(); ++i) {
    const models::Value& value = model_->graph.value(down[i]);
    if (Matches(value, response[i])) continue;
    return absl::InternalError(absl::StrCat(
        "the GPU node sent '", value.name, "' as ",
        base::Name(response[i].dtype), base::DimsToString(response[i].dims),
        ", which the plan does not allow"));
  }
  return absl::OkStatus();
}

}  // namespace refract::cpu_node

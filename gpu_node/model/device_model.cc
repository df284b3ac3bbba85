#include "gpu_node/model/device_model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/finite.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "base/tensor.h"
#include "glog/logging.h"
#include "gpu_node/model/warm_up.h"
#include "models/repository/result_settings.h"
#include "models/repository/split_plan.h"
#include "models/rows/row_dependence.h"
#include "runtime/stable_inputs.h"

namespace refract::gpu_node {
namespace {

constexpr size_t kPageBytes = 4096;

// The bytes of each weight that `part` reads; weights with gaps are left out.
std::vector<absl::Span<const std::byte>> WeightsOf(
    const models::LoadedModel& model, const runtime::Part& part) {
  // By name: several nodes may read one weight, which counts once.
  std::set<std::string> names;
  for (const models::NodeId node : part.nodes) {
    for (const models::ValueId id : models::InputsOf(model.graph.nodes[node])) {
      const std::string& weight = model.graph.value(id).weight;
      if (!weight.empty()) names.insert(weight);
    }
  }
  std::vector<absl::Span<const std::byte>> weights;
  for (const std::string& name : names) {
    const auto view = model.weights->GetAsStored(name);
    if (!view.ok() || !view->is_contiguous()) continue;
    weights.push_back({view->data, view->bytes()});
  }
  return weights;
}

// The first setting that differs, as "'name': 'value' on the CN, …". Empty: all
// are equal.
std::string DifferentSetting(
    const std::vector<std::pair<std::string, std::string>>& of_cn,
    const std::vector<models::ResultSetting>& of_hn) {
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const auto& [name, value] : of_cn) values[name].first = value;
  for (const auto& [name, value] : of_hn) values[name].second = value;
  const auto quoted = [](const std::string& value) {
    return value.empty() ? "the default"
                         : absl::StrCat("'", absl::CEscape(value), "'");
  };
  for (const auto& [name, pair] : values) {
    if (pair.first == pair.second) continue;
    return absl::StrCat("'", absl::CEscape(name), "': ", quoted(pair.first),
                        " on the CN, ", quoted(pair.second), " on the HN");
  }
  return "";
}

// Code that copies a peer's memory, decodes values or merges rows allocates and
// may throw: WithinMemory() turns that into a status.
using base::WithinMemory;

bool AnyNonFinite(absl::Span<const base::TensorView> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), base::HasNonFinite);
}

}  // namespace

// Memory of an execution besides buffers of rows. Reused, so that a request of
// a size seen before allocates nothing.
struct DeviceModel::Memory {
  Memory(const runtime::Program& program, const runtime::wire::Codec& down)
      : context(program), encoder(down) {}

  runtime::RunContext context;
  runtime::wire::Encoder encoder;
  std::vector<Inputs> inputs;  // per member
  std::vector<absl::Span<const base::TensorView>> requests;
  std::vector<std::optional<base::TensorSpec>> specs;
  std::vector<base::TensorSpec> known, message;
  std::vector<std::byte*> destinations;
  std::vector<base::TensorView> outputs, rows;
};

DeviceModel::DeviceModel(std::shared_ptr<const models::LoadedModel> model,
                         std::unique_ptr<const runtime::Program> program)
    : model_(std::move(model)),
      schema_(models::SchemaDigest(model_->graph, *model_->plan)),
      program_(std::move(program)),
      up_codec_(model_->graph, model_->plan->up, model_->plan->up_forms),
      down_codec_(model_->graph, model_->plan->down, model_->plan->down_forms),
      decoders_(up_codec_),
      sizes_depend_on_data_(
          runtime::SizesDependOnData(model_->graph, program_->part())),
      rows_(models::FindHnRowDependence(model_->graph, *model_->plan)),
      layout_(model_->graph, program_->part(), rows_),
      least_integer_(LeastInteger(model_->graph, *program_)),
      weights_(WeightsOf(*model_, program_->part())),
      arrivals_([] { return std::make_unique<Arrival>(); }),
      memories_(
          [this] { return std::make_unique<Memory>(*program_, down_codec_); }) {
  for (const auto& weight : weights_) weight_bytes_ += weight.size();
  if (layout_.why_not().empty()) {
    // The decision comes from the graph alone. A defect in a rule of an
    // operator would let requests change each other's results, so generated
    // requests test the decision.
    const absl::Status verified = VerifyRows(model_->graph, *program_, layout_,
                                             least_integer_, &row_difference_);
    if (!verified.ok()) {
      LOG(WARNING) << label()
                   << ": its graph says that rows are independent, but "
                   << verified.message()
                   << "; each request is executed whole and alone";
      layout_.Withdraw(std::string(verified.message()));
      row_difference_ = 0;
    }
  }
  merges_ = layout_.why_not().empty();
}

DeviceModel::~DeviceModel() = default;

void DeviceModel::ReadWeights() const {
  for (const absl::Span<const std::byte> weight : weights_) {
    for (size_t i = 0; i < weight.size(); i += kPageBytes) {
      // volatile: the compiler must not drop a read without a use.
      static_cast<void>(
          *static_cast<const volatile std::byte*>(weight.data() + i));
    }
  }
}

void DeviceModel::DropWeights() const {
  for (const absl::Span<const std::byte> weight : weights_) {
    // The pages at both ends may also hold bytes of other weights.
    const auto begin = reinterpret_cast<uintptr_t>(weight.data());
    const uintptr_t first = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
    const uintptr_t end = (begin + weight.size()) / kPageBytes * kPageBytes;
    if (first >= end) continue;
    // Only advice: the kernel may ignore it.
    madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
  }
}

absl::StatusOr<std::unique_ptr<DeviceModel>> DeviceModel::Create(
    std::shared_ptr<const models::LoadedModel> model) {
  const std::string label = DeviceModel::LabelOf(model->name, model->version);
  if (!model->plan.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(label, " has no split plan"));
  }
  if (!model->plan->uses_hn()) {
    return absl::FailedPreconditionError(
        absl::StrCat(label, " runs on the CPU node as a whole (plan '",
                     model->plan->method, "')"));
  }
  runtime::CompileOptions options;
  options.config = model->config;
  absl::StatusOr<std::unique_ptr<const runtime::Program>> program =
      runtime::Program::Compile(model->graph,
                                runtime::Part::Hn(model->graph, *model->plan),
                                model->weights, options);
  if (!program.ok()) return base::Annotate(program.status(), label);
  return std::unique_ptr<DeviceModel>(
      new DeviceModel(std::move(model), *std::move(program)));
}

absl::Status DeviceModel::CheckOffer(const transport::ModelOffer& offer) const {
  if (!(offer.model == model_->digest)) {
    return absl::FailedPreconditionError(
        absl::StrCat(label(), ": the CPU node has model ", offer.model.ToHex(),
                     ", the GPU node ", model_->digest.ToHex()));
  }
  if (!(offer.schema == schema_)) {
    return absl::FailedPreconditionError(absl::StrCat(
        label(), ": the split plans differ; the CPU node's crossing is ",
        offer.schema.ToHex(), ", the GPU node's ", schema_.ToHex()));
  }
  if (offer.settings.has_value()) {
    const std::string difference = DifferentSetting(
        *offer.settings, models::ResultSettingsOf(model_->config));
    if (!difference.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          label(), ": config.pbtxt of the two nodes differs in ", difference));
    }
  }
  return absl::OkStatus();
}

int64_t DeviceModel::RowsOf(absl::Span<const base::TensorView> tensors) const {
  if (up_codec_.plain()) return RowsOfValues(tensors);
  const base::Pool<Arrival>::Lease arrival = arrivals_.Acquire();
  // Peek() gives the values' sizes without decoding them.
  arrival->values = up_codec_.Peek(tensors, std::move(arrival->values));
  return RowsOfValues(arrival->values);
}

int64_t DeviceModel::RowsOfValues(
    absl::Span<const base::TensorView> values) const {
  std::optional<int64_t> rows;
  if (merges_) rows = layout_.Rows(values);
  // Rows by the layout where rows are independent; else the batch, whatever it
  // means to the model.
  if (!rows.has_value()) rows = program_->BatchOf(values);
  return std::max<int64_t>(rows.value_or(1), 1);
}

std::string DeviceModel::LabelOf(absl::string_view name, int64_t version) {
  return absl::StrCat("model '", name, "' version ", version);
}

base::Pool<DeviceModel::Arrival>::Lease DeviceModel::Look(
    const transport::ServerCall& call) const {
  base::Pool<Arrival>::Lease arrival = arrivals_.Acquire();
  const absl::Span<const base::TensorView> message = call.tensors();
  absl::Span<const base::TensorView> values = message;
  if (!up_codec_.plain()) {
    values = arrival->values =
        up_codec_.Peek(message, std::move(arrival->values));
  }
  arrival->rows = RowsOfValues(values);
  arrival->merge_key.clear();
  if (merges_) {
    // An encoded input without rows, such as positions in int8, is compared as
    // it travels: equal tensors decode to equal values. Unique rows would need
    // their index as well.
    for (size_t i = 0; i < arrival->values.size(); ++i) {
      const runtime::wire::Codec::Value& value = up_codec_.values()[i];
      if (value.form.is_plain() || !layout_.IsSameForAll(i)) continue;
      if (value.form.unique_rows &&
          message[value.tensor + 1].dims != base::Dims{0}) {
        continue;
      }
      arrival->values[i] = message[value.tensor];
    }
    arrival->merge_key =
        layout_.MergeKey(values, std::move(arrival->merge_key));
  }
  return arrival;
}

// Decodes the values of a request to the program's inputs.
absl::Status DeviceModel::Decode(const transport::ServerCall& call,
                                 Inputs& inputs) const {
  inputs.views = call.tensors();
  if (up_codec_.plain() && inputs.views.size() == up_codec_.num_tensors()) {
    return absl::OkStatus();
  }
  if (!inputs.decoder.has_value()) inputs.decoder.emplace(decoders_.Acquire());
  REFRACT_ASSIGN_OR_RETURN(inputs.views,
                           (*inputs.decoder)->Decode(call.tensors()));
  return absl::OkStatus();
}

absl::Status DeviceModel::Read(const transport::ServerCall& call,
                               Inputs& inputs) const {
  return WithinMemory([&]() -> absl::Status {
    REFRACT_RETURN_IF_ERROR(Decode(call, inputs));
    // The peer can still write to the request's memory.
    if (!call.settled()) {
      inputs.views = inputs.stable.Hold(inputs.views, sizes_depend_on_data_);
    }
    return absl::OkStatus();
  });
}

absl::Status DeviceModel::Encode(transport::ServerCall& call,
                                 absl::Span<const base::TensorView> outputs,
                                 Memory& memory,
                                 transport::OutgoingMessage& reply) const {
  return WithinMemory([&]() -> absl::Status {
    REFRACT_ASSIGN_OR_RETURN(const absl::Span<const base::TensorSpec> tensors,
                             memory.encoder.Prepare(outputs));
    REFRACT_ASSIGN_OR_RETURN(reply, call.AllocateReply(tensors));
    memory.encoder.WriteTo([&](size_t tensor) { return reply.data(tensor); });
    return absl::OkStatus();
  });
}

absl::StatusOr<transport::OutgoingMessage> DeviceModel::Answer(
    transport::ServerCall& call,
    absl::Span<const base::TensorView> outputs) const {
  transport::OutgoingMessage reply;
  REFRACT_RETURN_IF_ERROR(Encode(call, outputs, *memories_.Acquire(), reply));
  return reply;
}

absl::Status DeviceModel::Run(BatchMember& member, Memory& memory) const {
  transport::ServerCall& call = *member.call;
  if (memory.inputs.empty()) memory.inputs.resize(1);
  Inputs& inputs = memory.inputs[0];
  REFRACT_RETURN_IF_ERROR(Read(call, inputs));
  REFRACT_RETURN_IF_ERROR(
      program_->OutputSpecs(inputs.views, memory.context, memory.specs));
  memory.known.clear();
  for (const std::optional<base::TensorSpec>& spec : memory.specs) {
    if (spec.has_value()) memory.known.push_back(*spec);
  }
  // A null destination: the result stays in the context, and the encoder reads
  // it there.
  memory.destinations.assign(memory.specs.size(), nullptr);
  // If all sizes are known before the run, results are computed directly into
  // the reply.
  const bool sizes_known =
      down_codec_.sizes_known() && memory.known.size() == memory.specs.size();
  if (sizes_known) {
    memory.message =
        down_codec_.MessageSpecs(memory.known, std::move(memory.message));
    REFRACT_ASSIGN_OR_RETURN(member.reply, call.AllocateReply(memory.message));
    for (size_t i = 0; i < memory.destinations.size(); ++i) {
      const runtime::wire::Codec::Value& value = down_codec_.values()[i];
      if (!value.form.is_plain()) continue;
      memory.destinations[i] = member.reply.data(value.tensor);
    }
  }
  REFRACT_RETURN_IF_ERROR(program_->Run(inputs.views, memory.destinations,
                                        memory.context, memory.outputs));
  member.non_finite = AnyNonFinite(memory.outputs);
  if (sizes_known && down_codec_.plain()) return absl::OkStatus();
  // A size that depends on data is known only after the run: the reply is then
  // allocated late, at the cost of one copy.
  if (!sizes_known) return Encode(call, memory.outputs, memory, member.reply);
  REFRACT_RETURN_IF_ERROR(memory.encoder.Prepare(memory.outputs).status());
  memory.encoder.WriteTo(
      [&](size_t tensor) { return member.reply.data(tensor); });
  return absl::OkStatus();
}

// State of a request between its steps.
struct DeviceModel::Steps {
  Inputs inputs;
  std::vector<base::TensorSpec> outputs;
  // If answers are encoded: the plain rows so far.
  std::vector<base::Tensor> plain;
};

absl::Status DeviceModel::BeginSteps(BatchMember& member, Steps& steps) const {
  REFRACT_RETURN_IF_ERROR(Read(*member.call, steps.inputs));
  REFRACT_ASSIGN_OR_RETURN(
      const std::vector<std::optional<base::TensorSpec>> specs,
      program_->OutputSpecs(steps.inputs.views));
  for (const std::optional<base::TensorSpec>& spec : specs) {
    if (!spec.has_value()) {
      return absl::InternalError(
          "the size of an output depends on data, so no reply can be reserved "
          "for it");
    }
    steps.outputs.push_back(*spec);
  }
  // The scheduler planned the steps by the tensor table, before decoding.
  if (layout_.Rows(steps.inputs.views) != member.rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("the values of the message do not have ", member.rows,
                     " rows, as the message's tensor table says"));
  }
  if (down_codec_.plain()) {
    REFRACT_ASSIGN_OR_RETURN(member.reply,
                             member.call->AllocateReply(steps.outputs));
    return absl::OkStatus();
  }
  for (const base::TensorSpec& spec : steps.outputs) {
    REFRACT_ASSIGN_OR_RETURN(base::Tensor rows,
                             base::Tensor::Allocate(spec.dtype, spec.dims));
    steps.plain.push_back(std::move(rows));
  }
  return absl::OkStatus();
}

absl::Status DeviceModel::RunStep(BatchMember& member, int64_t first,
                                  int64_t count, runtime::RowBuffers& buffers,
                                  Memory& memory) const {
  if (first == 0) {
    // The request is read once, in its first step: the later steps must see the
    // same values.
    auto begun = std::make_shared<Steps>();
    REFRACT_RETURN_IF_ERROR(BeginSteps(member, *begun));
    member.between_steps = std::move(begun);
  }
  Steps& steps = *static_cast<Steps*>(member.between_steps.get());
  REFRACT_ASSIGN_OR_RETURN(
      const absl::Span<const base::TensorView> slice,
      layout_.Slice(steps.inputs.views, first, count, buffers));
  memory.destinations.assign(steps.outputs.size(), nullptr);
  REFRACT_RETURN_IF_ERROR(program_->Run(slice, memory.destinations,
                                        memory.context, memory.outputs));
  member.non_finite |= AnyNonFinite(memory.outputs);
  for (size_t i = 0; i < memory.outputs.size(); ++i) {
    const base::TensorView& output = memory.outputs[i];
    if (output.dims.empty() || output.dims[0] != count) {
      return absl::InternalError("an output does not have one entry per row");
    }
    if (output.bytes == 0) continue;
    std::byte* const rows =
        down_codec_.plain() ? member.reply.data(i) : steps.plain[i].data();
    std::memcpy(rows + output.bytes / count * first, output.data, output.bytes);
  }
  if (first + count < member.rows) return absl::OkStatus();
  if (!down_codec_.plain()) {
    std::vector<base::TensorView>& whole = memory.rows;
    whole.clear();
    for (const base::Tensor& rows : steps.plain) whole.push_back(rows.view());
    REFRACT_RETURN_IF_ERROR(Encode(*member.call, whole, memory, member.reply));
  }
  member.between_steps.reset();
  return absl::OkStatus();
}

absl::Status DeviceModel::RunTogether(Batch& batch,
                                      runtime::RowBuffers& buffers,
                                      Memory& memory) const {
  if (memory.inputs.size() < batch.members.size()) {
    memory.inputs.resize(batch.members.size());
  }
  std::vector<absl::Span<const base::TensorView>>& requests = memory.requests;
  requests.clear();
  for (size_t i = 0; i < batch.members.size(); ++i) {
    REFRACT_RETURN_IF_ERROR(Decode(*batch.members[i].call, memory.inputs[i]));
    requests.push_back(memory.inputs[i].views);
    // The merge key has all other sizes, but the number of rows of a run-length
    // index is known only after decoding.
    if (layout_.Rows(requests[i]) != batch.members[i].rows) {
      return absl::InvalidArgumentError(
          "the message's values have another number of rows than its tensor "
          "table says");
    }
  }
  // A copy, so that no peer can change it.
  REFRACT_ASSIGN_OR_RETURN(const absl::Span<const base::TensorView> inputs,
                           layout_.Gather(requests, buffers));
  memory.destinations.assign(program_->part().outputs.size(), nullptr);
  REFRACT_RETURN_IF_ERROR(program_->Run(inputs, memory.destinations,
                                        memory.context, memory.outputs));
  // These sizes cut the rows below: a wrong size would read past the end.
  for (const base::TensorView& output : memory.outputs) {
    if (output.dims.empty() || output.dims[0] != batch.rows) {
      return absl::InternalError("an output does not have one entry per row");
    }
  }
  // Encodes each member's reply from its rows of the outputs.
  int64_t first = 0;
  for (BatchMember& member : batch.members) {
    memory.rows = memory.outputs;
    for (base::TensorView& view : memory.rows) {
      const runtime::RowRange range =
          runtime::RangeOfRows(view, first, member.rows);
      view.data += range.offset;
      view.bytes = range.bytes;
      view.dims[0] = member.rows;
    }
    first += member.rows;
    member.status = Encode(*member.call, memory.rows, memory, member.reply);
    if (!member.status.ok()) continue;
    member.non_finite = AnyNonFinite(memory.rows);
  }
  return absl::OkStatus();
}

void DeviceModel::ExecuteBatch(Batch& batch,
                               runtime::RowBuffers& buffers) const {
  std::optional<base::Pool<Memory>::Lease> memory;
  const absl::Status enough = WithinMemory([&] {
    memory.emplace(memories_.Acquire());
    return absl::OkStatus();
  });
  if (enough.ok() && batch.members.size() > 1 &&
      WithinMemory([&] {
        return RunTogether(batch, buffers, **memory);
      }).ok()) {
    return;
  }
  // A single request, or members that failed as one.
  for (BatchMember& member : batch.members) {
    const absl::Status status = WithinMemory([&]() -> absl::Status {
      REFRACT_RETURN_IF_ERROR(enough);
      if (batch.first_row > 0 || !batch.last_step()) {
        return RunStep(member, batch.first_row, batch.rows, buffers, **memory);
      }
      return Run(member, **memory);
    });
    if (!status.ok()) member.reply = transport::OutgoingMessage();
    member.status = base::Annotate(status, "on the GPU node");
  }
}

absl::StatusOr<std::unique_ptr<DeviceModel>> LoadPart(
    const models::Repository& repository, const std::string& name,
    int64_t version) {
  REFRACT_ASSIGN_OR_RETURN(
      std::shared_ptr<const models::LoadedModel> loaded,
      repository.Load(name, version, {.scope = models::WeightScope::kHnPart}));
  if (loaded->verified_bytes > 0) {
    LOG(INFO) << DeviceModel::LabelOf(name, version) << ": "
              << loaded->verified_bytes
              << " bytes of weights read to verify them";
  }
  for (const std::string& warning : loaded->warnings) LOG(WARNING) << warning;
  return DeviceModel::Create(std::move(loaded));
}

absl::StatusOr<DeviceModels> DeviceModels::Load(
    const models::Repository& repository,
    const std::function<bool(absl::string_view name)>& wanted) {
  DeviceModels result;
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           repository.ListModels());
  for (const std::string& name : names) {
    if (wanted != nullptr && !wanted(name)) continue;
    const absl::StatusOr<std::vector<int64_t>> versions =
        repository.ListServedVersions(name);
    if (!versions.ok()) {
      LOG(ERROR) << "model '" << name << "' is left out: " << versions.status();
      continue;
    }
    for (const int64_t version : *versions) {
      absl::StatusOr<std::unique_ptr<DeviceModel>> model =
          LoadPart(repository, name, version);
      if (model.ok()) {
        result.models_.push_back(*std::move(model));
        continue;
      }
      // Versions without an HN part are normal; other errors are faults.
      if (absl::IsFailedPrecondition(model.status())) {
        LOG(INFO) << DeviceModel::LabelOf(name, version)
                  << " is left out: " << model.status().message();
      } else {
        LOG(ERROR) << DeviceModel::LabelOf(name, version)
                   << " is left out: " << model.status();
      }
      result.left_out_.emplace(std::make_pair(name, version), model.status());
    }
  }
  return result;
}

void DeviceModels::LeaveOut(size_t index, const absl::Status& why) {
  const DeviceModel& model = *models_[index];
  left_out_.emplace(std::make_pair(model.name(), model.version()), why);
  models_.erase(models_.begin() + static_cast<ptrdiff_t>(index));
}

absl::Status DeviceModels::WhyAbsent(const transport::ModelOffer& offer) const {
  const auto left_out =
      left_out_.find(std::make_pair(offer.name, offer.version));
  if (left_out != left_out_.end()) {
    return absl::FailedPreconditionError(left_out->second.message());
  }
  return absl::NotFoundError(
      absl::StrCat("no ", DeviceModel::LabelOf(offer.name, offer.version),
                   " on this GPU node"));
}

}  // namespace refract::gpu_node

#include "gpu_node/device_model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor.h"
#include "glog/logging.h"
#include "gpu_node/finite.h"
#include "models/row_dependence.h"
#include "models/split_plan.h"
#include "runtime/stable_inputs.h"

namespace refract::gpu_node {
namespace {

constexpr size_t kPageBytes = 4096;

std::string Label(absl::string_view name, int64_t version) {
  return absl::StrCat("model '", name, "' version ", version);
}

std::vector<base::TensorSpec> SpecsOf(
    absl::Span<const base::TensorView> tensors) {
  std::vector<base::TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const base::TensorView& tensor : tensors) {
    specs.push_back({tensor.dtype, tensor.dims});
  }
  return specs;
}

// The bytes of each weight that `part` reads; those with holes are left out.
std::vector<absl::Span<const std::byte>> WeightsOf(
    const models::LoadedModel& model, const runtime::Part& part) {
  std::set<std::string> names;
  for (const models::NodeId node : part.nodes) {
    for (const models::ValueId id : models::InputsOf(model.graph.nodes[node])) {
      const std::string& weight = model.graph.value(id).weight;
      if (!weight.empty()) names.insert(weight);
    }
  }
  std::vector<absl::Span<const std::byte>> weights;
  for (const std::string& name : names) {
    const auto view = model.weights->Get(name);
    if (!view.ok() || !view->is_contiguous()) continue;
    const auto size = base::ByteSize(
        view->dtype, base::Dims(view->sizes.begin(), view->sizes.end()));
    if (size.ok()) weights.push_back({view->data, *size});
  }
  return weights;
}

bool AnyNonFinite(absl::Span<const base::TensorView> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), HasNonFinite);
}

}  // namespace

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
      layout_(model_->graph, program_->part(),
              models::FindHnRowDependence(model_->graph, *model_->plan)),
      weights_(WeightsOf(*model_, program_->part())),
      contexts_(std::make_unique<runtime::ContextPool>(*program_)) {
  for (const auto& weight : weights_) weight_bytes_ += weight.size();
  merges_ = WhyAlone().empty();
}

void DeviceModel::ReadWeights() const {
  for (const absl::Span<const std::byte> weight : weights_) {
    for (size_t i = 0; i < weight.size(); i += kPageBytes) {
      // The compiler must not find out that nobody wants to know.
      static_cast<void>(
          *static_cast<const volatile std::byte*>(weight.data() + i));
    }
  }
}

void DeviceModel::DropWeights() const {
  for (const absl::Span<const std::byte> weight : weights_) {
    // Pages at the ends may hold somebody else's bytes too.
    const auto begin = reinterpret_cast<uintptr_t>(weight.data());
    const uintptr_t first = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
    const uintptr_t end = (begin + weight.size()) / kPageBytes * kPageBytes;
    if (first >= end) continue;
    // Advice: it may be ignored.
    madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
  }
}

absl::StatusOr<std::unique_ptr<DeviceModel>> DeviceModel::Create(
    std::shared_ptr<const models::LoadedModel> model) {
  const std::string label = Label(model->name, model->version);
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
        absl::StrCat(Label(name(), version()), ": the CN has model ",
                     offer.model.ToHex(), ", the HN ", model_->digest.ToHex()));
  }
  if (!(offer.schema == schema_)) {
    return absl::FailedPreconditionError(
        absl::StrCat(Label(name(), version()),
                     ": the split plans differ, the CN's crossing is ",
                     offer.schema.ToHex(), ", the HN's ", schema_.ToHex()));
  }
  return absl::OkStatus();
}

std::string DeviceModel::WhyAlone() const {
  if (!up_codec_.plain() || !down_codec_.plain()) {
    return "its plan sends values in other forms than they have";
  }
  return layout_.why_not();
}

int64_t DeviceModel::RowsOf(absl::Span<const base::TensorView> tensors) const {
  std::optional<int64_t> rows;
  if (merges_) rows = layout_.Rows(tensors);
  if (!rows.has_value()) rows = program_->BatchOf(tensors);
  return std::max<int64_t>(rows.value_or(1), 1);
}

std::string DeviceModel::MergeKey(const transport::ServerCall& call) const {
  if (!merges_) return "";
  return layout_.MergeKey(call.tensors(), call.settled());
}

absl::StatusOr<transport::OutgoingMessage> DeviceModel::Run(
    transport::ServerCall& call, bool* non_finite) const {
  runtime::wire::DecoderPool::Lease decoder = decoders_.Acquire();
  REFRACT_ASSIGN_OR_RETURN(absl::Span<const base::TensorView> inputs,
                           decoder->Decode(call.tensors()));
  std::optional<runtime::StableInputs> stable;
  if (!call.settled()) {
    inputs = stable.emplace(inputs, sizes_depend_on_data_).views();
  }
  REFRACT_ASSIGN_OR_RETURN(
      const std::vector<std::optional<base::TensorSpec>> specs,
      program_->OutputSpecs(inputs));
  std::vector<base::TensorSpec> known;
  for (const std::optional<base::TensorSpec>& spec : specs) {
    if (spec.has_value()) known.push_back(*spec);
  }
  runtime::ContextPool::Lease context = contexts_->Acquire();
  std::vector<base::TensorView> outputs;
  std::vector<std::byte*> destinations(specs.size(), nullptr);
  transport::OutgoingMessage reply;
  const bool sizes_known =
      down_codec_.sizes_known() && known.size() == specs.size();
  if (sizes_known) {
    REFRACT_ASSIGN_OR_RETURN(
        reply, call.AllocateReply(down_codec_.MessageSpecs(known)));
    for (size_t i = 0; i < destinations.size(); ++i) {
      const runtime::wire::Codec::Value& value = down_codec_.values()[i];
      if (value.form.is_plain()) destinations[i] = reply.data(value.tensor);
    }
  }
  REFRACT_RETURN_IF_ERROR(
      program_->Run(inputs, destinations, *context, outputs));
  *non_finite = AnyNonFinite(outputs);
  if (sizes_known && down_codec_.plain()) return reply;
  runtime::wire::Encoder encoder(down_codec_);
  REFRACT_ASSIGN_OR_RETURN(const std::vector<base::TensorSpec> tensors,
                           encoder.Prepare(outputs));
  // A size that depends on data is known only after the run: one copy.
  if (!sizes_known) {
    REFRACT_ASSIGN_OR_RETURN(reply, call.AllocateReply(tensors));
  }
  std::vector<std::byte*> places;
  for (size_t i = 0; i < tensors.size(); ++i) places.push_back(reply.data(i));
  encoder.Write(places);
  return reply;
}

absl::StatusOr<transport::OutgoingMessage> DeviceModel::RunInSteps(
    transport::ServerCall& call, int64_t rows, int64_t max_rows,
    RowBuffers& buffers, bool* non_finite) const {
  absl::Span<const base::TensorView> inputs = call.tensors();
  std::optional<runtime::StableInputs> stable;
  if (!call.settled()) {
    inputs = stable.emplace(inputs, sizes_depend_on_data_).views();
  }
  REFRACT_ASSIGN_OR_RETURN(
      const std::vector<std::optional<base::TensorSpec>> specs,
      program_->OutputSpecs(inputs));
  std::vector<base::TensorSpec> known;
  for (const std::optional<base::TensorSpec>& spec : specs) {
    if (!spec.has_value()) {
      return absl::InternalError("an output's size is not known");
    }
    known.push_back(*spec);
  }
  REFRACT_ASSIGN_OR_RETURN(transport::OutgoingMessage reply,
                           call.AllocateReply(known));
  runtime::ContextPool::Lease context = contexts_->Acquire();
  std::vector<base::TensorView> outputs;
  const std::vector<std::byte*> destinations(specs.size(), nullptr);
  std::vector<size_t> written(specs.size(), 0);
  // About equal steps: a short last one might be below the graph's smallest
  // batch.
  const int64_t steps = (rows + max_rows - 1) / max_rows;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t first = rows * step / steps;
    const int64_t count = rows * (step + 1) / steps - first;
    const std::vector<base::TensorView> slice =
        layout_.Slice(inputs, first, count, buffers);
    REFRACT_RETURN_IF_ERROR(
        program_->Run(slice, destinations, *context, outputs));
    *non_finite |= AnyNonFinite(outputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].bytes == 0) continue;
      std::memcpy(reply.data(i) + written[i], outputs[i].data,
                  outputs[i].bytes);
      written[i] += outputs[i].bytes;
    }
  }
  return reply;
}

absl::Status DeviceModel::RunTogether(Batch& batch, RowBuffers& buffers) const {
  std::vector<absl::Span<const base::TensorView>> requests;
  for (const BatchMember& member : batch.members) {
    requests.push_back(member.call->tensors());
  }
  // A copy, so no peer can change it.
  const std::vector<base::TensorView> inputs =
      layout_.Gather(requests, buffers);
  runtime::ContextPool::Lease context = contexts_->Acquire();
  std::vector<base::TensorView> outputs;
  const std::vector<std::byte*> destinations(program_->part().outputs.size(),
                                             nullptr);
  REFRACT_RETURN_IF_ERROR(
      program_->Run(inputs, destinations, *context, outputs));
  for (const base::TensorView& output : outputs) {
    if (output.dims.empty() || output.dims[0] != batch.rows) {
      return absl::InternalError("an output does not have one entry per row");
    }
  }
  int64_t first = 0;
  for (BatchMember& member : batch.members) {
    std::vector<base::TensorView> part = outputs;
    for (base::TensorView& view : part) {
      const RowRange range = RangeOfRows(view, first, member.rows);
      view.data += range.offset;
      view.bytes = range.bytes;
      view.dims[0] = member.rows;
    }
    first += member.rows;
    absl::StatusOr<transport::OutgoingMessage> reply =
        member.call->AllocateReply(SpecsOf(part));
    member.status = reply.status();
    if (!reply.ok()) continue;
    for (size_t i = 0; i < part.size(); ++i) {
      if (part[i].bytes == 0) continue;
      std::memcpy(reply->data(i), part[i].data, part[i].bytes);
    }
    member.non_finite = AnyNonFinite(part);
    member.reply = *std::move(reply);
  }
  return absl::OkStatus();
}

void DeviceModel::ExecuteBatch(Batch& batch, int64_t max_rows,
                               RowBuffers& buffers) const {
  if (batch.members.size() > 1 && RunTogether(batch, buffers).ok()) return;
  for (BatchMember& member : batch.members) {
    member.non_finite = false;
    const bool in_steps = member.rows > max_rows && merges_ &&
                          layout_.Rows(member.call->tensors()) == member.rows;
    absl::StatusOr<transport::OutgoingMessage> reply =
        in_steps ? RunInSteps(*member.call, member.rows, max_rows, buffers,
                              &member.non_finite)
                 : Run(*member.call, &member.non_finite);
    member.status = base::Annotate(reply.status(), "on the GPU node");
    if (reply.ok()) member.reply = *std::move(reply);
  }
}

absl::StatusOr<DeviceModels> DeviceModels::Load(
    const models::Repository& repository) {
  DeviceModels result;
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           repository.ListModels());
  for (const std::string& name : names) {
    const absl::StatusOr<std::vector<int64_t>> versions =
        repository.ListVersions(name);
    if (!versions.ok()) {
      LOG(ERROR) << "model '" << name << "' is left out: " << versions.status();
      continue;
    }
    for (const int64_t version : *versions) {
      absl::StatusOr<std::shared_ptr<const models::LoadedModel>> loaded =
          repository.Load(name, version);
      absl::Status why_not = loaded.status();
      if (loaded.ok()) {
        absl::StatusOr<std::unique_ptr<DeviceModel>> model =
            DeviceModel::Create(*std::move(loaded));
        why_not = model.status();
        if (model.ok()) result.models_.push_back(*std::move(model));
      }
      if (why_not.ok()) continue;
      // Nothing for this node to do is normal; anything else is a fault.
      if (absl::IsFailedPrecondition(why_not)) {
        LOG(INFO) << Label(name, version)
                  << " is left out: " << why_not.message();
      } else {
        LOG(ERROR) << Label(name, version) << " is left out: " << why_not;
      }
      result.left_out_.emplace(std::make_pair(name, version), why_not);
    }
  }
  return result;
}

void DeviceModels::LeaveOut(size_t index, const absl::Status& why) {
  const DeviceModel& model = *models_[index];
  left_out_.emplace(std::make_pair(model.name(), model.version()), why);
  models_.erase(models_.begin() + static_cast<ptrdiff_t>(index));
}

absl::StatusOr<size_t> DeviceModels::Match(
    const transport::ModelOffer& offer) const {
  for (size_t i = 0; i < models_.size(); ++i) {
    const DeviceModel& model = *models_[i];
    if (model.name() != offer.name || model.version() != offer.version) {
      continue;
    }
    REFRACT_RETURN_IF_ERROR(model.CheckOffer(offer));
    return i;
  }
  const auto left_out =
      left_out_.find(std::make_pair(offer.name, offer.version));
  if (left_out != left_out_.end()) {
    return absl::FailedPreconditionError(left_out->second.message());
  }
  return absl::NotFoundError(
      absl::StrCat("no ", Label(offer.name, offer.version), " on this HN"));
}

}  // namespace refract::gpu_node

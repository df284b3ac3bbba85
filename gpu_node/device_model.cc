#include "gpu_node/device_model.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor.h"
#include "glog/logging.h"
#include "models/split_plan.h"
#include "runtime/stable_inputs.h"

namespace refract::gpu_node {
namespace {

std::string Label(absl::string_view name, int64_t version) {
  return absl::StrCat("model '", name, "' version ", version);
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
      contexts_(std::make_unique<runtime::ContextPool>(*program_)) {}

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

absl::StatusOr<transport::OutgoingMessage> DeviceModel::Run(
    transport::ServerCall& call) const {
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

absl::Status DeviceModel::Execute(transport::ServerCall& call) const {
  absl::StatusOr<transport::OutgoingMessage> reply = Run(call);
  if (!reply.ok()) {
    const absl::Status status =
        base::Annotate(reply.status(), "on the GPU node");
    call.Fail(status);
    return status;
  }
  call.Reply(*std::move(reply));
  return absl::OkStatus();
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

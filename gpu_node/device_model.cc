#include "gpu_node/device_model.h"

#include <cstring>
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

std::vector<base::TensorSpec> SpecsOf(
    absl::Span<const base::TensorView> tensors) {
  std::vector<base::TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const base::TensorView& tensor : tensors) {
    specs.push_back({tensor.dtype, tensor.dims});
  }
  return specs;
}

}  // namespace

DeviceModel::DeviceModel(std::shared_ptr<const models::LoadedModel> model,
                         std::unique_ptr<const runtime::Program> program)
    : model_(std::move(model)),
      schema_(models::SchemaDigest(model_->graph, *model_->plan)),
      program_(std::move(program)),
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
  absl::Span<const base::TensorView> inputs = call.tensors();
  const size_t wanted = program_->part().inputs.size();
  if (inputs.size() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the request has ", inputs.size(), " tensors, wanted ", wanted));
  }
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

  if (known.size() == specs.size()) {
    REFRACT_ASSIGN_OR_RETURN(transport::OutgoingMessage reply,
                             call.AllocateReply(known));
    for (size_t i = 0; i < destinations.size(); ++i) {
      destinations[i] = reply.data(i);
    }
    REFRACT_RETURN_IF_ERROR(
        program_->Run(inputs, destinations, *context, outputs));
    return reply;
  }
  // A size that depends on data is known only after the run: one copy.
  REFRACT_RETURN_IF_ERROR(
      program_->Run(inputs, destinations, *context, outputs));
  REFRACT_ASSIGN_OR_RETURN(transport::OutgoingMessage reply,
                           call.AllocateReply(SpecsOf(outputs)));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].bytes == 0) continue;
    std::memcpy(reply.data(i), outputs[i].data, outputs[i].bytes);
  }
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

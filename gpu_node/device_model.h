#ifndef REFRACT_GPU_NODE_DEVICE_MODEL_H_
#define REFRACT_GPU_NODE_DEVICE_MODEL_H_

// The part of one model version that this node executes, and the set of all of
// them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/digest.h"
#include "models/repository.h"
#include "runtime/program.h"
#include "runtime/wire/codec.h"
#include "runtime/wire/decoder_pool.h"
#include "transport/channel.h"

namespace refract::gpu_node {

// Immutable and thread-safe, but for the pool of scratch memory inside.
class DeviceModel {
 public:
  // FailedPrecondition when the version has no HN part; otherwise as
  // runtime::Program::Compile, annotated with the model's name and version.
  static absl::StatusOr<std::unique_ptr<DeviceModel>> Create(
      std::shared_ptr<const models::LoadedModel> model);

  const std::string& name() const { return model_->name; }
  int64_t version() const { return model_->version; }
  const base::Digest& schema() const { return schema_; }
  const models::LoadedModel& model() const { return *model_; }

  // OK, or why `offer`, of this name and version, is for something else.
  absl::Status CheckOffer(const transport::ModelOffer& offer) const;

  // Runs `call` on the calling thread and answers it. Returns how that went,
  // for the log; the client has been told the same.
  absl::Status Execute(transport::ServerCall& call) const;

 private:
  DeviceModel(std::shared_ptr<const models::LoadedModel> model,
              std::unique_ptr<const runtime::Program> program);
  absl::StatusOr<transport::OutgoingMessage> Run(
      transport::ServerCall& call) const;

  // Shared with whoever loaded it; keeps the mapped weights alive.
  std::shared_ptr<const models::LoadedModel> model_;
  base::Digest schema_;
  std::unique_ptr<const runtime::Program> program_;
  // How requests and answers are carried by messages.
  const runtime::wire::Codec up_codec_;
  const runtime::wire::Codec down_codec_;
  mutable runtime::wire::DecoderPool decoders_;
  bool sizes_depend_on_data_;
  std::unique_ptr<runtime::ContextPool> contexts_;
};

// Every HN part of a repository. Immutable once loaded; thread-safe.
class DeviceModels {
 public:
  // Loads all versions of all models. A version that fails to load, or has no
  // HN part, is logged and remembered as the reason to refuse its offers; the
  // others serve. NotFound when `repository` itself cannot be read.
  static absl::StatusOr<DeviceModels> Load(
      const models::Repository& repository);

  // Loads nothing from disk; for tests.
  explicit DeviceModels(std::vector<std::unique_ptr<DeviceModel>> models)
      : models_(std::move(models)) {}

  // Index of the model that `offer` means. NotFound, or FailedPrecondition
  // with what differs.
  absl::StatusOr<size_t> Match(const transport::ModelOffer& offer) const;

  size_t size() const { return models_.size(); }
  const DeviceModel& operator[](size_t index) const { return *models_[index]; }

 private:
  DeviceModels() = default;

  std::vector<std::unique_ptr<DeviceModel>> models_;
  // (name, version) → why it is not among `models_`.
  std::map<std::pair<std::string, int64_t>, absl::Status> left_out_;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_DEVICE_MODEL_H_

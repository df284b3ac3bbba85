#ifndef REFRACT_GPU_NODE_MODEL_DEVICE_MODEL_H_
#define REFRACT_GPU_NODE_MODEL_DEVICE_MODEL_H_

// The part of a model version that this node executes, and the set of all such
// parts.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/digest.h"
#include "base/pool.h"
#include "gpu_node/device/device.h"
#include "models/repository/repository.h"
#include "runtime/compile/batch_layout.h"
#include "runtime/program.h"
#include "runtime/stable_inputs.h"
#include "runtime/wire/codec.h"
#include "runtime/wire/coder_pool.h"
#include "transport/links/channel.h"

namespace refract::gpu_node {

// Immutable and thread-safe, but for the pool of scratch memory inside.
class DeviceModel {
 public:
  // Compiles the part, decides whether its rows are independent, and verifies
  // that. FailedPrecondition if the version has no HN part; otherwise as
  // runtime::Program::Compile, annotated with the model's name and version.
  static absl::StatusOr<std::unique_ptr<DeviceModel>> Create(
      std::shared_ptr<const models::LoadedModel> model);
  ~DeviceModel();

  const std::string& name() const { return model_->name; }
  int64_t version() const { return model_->version; }
  const base::Digest& schema() const { return schema_; }
  const models::LoadedModel& model() const { return *model_; }

  // OK, or why `offer`, of this name and version, has other content.
  absl::Status CheckOffer(const transport::ModelOffer& offer) const;

  const runtime::Program& program() const { return *program_; }
  const runtime::BatchLayout& layout() const { return layout_; }
  // "model 'NAME' version N", for messages.
  static std::string LabelOf(absl::string_view name, int64_t version);
  std::string label() const { return LabelOf(name(), version()); }
  // The rule that decided about rows, without the layout's further demands.
  const models::RowDependence& rows() const { return rows_; }
  // Of generated inputs that this part takes (LeastInteger()).
  int64_t least_integer() const { return least_integer_; }
  // Largest difference between results of rows computed alone and among others,
  // on generated inputs (VerifyRows()); 0 if rows depend on each other.
  double row_difference() const { return row_difference_; }
  // Bytes of the weights that this part reads.
  size_t weight_bytes() const { return weight_bytes_; }
  // ReadWeights() reads the weights once, so that their pages are in memory;
  // DropWeights() gives the pages back. Only while nothing executes.
  void ReadWeights() const;
  void DropWeights() const;

  // Rows of a request, by the sizes of its tensors, at least 1; 1 if the sizes
  // do not show it.
  int64_t RowsOf(absl::Span<const base::TensorView> tensors) const;
  // Rows and merge key of a request that has arrived.
  struct Arrival {
    int64_t rows = 1;
    std::string merge_key;  // BatchLayout::MergeKey(); empty: merges with none
    std::vector<base::TensorView> values;  // not decoded
  };
  base::Pool<Arrival>::Lease Look(const transport::ServerCall& call) const;

  // For devices that execute by themselves: a request's inputs in the order of
  // the part, with their memory. The call must outlive them. The same object
  // may serve one request after the other, and then reuses its memory.
  struct Inputs {
    // Views of the request's memory, the decoder's, or a copy.
    absl::Span<const base::TensorView> views;
    std::optional<runtime::wire::DecoderPool::Lease> decoder;
    runtime::StableInputs stable;
  };
  // Decodes the inputs. Copies values that a peer could still change and on
  // which the program relies (runtime::StableInputs).
  absl::Status Read(const transport::ServerCall& call, Inputs& inputs) const;
  // Encodes the part's results by the plan, as the reply to `call`.
  absl::StatusOr<transport::OutgoingMessage> Answer(
      transport::ServerCall& call,
      absl::Span<const base::TensorView> outputs) const;

  // Runs `batch` on the calling thread: sets status and reply of its members,
  // but answers no call. Several members, whose keys are equal, run as one; if
  // that fails, each member runs alone, so that only faulty members fail. A
  // batch that is a step of a request (Batch::first_row) adds its rows to the
  // reply of its member. A row's result may differ in its last bits with the
  // number of rows that it is computed among.
  void ExecuteBatch(Batch& batch, runtime::RowBuffers& buffers) const;

 private:
  DeviceModel(std::shared_ptr<const models::LoadedModel> model,
              std::unique_ptr<const runtime::Program> program);
  struct Steps;
  struct Memory;
  int64_t RowsOfValues(absl::Span<const base::TensorView> values) const;
  absl::Status Decode(const transport::ServerCall& call, Inputs& inputs) const;
  absl::Status Encode(transport::ServerCall& call,
                      absl::Span<const base::TensorView> outputs,
                      Memory& memory, transport::OutgoingMessage& reply) const;
  absl::Status Run(BatchMember& member, Memory& memory) const;
  absl::Status BeginSteps(BatchMember& member, Steps& steps) const;
  // Computes `count` rows of a request from `first` on; steps follow each other
  // from row 0. The reply is complete after the last step.
  absl::Status RunStep(BatchMember& member, int64_t first, int64_t count,
                       runtime::RowBuffers& buffers, Memory& memory) const;
  absl::Status RunTogether(Batch& batch, runtime::RowBuffers& buffers,
                           Memory& memory) const;

  // Shared with its loader; keeps the mapped weights alive.
  std::shared_ptr<const models::LoadedModel> model_;
  base::Digest schema_;
  std::unique_ptr<const runtime::Program> program_;
  // Encodings of the values in requests and answers.
  const runtime::wire::Codec up_codec_;
  const runtime::wire::Codec down_codec_;
  mutable runtime::wire::DecoderPool decoders_;
  bool sizes_depend_on_data_;
  models::RowDependence rows_;
  runtime::BatchLayout layout_;
  int64_t least_integer_;
  double row_difference_ = 0;
  std::vector<absl::Span<const std::byte>> weights_;  // that this part reads
  size_t weight_bytes_ = 0;
  bool merges_ = false;  // layout_.why_not() is empty
  // Scratch of arriving requests and of executions. Last: they hold decoders.
  mutable base::Pool<Arrival> arrivals_;
  mutable base::Pool<Memory> memories_;
};

// Loads the part of a version from `repository`, and logs what it read. Errors
// as Repository::Load() and DeviceModel::Create().
absl::StatusOr<std::unique_ptr<DeviceModel>> LoadPart(
    const models::Repository& repository, const std::string& name,
    int64_t version);

// All HN parts of a repository. Immutable once loaded; thread-safe.
class DeviceModels {
 public:
  // Loads all versions of all models. A version that fails to load, or has no
  // HN part, is logged, and its error refuses its offers; the others serve.
  // NotFound when `repository` itself cannot be read. `wanted`: the models to
  // load; null: all.
  static absl::StatusOr<DeviceModels> Load(
      const models::Repository& repository,
      const std::function<bool(absl::string_view name)>& wanted = nullptr);

  // Loads nothing from disk; for tests.
  explicit DeviceModels(std::vector<std::unique_ptr<DeviceModel>> models)
      : models_(std::make_move_iterator(models.begin()),
                std::make_move_iterator(models.end())) {}

  // Removes a model; `why` refuses later offers of it. The indexes of later
  // models change.
  void LeaveOut(size_t index, const absl::Status& why);

  // Why the version of `offer` is not among the models.
  absl::Status WhyAbsent(const transport::ModelOffer& offer) const;

  size_t size() const { return models_.size(); }
  const DeviceModel& operator[](size_t index) const { return *models_[index]; }
  // Takes the models out; only the reasons of WhyAbsent() stay.
  std::vector<std::shared_ptr<const DeviceModel>> TakeAll() {
    return std::exchange(models_, {});
  }

 private:
  DeviceModels() = default;

  std::vector<std::shared_ptr<const DeviceModel>> models_;
  // (name, version) → reason of its absence from `models_`.
  std::map<std::pair<std::string, int64_t>, absl::Status> left_out_;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_MODEL_DEVICE_MODEL_H_

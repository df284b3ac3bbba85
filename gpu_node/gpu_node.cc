#include "gpu_node/gpu_node.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace refract::gpu_node {
namespace {

// Enough to see what goes wrong, few enough not to be what goes wrong.
constexpr int kFailureLinesPerSecond = 10;

}  // namespace

absl::StatusOr<std::unique_ptr<GpuNode>> GpuNode::Create(
    DeviceModels models, const GpuNodeOptions& options) {
  if (options.instances < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("instances is ", options.instances, ", wanted ≥ 1"));
  }
  if (options.max_queue < 1) {
    return absl::InvalidArgumentError("max_queue is 0, wanted ≥ 1");
  }
  std::unique_ptr<GpuNode> node(new GpuNode(std::move(models), options));
  for (int i = 0; i < options.instances; ++i) {
    node->instances_.emplace_back([raw = node.get()] { raw->RunInstance(); });
  }
  return node;
}

GpuNode::GpuNode(DeviceModels models, const GpuNodeOptions& options)
    : models_(std::move(models)),
      queue_(options.max_queue, *options.clock),
      failure_log_(kFailureLinesPerSecond, *options.clock),
      refusal_log_(kFailureLinesPerSecond, *options.clock) {}

GpuNode::~GpuNode() {
  queue_.Close();
  for (std::thread& instance : instances_) instance.join();
}

absl::StatusOr<size_t> GpuNode::OnOffer(const transport::ModelOffer& offer) {
  absl::StatusOr<size_t> match = models_.Match(offer);
  // Once per connection: a CN offers its models in the handshake only.
  if (!match.ok()) {
    if (const std::optional<int64_t> held_back = refusal_log_.Admit()) {
      LOG(WARNING) << "refused: " << match.status().message()
                   << (*held_back > 0
                           ? absl::StrCat(" (", *held_back,
                                          " earlier refusals not logged)")
                           : "");
    }
  }
  return match;
}

void GpuNode::OnRequest(std::unique_ptr<transport::ServerCall> call) {
  queue_.Push(std::move(call));
}

GpuNode::Stats GpuNode::stats() const {
  return {succeeded_.load(std::memory_order_relaxed),
          failed_.load(std::memory_order_relaxed), queue_.expired()};
}

void GpuNode::RunInstance() {
  while (std::unique_ptr<transport::ServerCall> call = queue_.Pop()) {
    const DeviceModel& model = models_[call->model()];
    const absl::Status status = model.Execute(*call);
    // Gives the request's memory back to the CN before the queue counts the
    // call as answered.
    call.reset();
    if (status.ok()) {
      succeeded_.fetch_add(1, std::memory_order_relaxed);
    } else {
      failed_.fetch_add(1, std::memory_order_relaxed);
      if (const std::optional<int64_t> held_back = failure_log_.Admit()) {
        LOG(WARNING) << "a request of model '" << model.name() << "' version "
                     << model.version() << " failed: " << status
                     << (*held_back > 0
                             ? absl::StrCat(" (", *held_back,
                                            " earlier failures not logged)")
                             : "");
      }
    }
    queue_.Done();
  }
}

}  // namespace refract::gpu_node

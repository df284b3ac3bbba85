#ifndef REFRACT_GPU_NODE_DEVICE_DEVICE_H_
#define REFRACT_GPU_NODE_DEVICE_DEVICE_H_

// The hardware that executes models, as the scheduler sees it: instances, each
// of which executes one batch at a time, and memory for weights.
// Implementations: the CPU (cpu_device.h), a GPU (cuda_device.h), and in tests
// a fake with a virtual clock.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduling/execution_times.h"
#include "transport/links/channel.h"

namespace refract::gpu_node {

// One request of a batch.
struct BatchMember {
  std::unique_ptr<transport::ServerCall> call;
  int64_t rows = 1;
  // For the log of slow requests, on the scheduler's clock: arrival, and
  // planning of the first execution.
  absl::Time arrived;
  absl::Time started = absl::InfinitePast();
  absl::Time executed = absl::InfinitePast();  // latest step
  // The device sets whether this request was executed, and its answer.
  absl::Status status;
  transport::OutgoingMessage reply;
  // Whether the answer holds a NaN or an infinity.
  bool non_finite = false;
  // State of the device from the first step of a request to the last.
  std::shared_ptr<void> between_steps;
};

// Requests of one model that are executed together, side by side as rows of one
// input; or a step of one long request.
struct Batch {
  size_t model = 0;
  int64_t rows = 0;  // to execute now
  // A batch of one member with more than `rows` rows is a step of that request
  // (DeviceTraits::steps): the rows from `first_row` on. The next step comes as
  // another batch, on any instance. The reply is complete after the last step;
  // each step may set an error status.
  int64_t first_row = 0;
  std::vector<BatchMember> members;

  bool last_step() const {
    return members.size() != 1 || first_row + rows >= members[0].rows;
  }
};

struct DeviceTraits {
  std::string name;  // for logs
  int instances = 1;
  // Batches that an instance can hold. With 2, the inputs of the next batch are
  // uploaded during an execution. 1 if there is nothing to upload.
  int slots = 1;
  // Whether the device takes a request in steps (Batch::first_row).
  bool steps = false;
  // Memory for weights, bytes; 0: no limit.
  size_t weight_memory = 0;
  // Rate of loading weights, until it has been measured; 0: takes no time.
  double load_bytes_per_s = 0;
};

class DeviceModel;

// Measurements of a model by a device that measures models itself.
struct ModelOnDevice {
  scheduling::ExecutionTimes times;
  size_t device_bytes = 0;  // memory that it takes
};

// Methods may be called from any thread, by the scheduler under no lock, and
// must not block (except SetModel). Each `done` is called exactly once, on any
// thread, possibly before the method returns.
//
// An error passed to the `done` of Upload, Execute or Download says that the
// instance is lost, with all batches it holds; an error of a single request
// goes into its BatchMember. A lost instance gets no further calls until it is
// started again, but its pending `done`s are still called, with any status.
class Device {
 public:
  using Done = std::function<void(const absl::Status&)>;

  virtual ~Device() = default;
  virtual const DeviceTraits& traits() const = 0;

  // Puts `model` in the place that batches name by Batch::model, which is empty
  // or one past the last place; null empties the place. The model must outlive
  // its time there. The scheduler does not use the place meanwhile. Blocks. An
  // error says why the device cannot execute the model; the place is empty
  // then. nullopt: the device measures nothing.
  virtual absl::StatusOr<std::optional<ModelOnDevice>> SetModel(
      size_t place, const DeviceModel* model) {
    return std::nullopt;
  }

  // Makes an instance ready, at first and after each loss.
  virtual void Start(int instance, Done done) = 0;

  // The steps of a batch, in this order, one at a time per slot. The batch must
  // not move until the last step is done. Each instance has at most one Execute
  // under way.
  virtual void Upload(int instance, int slot, Batch* batch, Done done) = 0;
  virtual void Execute(int instance, int slot, Batch* batch, Done done) = 0;
  virtual void Download(int instance, int slot, Batch* batch, Done done) = 0;

  // Drops the weights of the models `evicted`, of which none executes, and
  // copies the weights of `model` to the instances. One call at a time.
  virtual void LoadWeights(size_t model, absl::Span<const size_t> evicted,
                           Done done) = 0;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_DEVICE_DEVICE_H_

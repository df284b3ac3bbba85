#ifndef REFRACT_TESTS_GPU_NODE_DEVICE_CUDA_NODE_H_
#define REFRACT_TESTS_GPU_NODE_DEVICE_CUDA_NODE_H_

// A whole node on a GPU that exists in this process only: scheduler, device,
// translated models, emulated kernels. The CPU is the oracle.

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gpu_node/device/cuda_setup.h"
#include "gpu_node/gpu_node.h"
#include "gtest/gtest.h"
#include "models/repository/split_plan.h"
#include "runtime/cuda_aten/operators.h"
#include "tests/base/random_seed.h"
#include "tests/cpu_node/small_model.h"
#include "tests/gpu_node/slot_call.h"
#include "tests/runtime/cuda/testing/checked_device.h"

namespace refract::gpu_node {

using runtime::cuda::testing::CheckedDevice;
using testing_models::kDense;
using testing_models::kDim;
using testing_models::kRows;

inline constexpr int64_t kMaxRows = 8;

// A request and, once it is there, its answer. Outlives the call.
struct Exchange {
  std::vector<base::Tensor> inputs;
  int64_t rows = 0;
  std::vector<std::vector<float>> answer;  // per output
  absl::Status status;
  absl::Notification done;
};

class RecordingCall final : public SlotCall {
 public:
  RecordingCall(Exchange* exchange,
                std::shared_ptr<transport::LinkMemory> memory, size_t model)
      : SlotCall(ViewsOf(*exchange), std::move(memory), true),
        exchange_(exchange),
        model_(model) {}

  size_t model() const override { return model_; }
  void Reply(transport::OutgoingMessage message) override {
    for (size_t i = 0; i < reply_specs().size(); ++i) {
      const base::TensorSpec& spec = reply_specs()[i];
      const auto* data = reinterpret_cast<const float*>(message.data(i));
      const size_t bytes = *base::ByteSize(spec.dtype, spec.dims);
      exchange_->answer.emplace_back(data, data + bytes / sizeof(float));
    }
    exchange_->done.Notify();
  }
  void Fail(const absl::Status& why) override {
    exchange_->status = why;
    exchange_->done.Notify();
  }

 private:
  static std::vector<base::TensorView> ViewsOf(const Exchange& exchange) {
    std::vector<base::TensorView> views;
    for (const base::Tensor& tensor : exchange.inputs) {
      views.push_back(tensor.view());
    }
    return views;
  }
  Exchange* const exchange_;
  const size_t model_;
};

inline base::Tensor Allocate(base::DType dtype, base::Dims dims) {
  return *base::Tensor::Allocate(dtype, std::move(dims));
}

// Values that cross: dense, and the table's rows; or the ids, with the look-up
// on the HN.
inline std::unique_ptr<Exchange> NewRequest(int64_t rows, std::mt19937& random,
                                            bool ids = false) {
  std::uniform_real_distribution<float> values(-1, 1);
  auto exchange = std::make_unique<Exchange>();
  exchange->rows = rows;
  exchange->inputs.push_back(Allocate(base::DType::kFloat32, {rows, kDense}));
  for (float& value : exchange->inputs[0].as<float>()) value = values(random);
  if (ids) {
    exchange->inputs.push_back(Allocate(base::DType::kInt64, {rows}));
    for (int64_t& id : exchange->inputs[1].as<int64_t>()) id = random() % kRows;
  } else {
    exchange->inputs.push_back(Allocate(base::DType::kFloat32, {rows, kDim}));
    for (float& value : exchange->inputs[1].as<float>()) value = values(random);
  }
  return exchange;
}

inline std::shared_ptr<models::LoadedModel> NewModel(
    const testing_models::SmallModelOptions& options = {}, bool ids = false) {
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel(options));
  if (ids) {
    model->plan->stages[0] = models::Stage::kHn;
    models::ComputeCrossings(model->graph, *model->plan);
  }
  return model;
}

// Its weights under another graph, all of it on the HN.
inline std::shared_ptr<models::LoadedModel> NewHnModel(std::string name,
                                                       models::Graph graph) {
  std::shared_ptr<models::LoadedModel> model =
      NewModel({.name = std::move(name)});
  model->graph = std::move(graph);
  model->plan->stages.assign(model->graph.nodes.size(), models::Stage::kHn);
  models::ComputeCrossings(model->graph, *model->plan);
  return model;
}

// A node on a checked device, which stays its own when the node is gone.
class CudaNode {
 public:
  CudaNode(std::vector<std::shared_ptr<models::LoadedModel>> loaded,
           GpuNodeOptions options, int64_t memory_bytes = int64_t{1} << 26,
           bool foreign = false, CudaDevice::Options cuda = {})
      : random_(base::RandomSeed()), memory_(NewSlotMemory()) {
    const unsigned seed = random_();
    random_.seed(seed);
    std::vector<std::unique_ptr<DeviceModel>> models;
    for (auto& model : loaded) {
      models.push_back(*DeviceModel::Create(model));
      oracles_.push_back(*DeviceModel::Create(model));
    }
    DeviceModels all(std::move(models));
    auto api = std::make_unique<CheckedDevice>(seed, memory_bytes);
    api_ = api.get();
    cuda.instances = options.instances;
    cuda.max_rows = kMaxRows;
    cuda.weight_memory = options.weight_memory;
    cuda.workspace_bytes = 256;
    if (foreign) cuda.foreign = runtime::cuda_aten::MakeOperators({});
    options.max_batch = kMaxRows;
    options.first_backoff = absl::Milliseconds(1);
    options.last_backoff = absl::Milliseconds(10);
    CudaSetup setup = SetUpCuda(std::move(api), cuda, all);
    options.facts = std::move(setup.facts);
    facts_ = options.facts;
    node_ = *GpuNode::Create(std::move(all), options, setup.make_device);
  }

  GpuNode& node() { return *node_; }
  CheckedDevice& api() { return *api_; }
  std::mt19937& random() { return random_; }
  size_t DeviceBytes(size_t model) {
    for (const GpuNode::Served& served : node_->served()) {
      if (served.number == model) return facts_(*served.model).device_bytes;
    }
    ADD_FAILURE() << "no model " << model;
    return 0;
  }

  void Send(Exchange& exchange, size_t model = 0) {
    node_->OnRequest(
        std::make_unique<RecordingCall>(&exchange, memory_, model));
  }
  // Waits for the answer and compares it with the CPU's.
  void Expect(Exchange& exchange, size_t model = 0, float tolerance = 1e-5f) {
    exchange.done.WaitForNotification();
    ASSERT_EQ(exchange.status, absl::OkStatus());
    const runtime::Program& program = oracles_[model]->program();
    runtime::RunContext context(program);
    std::vector<base::TensorView> views;
    for (const base::Tensor& tensor : exchange.inputs) {
      views.push_back(tensor.view());
    }
    std::vector<base::TensorView> outputs;
    const std::vector<std::byte*> nowhere(program.part().outputs.size(),
                                          nullptr);
    ASSERT_EQ(program.Run(views, nowhere, context, outputs), absl::OkStatus());
    ASSERT_EQ(exchange.answer.size(), outputs.size());
    for (size_t k = 0; k < outputs.size(); ++k) {
      const auto want = outputs[k].as<float>();
      const std::vector<float>& got = exchange.answer[k];
      ASSERT_EQ(got.size(), want.size()) << k;
      for (size_t i = 0; i < want.size(); ++i) {
        if (std::isnan(want[i])) {
          EXPECT_TRUE(std::isnan(got[i])) << i;
        } else {
          EXPECT_NEAR(got[i], want[i], tolerance) << i;
        }
      }
    }
  }
  // Until the model can be executed again.
  void AwaitReady(size_t model = 0) {
    const absl::Time limit = absl::Now() + absl::Seconds(60);
    while (!node_->ModelReady(model).ok()) {
      ASSERT_LT(absl::Now(), limit) << node_->ModelReady(model);
      std::this_thread::yield();
    }
  }

 private:
  std::mt19937 random_;
  std::shared_ptr<transport::LinkMemory> memory_;
  std::vector<std::unique_ptr<DeviceModel>> oracles_;
  CheckedDevice* api_ = nullptr;
  std::function<GpuNodeOptions::DeviceFacts(const DeviceModel&)> facts_;
  std::unique_ptr<GpuNode> node_;
};

inline GpuNodeOptions Batching() {
  GpuNodeOptions options;
  options.batching_window = absl::ZeroDuration();
  return options;
}

}  // namespace refract::gpu_node

#endif  // REFRACT_TESTS_GPU_NODE_DEVICE_CUDA_NODE_H_

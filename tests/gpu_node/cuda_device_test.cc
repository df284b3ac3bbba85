// The whole node on a GPU that exists in this process only: scheduler, device,
// translated models, emulated kernels. The CPU is the oracle.

#include "gpu_node/cuda_device.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gpu_node/cuda_library.h"
#include "gpu_node/cuda_setup.h"
#include "gpu_node/gpu_node.h"
#include "gtest/gtest.h"
#include "models/split_plan.h"
#include "runtime/cuda_aten/operators.h"
#include "tests/cpu_node/small_model.h"
#include "tests/gpu_node/slot_call.h"
#include "tests/runtime/cuda/testing/checked_device.h"

namespace refract::gpu_node {
namespace {

using runtime::cuda::Code;
using runtime::cuda::testing::CheckedDevice;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_models::kDense;
using testing_models::kDim;
using testing_models::kRows;

constexpr int64_t kMaxRows = 8;

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

base::Tensor Allocate(base::DType dtype, base::Dims dims) {
  return *base::Tensor::Allocate(dtype, std::move(dims));
}

// What crosses: dense, and the rows of the table; or the ids, with the look-up
// on the HN.
std::unique_ptr<Exchange> NewRequest(int64_t rows, std::mt19937& random,
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

std::shared_ptr<models::LoadedModel> NewModel(
    const testing_models::SmallModelOptions& options = {}, bool ids = false) {
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel(options));
  if (ids) {
    model->plan->stages[0] = models::Stage::kHn;
    models::ComputeCrossings(model->graph, *model->plan);
  }
  return model;
}

// A node on a checked device, which stays its own when the node is gone.
class CudaNode {
 public:
  CudaNode(std::vector<std::shared_ptr<models::LoadedModel>> loaded,
           GpuNodeOptions options, int64_t memory_bytes = int64_t{1} << 26,
           bool foreign = false)
      : random_(std::random_device()()), memory_(NewSlotMemory()) {
    const unsigned seed = random_();
    std::printf("seed %u\n", seed);
    random_.seed(seed);
    std::vector<std::unique_ptr<DeviceModel>> models;
    for (auto& model : loaded) {
      models.push_back(*DeviceModel::Create(model));
      oracles_.push_back(*DeviceModel::Create(model));
    }
    DeviceModels all(std::move(models));
    auto api = std::make_unique<CheckedDevice>(seed, memory_bytes);
    api_ = api.get();
    CudaDevice::Options cuda;
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
    return facts_(node_->models()[model]).device_bytes;
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

GpuNodeOptions Batching() {
  GpuNodeOptions options;
  options.batching_window = absl::ZeroDuration();
  return options;
}

TEST(CudaDeviceTest, RequestsAloneTogetherAndInPieces) {
  for (const bool ids : {false, true}) {
    GpuNodeOptions options = Batching();
    options.instances = 2;
    CudaNode cuda({NewModel({}, ids)}, options);
    ASSERT_EQ(cuda.node().models().size(), 1u);
    EXPECT_EQ(cuda.node().device().name, "cuda:0");
    EXPECT_EQ(cuda.node().device().slots, 2);
    std::vector<std::unique_ptr<Exchange>> requests;
    for (const int64_t rows : {1, 2, 3, 1, 7, 8, 1, 20, 2, 1, 33, 5}) {
      requests.push_back(NewRequest(rows, cuda.random(), ids));
      cuda.Send(*requests.back());
    }
    for (const auto& request : requests) cuda.Expect(*request);
    EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
    EXPECT_EQ(cuda.node().stats().succeeded, requests.size());
    EXPECT_THAT(cuda.api().violations(), IsEmpty());
  }
}

TEST(CudaDeviceTest, ManyThreadsOfRequestsOfSeveralModels) {
  GpuNodeOptions options = Batching();
  options.instances = 2;
  CudaNode cuda(
      {NewModel({.name = "a"}), NewModel({.name = "b", .variant = 1})},
      options);
  const unsigned seed = cuda.random()();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      for (int i = 0; i < 15; ++i) {
        const auto request =
            NewRequest(static_cast<int64_t>(1 + random() % 12), random);
        const size_t model = random() % 2;
        cuda.Send(*request, model);
        cuda.Expect(*request, model);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
  EXPECT_EQ(cuda.node().stats().succeeded, 45u);
  EXPECT_THAT(cuda.api().violations(), IsEmpty());
}

TEST(CudaDeviceTest, EachModelInItsOwnType) {
  for (const auto& [precision, tolerance] :
       {std::pair{models::GpuPrecision::kTf32, 5e-3f},
        {models::GpuPrecision::kFloat16, 5e-3f},
        {models::GpuPrecision::kBFloat16, 5e-2f}}) {
    auto model = NewModel();
    model->config.serving.gpu_precision = precision;
    CudaNode cuda({model}, Batching());
    const auto request = NewRequest(5, cuda.random());
    cuda.Send(*request);
    cuda.Expect(*request, 0, tolerance);
    EXPECT_THAT(cuda.api().violations(), IsEmpty());
  }
}

TEST(CudaDeviceTest, OneBadIdFailsItsRequestAlone) {
  CudaNode cuda({NewModel({}, true)}, Batching());
  std::vector<std::unique_ptr<Exchange>> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(NewRequest(2, cuda.random(), true));
  }
  requests[2]->inputs[1].as<int64_t>()[1] = kRows;
  // Its other pieces are right.
  requests.push_back(NewRequest(20, cuda.random(), true));
  requests.back()->inputs[1].as<int64_t>()[19] = -1;
  for (const auto& request : requests) cuda.Send(*request);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i != 2 && i != 6) {
      cuda.Expect(*requests[i]);
      continue;
    }
    requests[i]->done.WaitForNotification();
    EXPECT_EQ(requests[i]->status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(requests[i]->status.message()),
                HasSubstr("1 indices name no row"));
  }
  EXPECT_THAT(cuda.api().violations(), IsEmpty());
}

TEST(CudaDeviceTest, WrongTensorsFailTheirRequestAlone) {
  CudaNode cuda({NewModel()}, Batching());
  const auto good = NewRequest(2, cuda.random());
  const auto bad = NewRequest(2, cuda.random());
  bad->inputs[1] = Allocate(base::DType::kFloat32, {2, kDim + 1});
  std::memset(bad->inputs[1].data(), 0, bad->inputs[1].bytes());
  cuda.Send(*bad);
  cuda.Send(*good);
  cuda.Expect(*good);
  bad->done.WaitForNotification();
  EXPECT_EQ(bad->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad->status.message()), HasSubstr("rows"));
}

TEST(CudaDeviceTest, NotANumberPassesThroughAndIsCounted) {
  CudaNode cuda({NewModel()}, Batching());
  const auto request = NewRequest(3, cuda.random());
  request->inputs[0].as<float>()[kDense] =
      std::numeric_limits<float>::quiet_NaN();
  cuda.Send(*request);
  cuda.Expect(*request);
  EXPECT_TRUE(std::isnan(request->answer[0][1]));
  EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
  EXPECT_EQ(cuda.node().stats(0).non_finite, 1u);
}

// Whatever call fails, requests get an answer, and the node works again.
TEST(CudaDeviceTest, ErrorsOfTheDeviceEndTheInstanceWhichStartsAgain) {
  for (const Code code : {Code::kInternal, Code::kUnavailable}) {
    GpuNodeOptions options = Batching();
    options.instances = 2;
    CudaNode cuda({NewModel()}, options);
    for (int n = 1; n < 30; n += 3) {
      SCOPED_TRACE(absl::StrCat("call ", n));
      ASSERT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
      cuda.AwaitReady();
      cuda.api().FailCall(n, code);
      std::vector<std::unique_ptr<Exchange>> requests;
      for (int i = 0; i < 4; ++i) {
        requests.push_back(NewRequest(3, cuda.random()));
        cuda.Send(*requests.back());
      }
      for (const auto& request : requests) {
        request->done.WaitForNotification();
        if (request->status.ok()) {
          cuda.Expect(*request);
        } else {
          EXPECT_EQ(request->status.code(), absl::StatusCode::kUnavailable)
              << request->status;
        }
      }
    }
    cuda.AwaitReady();
    const auto request = NewRequest(8, cuda.random());
    // The last fault may still be to come.
    do {
      cuda.AwaitReady();
      request->status = absl::OkStatus();
      auto again = NewRequest(8, cuda.random());
      cuda.Send(*again);
      again->done.WaitForNotification();
      if (again->status.ok()) {
        cuda.Expect(*again);
        break;
      }
    } while (true);
    EXPECT_THAT(cuda.api().violations(), IsEmpty());
  }
}

TEST(CudaDeviceTest, WhatDoesNotFitIsLeftOutWithItsBytes) {
  CudaNode cuda({NewModel()}, Batching(), 2000);
  EXPECT_EQ(cuda.node().models().size(), 0u);
  const auto model = NewModel();
  const absl::Status status =
      cuda.node()
          .OnOffer({.name = model->name,
                    .version = model->version,
                    .model = model->digest,
                    .schema = models::SchemaDigest(model->graph, *model->plan)})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'small'"), HasSubstr("bytes of device memory"),
                    HasSubstr("2000 of 2000 on the device are free")));
  EXPECT_EQ(cuda.api().live(), 0u);
}

// A model whose HN part is an operator without a form of our own.
std::shared_ptr<models::LoadedModel> NewForeignModel(
    const testing_models::SmallModelOptions& options = {}) {
  auto model = NewModel(options);
  models::Graph& graph = model->graph;
  graph.nodes[2].op = "aten.sinc.default";
  graph.nodes[2].args = {{"self", models::ValueRef{graph.FindValue("all")}}};
  graph.values[graph.FindValue("logit")].shape[1] = kDense + kDim;
  return model;
}

TEST(CudaDeviceTest, WhatTheGpuCannotRunIsLeftOutByName) {
  auto sorts = NewForeignModel({.name = "sorts"});
  CudaNode cuda({sorts, NewModel({.name = "fine"})}, Batching());
  ASSERT_EQ(cuda.node().models().size(), 1u);
  EXPECT_EQ(cuda.node().models()[0].name(), "fine");
  const absl::Status status =
      cuda.node()
          .OnOffer({.name = "sorts", .version = 1, .model = {}, .schema = {}})
          .status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("aten.sinc.default"), HasSubstr("cuda:0")));
}

TEST(CudaDeviceTest, LibTorchComputesWhatHasNoFormOfOurOwn) {
  GpuNodeOptions options = Batching();
  options.instances = 2;
  CudaNode cuda({NewForeignModel(), NewModel({.name = "b"})}, options,
                int64_t{1} << 26, true);
  ASSERT_EQ(cuda.node().models().size(), 2u);
  std::vector<std::unique_ptr<Exchange>> requests;
  for (const int64_t rows : {1, 2, 3, 1, 7, 8, 1, 20, 2, 1, 33, 5}) {
    requests.push_back(NewRequest(rows, cuda.random()));
    cuda.Send(*requests.back(), requests.size() % 2);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    cuda.Expect(*requests[i], (i + 1) % 2);
  }
  EXPECT_GT(cuda.api().foreign_runs(), 0);
  EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
  EXPECT_THAT(cuda.api().violations(), IsEmpty());
}

TEST(CudaDeviceTest, ALostGpuThatLibTorchUsesIsNotReset) {
  std::vector<std::unique_ptr<DeviceModel>> list;
  list.push_back(*DeviceModel::Create(NewForeignModel()));
  const DeviceModels models(std::move(list));
  auto api = std::make_unique<CheckedDevice>(1);
  CheckedDevice& checked = *api;
  CudaDevice::Options options;
  options.max_rows = kMaxRows;
  options.workspace_bytes = 256;
  options.weight_memory = 1;  // loaded when asked for
  options.foreign = runtime::cuda_aten::MakeOperators({});
  CudaDevice device(std::move(api), options);
  const auto loaded = device.Add(models[0]);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->foreign, 1u);
  device.SetOrder(models);
  const auto wait = [&](const auto& call) {
    absl::Status status;
    absl::Notification done;
    call([&](const absl::Status& result) {
      status = result;
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  };
  checked.FailCall(1, Code::kUnavailable);
  EXPECT_EQ(wait([&](auto done) { device.LoadWeights(0, {}, done); }).code(),
            absl::StatusCode::kUnavailable);
  const absl::Status again = wait([&](auto done) { device.Start(0, done); });
  EXPECT_EQ(again.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(again.message()),
              HasSubstr("this process must be started again"));
  EXPECT_EQ(checked.resets(), 0);
}

TEST(CudaDeviceTest, ModelsTakeTurnsInADeviceThatHoldsOne) {
  size_t one = 0;
  {
    CudaNode probe({NewModel()}, Batching());
    one = probe.DeviceBytes(0);
  }
  GpuNodeOptions options = Batching();
  options.weight_memory = one + one / 2;
  CudaNode cuda(
      {NewModel({.name = "a"}), NewModel({.name = "b", .variant = 1})},
      options);
  for (int i = 0; i < 6; ++i) {
    const auto request = NewRequest(3, cuda.random());
    cuda.Send(*request, static_cast<size_t>(i % 2));
    cuda.Expect(*request, static_cast<size_t>(i % 2));
  }
  EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
  EXPECT_EQ(cuda.node().stats(0).loads, 3u);
  EXPECT_GE(cuda.node().stats(0).evictions, 2u);
  EXPECT_THAT(cuda.api().violations(), IsEmpty());
}

TEST(CudaLibraryTest, SaysWhatIsMissing) {
  // No machine has so many; without a driver that is what is said.
  const auto device = OpenCudaDevice(999);
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(std::string(device.status().message()),
              ::testing::AnyOf(HasSubstr("this build has no CUDA code"),
                               HasSubstr("NVIDIA's driver is missing"),
                               HasSubstr("999")));
}

}  // namespace
}  // namespace refract::gpu_node

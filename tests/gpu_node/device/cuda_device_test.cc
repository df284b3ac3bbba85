// The whole node on a GPU that exists in this process only (cuda_node.h).

#include "gpu_node/device/cuda_device.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_node/device/cuda_library.h"
#include "gtest/gtest.h"
#include "tests/gpu_node/device/cuda_node.h"

namespace refract::gpu_node {
namespace {

using runtime::cuda::Code;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CudaDeviceTest, RequestsAloneTogetherAndInPieces) {
  for (const bool ids : {false, true}) {
    GpuNodeOptions options = Batching();
    options.instances = 2;
    CudaNode cuda({NewModel({}, ids)}, options);
    ASSERT_EQ(cuda.node().served().size(), 1u);
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
                HasSubstr("1 ids are outside their tables"));
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

// After the failure of any call requests are answered and the node works.
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
  EXPECT_EQ(cuda.node().served().size(), 0u);
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
  ASSERT_EQ(cuda.node().served().size(), 1u);
  EXPECT_EQ(cuda.node().served()[0].model->name(), "fine");
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
  ASSERT_EQ(cuda.node().served().size(), 2u);
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

// No instance holds anything then, and none is started again.
TEST(CudaDeviceTest, AGpuThatIsLostDuringALoadIsReset) {
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
  // With no model in memory, and then beside one.
  for (size_t model = 0; model < 2; ++model) {
    cuda.api().FailCall(3, Code::kUnavailable);
    const auto lost = NewRequest(3, cuda.random());
    cuda.Send(*lost, model);
    lost->done.WaitForNotification();
    EXPECT_EQ(lost->status.code(), absl::StatusCode::kUnavailable)
        << lost->status;
    cuda.AwaitReady(model);
    EXPECT_EQ(cuda.api().resets(), static_cast<int>(model) + 1);
    for (const size_t each : {model, size_t{0}}) {
      const auto request = NewRequest(3, cuda.random());
      cuda.Send(*request, each);
      cuda.Expect(*request, each);
    }
  }
  EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
  EXPECT_THAT(cuda.api().violations(), IsEmpty());
}

// A GPU whose products are not there: what was in memory before is the result.
class WrongDevice final : public CheckedDevice {
 public:
  using CheckedDevice::CheckedDevice;
  runtime::cuda::Status Launch(const runtime::cuda::Call& call,
                               runtime::cuda::Stream stream) override {
    if (std::holds_alternative<runtime::cuda::GemmCall>(call)) return {};
    return CheckedDevice::Launch(call, stream);
  }
};

TEST(CudaDeviceTest, AModelWhoseResultsAreWrongIsLeftOutAndSaysWhy) {
  for (const bool wrong : {false, true}) {
    std::vector<std::unique_ptr<DeviceModel>> list;
    list.push_back(*DeviceModel::Create(NewModel({.name = "m"})));
    const DeviceModel& model = *list.back();
    const transport::ModelOffer offer = {model.name(), model.version(),
                                         model.model().digest, model.schema()};
    DeviceModels models(std::move(list));
    std::unique_ptr<CheckedDevice> api;
    if (wrong) {
      api = std::make_unique<WrongDevice>(base::RandomSeed());
    } else {
      api = std::make_unique<CheckedDevice>(base::RandomSeed());
    }
    CudaDevice::Options cuda;
    cuda.max_rows = kMaxRows;
    cuda.workspace_bytes = 256;
    CudaSetup setup = SetUpCuda(std::move(api), cuda, models);
    GpuNodeOptions options;
    options.max_batch = kMaxRows;
    options.facts = std::move(setup.facts);
    const auto node =
        *GpuNode::Create(std::move(models), options, setup.make_device);
    const absl::StatusOr<size_t> accepted = node->OnOffer(offer);
    EXPECT_EQ(node->served().size(), wrong ? 0u : 1u);
    ASSERT_EQ(accepted.ok(), !wrong) << accepted.status();
    if (!wrong) continue;
    EXPECT_THAT(std::string(accepted.status().message()),
                AllOf(HasSubstr("results on cuda:0 in fp32 differ from the "
                                "CPU's by"),
                      HasSubstr("'m'")));
  }
}

TEST(CudaLibraryTest, SaysWhatIsMissing) {
  // No machine has this many; without a driver the error says so.
  const auto device = OpenCudaDevice(999);
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(std::string(device.status().message()),
              ::testing::AnyOf(HasSubstr("this build has no CUDA code"),
                               HasSubstr("NVIDIA's driver is missing"),
                               HasSubstr("999")));
}

}  // namespace
}  // namespace refract::gpu_node

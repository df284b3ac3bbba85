// Models whose ids travel in bags, on a GPU that exists in this process only
// (cuda_node.h): requests together and in pieces, what is wrong with them, and
// room for entries.

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_node/device/compile_for_cuda.h"
#include "gpu_node/device/device_programs.h"
#include "gtest/gtest.h"
#include "tests/gpu_node/device/cuda_node.h"

namespace refract::gpu_node {
namespace {

using models::SymExpr;
using models::ValueRef;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using testing_models::AddNode;
using testing_models::AddValue;

// out[b] = sigmoid(fc · (dense[b] ++ (Σ weights · rows of the first bag + mean
// of the rows of the second)) + bias), all of it on the HN. `declared`: the
// most entries of the first bags; 0: none.
models::Graph BagGraph(int64_t declared) {
  constexpr auto kFloat = base::DType::kFloat32;
  const SymExpr batch = SymExpr::Symbol("B");
  const SymExpr first = SymExpr::Symbol("N");
  const SymExpr second = SymExpr::Symbol("M");
  models::Graph graph;
  graph.batch_symbol = "B";
  graph.symbols = {{.symbol = "B", .min = 1, .max = 100000}};
  if (declared > 0) graph.symbols.push_back({"N", 0, declared});
  const auto dense = AddValue(graph, "dense", kFloat, {batch, kDense});
  const auto ids = AddValue(graph, "ids", base::DType::kInt64, {first});
  const auto weights = AddValue(graph, "weights", kFloat, {first});
  const auto offsets = AddValue(graph, "offsets", base::DType::kInt64,
                                {batch + SymExpr(int64_t{1})});
  const auto others = AddValue(graph, "others", base::DType::kInt32, {second});
  const auto begins = AddValue(graph, "begins", base::DType::kInt32, {batch});
  const auto table = AddValue(graph, "table", kFloat, {kRows, kDim}, "table");
  const auto fc = AddValue(graph, "fc", kFloat, {1, kDense + kDim}, "fc");
  const auto bias = AddValue(graph, "bias", kFloat, {1}, "bias");
  const auto sums = AddValue(graph, "sums", kFloat, {batch, kDim});
  const auto means = AddValue(graph, "means", kFloat, {batch, kDim});
  const auto both = AddValue(graph, "both", kFloat, {batch, kDim});
  const auto all = AddValue(graph, "all", kFloat, {batch, kDense + kDim});
  const auto logit = AddValue(graph, "logit", kFloat, {batch, 1});
  const auto score = AddValue(graph, "score", kFloat, {batch, 1});
  graph.inputs = {dense, ids, weights, offsets, others, begins};
  AddNode(graph, "aten.embedding_bag.default",
          {{"weight", ValueRef{table}},
           {"indices", ValueRef{ids}},
           {"offsets", ValueRef{offsets}},
           {"mode", int64_t{0}},
           {"per_sample_weights", ValueRef{weights}},
           {"include_last_offset", true}},
          sums);
  AddNode(graph, "aten.embedding_bag.default",
          {{"weight", ValueRef{table}},
           {"indices", ValueRef{others}},
           {"offsets", ValueRef{begins}},
           {"mode", int64_t{1}}},
          means);
  AddNode(graph, "aten.add.Tensor",
          {{"self", ValueRef{sums}}, {"other", ValueRef{means}}}, both);
  AddNode(graph, "aten.cat.default",
          {{"tensors", models::ValueList{dense, both}}, {"dim", int64_t{1}}},
          all);
  AddNode(graph, "aten.linear.default",
          {{"input", ValueRef{all}},
           {"weight", ValueRef{fc}},
           {"bias", ValueRef{bias}}},
          logit);
  AddNode(graph, "aten.sigmoid.default", {{"self", ValueRef{logit}}}, score);
  graph.outputs = {score};
  graph.output_names = {"score"};
  return graph;
}

std::shared_ptr<models::LoadedModel> BagModel(int64_t declared = 0) {
  return NewHnModel("bags", BagGraph(declared));
}

// Places of a request's inputs.
enum : size_t { kDenseIn, kIds, kWeightsIn, kOffsets, kOthers, kBegins };

// Bags of these sizes.
std::unique_ptr<Exchange> BagRequest(const std::vector<int64_t>& first,
                                     const std::vector<int64_t>& second,
                                     std::mt19937& random) {
  const auto rows = static_cast<int64_t>(first.size());
  auto exchange = std::make_unique<Exchange>();
  exchange->rows = rows;
  const auto floats = [&](base::Dims dims) {
    base::Tensor tensor = Allocate(base::DType::kFloat32, std::move(dims));
    for (float& value : tensor.as<float>()) {
      value = static_cast<float>(random() % 2048) / 1024.0f - 1.0f;
    }
    return tensor;
  };
  const auto integers = [&](auto zero, const std::vector<int64_t>& values) {
    using T = decltype(zero);
    base::Tensor tensor =
        Allocate(sizeof(T) == 8 ? base::DType::kInt64 : base::DType::kInt32,
                 {static_cast<int64_t>(values.size())});
    for (size_t i = 0; i < values.size(); ++i) {
      tensor.as<T>()[i] = static_cast<T>(values[i]);
    }
    return tensor;
  };
  const auto ids = [&](int64_t count) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<int64_t>(random() % kRows));
    }
    return values;
  };
  const auto begins = [](const std::vector<int64_t>& sizes) {
    std::vector<int64_t> offsets = {0};
    for (const int64_t size : sizes) offsets.push_back(offsets.back() + size);
    return offsets;
  };
  std::vector<int64_t> one = begins(first), two = begins(second);
  exchange->inputs.push_back(floats({rows, kDense}));
  exchange->inputs.push_back(integers(int64_t{0}, ids(one.back())));
  exchange->inputs.push_back(floats({one.back()}));
  exchange->inputs.push_back(integers(int64_t{0}, one));
  exchange->inputs.push_back(integers(int32_t{0}, ids(two.back())));
  two.pop_back();
  exchange->inputs.push_back(integers(int32_t{0}, two));
  return exchange;
}

std::vector<int64_t> Sizes(int64_t rows, int64_t most, std::mt19937& random) {
  std::vector<int64_t> sizes;
  for (int64_t row = 0; row < rows; ++row) {
    sizes.push_back(static_cast<int64_t>(random() % (most + 1)));
  }
  return sizes;
}

std::unique_ptr<Exchange> BagRequest(int64_t rows, std::mt19937& random,
                                     int64_t most = 6) {
  const std::vector<int64_t> first = Sizes(rows, most, random);
  return BagRequest(first, Sizes(rows, most, random), random);
}

// The CPU's error for a request that it refuses.
std::string CpusWords(const Exchange& exchange) {
  const auto model = *DeviceModel::Create(BagModel());
  std::vector<base::TensorView> views, outputs;
  for (const base::Tensor& tensor : exchange.inputs) {
    views.push_back(tensor.view());
  }
  runtime::RunContext context(model->program());
  const absl::Status ran =
      model->program().Run(views, {nullptr}, context, outputs);
  EXPECT_FALSE(ran.ok());
  return std::string(ran.message());
}

void ExpectRefused(Exchange& exchange) {
  exchange.done.WaitForNotification();
  EXPECT_EQ(exchange.status.code(), absl::StatusCode::kInvalidArgument);
  const std::string words = CpusWords(exchange);
  EXPECT_THAT(words, ::testing::Not(IsEmpty()));
  EXPECT_THAT(std::string(exchange.status.message()), HasSubstr(words));
}

TEST(CudaBagsTest, RequestsAloneTogetherAndInPieces) {
  for (const int instances : {1, 2}) {
    GpuNodeOptions options = Batching();
    options.instances = instances;
    CudaNode cuda({BagModel()}, options);
    ASSERT_EQ(cuda.node().served().size(), 1u);
    std::vector<std::unique_ptr<Exchange>> requests;
    for (int i = 0; i < 60; ++i) {
      const auto rows = static_cast<int64_t>(
          i % 7 == 0 ? 9 + cuda.random()() % 20 : 1 + cuda.random()() % 4);
      // Some without any entry.
      requests.push_back(BagRequest(rows, cuda.random(), i % 5 == 0 ? 0 : 6));
      cuda.Send(*requests.back());
    }
    for (const auto& request : requests) cuda.Expect(*request);
    EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
    EXPECT_EQ(cuda.node().stats().succeeded, requests.size());
    EXPECT_GT(cuda.node().stats(0).merged, 0u);
    EXPECT_THAT(cuda.api().violations(), IsEmpty());
  }
}

TEST(CudaBagsTest, InEachType) {
  for (const auto& [precision, tolerance] :
       {std::pair{models::GpuPrecision::kTf32, 5e-3f},
        {models::GpuPrecision::kFloat16, 5e-3f},
        {models::GpuPrecision::kBFloat16, 5e-2f}}) {
    auto model = BagModel();
    model->config.serving.gpu_precision = precision;
    CudaNode cuda({model}, Batching());
    for (const int64_t rows : {1, 5, 20}) {
      const auto request = BagRequest(rows, cuda.random());
      cuda.Send(*request);
      cuda.Expect(*request, 0, tolerance);
    }
    EXPECT_THAT(cuda.api().violations(), IsEmpty());
  }
}

// Among others that are right; whole ones, and ones that run in pieces.
TEST(CudaBagsTest, WhatIsWrongFailsItsRequestAloneInTheCpusWords) {
  CudaNode cuda({BagModel()}, Batching());
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    std::vector<std::unique_ptr<Exchange>> requests;
    const auto wrong = static_cast<size_t>(cuda.random()() % 6);
    for (size_t i = 0; i < 6; ++i) {
      const int64_t rows = i == wrong && round % 2 == 0 ? 20 : 2;
      requests.push_back(BagRequest(std::vector<int64_t>(rows, 3),
                                    std::vector<int64_t>(rows, 2),
                                    cuda.random()));
    }
    std::vector<base::Tensor>& in = requests[wrong]->inputs;
    const size_t row = cuda.random()() % 2;
    switch (round / 2) {
      case 0:
        in[kIds].as<int64_t>()[5] = kRows;
        break;
      case 1:
        in[kOthers].as<int32_t>()[row] = -1;
        break;
      case 2:
        in[kOffsets].as<int64_t>()[row] = 7 - 6 * static_cast<int64_t>(row);
        in[kOffsets].as<int64_t>()[1 + row] = 0;
        break;
      case 3:
        in[kOffsets].as<int64_t>()[requests[wrong]->rows] = 100000;
        break;
      case 4:
        in[kBegins].as<int32_t>()[row] = std::numeric_limits<int32_t>::min();
        break;
      default:
        // Both: what the CPU meets first.
        in[kBegins].as<int32_t>()[1] = std::numeric_limits<int32_t>::max();
        in[kIds].as<int64_t>()[0] = std::numeric_limits<int64_t>::min();
    }
    for (const auto& request : requests) cuda.Send(*request);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i == wrong) {
        ExpectRefused(*requests[i]);
      } else {
        cuda.Expect(*requests[i]);
      }
    }
  }
  EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
  EXPECT_THAT(cuda.api().violations(), IsEmpty());
}

// Entries behind the last bag are read by nobody, and looked at.
TEST(CudaBagsTest, EntriesBehindTheLastBag) {
  CudaNode cuda({BagModel()}, Batching());
  std::vector<std::unique_ptr<Exchange>> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(BagRequest({3, 2}, {1, 1}, cuda.random()));
    requests.back()->inputs[kOffsets].as<int64_t>()[2] = i % 4 == 0 ? 5 : 4;
  }
  requests[5]->inputs[kIds].as<int64_t>()[4] = kRows;
  for (const auto& request : requests) cuda.Send(*request);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i == 5) {
      ExpectRefused(*requests[i]);
    } else {
      cuda.Expect(*requests[i]);
    }
  }
  EXPECT_THAT(cuda.api().violations(), IsEmpty());
}

TEST(CudaBagsTest, IdsOutsideATableAsItsPolicySays) {
  for (const models::IdPolicy policy :
       {models::IdPolicy::kZeroRow, models::IdPolicy::kDefaultRow}) {
    auto model = BagModel();
    model->config.default_id_policy = policy;
    CudaNode cuda({model}, Batching());
    std::vector<std::unique_ptr<Exchange>> requests;
    for (int i = 0; i < 10; ++i) {
      requests.push_back(BagRequest({2, 3}, {3, 1}, cuda.random()));
      auto& in = requests.back()->inputs;
      in[kIds].as<int64_t>()[cuda.random()() % 5] = kRows + i;
      in[kOthers].as<int32_t>()[cuda.random()() % 4] = -2 - i;
      cuda.Send(*requests.back());
    }
    for (const auto& request : requests) cuda.Expect(*request);
    EXPECT_THAT(cuda.api().violations(), IsEmpty());
  }
}

// 10 entries of 12 bytes and 10 of 4 per slot: requests that do not fit beside
// each other run alone, those that do not fit at all in pieces, and a bag that
// does not fit fails its request.
TEST(CudaBagsTest, RoomForEntries) {
  CudaDevice::Options cuda_options;
  cuda_options.sized_memory = 2 * 2 * 10 * (8 + 4 + 4);
  CudaNode cuda({BagModel()}, Batching(), int64_t{1} << 26, false,
                cuda_options);
  for (int round = 0; round < 4; ++round) {
    std::vector<std::unique_ptr<Exchange>> requests;
    for (int i = 0; i < 12; ++i) {
      requests.push_back(BagRequest(
          static_cast<int64_t>(1 + cuda.random()() % 20), cuda.random(), 10));
    }
    requests.push_back(BagRequest({1, 11, 2}, {1, 1, 1}, cuda.random()));
    requests.push_back(
        BagRequest({1, 10}, {0, 12}, cuda.random()));  // the last bag
    for (const auto& request : requests) cuda.Send(*request);
    for (size_t i = 0; i < 12; ++i) cuda.Expect(*requests[i]);
    for (size_t i = 12; i < 14; ++i) {
      requests[i]->done.WaitForNotification();
      EXPECT_EQ(requests[i]->status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(
          std::string(requests[i]->status.message()),
          HasSubstr(i == 12 ? "input 'ids': the bag of row 1 has 11 entries, "
                              "more than the 10 that the device has memory for "
                              "(--max-size)"
                            : "input 'others': the bag of row 1 has 12"));
    }
  }
  EXPECT_THAT(cuda.api().violations(), IsEmpty());
}

TEST(CudaBagsTest, MemoryIsReservedOnce) {
  CudaNode cuda({BagModel()}, Batching());
  const int64_t free = cuda.api().Memory()->free_bytes;
  for (int64_t most = 0; most < 40; most += 3) {
    const auto request = BagRequest(8, cuda.random(), most);
    cuda.Send(*request);
    cuda.Expect(*request);
  }
  EXPECT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
  EXPECT_EQ(cuda.api().Memory()->free_bytes, free);
}

TEST(CudaBagsTest, ErrorsOfTheDeviceEndTheInstanceWhichStartsAgain) {
  for (const runtime::cuda::Code code :
       {runtime::cuda::Code::kInternal, runtime::cuda::Code::kUnavailable}) {
    CudaNode cuda({BagModel()}, Batching());
    for (int n = 1; n < 40; n += 5) {
      SCOPED_TRACE(absl::StrCat("call ", n));
      ASSERT_TRUE(cuda.node().Drain(absl::InfiniteDuration()));
      cuda.AwaitReady();
      cuda.api().FailCall(n, code);
      for (int i = 0; i < 3; ++i) {
        const auto request = BagRequest(3, cuda.random());
        cuda.Send(*request);
        request->done.WaitForNotification();
        if (request->status.ok()) {
          cuda.Expect(*request);
        } else {
          EXPECT_EQ(request->status.code(), absl::StatusCode::kUnavailable)
              << request->status;
        }
      }
    }
    EXPECT_THAT(cuda.api().violations(), IsEmpty());
  }
}

TEST(CudaBagsTest, OneProgramForAnyNumberOfEntries) {
  const auto model = BagModel(500);
  const auto part = runtime::Part::Hn(model->graph, *model->plan);
  auto programs = DevicePrograms::Create(
      model->graph, part, model->weights,
      {.model = "bags", .device = "cuda:0", .max_size = 100, .compile = {}},
      {.max_rows = kMaxRows, .workspace_bytes = 256});
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_TRUE((*programs)->sizes().empty());
  EXPECT_EQ((*programs)->Describe(),
            "up to 500 entries in the bags of input 'ids' and no fewer in "
            "others");
  EXPECT_EQ((*programs)->instance_options().max_batch, kMaxRows);
}

// `refract run`.
TEST(CudaBagsTest, SingleRequests) {
  const auto model = BagModel();
  const auto part = runtime::Part::Hn(model->graph, *model->plan);
  auto device = std::make_shared<CheckedDevice>(1);
  CompileForCudaOptions options;
  options.model = "bags";
  options.device = "cuda:0";
  options.max_rows = 8;
  options.entry_memory = 16 * 50;
  const auto gpu =
      CompileForCuda(device, model->graph, part, model->weights, options);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const auto cpu =
      runtime::Program::Compile(model->graph, part, model->weights, {});
  ASSERT_TRUE(cpu.ok());
  std::mt19937 random(1);
  for (const auto& [rows, most] :
       {std::pair{1, 3}, {20, 2}, {8, 0}, {30, 30}, {2, 60}}) {
    const auto request = BagRequest(std::vector<int64_t>(rows, most),
                                    std::vector<int64_t>(rows, 1), random);
    std::vector<base::TensorView> inputs, want, got;
    for (const base::Tensor& input : request->inputs) {
      inputs.push_back(input.view());
    }
    runtime::RunContext cpu_context(**cpu), gpu_context(**gpu);
    ASSERT_EQ((*cpu)->Run(inputs, {}, cpu_context, want), absl::OkStatus());
    const absl::Status ran = (*gpu)->Run(inputs, {}, gpu_context, got);
    if (most > 50) {
      EXPECT_THAT(std::string(ran.message()),
                  StartsWith("input 'ids': the bag of row 0 has 60 entries"));
      continue;
    }
    ASSERT_EQ(ran, absl::OkStatus());
    ASSERT_EQ(got[0].dims, want[0].dims);
    for (int64_t i = 0; i < want[0].num_elements(); ++i) {
      EXPECT_NEAR(got[0].as<float>()[i], want[0].as<float>()[i], 1e-5);
    }
  }
  EXPECT_THAT(device->violations(), IsEmpty());
}

}  // namespace
}  // namespace refract::gpu_node

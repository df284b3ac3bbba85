// Kernels that begin while the one before them ends, on a device that lets them
// as early as it may (checked_device.h).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/random_programs.h"
#include "bench/cuda/short_kernels.h"
#include "runtime/cuda/instance/instance.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cuda/testing/checked_device.h"
#include "tests/runtime/cuda/testing/small_model.h"

namespace refract::runtime::cuda {
namespace {

using bench::DenseModel;
using testing::CheckedDevice;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kSteps = 9;
constexpr int64_t kCols = 20;

class EarlyStartsTest : public ::testing::Test {
 protected:
  // Loads `model` and serves some batches of it; expects the right results.
  void Serve(CheckedDevice& device, const DenseModel& model,
             const InstanceOptions& options) {
    auto instance =
        Instance::Create(device, model.program, model.weight_data(), options);
    ASSERT_TRUE(instance.ok()) << instance.status().ToString();
    const Status loaded = (*instance)->Load();
    ASSERT_TRUE(loaded.ok()) << loaded.ToString();
    for (int64_t batch = 1; batch <= options.max_batch; ++batch) {
      EXPECT_LE(Error(**instance, model, batch), bench::kShortKernelsTolerance);
    }
  }
  double Error(Instance& instance, const DenseModel& model, int64_t batch) {
    const auto inputs = bench::RandomInputs(model.program, batch, random_);
    std::vector<std::vector<double>> got;
    const Status ran = bench::RunOnce(instance, batch, inputs, got);
    EXPECT_TRUE(ran.ok()) << ran.ToString();
    return bench::LargestError(
        got, bench::RunReference(model.program, model.weights, inputs, batch));
  }

  const unsigned seed_ = base::RandomSeed();
  std::mt19937 random_{seed_};
};

TEST_F(EarlyStartsTest, ChainsOfShortKernelsComputeTheSame) {
  for (EarlyStarts wanted :
       {EarlyStarts::kNever, EarlyStarts::kWhereFaster, EarlyStarts::kAlways}) {
    for (bool graphs : {true, false}) {
      for (bool products : {true, false}) {
        SCOPED_TRACE(static_cast<int>(wanted));
        CheckedDevice device(seed_);
        Serve(device,
              bench::MakeShortKernels(kSteps, kCols, products, 3, random_()),
              {.max_batch = 3,
               .workspace_bytes = 256,
               .use_graphs = graphs,
               .early_starts = wanted});
        EXPECT_THAT(device.violations(), IsEmpty());
        if (wanted == EarlyStarts::kNever) {
          EXPECT_EQ(device.early_launches(), 0);
        } else if (!products) {
          // Without graphs nothing is measured.
          const bool starts = graphs || wanted == EarlyStarts::kAlways;
          EXPECT_EQ(device.early_launches() > 0, starts);
          EXPECT_EQ(device.early_runs() > 0, starts);
        }
      }
    }
  }
}

// What a device without them says counts more than what is wanted.
TEST_F(EarlyStartsTest, TheDeviceHasTheLastWord) {
  const DenseModel model =
      bench::MakeShortKernels(kSteps, kCols, false, 2, seed_);
  CheckedDevice device(seed_);
  device.SetEarlyStarts(EarlyStarts::kNever);
  Serve(device, model, {.max_batch = 2, .early_starts = EarlyStarts::kAlways});
  EXPECT_EQ(device.early_launches(), 0);
  // And where the process wants them always, nothing is measured.
  device.SetEarlyStarts(EarlyStarts::kAlways);
  device.SetEarlyIsFaster(false);
  Serve(device, model, {.max_batch = 2});
  EXPECT_GT(device.early_launches(), 0);
  EXPECT_THAT(device.violations(), IsEmpty());
}

TEST_F(EarlyStartsTest, OnlyNeighboursOfOursStartEarly) {
  const auto early = [&](const Program& program,
                         std::vector<WeightData> weights, bool own_products) {
    CheckedDevice device(seed_);
    device.SetOwnProducts(own_products);
    auto instance = Instance::Create(device, program, std::move(weights),
                                     {.max_batch = 1,
                                      .num_slots = 1,
                                      .workspace_bytes = 256,
                                      .use_graphs = false,
                                      .early_starts = EarlyStarts::kAlways});
    EXPECT_TRUE((*instance)->Load().ok());
    EXPECT_THAT(device.violations(), IsEmpty());
    return device.early_launches();
  };
  const testing::SmallModel plain(nullptr, 1, seed_);
  EXPECT_EQ(early(plain.program, plain.weight_data(), true), 1);
  EXPECT_EQ(early(plain.program, plain.weight_data(), false), 0)
      << "cuBLASLt's are not ours";
  const testing::SmallModel cut(std::make_shared<testing::RunningSums>(), 1,
                                seed_);
  EXPECT_EQ(early(cut.program, cut.weight_data(), true), 0)
      << "somebody else's operator is between the two";
  // Bottom, bottom, interaction, top, top, sigmoid.
  bench::DlrmShape shape;
  shape.tables = 3;
  shape.dim = 8;
  shape.bottom = {12, 8};
  shape.top = {10, 1};
  const DenseModel dlrm =
      bench::MakeDlrm("m", shape, bench::Precision::kFloat32, 1, seed_);
  EXPECT_EQ(early(dlrm.program, dlrm.weight_data(), true), 5);
  EXPECT_EQ(early(dlrm.program, dlrm.weight_data(), false), 0);
}

TEST_F(EarlyStartsTest, TheFasterGraphsAreKeptAndMeasuredOnce) {
  const DenseModel model =
      bench::MakeShortKernels(kSteps, kCols, false, 4, seed_);
  for (bool faster : {true, false}) {
    CheckedDevice device(seed_);
    device.SetEarlyIsFaster(faster);
    auto instance = Instance::Create(device, model.program, model.weight_data(),
                                     {.max_batch = 4, .num_slots = 2});
    int captures = 0;
    for (int load = 0; load < 3; ++load) {
      ASSERT_TRUE((*instance)->Load().ok());
      // Three buckets, two slots; the first slot's in both forms, once.
      EXPECT_EQ(device.captures() - captures, load == 0 ? 9 : 6);
      captures = device.captures();
      for (size_t bucket : {0, 1, 2}) {
        EXPECT_EQ((*instance)->starts_early(bucket), faster);
      }
      const int early = device.early_runs();
      for (int i = 0; i < 8; ++i) {
        EXPECT_LE(Error(**instance, model, 4), bench::kShortKernelsTolerance);
      }
      EXPECT_EQ(device.early_runs() > early, faster);
      (*instance)->Unload();
    }
    EXPECT_EQ(device.live(), 0u);
    EXPECT_THAT(device.violations(), IsEmpty());
  }
}

// Whatever fails in them: the program is loaded without, unless it is the
// device; and the plain form's errors are errors.
TEST_F(EarlyStartsTest, ErrorsLeaveThePlainForm) {
  const DenseModel model = bench::MakeShortKernels(3, kCols, false, 2, seed_);
  for (Code code :
       {Code::kInternal, Code::kResourceExhausted, Code::kUnavailable}) {
    int plain = 0, refused = 0;
    for (int n = 1;; ++n) {
      CheckedDevice device(seed_);
      auto instance =
          Instance::Create(device, model.program, model.weight_data(),
                           {.max_batch = 2, .num_slots = 1});
      device.FailCall(n, code);
      const Status status = (*instance)->Load();
      const bool reached = device.calls() >= n;
      device.FailCall(0, code);
      if (!status.ok()) {
        ASSERT_EQ(status.code(), code);
        ++refused;
      } else if (reached && code == Code::kUnavailable) {
        // Lost when the slower graphs were released: the next call says so.
        EXPECT_EQ(device.AllocatePinned(1, nullptr).code(), code);
      } else {
        if (reached && !(*instance)->starts_early(0)) ++plain;
        for (int64_t batch : {1, 2}) {
          ASSERT_LE(Error(**instance, model, batch),
                    bench::kShortKernelsTolerance);
        }
      }
      (*instance)->Unload();
      if (code == Code::kUnavailable) {
        ASSERT_TRUE(device.Reset().ok());
      }
      ASSERT_EQ(device.live(), 0u) << "after call " << n;
      ASSERT_THAT(device.violations(), IsEmpty());
      if (!reached) break;
    }
    EXPECT_GT(refused, 15);
    if (code == Code::kUnavailable) {
      EXPECT_EQ(plain, 0);
    } else {
      EXPECT_GT(plain, 5);
    }
  }
}

// A form that once was faster, and is refused when the model comes back.
TEST_F(EarlyStartsTest, AFormThatIsRefusedLaterIsGivenUp) {
  const DenseModel model = bench::MakeShortKernels(3, kCols, false, 1, seed_);
  int given_up = 0;
  for (int n = 1; n < 60; ++n) {
    CheckedDevice device(seed_);
    auto instance = Instance::Create(device, model.program, model.weight_data(),
                                     {.max_batch = 1, .num_slots = 1});
    ASSERT_TRUE((*instance)->Load().ok());
    ASSERT_TRUE((*instance)->starts_early(0));
    (*instance)->Unload();
    device.FailCall(n, Code::kInternal);
    const bool loaded = (*instance)->Load().ok();
    device.FailCall(0, Code::kInternal);
    if (loaded) {
      given_up += (*instance)->starts_early(0) ? 0 : 1;
      EXPECT_LE(Error(**instance, model, 1), bench::kShortKernelsTolerance);
    }
    (*instance)->Unload();
    ASSERT_EQ(device.live(), 0u) << "after call " << n;
    ASSERT_THAT(device.violations(), IsEmpty());
  }
  // BeginCapture, three launches, EndCapture.
  EXPECT_EQ(given_up, 5);
}

// What these tests are worth: kernels that do not wait are found out, be it all
// of their threads or a few.
TEST_F(EarlyStartsTest, AThreadThatDoesNotWaitIsSeen) {
  const DenseModel model =
      bench::MakeShortKernels(kSteps, kCols, false, 2, seed_);
  for (bool graphs : {true, false}) {
    for (int64_t every : {1, 200}) {
      CheckedDevice device(seed_);
      device.ForgetWaits(every);
      auto instance =
          Instance::Create(device, model.program, model.weight_data(),
                           {.max_batch = 2,
                            .use_graphs = graphs,
                            .early_starts = EarlyStarts::kAlways});
      ASSERT_TRUE((*instance)->Load().ok());
      int wrong = 0;
      for (int i = 0; i < 20; ++i) {
        const double error = Error(**instance, model, 2);
        wrong += error <= bench::kShortKernelsTolerance ? 0 : 1;
      }
      EXPECT_THAT(device.violations(), Not(IsEmpty()));
      EXPECT_THAT(device.violations(),
                  Each(HasSubstr("does not wait in every thread")));
      if (every == 1) {
        EXPECT_GT(wrong, 0);
      }
    }
  }
}

TEST_F(EarlyStartsTest, AWrongNeighbourIsSeen) {
  CheckedDevice device(seed_);
  void* memory = nullptr;
  void* pinned = nullptr;
  ASSERT_TRUE(device.Allocate(1024, &memory).ok());
  ASSERT_TRUE(device.AllocatePinned(1024, &pinned).ok());
  const Stream stream = *device.CreateStream();
  const Stream other = *device.CreateStream();
  const Event event = *device.CreateEvent();
  ASSERT_TRUE(device.Record(event, other).ok());
  ChainCall chain;
  chain.operands[0] = {memory, 0};
  chain.num_operands = chain.num_instructions = 1;
  chain.out = static_cast<std::byte*>(memory) + 512;
  chain.ld_out = chain.cols = 4;
  chain.rows = 1;
  GemmCall product;
  product.shape = {.m = 1,
                   .n = 1,
                   .k = 1,
                   .ld_in = 4,
                   .ld_weight = 4,
                   .ld_out = 4};  // clang-format off
  product.in = product.weight = memory;
  product.out = chain.out;
  // clang-format on
  device.SetOwnProducts(false);
  ASSERT_TRUE(
      device.Prepare(product.shape, 0, DeviceApi::Choice::kMeasured).ok());
  ASSERT_TRUE(device.BeginCapture(stream).ok());
  ASSERT_TRUE(device.Launch(chain, stream, Start::kAfter).ok());
  const Graph graph = *device.EndCapture(stream);
  ChainCall nothing = chain;
  nothing.rows = 0;
  const CopyCall copy = {memory, 16, pinned, 16, 16, 1};

  struct {
    const char* what;
    std::function<Status()> between;
    bool legal;
  } const cases[] = {
      {"nothing", [&] { return Status(); }, true},
      {"another stream's copy",
       [&] {
         return device.CopyToHost({pinned, 16, memory, 16, 16, 1}, other);
       },
       true},
      {"a copy", [&] { return device.CopyToDevice(copy, stream); }, false},
      {"an event", [&] { return device.Record(event, stream); }, false},
      {"a wait", [&] { return device.StreamWait(stream, event); }, false},
      {"a product of cuBLASLt's",
       [&] { return device.Launch(product, stream, Start::kAfter); }, false},
      {"a launch without blocks",
       [&] { return device.Launch(nothing, stream, Start::kAfter); }, false},
      {"a graph", [&] { return device.Launch(graph, stream); }, false},
      {"the begin of a capture", [&] { return device.BeginCapture(stream); },
       false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const size_t before = device.violations().size();
    ASSERT_TRUE(device.Launch(chain, stream, Start::kAfter).ok());
    ASSERT_TRUE(c.between().ok());
    ASSERT_TRUE(device.Launch(chain, stream, Start::kEarly).ok());
    EXPECT_EQ(device.violations().size() - before, c.legal ? 0u : 1u);
    if (std::string(c.what) == "the begin of a capture") {
      ASSERT_TRUE(device.DestroyGraph(*device.EndCapture(stream)).ok());
    }
    ASSERT_TRUE(device.Synchronize(stream).ok());
    ASSERT_TRUE(device.Synchronize(other).ok());
  }
  EXPECT_THAT(device.violations(),
              Each(HasSubstr("not from one kernel of ours to the next")));
}

}  // namespace
}  // namespace refract::runtime::cuda

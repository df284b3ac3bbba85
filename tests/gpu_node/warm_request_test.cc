// A request allocates nothing on a GPU node that is warm, on any thread that
// has part in it, from its arrival to the answer that the transport is given:
// counted by replacing the allocation functions of this program.

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gpu_node/device/cuda_batch.h"
#include "gpu_node/gpu_node.h"
#include "runtime/wire/codec.h"
#include "tests/base/random_seed.h"
#include "tests/gpu_node/device/cuda_node.h"
#include "tests/transport/testing/allocation_counter.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Buffers of tensors come from here.
extern "C" int posix_memalign(void** memory, size_t align, size_t bytes) {
  refract::transport::AllocationCounter::Note(bytes);
  *memory = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  return *memory == nullptr ? ENOMEM : 0;
}
#endif

namespace refract::gpu_node {
namespace {

using models::WireForm;
using models::WireType;
using runtime::cuda::Call;
using runtime::cuda::CopyCall;
using runtime::cuda::Event;
using runtime::cuda::Graph;
using runtime::cuda::Result;
using runtime::cuda::Status;
using runtime::cuda::Stream;
using transport::AllocationCounter;
using transport::kCountsAllocations;

struct Case {
  std::string name;
  std::optional<absl::Duration> window;  // of batching
  size_t models = 1;
  int instances = 1;
  bool settled = true;
  bool ids = false;  // the look-up is on the HN
  std::vector<WireForm> up, down;
  bool isolation = true;
  bool cuda = false;  // the emulated GPU
};

void PrintTo(const Case& setup, std::ostream* out) { *out << setup.name; }

std::vector<Case> AllCases() {
  const absl::Duration none = absl::ZeroDuration();
  const WireForm half = {WireType::kFloat16, false};
  const WireForm unique = {WireType::kFloat16, true};
  std::vector<Case> cases = {
      {.name = "Alone"},
      {.name = "AloneOnTwoInstances", .instances = 2},
      {.name = "AloneOfTwoModels", .models = 2},
      // Without isolation: an instance that waits for the other lets the clock go
      // on, and long executions would be cut into steps, which allocate.
      {.name = "AloneOfTwoModelsOnTwoInstances",
       .models = 2,
       .instances = 2,
       .isolation = false},
      {.name = "IdsInMemoryThatThePeerWrites", .settled = false, .ids = true},
      {.name = "Encoded", .up = {half, unique}, .down = {half}},
      {.name = "Together", .window = none},
      {.name = "TogetherOnTwoInstances", .window = none, .instances = 2},
      {.name = "TogetherAfterAWindow", .window = absl::Microseconds(300)},
      {.name = "TogetherOfTwoModels",
       .window = none,
       .models = 2,
       .isolation = false},
      {.name = "TogetherEncoded",
       .window = none,
       .up = {half, unique},
       .down = {half}},
      {.name = "TogetherIds", .window = none, .settled = false, .ids = true},
  };
  // Where nothing is counted there is no need to emulate a GPU.
  if (!kCountsAllocations) return cases;
  for (Case& on_gpu : std::vector<Case>{
           {.name = "AloneOnAGpu"},
           {.name = "AloneOfTwoModelsOnAGpu", .models = 2},
           {.name = "TogetherOnAGpu", .window = none},
           {.name = "TogetherEncodedOnAGpu",
           .window = none,
           .up = {half, unique},
           .down = {half}},
       }) {
    on_gpu.cuda = true;
    cases.push_back(std::move(on_gpu));
  }
  return cases;
}

// Allocations of a stand-in for a device do not count.
class UncountedDevice final : public CheckedDevice {
 public:
  using CheckedDevice::CheckedDevice;
  Status Record(Event event, Stream stream) override {
    const AllocationCounter::Pause pause;
    return CheckedDevice::Record(event, stream);
  }
  Status StreamWait(Stream stream, Event event) override {
    const AllocationCounter::Pause pause;
    return CheckedDevice::StreamWait(stream, event);
  }
  Status Synchronize(Event event) override {
    const AllocationCounter::Pause pause;
    return CheckedDevice::Synchronize(event);
  }
  Result<bool> Happened(Event event) override {
    const AllocationCounter::Pause pause;
    return CheckedDevice::Happened(event);
  }
  Status Synchronize(Stream stream) override {
    const AllocationCounter::Pause pause;
    return CheckedDevice::Synchronize(stream);
  }
  Status CopyToDevice(const CopyCall& copy, Stream stream) override {
    const AllocationCounter::Pause pause;
    return CheckedDevice::CopyToDevice(copy, stream);
  }
  Status CopyToHost(const CopyCall& copy, Stream stream) override {
    const AllocationCounter::Pause pause;
    return CheckedDevice::CopyToHost(copy, stream);
  }
  Status Clear(void* memory, int64_t bytes, Stream stream) override {
    const AllocationCounter::Pause pause;
    return CheckedDevice::Clear(memory, bytes, stream);
  }
  Status Launch(const Call& call, Stream stream) override {
    const AllocationCounter::Pause pause;
    return CheckedDevice::Launch(call, stream);
  }
  Status Launch(Graph graph, Stream stream) override {
    const AllocationCounter::Pause pause;
    return CheckedDevice::Launch(graph, stream);
  }
};

// The tensors of a request, as a CN encodes them.
struct Message {
  std::vector<base::Tensor> tensors;
  std::vector<base::TensorView> views;
};

Message MakeMessage(const models::LoadedModel& model, int64_t rows,
                    std::mt19937& random) {
  std::vector<base::Tensor> values;
  std::vector<base::TensorView> views;
  for (const models::ValueId id : model.plan->up) {
    base::Dims dims = {rows};
    if (model.graph.value(id).shape.size() == 2) {
      dims.push_back(*model.graph.value(id).shape[1].Evaluate({}));
    }
    base::Tensor& tensor = values.emplace_back(
        *base::Tensor::Allocate(model.graph.value(id).dtype, dims));
    if (tensor.dtype() == base::DType::kInt64) {
      for (int64_t& value : tensor.as<int64_t>()) value = random() % kRows;
    } else {
      // Few values, so that rows repeat.
      for (float& value : tensor.as<float>()) {
        value = static_cast<float>(random() % 2);
      }
    }
    views.push_back(tensor.view());
  }
  const runtime::wire::Codec codec(model.graph, model.plan->up,
                                   model.plan->up_forms);
  runtime::wire::Encoder encoder(codec);
  Message message;
  std::vector<std::byte*> places;
  const auto specs = *encoder.Prepare(views);
  for (const base::TensorSpec& spec : specs) {
    places.push_back(
        message.tensors
            .emplace_back(*base::Tensor::Allocate(spec.dtype, spec.dims))
            .data());
    message.views.push_back(message.tensors.back().view());
  }
  encoder.Write(places);
  return message;
}

// Goes on whenever it is looked at, and only then: an execution takes about the
// same however many rows it has and whatever else runs here, so that merging
// always pays.
class TickingClock final : public base::Clock {
 public:
  absl::Time Now() override {
    return absl::UnixEpoch() + kTick * ticks_.fetch_add(1);
  }
  bool AwaitWithDeadline(absl::Mutex& mu, const absl::Condition& condition,
                         absl::Time deadline) override {
    // A long wait, such as for an execution that may never end, does
    // not make time go on: executions would take as long as this machine is
    // busy.
    while ((deadline - Seen() > kLong ? Seen() : Now()) < deadline) {
      if (mu.AwaitWithTimeout(condition, deadline == absl::InfiniteFuture()
                                             ? absl::InfiniteDuration()
                                             : absl::Microseconds(20))) {
        return true;
      }
    }
    return condition.Eval();
  }

 private:
  static constexpr absl::Duration kTick = absl::Microseconds(100);
  static constexpr absl::Duration kLong = absl::Milliseconds(10);
  absl::Time Seen() const { return absl::UnixEpoch() + kTick * ticks_.load(); }
  std::atomic<int64_t> ticks_ = 0;
};

// Counts answers. Holds those up that are to be, in the middle of their
// execution.
class Answers {
 public:
  void Hold() {
    absl::MutexLock lock(&mu_);
    const int mine = held_++;
    const auto released = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return (released_ >> mine & 1) != 0;
    };
    mu_.Await(absl::Condition(&released));
  }
  void AwaitHeld(int count) {
    absl::MutexLock lock(&mu_);
    const auto all = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return held_ == count;
    };
    mu_.Await(absl::Condition(&all));
  }
  // The one that was held as number `number`, from 0 on.
  void Release(int number) {
    absl::MutexLock lock(&mu_);
    released_ |= 1u << number;
  }
  void Reset() {
    absl::MutexLock lock(&mu_);
    held_ = 0;
    released_ = 0;
  }
  void Count(bool ok) {
    absl::MutexLock lock(&mu_);
    ++answered_;
    failed_ += !ok;
  }
  void AwaitAnswered(int64_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return answered_ >= count;
    };
    mu_.Await(absl::Condition(&enough));
  }
  int64_t failed() {
    absl::MutexLock lock(&mu_);
    return failed_;
  }

 private:
  absl::Mutex mu_;
  int held_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t released_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t answered_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t failed_ ABSL_GUARDED_BY(mu_) = 0;
};

// A call like a transport's. Each thread of the node meets a call and is
// counted from then on.
class CountedCall final : public transport::ServerCall {
 public:
  CountedCall(size_t model, const Message& message, absl::Time deadline,
              bool settled, bool held, Answers* answers,
              const std::shared_ptr<transport::LinkMemory>& memory)
      : model_(model),
        message_(message),
        deadline_(deadline),
        settled_(settled),
        held_(held),
        answers_(answers),
        memory_(memory) {}

  size_t model() const override { return model_; }
  absl::Time deadline() const override {
    AllocationCounter::CountThisThread();
    return deadline_;
  }
  absl::Span<const base::TensorView> tensors() const override {
    AllocationCounter::CountThisThread();
    return message_.views;
  }
  bool settled() const override { return settled_; }
  bool abandoned() const override { return false; }
  absl::StatusOr<transport::OutgoingMessage> AllocateReply(
      absl::Span<const base::TensorSpec> specs) override {
    AllocationCounter::CountThisThread();
    auto message = transport::NewMessage(
        memory_, transport::MessageKind::kResponse, specs);
    if (std::exchange(held_, false)) answers_->Hold();
    if (!message.ok()) return message.status();
    return transport::OutgoingMessage(*std::move(message));
  }
  void Reply(transport::OutgoingMessage reply) override {
    reply = transport::OutgoingMessage();
    answers_->Count(true);
  }
  void Fail(const absl::Status& why) override {
    const AllocationCounter::Pause pause;
    ADD_FAILURE() << why;
    answers_->Count(false);
  }

 private:
  const size_t model_;
  const Message& message_;
  const absl::Time deadline_;
  const bool settled_;
  bool held_;
  Answers* const answers_;
  const std::shared_ptr<transport::LinkMemory>& memory_;
};

class WarmRequestTest : public testing::TestWithParam<Case> {
 protected:
  // Most rows of a request.
  static constexpr int64_t kLargest = 2;
  // Together on an instance.
  static constexpr int kMostTogether = 4;

  explicit WarmRequestTest(GpuNodeOptions options = {})
      : seed_(base::RandomSeed()), random_(seed_), memory_(NewSlotMemory()) {
    const Case& setup = GetParam();
    options.batching_window = setup.window;
    options.instances = setup.instances;
    options.isolation = setup.isolation;
    options.warm_up = absl::ZeroDuration();
    options.clock = &clock_;
    // A bounded turn divides a request whose execution took long by chance, and
    // the first division of a size allocates.
    options.isolation = false;
    std::vector<std::unique_ptr<DeviceModel>> models;
    for (size_t i = 0; i < setup.models; ++i) {
      const auto model = NewModel(
          {.name = "model" + std::to_string(i), .variant = static_cast<int>(i)},
          setup.ids);
      model->plan->up_forms = setup.up;
      model->plan->down_forms = setup.down;
      for (int64_t rows = 1; rows <= kLargest; ++rows) {
        messages_.push_back(MakeMessage(*model, rows, random_));
      }
      models.push_back(*DeviceModel::Create(model));
    }
    DeviceModels all(std::move(models));
    if (!setup.cuda) {
      node_ = *GpuNode::Create(std::move(all), options);
      return;
    }
    CudaDevice::Options cuda;
    cuda.max_rows = kMostTogether * kLargest;
    cuda.workspace_bytes = 256;
    options.max_batch = cuda.max_rows;
    CudaSetup gpu = SetUpCuda(
        std::make_unique<UncountedDevice>(seed_, int64_t{1} << 26), cuda, all);
    options.facts = std::move(gpu.facts);
    node_ = *GpuNode::Create(std::move(all), options, gpu.make_device);
  }

  void Send(size_t model, int64_t rows, bool held = false) {
    std::unique_ptr<CountedCall> call;
    {
      const AllocationCounter::Pause pause;
      // Every other one has a deadline, which is looked at when it comes.
      const absl::Time deadline = sent_ % 2 == 0
                                      ? absl::InfiniteFuture()
                                      : clock_.Now() + absl::Hours(1);
      call = std::make_unique<CountedCall>(
          model, messages_[model * kLargest + static_cast<size_t>(rows) - 1],
          deadline, GetParam().settled, held, &answers_, memory_);
    }
    ++sent_;
    node_->OnRequest(std::move(call));
  }

  // Requests of `rows` rows keep all instances busy, and then more of the same
  // execute on the instance whose request was taken at place `instance`.
  // Whether these requests took as few executions as possible.
  bool Fill(size_t model, int64_t rows, int instance) {
    answers_.Reset();
    const int instances = GetParam().instances;
    for (int i = 0; i < instances; ++i) {
      Send(model, rows, true);
      answers_.AwaitHeld(i + 1);
    }
    const uint64_t before = node_->stats(model).batches;
    const int64_t answered = sent_ - instances;
    // On a GPU the first one is uploaded before the others have come, and then
    // each slot is filled.
    const int sent =
        GetParam().cuda ? 1 + kCudaSlots * kMostTogether : kMostTogether;
    for (int i = 0; i < sent; ++i) Send(model, rows);
    answers_.Release(instance);
    answers_.AwaitAnswered(answered + 1 + sent);
    for (int i = 0; i < instances; ++i) answers_.Release(i);
    answers_.AwaitAnswered(sent_);
    EXPECT_TRUE(node_->Drain(absl::Seconds(60)));
    const uint64_t executions = node_->stats(model).batches - before;
    return !GetParam().window.has_value() ||
           executions <= (GetParam().cuda ? 1u + kCudaSlots : 1u);
  }

  void WarmUp() {
    for (size_t model = 0; model < GetParam().models; ++model) {
      // Every instance executes every size, as an instance allocates at the
      // first execution of a size. Twice on each instance: the batch that was
      // used last is used first, so that the second time fills another batch.
      for (int64_t rows = 1; rows <= kLargest; ++rows) {
        int full = 0;
        for (int round = 0; round < 400 && full < 8; ++round) {
          full += Fill(model, rows, round / 2 % GetParam().instances);
        }
        ASSERT_EQ(full, 8);
      }
    }
    // More requests than the node keeps times of.
    for (int i = 0; i < 100; ++i) SendSome(1);
  }

  void SendSome(int in_flight) {
    const size_t model = random_() % GetParam().models;
    Send(model, 1 + static_cast<int64_t>(random_() % kLargest));
    answers_.AwaitAnswered(sent_ - in_flight + 1);
  }

  TickingClock clock_;
  const unsigned seed_;
  std::mt19937 random_;
  const std::shared_ptr<transport::LinkMemory> memory_;
  std::vector<Message> messages_;  // of each model and size
  Answers answers_;
  int64_t sent_ = 0;
  std::unique_ptr<GpuNode> node_;
};

TEST_P(WarmRequestTest, AllocatesNothing) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  WarmUp();
  AllocationCounter::Start();
  for (const int in_flight : {1, 2, kMostTogether}) {
    for (int i = 0; i < 200; ++i) SendSome(in_flight);
    answers_.AwaitAnswered(sent_);
  }
  // Work after the last answer is part of the request.
  EXPECT_TRUE(node_->Drain(absl::Seconds(60)));
  EXPECT_EQ(AllocationCounter::Stop(), 0) << AllocationCounter::Traces();
  EXPECT_EQ(answers_.failed(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, WarmRequestTest, testing::ValuesIn(AllCases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace refract::gpu_node

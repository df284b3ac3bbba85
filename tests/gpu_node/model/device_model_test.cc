// Requests executed alone, together and in steps, whatever the forms that their
// values cross in.
#include "gpu_node/model/device_model.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/split_plan.h"
#include "runtime/wire/codec.h"
#include "tests/base/limited_memory.h"
#include "tests/base/random_seed.h"
#include "tests/cpu_node/small_model.h"
#include "tests/gpu_node/slot_call.h"

namespace refract::gpu_node {
namespace {

using models::WireForm;
using models::WireType;
using ::testing::HasSubstr;

struct Forms {
  std::string name;
  std::vector<WireForm> up;    // of (dense, rows); with ids, of (dense, ids)
  std::vector<WireForm> down;  // of the logit
  bool ids = false;            // the look-up is on the HN
};

std::vector<Forms> AllForms() {
  std::vector<Forms> all = {
      {"plain", {}, {}},
      {"ids", {}, {}, true},
      {"ids as int32", {{}, {WireType::kInt32, false}}, {}, true},
      {"unique rows", {{}, {WireType::kAsIs, true}}, {}},
      {"unique ids", {{}, {WireType::kInt32, true}}, {}, true},
      {"every value has unique rows",
       {{WireType::kAsIs, true}, {WireType::kAsIs, true}},
       {}},
  };
  for (const WireType type :
       {WireType::kFloat16, WireType::kBFloat16, WireType::kInt8}) {
    all.push_back({std::string(models::Name(type)),
                   {{type, false}, {type, true}},
                   {{type, false}}});
  }
  return all;
}

std::shared_ptr<const models::LoadedModel> ModelWith(const Forms& forms) {
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({}));
  if (forms.ids) {
    model->plan->stages[0] = models::Stage::kHn;
    models::ComputeCrossings(model->graph, *model->plan);
  }
  model->plan->up_forms = forms.up;
  model->plan->down_forms = forms.down;
  const absl::Status valid =
      models::ValidatePlan(model->graph, model->digest, *model->plan);
  EXPECT_TRUE(valid.ok()) << valid;
  return model;
}

// A request as a CN encodes it.
struct Request {
  std::vector<base::Tensor> values;
  std::vector<base::Tensor> message;
  int64_t rows = 0;

  std::vector<base::TensorView> views() const {
    std::vector<base::TensorView> views;
    for (const base::Tensor& tensor : message) views.push_back(tensor.view());
    return views;
  }
};

Request MakeRequest(const models::LoadedModel& model, int64_t rows,
                    bool one_user, std::mt19937& random) {
  Request request;
  request.rows = rows;
  std::vector<base::TensorView> views;
  for (const models::ValueId id : model.plan->up) {
    base::Dims dims = {rows};
    if (model.graph.value(id).shape.size() == 2) {
      dims.push_back(*model.graph.value(id).shape[1].Evaluate({}));
    }
    base::Tensor tensor =
        *base::Tensor::Allocate(model.graph.value(id).dtype, dims);
    const int64_t columns = dims.size() == 2 ? dims[1] : 1;
    for (int64_t i = 0; i < rows * columns; ++i) {
      const auto at = static_cast<size_t>(i);
      const bool repeats = one_user && i >= columns;
      if (tensor.dtype() == base::DType::kInt64) {
        auto values = tensor.as<int64_t>();
        values[at] = repeats ? values[at - columns]
                             : static_cast<int64_t>(random() % 10);
      } else {
        auto values = tensor.as<float>();
        values[at] = repeats ? values[at - columns]
                             : static_cast<float>(random() % 4096) / 512.0f - 4;
      }
    }
    views.push_back(tensor.view());
    request.values.push_back(std::move(tensor));
  }
  const runtime::wire::Codec codec(model.graph, model.plan->up,
                                   model.plan->up_forms);
  runtime::wire::Encoder encoder(codec);
  std::vector<std::byte*> places;
  const auto specs = *encoder.Prepare(views);
  for (const base::TensorSpec& spec : specs) {
    request.message.push_back(*base::Tensor::Allocate(spec.dtype, spec.dims));
    places.push_back(request.message.back().data());
  }
  encoder.Write(places);
  return request;
}

class Runner {
 public:
  explicit Runner(const DeviceModel& model) : model_(model) {}

  void Add(Batch& batch, const Request& request, bool settled = true) {
    BatchMember& member = batch.members.emplace_back();
    member.call = std::make_unique<SlotCall>(request.views(), memory_, settled);
    member.rows = model_.RowsOf(member.call->tensors());
    batch.rows += member.rows;
  }
  void Run(Batch& batch, int64_t max_rows = 1 << 20) {
    ExecuteInSteps(model_, batch, max_rows, buffers_);
  }
  // The bytes of a member's answer.
  static std::string Answer(const BatchMember& member) {
    EXPECT_TRUE(member.status.ok()) << member.status;
    if (!member.status.ok()) return "";
    std::string bytes;
    const auto& call = static_cast<const SlotCall&>(*member.call);
    for (size_t i = 0; i < call.reply_specs().size(); ++i) {
      const base::TensorSpec& spec = call.reply_specs()[i];
      bytes += base::DimsToString(spec.dims);
      bytes.append(reinterpret_cast<const char*>(member.reply.data(i)),
                   *base::ByteSize(spec.dtype, spec.dims));
    }
    return bytes;
  }
  std::string Alone(const Request& request) {
    Batch batch;
    Add(batch, request);
    Run(batch);
    return Answer(batch.members[0]);
  }

 private:
  const DeviceModel& model_;
  const std::shared_ptr<transport::LinkMemory> memory_ = NewSlotMemory(4 << 20);
  runtime::RowBuffers buffers_;
};

// Every step of the model is native, so not a bit may differ.
TEST(DeviceModelTest, TogetherAndInStepsNotABitOfAnAnswerChanges) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const Forms& forms : AllForms()) {
    SCOPED_TRACE(forms.name);
    const auto loaded = ModelWith(forms);
    const auto model = DeviceModel::Create(loaded);
    ASSERT_TRUE(model.ok()) << model.status();
    ASSERT_EQ((*model)->layout().why_not(), "");
    Runner runner(**model);
    for (int round = 0; round < 20; ++round) {
      std::vector<Request> requests;
      Batch batch;
      std::string key;
      const size_t count = 2 + random() % 5;
      for (size_t i = 0; i < count; ++i) {
        const auto rows = static_cast<int64_t>(1 + random() % 40);
        requests.push_back(
            MakeRequest(*loaded, rows, random() % 2 == 0, random));
        runner.Add(batch, requests.back(), random() % 2 == 0);
        EXPECT_EQ(batch.members[i].rows, rows);
        const std::string own =
            (*model)->Look(*batch.members[i].call)->merge_key;
        EXPECT_NE(own, "");
        if (i > 0) {
          EXPECT_EQ(own, key);
        }
        key = own;
      }
      runner.Run(batch);
      for (size_t i = 0; i < count; ++i) {
        const std::string alone = runner.Alone(requests[i]);
        EXPECT_EQ(Runner::Answer(batch.members[i]), alone);
        // Some rows at a time, as the scheduler asks for them.
        Batch steps;
        runner.Add(steps, requests[i], random() % 2 == 0);
        while (steps.first_row < requests[i].rows) {
          const int64_t left = requests[i].rows - steps.first_row;
          steps.rows = 1 + static_cast<int64_t>(random() % left);
          runner.Run(steps);
          ASSERT_TRUE(steps.members[0].status.ok());
          steps.first_row += steps.rows;
        }
        EXPECT_EQ(Runner::Answer(steps.members[0]), alone);
        Batch at_most;
        runner.Add(at_most, requests[i]);
        runner.Run(at_most, 1 + static_cast<int64_t>(random() % 8));
        EXPECT_EQ(Runner::Answer(at_most.members[0]), alone);
      }
    }
  }
}

enum class Fault : uint8_t { kNone, kNoReply, kBadValues, kTooFew };

class NoRoomCall final : public SlotCall {
 public:
  using SlotCall::SlotCall;
  absl::StatusOr<transport::OutgoingMessage> AllocateReply(
      absl::Span<const base::TensorSpec>) override {
    return absl::UnavailableError("the client is gone");
  }
};

// Leftovers of failed requests do not appear in other answers.
TEST(DeviceModelTest, AModelThatHasMetEverythingAnswersAsANewOne) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const Forms& forms : AllForms()) {
    SCOPED_TRACE(forms.name);
    const auto loaded = ModelWith(forms);
    const auto model = DeviceModel::Create(loaded);
    ASSERT_TRUE(model.ok()) << model.status();
    Runner runner(**model);
    const auto memory = NewSlotMemory(4 << 20);
    for (int round = 0; round < 30; ++round) {
      std::vector<Request> requests;
      std::vector<Fault> faults;
      Batch batch;
      const size_t count = 1 + random() % 5;
      for (size_t i = 0; i < count; ++i) {
        requests.push_back(MakeRequest(*loaded,
                                       1 + static_cast<int64_t>(random() % 40),
                                       random() % 2 == 0, random));
        faults.push_back(static_cast<Fault>(random() % 6 % 4));
        Request& request = requests.back();
        runner.Add(batch, request, random() % 2 == 0);
        BatchMember& member = batch.members.back();
        std::vector<base::TensorView> views = request.views();
        if (faults[i] == Fault::kNoReply) {
          member.call =
              std::make_unique<NoRoomCall>(views, memory, random() % 2 == 0);
        } else if (faults[i] == Fault::kBadValues) {
          // An index or an id that is none; floats may be any.
          std::memset(request.message.back().data(), 0x7f,
                      request.message.back().bytes());
        } else if (faults[i] == Fault::kTooFew) {
          views.pop_back();
          member.call = std::make_unique<SlotCall>(views, memory, true);
        }
      }
      if (count == 1 && random() % 2 == 0 && faults[0] != Fault::kTooFew) {
        // In steps, of which the last ones may not come.
        while (batch.first_row < requests[0].rows) {
          const int64_t left = requests[0].rows - batch.first_row;
          batch.rows = 1 + static_cast<int64_t>(random() % left);
          runner.Run(batch);
          if (!batch.members[0].status.ok() || random() % 8 == 0) break;
          batch.first_row += batch.rows;
        }
        if (batch.first_row < requests[0].rows) continue;
      } else {
        runner.Run(batch, random() % 2 == 0 ? 1 << 20 : 7);
      }
      const auto fresh = DeviceModel::Create(loaded);
      ASSERT_TRUE(fresh.ok());
      for (size_t i = 0; i < count; ++i) {
        if (faults[i] == Fault::kNoReply || faults[i] == Fault::kTooFew) {
          EXPECT_FALSE(batch.members[i].status.ok());
          continue;
        }
        if (!batch.members[i].status.ok()) {
          EXPECT_EQ(faults[i], Fault::kBadValues) << batch.members[i].status;
          continue;
        }
        Runner other(**fresh);
        EXPECT_EQ(Runner::Answer(batch.members[i]), other.Alone(requests[i]));
      }
    }
  }
}

// Merge keys are made before payloads are checked: a request that is not
// what its key says fails alone.
TEST(DeviceModelTest, AnEncodedRequestThatDoesNotFitFailsAlone) {
  std::mt19937 random(1);
  const Forms forms = {"unique", {{}, {WireType::kAsIs, true}}, {}};
  const auto loaded = ModelWith(forms);
  const auto model = DeviceModel::Create(loaded);
  ASSERT_TRUE(model.ok()) << model.status();
  Runner runner(**model);
  const Request good = MakeRequest(*loaded, 20, true, random);
  const Request other = MakeRequest(*loaded, 7, true, random);
  Request bad = MakeRequest(*loaded, 20, true, random);
  Batch batch;
  runner.Add(batch, good);
  runner.Add(batch, bad);
  runner.Add(batch, other);
  // Another index since: its one row is no longer there.
  std::memset(bad.message[2].data(), 0x7f, bad.message[2].bytes());
  runner.Run(batch);
  EXPECT_EQ(Runner::Answer(batch.members[0]), runner.Alone(good));
  EXPECT_EQ(Runner::Answer(batch.members[2]), runner.Alone(other));
  const absl::Status status = batch.members[1].status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'rows'"));
  // In steps: before the first one, and nothing is computed.
  Batch steps;
  runner.Add(steps, bad);
  steps.members[0].rows = 20;
  steps.rows = 5;
  runner.Run(steps);
  EXPECT_EQ(steps.members[0].status.code(), absl::StatusCode::kInvalidArgument);
}

// How many rows a run stands for is known only when it is decoded. Here one
// request has a row too many and another a row too few, so that together they
// have as many as they should.
TEST(DeviceModelTest, RowsThatMakeUpForEachOtherReachNobodyElse) {
  std::mt19937 random(1);
  const Forms forms = {"unique", {{}, {WireType::kAsIs, true}}, {}};
  const auto loaded = ModelWith(forms);
  const auto model = DeviceModel::Create(loaded);
  ASSERT_TRUE(model.ok()) << model.status();
  Runner runner(**model);
  const auto lying = [&](int64_t rows, int64_t rows_of_run) {
    Request request = MakeRequest(*loaded, rows, true, random);
    Request other = MakeRequest(*loaded, rows_of_run, true, random);
    for (const size_t i : {1, 2}) {
      request.message[i] = std::move(other.message[i]);
    }
    return request;
  };
  const Request more = lying(20, 21);
  const Request good = MakeRequest(*loaded, 5, true, random);
  const Request fewer = lying(7, 6);
  Batch batch;
  for (const Request* request : {&more, &good, &fewer}) {
    runner.Add(batch, *request);
    ASSERT_EQ(batch.members.back().rows, request->rows);
  }
  runner.Run(batch);
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(batch.members[i].status.code(),
              absl::StatusCode::kInvalidArgument)
        << batch.members[i].status;
  }
  EXPECT_EQ(Runner::Answer(batch.members[1]), runner.Alone(good));
}

TEST(DeviceModelTest, OneThatThereIsNoMemoryForFailsAlone) {
  if (!base::LimitedMemory::kWorks) {
    GTEST_SKIP() << "a sanitizer ends the process when memory runs short";
  }
  constexpr int64_t kRows = 3'000'000;
  auto loaded = std::make_shared<models::LoadedModel>(*ModelWith(
      {"float16", {{WireType::kFloat16, false}, {WireType::kFloat16, false}}}));
  for (models::SymbolRange& range : loaded->graph.symbols) range.max = kRows;
  const auto model = DeviceModel::Create(loaded);
  ASSERT_TRUE(model.ok()) << model.status();
  Runner runner(**model);
  std::mt19937 random(1);
  const Request large = MakeRequest(*loaded, kRows, false, random);
  const Request small = MakeRequest(*loaded, 5, false, random);
  const std::string alone = runner.Alone(small);
  // In one go, in pieces, and together.
  for (const int64_t max_rows : {kRows, kRows / 2}) {
    Batch batch;
    runner.Add(batch, large);
    if (max_rows == kRows) runner.Add(batch, small);
    {
      const base::LimitedMemory limited(1 << 20);
      runner.Run(batch, max_rows);
    }
    EXPECT_EQ(batch.members[0].status.code(),
              absl::StatusCode::kResourceExhausted)
        << batch.members[0].status;
    for (size_t i = 1; i < batch.members.size(); ++i) {
      EXPECT_EQ(Runner::Answer(batch.members[i]), alone);
    }
  }
}

// Like devices other than a CPU, which use their own threads.
TEST(DeviceModelTest, ReadingAndAnsweringSayThatThereIsNoMemory) {
  if (!base::LimitedMemory::kWorks) {
    GTEST_SKIP() << "a sanitizer ends the process when memory runs short";
  }
  constexpr int64_t kRows = 3'000'000;
  auto loaded = std::make_shared<models::LoadedModel>(*ModelWith(
      {"float16", {{WireType::kFloat16, false}, {WireType::kFloat16, false}}}));
  for (models::SymbolRange& range : loaded->graph.symbols) range.max = kRows;
  loaded->plan->down_forms = {{WireType::kAsIs, true}};
  const auto model = DeviceModel::Create(loaded);
  ASSERT_TRUE(model.ok()) << model.status();
  std::mt19937 random(1);
  const Request large = MakeRequest(*loaded, kRows, false, random);
  const auto memory = NewSlotMemory(16 << 20);
  SlotCall call(large.views(), memory, true);
  const base::Tensor output =
      *base::Tensor::Allocate(base::DType::kFloat32, {kRows});
  DeviceModel::Inputs inputs;
  const base::LimitedMemory limited(1 << 20);
  const absl::Status read = (*model)->Read(call, inputs);
  EXPECT_TRUE(absl::IsResourceExhausted(read)) << read;
  const base::TensorView outputs[] = {output.view()};
  const auto answer = (*model)->Answer(call, outputs);
  EXPECT_TRUE(absl::IsResourceExhausted(answer.status())) << answer.status();
}

}  // namespace
}  // namespace refract::gpu_node

// Plans whose values cross in forms of their own, from a CPU node's engine to a
// GPU node and back over the real transport.
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {
namespace {

using models::WireForm;
using models::WireType;
using ::testing::HasSubstr;

std::unique_ptr<Engine> MakeEngine(const ModelList& models,
                                   const std::string& address) {
  EngineOptions options;
  options.workers = 2;
  options.nodes.addresses = {address};
  auto engine = Engine::Create(MakeCatalog(models), std::move(options));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// The small model with these forms for (dense, rows) up and the logit down;
// with `ids`, for (dense, ids): the look-up is on the HN.
std::shared_ptr<const models::LoadedModel> WithForms(std::vector<WireForm> up,
                                                     std::vector<WireForm> down,
                                                     bool ids = false) {
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({}));
  if (ids) {
    model->plan->stages[0] = models::Stage::kHn;
    models::ComputeCrossings(model->graph, *model->plan);
  }
  model->plan->up_forms = std::move(up);
  model->plan->down_forms = std::move(down);
  const absl::Status valid =
      models::ValidatePlan(model->graph, model->digest, *model->plan);
  EXPECT_TRUE(valid.ok()) << valid;
  return model;
}

// Answer and bytes up of one request; from a pair of nodes of its own.
struct Served {
  Answer answer;
  uint64_t bytes = 0;
};
Served Serve(const std::shared_ptr<const models::LoadedModel>& model,
             InferRequest request) {
  // The GPU node's thread counts the bytes that it gets. Only memory that both
  // nodes share shows that it counted before the answer.
  std::atomic<uint64_t> bytes = 0;
  std::unique_ptr<gpu_node::GpuNode> real =
      *gpu_node::GpuNode::Create(DeviceModelsOf({model}), {});
  TestGpuNode node({model}, 0,
                   [&](std::unique_ptr<transport::ServerCall> call) {
                     for (const base::TensorView& tensor : call->tensors()) {
                       bytes += tensor.bytes;
                     }
                     real->OnRequest(std::move(call));
                   });
  const auto engine = MakeEngine({model}, node.address());
  EXPECT_TRUE(ReadinessWatch(*engine).Await(true));
  Served served;
  served.answer = Infer(*engine, std::move(request));
  served.bytes = bytes;
  return served;
}

void ExpectSameBits(const Answer& a, const Answer& b) {
  ASSERT_TRUE(a.status.ok()) << a.status;
  ASSERT_TRUE(b.status.ok()) << b.status;
  ASSERT_EQ(a.outputs.size(), b.outputs.size());
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    ASSERT_EQ(a.outputs[i].dims(), b.outputs[i].dims());
    EXPECT_EQ(std::memcmp(a.outputs[i].data(), b.outputs[i].data(),
                          a.outputs[i].bytes()),
              0)
        << "output " << i;
  }
}

// The same with the looked-up rows read by the HN alone, so that the CN may
// look each distinct id up once.
std::shared_ptr<const models::LoadedModel> RowsForHnOnly(
    bool unique, models::IdPolicy policy = models::IdPolicy::kError) {
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({}));
  model->config.default_id_policy = policy;
  model->plan->stages[5] = models::Stage::kHn;
  models::ComputeCrossings(model->graph, *model->plan);
  if (unique) model->plan->up_forms = {{}, {WireType::kAsIs, true}};
  const absl::Status valid =
      models::ValidatePlan(model->graph, model->digest, *model->plan);
  EXPECT_TRUE(valid.ok()) << valid;
  return model;
}

// All rows of one user.
InferRequest OneUser(int64_t batch) {
  InferRequest request = MakeRequest("small", batch);
  for (int64_t row = 1; row < batch; ++row) {
    request.inputs[0].tensor.as<int64_t>()[row] =
        request.inputs[0].tensor.as<int64_t>()[0];
  }
  return request;
}

TEST(WireFormsTest, UniqueRowsAreBitIdenticalAndFewer) {
  const auto plain = WithForms({}, {});
  const auto unique = WithForms({{}, {WireType::kAsIs, true}}, {});
  for (const int64_t batch : {1, 2, 270, 20000}) {
    const Served a = Serve(plain, OneUser(batch));
    const Served b = Serve(unique, OneUser(batch));
    ExpectSameBits(a.answer, b.answer);
    ExpectRight(Serve(unique, MakeRequest("small", batch)).answer, batch);
    EXPECT_LE(b.bytes, a.bytes);
    if (batch < 270) continue;
    // The rows of the table are 16 bytes; of those one is left, and a run.
    EXPECT_EQ(a.bytes - b.bytes, (batch - 1) * 16 - 8);
  }
}

TEST(WireFormsTest, DistinctIdsAreLookedUpOnce) {
  const auto plain = RowsForHnOnly(false);
  const auto unique = RowsForHnOnly(true);
  const auto served = ServedModel::Create(unique, {});
  ASSERT_TRUE(served.ok()) << served.status();
  ASSERT_NE((*served)->unique(), nullptr);
  for (const int64_t batch : {1, 2, 270, 20000}) {
    const Served a = Serve(plain, OneUser(batch));
    const Served b = Serve(unique, OneUser(batch));
    ExpectSameBits(a.answer, b.answer);
    ExpectSameBits(Serve(plain, MakeRequest("small", batch)).answer,
                   Serve(unique, MakeRequest("small", batch)).answer);
    EXPECT_LE(b.bytes, a.bytes);
    if (batch < 270) continue;
    EXPECT_EQ(a.bytes - b.bytes, (batch - 1) * 16 - 8);
  }
}

// Ids without a row are refused by their position in the request, and counted
// each time that the request has them.
TEST(WireFormsTest, WrongIdsOfDistinctRowsAreReportedAsOfAllRows) {
  const auto with_wrong_ids = [] {
    InferRequest request = OneUser(270);
    const auto ids = request.inputs[0].tensor.as<int64_t>();
    for (const int row : {5, 6, 100}) ids[row] = 77;
    return request;
  };
  const Served refused = Serve(RowsForHnOnly(true), with_wrong_ids());
  EXPECT_EQ(refused.answer.status,
            Serve(RowsForHnOnly(false), with_wrong_ids()).answer.status);
  EXPECT_EQ(refused.answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.answer.status.message()),
              HasSubstr("position 5"));
  const Served plain = Serve(
      RowsForHnOnly(false, models::IdPolicy::kZeroRow), with_wrong_ids());
  const Served unique = Serve(RowsForHnOnly(true, models::IdPolicy::kZeroRow),
                              with_wrong_ids());
  ExpectSameBits(plain.answer, unique.answer);
  EXPECT_EQ(plain.answer.replaced_ids, 3);
  EXPECT_EQ(unique.answer.replaced_ids, 3);
  // Replaced rows are sent once, too.
  EXPECT_LT(unique.bytes, plain.bytes / 2);
}

TEST(WireFormsTest, IdsCrossAsInt32) {
  const auto plain = WithForms({}, {}, /*ids=*/true);
  const auto narrow =
      WithForms({{}, {WireType::kInt32, false}}, {}, /*ids=*/true);
  const Served a = Serve(plain, MakeRequest("small", 100));
  const Served b = Serve(narrow, MakeRequest("small", 100));
  ExpectSameBits(a.answer, b.answer);
  EXPECT_EQ(a.bytes - b.bytes, 400);
  // An id that no int32 holds is reported as it is without the form.
  for (const auto& model : {plain, narrow}) {
    InferRequest request = MakeRequest("small", 100);
    request.inputs[0].tensor.as<int64_t>()[7] = (int64_t{1} << 32) + 1;
    const Served served = Serve(model, std::move(request));
    EXPECT_EQ(served.answer.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(served.answer.status.message()),
                HasSubstr("4294967297"));
  }
}

TEST(WireFormsTest, LossyFormsAreCloseInBothDirections) {
  const Served exact = Serve(WithForms({}, {}), MakeRequest("small", 33));
  for (const WireType type :
       {WireType::kFloat16, WireType::kBFloat16, WireType::kInt8}) {
    const Served served =
        Serve(WithForms({{type, true}, {type, false}}, {{type, false}}),
              MakeRequest("small", 33));
    ASSERT_TRUE(served.answer.status.ok()) << served.answer.status;
    const auto found = served.answer.outputs[0].view().as<float>();
    const auto wanted = exact.answer.outputs[0].view().as<float>();
    double worst = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      worst = std::max(worst, std::fabs(double{found[i]} - wanted[i]));
    }
    EXPECT_LT(worst, 0.01) << models::Name(type);
    // Values of the CN that CN-post reads never crossed.
    EXPECT_EQ(std::memcmp(served.answer.outputs[2].data(),
                          exact.answer.outputs[2].data(),
                          exact.answer.outputs[2].bytes()),
              0);
  }
}

// A GPU node that answers in another form than the plan says.
TEST(WireFormsTest, AnswersThatBreakTheFormAreTheirFault) {
  const auto model = WithForms({}, {{WireType::kFloat16, false}});
  TestGpuNode node({model}, 0, [](std::unique_ptr<transport::ServerCall> call) {
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kFloat32, {4, 1}}};
    auto reply = call->AllocateReply(specs);
    ASSERT_TRUE(reply.ok()) << reply.status();
    std::memset(reply->data(0), 0, 16);
    call->Reply(*std::move(reply));
  });
  const auto engine = MakeEngine({model}, node.address());
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  const Answer answer = Infer(*engine, MakeRequest("small", 4));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(answer.status.message()),
              HasSubstr("value 'logit' of the message is float32"));
}

TEST(WireFormsTest, NodesWithOtherFormsDoNotTalk) {
  const auto mine = WithForms({{WireType::kFloat16, false}, {}}, {});
  const auto theirs = WithForms({{WireType::kBFloat16, false}, {}}, {});
  const auto device = gpu_node::DeviceModel::Create(theirs);
  ASSERT_TRUE(device.ok());
  const auto served = ServedModel::Create(mine, {});
  ASSERT_TRUE(served.ok());
  const absl::Status verdict = (*device)->CheckOffer((*served)->offer());
  EXPECT_EQ(verdict.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(verdict.message()), HasSubstr("split plans differ"));
}

}  // namespace
}  // namespace refract::cpu_node

// Answers lie in slots that a GPU node may go on writing to: ids and sizes in
// them are used from a copy.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "cpu_node/served_model.h"
#include "gtest/gtest.h"
#include "models/repository/split_plan.h"
#include "tests/cpu_node/serving_fixture.h"
#include "tests/gpu_node/slot_call.h"
#include "transport/links/link_memory.h"

namespace refract::cpu_node {
namespace {

// The GPU node computes the logit, and the sum of the ids with themselves; both
// are outputs as they come.
std::shared_ptr<const models::LoadedModel> IdsOfTheGpuNode() {
  auto model = std::make_shared<models::LoadedModel>(
      *testing_models::MakeSmallModel({.name = "split"}));
  models::Graph& graph = model->graph;
  const models::ValueId ids = graph.inputs[1];
  const models::ValueId logit = graph.nodes[2].outputs[0];
  const models::ValueId sums = testing_models::AddValue(
      graph, "sums", base::DType::kInt64, {models::SymExpr::Symbol("B")});
  testing_models::AddNode(
      graph, "aten.add.Tensor",
      {{"self", models::ValueRef{ids}}, {"other", models::ValueRef{ids}}},
      sums);
  graph.outputs = {logit, sums};
  graph.output_names = {"logit", "sums"};
  model->plan->stages.push_back(models::Stage::kHn);
  models::ComputeCrossings(graph, *model->plan);
  const absl::Status valid =
      models::ValidatePlan(graph, model->digest, *model->plan);
  EXPECT_TRUE(valid.ok()) << valid;
  return model;
}

TEST(HostileAnswerTest, IdsThatMayStillChangeAreCopied) {
  const auto model = *ServedModel::Create(IdsOfTheGpuNode(), {});
  const auto memory = gpu_node::NewSlotMemory();
  constexpr int64_t kBatch = 20;
  base::Tensor logits =
      *base::Tensor::Allocate(base::DType::kFloat32, {kBatch, 1});
  base::Tensor sums = testing_models::MakeIds(kBatch);
  for (const bool settled : {false, true}) {
    auto message = transport::NewIncoming(memory);
    message->tensors = {logits.view(), sums.view()};
    if (!settled) message->slot = 0;
    const transport::IncomingMessage answer(std::move(message));
    const auto decoder = model->decoders().Acquire();
    runtime::StableInputs stable;
    const auto values = model->ReadAnswer(answer, *decoder, stable);
    ASSERT_TRUE(values.ok()) << values.status();
    ASSERT_EQ(values->size(), 2);
    // Numbers that are only computed with stay where they are.
    EXPECT_EQ((*values)[0].data, logits.data());
    EXPECT_EQ((*values)[1].data == sums.data(), settled);
    std::fill_n(sums.as<int64_t>().begin(), kBatch, int64_t{1} << 40);
    for (int64_t i = 0; i < kBatch; ++i) {
      EXPECT_EQ((*values)[1].as<int64_t>()[i],
                settled ? int64_t{1} << 40 : testing_models::IdValue(i));
    }
    // The answer that may still change is checked as well.
    const base::Tensor other =
        *base::Tensor::Allocate(base::DType::kFloat32, {kBatch});
    auto wrong = transport::NewIncoming(memory);
    wrong->tensors = {logits.view(), other.view()};
    if (!settled) wrong->slot = 0;
    EXPECT_TRUE(absl::IsInternal(
        model
            ->ReadAnswer(transport::IncomingMessage(std::move(wrong)), *decoder,
                         stable)
            .status()));
  }
}

TEST(HostileAnswerTest, ValuesOfTheGpuNodeThatAreOutputsAreAnswered) {
  const auto model = IdsOfTheGpuNode();
  TestGpuNode node({model});
  EngineOptions options;
  options.workers = 1;
  options.nodes.addresses = {node.address()};
  const auto engine = *Engine::Create(MakeCatalog({model}), options);
  ASSERT_TRUE(ReadinessWatch(*engine).Await(true));
  const Answer answer = Infer(*engine, MakeRequest("split", 20));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(answer.outputs[1].view().as<int64_t>()[i],
              2 * testing_models::IdValue(i));
  }
  engine->Stop();
}

}  // namespace
}  // namespace refract::cpu_node

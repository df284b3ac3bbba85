// Control flow that data decides: scripted modules are saved, imported with a
// sample, run as the IR graph and compared with forward() on requests of other
// sizes that take other branches.

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/graph/op_traits.h"
#include "models/graph/script_region.h"
#include "models/torchscript/import.h"
#include "runtime/torch/loop_limits.h"
#include "tests/models/testing/script_module_torch.h"

namespace refract::models::torchscript {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RegionsTest : public ::testing::Test {
 protected:
  RegionsTest() { at::manual_seed(seed_); }

  // Requests of one argument x [rows, 6]; branches depend on its signs.
  static std::vector<at::Tensor> Requests() {
    std::vector<at::Tensor> all;
    for (int64_t rows : {3, 1, 2, 33}) {
      const at::Tensor x = at::randn({rows, 6});
      all.push_back(x);
      all.push_back(x.abs());
      all.push_back(-x.abs());
    }
    return all;
  }

  absl::StatusOr<ImportedModel> Import(torch::jit::Module module,
                                       const at::Tensor& sample) {
    module.eval();
    module.save(path_);
    return ImportTorchScript(path_, SampleOf({{"x", sample}}));
  }

  // Imports and compares; returns the graph.
  Graph Check(const std::string& source) {
    torch::jit::Module module = Define(source);
    const std::vector<at::Tensor> requests = Requests();
    const auto model = Import(module, requests[0]);
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return {};
    EXPECT_TRUE(ValidateGraph(model->graph).ok());
    for (const at::Tensor& x : requests) {
      const at::Tensor before = x.clone();
      const auto got = RunImported(*model, {x});
      EXPECT_TRUE(got.ok()) << got.status();
      if (!got.ok()) continue;
      EXPECT_TRUE(at::equal(x, before)) << "the request was written into";
      const auto want = Flatten(module.forward({x.clone()}));
      EXPECT_EQ(got->size(), want.size());
      for (size_t i = 0; i < std::min(got->size(), want.size()); ++i) {
        EXPECT_TRUE(at::allclose((*got)[i], want[i], 1e-6, 1e-6))
            << "output " << i << " of a request of " << x.size(0)
            << " rows, seed " << seed_;
      }
    }
    return model->graph;
  }

  std::string RefusalOf(const std::string& source) {
    const auto model = Import(Define(source), Requests()[0]);
    EXPECT_FALSE(model.ok());
    return std::string(model.status().message());
  }

  const uint64_t seed_ = ::testing::UnitTest::GetInstance()->random_seed() + 1;
  const std::string path_ = absl::StrCat(
      ::testing::TempDir(), "/",
      ::testing::UnitTest::GetInstance()->current_test_info()->name(), ".pt");
};

std::vector<std::string> OpsOf(const Graph& graph) {
  std::vector<std::string> ops;
  for (const Node& node : graph.nodes) ops.push_back(node.op);
  return ops;
}

std::vector<const Node*> RegionsOf(const Graph& graph) {
  std::vector<const Node*> regions;
  for (const Node& node : graph.nodes) {
    if (IsScriptRegion(node)) regions.push_back(&node);
  }
  return regions;
}

StringList OperatorsOf(const Node& region) {
  return std::get<StringList>(*region.FindArg(kRegionOperatorsArg));
}

TEST_F(RegionsTest, BranchIsARegionAndTheRestIsNot) {
  const Graph graph = Check(R"(
    def forward(self, x):
      y = torch.relu(x)
      if bool(x.sum() > 0):
        y = y + x
      else:
        y = y * 2
      return torch.sigmoid(y)
  )");
  EXPECT_THAT(OpsOf(graph), AllOf(Contains("aten.relu.default"),
                                  Contains("aten.sigmoid.default")));
  ASSERT_EQ(RegionsOf(graph).size(), 1);
  EXPECT_THAT(OperatorsOf(*RegionsOf(graph)[0]),
              AllOf(Contains("prim::If"), Not(Contains("aten::relu")),
                    Not(Contains("aten::sigmoid"))));
  EXPECT_FALSE(MayRunOnHn(ClassOf(graph, *RegionsOf(graph)[0])));
}

TEST_F(RegionsTest, WhatConstantsDecideIsNoRegion) {
  const Graph graph = Check(R"(
    def forward(self, x):
      out = [x]
      for i in range(3):
        if i % 2 == 0:
          out.append(out[-1] + i)
      return torch.cat(out, 1)
  )");
  EXPECT_THAT(RegionsOf(graph), IsEmpty());
}

TEST_F(RegionsTest, NumbersAndTensorsLeaveABranch) {
  const Graph graph = Check(R"(
    def forward(self, x):
      n = 1
      s = 0.5
      b = False
      if bool(x.sum() > 0):
        n = 2
        s = 0.25
        b = True
      return (x * s).expand(n, x.size(0), x.size(1)) + float(b)
  )");
  EXPECT_EQ(RegionsOf(graph).size(), 1);
}

TEST_F(RegionsTest, LoopOverRowsRunsForEveryBatch) {
  const Graph graph = Check(R"(
    def forward(self, x):
      rows: List[Tensor] = []
      for i in range(x.size(0)):
        rows.append(x[i] * i)
      return torch.relu(torch.stack(rows))
  )");
  ASSERT_EQ(RegionsOf(graph).size(), 1);
  // The list does not leave the region; what is made of it does.
  EXPECT_THAT(OperatorsOf(*RegionsOf(graph)[0]),
              AllOf(Contains("prim::Loop"), Contains("aten::append"),
                    Contains("aten::stack")));
  EXPECT_THAT(OpsOf(graph), Contains("aten.relu.default"));
}

TEST_F(RegionsTest, LoopThatEndsEarlyIsNotCutToTheSample) {
  Check(R"(
    def forward(self, x):
      i = 0
      while i < 6 and bool(x[0, i] < 0.5):
        x = x * 0.5 + 1
        i += 1
      return x + i
  )");
  // Rounds that constants decide, left by a branch that data decides.
  Check(R"(
    def forward(self, x):
      for i in range(6):
        if bool(x[0, i] > 0):
          break
        x = x + i
      return x
  )");
}

TEST_F(RegionsTest, EarlyReturnAndNesting) {
  Check(R"(
    def forward(self, x):
      if bool(x.max() < 0):
        return x * 3
      total = x
      for i in range(x.size(0)):
        if bool(x[i].sum() > 0):
          for j in range(x.size(1)):
            total = total + x[i, j]
        else:
          continue
      return total
  )");
}

TEST_F(RegionsTest, ContainersThatDataFills) {
  Check(R"(
    def forward(self, x):
      named: Dict[str, Tensor] = {"x": x}
      if bool(x.sum() > 0):
        named["y"] = x * 2
      if "y" in named:
        x = named["y"] + 1
      extra: Optional[Tensor] = None
      if bool(x.min() < 0):
        extra = x.abs()
      if extra is not None:
        x = x + extra
      return x
  )");
  Check(R"(
    def forward(self, x):
      pair = (x, x * 2)
      if bool(x.sum() > 0):
        pair = (pair[1], x)
      a, b = pair
      return a - b, a
  )");
}

TEST_F(RegionsTest, ListThatABranchFillsIsReturned) {
  const Graph graph = Check(R"(
    def forward(self, x):
      out: List[Tensor] = [x]
      if bool(x.sum() > 0):
        out.append(x * 2)
      else:
        out.append(x * 3)
      return out
  )");
  EXPECT_EQ(graph.outputs.size(), 2);
}

TEST_F(RegionsTest, WritesStayInside) {
  // The request is compared with what it was before.
  Check(R"(
    def forward(self, x):
      for i in range(x.size(0)):
        x[i] = x[i] * i
      return x + 1
  )");
  Check(R"(
    def forward(self, x):
      out = torch.zeros_like(x)
      before = out + 1
      for i in range(x.size(0)):
        out[i] += x[i]
      return out + before
  )");
}

TEST_F(RegionsTest, OrderOfWritesIsKept) {
  Check(R"(
    def forward(self, x):
      y = x * 2
      y.add_(1)
      if bool(x.sum() > 0):
        y = y * 3
      z = y + 1
      z.mul_(2)
      return y + z
  )");
}

TEST_F(RegionsTest, TwoRegionsWithDenseWorkBetween) {
  const Graph graph = Check(R"(
    def forward(self, x):
      if bool(x.sum() > 0):
        x = x - 1
      x = torch.tanh(x)
      if bool(x.sum() > 1):
        x = x + 1
      return x
  )");
  EXPECT_EQ(RegionsOf(graph).size(), 2);
  EXPECT_THAT(OpsOf(graph), Contains("aten.tanh.default"));
}

TEST_F(RegionsTest, WeightsAndAttributesEnterARegion) {
  torch::jit::Module module("test");
  const at::Tensor weight = at::randn({6, 6});
  module.register_parameter("weight", weight, false);
  module.register_attribute("scale", c10::FloatType::get(), 3.0);
  module.define(R"(
    def forward(self, x):
      for i in range(x.size(0)):
        if i % 2 == 1:
          x = x @ self.weight * self.scale
      return x
  )");
  const auto requests = Requests();
  const auto model = Import(module, requests[0]);
  ASSERT_TRUE(model.ok()) << model.status();
  for (size_t r : {0, 3, 6}) {
    const auto got = RunImported(*model, {requests[r]});
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(at::allclose(
        (*got)[0], module.forward({requests[r]}).toTensor(), 1e-5, 1e-5));
  }
  // The table stays where it is, the region's script has no copy of it.
  const Node& region = *RegionsOf(model->graph)[0];
  const std::vector<ValueId> reads = InputsOf(region);
  EXPECT_TRUE(std::any_of(reads.begin(), reads.end(), [&](ValueId id) {
    return model->graph.value(id).weight == "weight";
  }));
}

TEST_F(RegionsTest, RandomAndStatefulAreRefusedByName) {
  EXPECT_THAT(RefusalOf(R"(
    def forward(self, x):
      if bool(x.sum() > 0):
        x = x + torch.rand_like(x)
      return x
  )"),
              HasSubstr("aten::rand_like"));
  torch::jit::Module counter("test");
  counter.register_buffer("calls", at::zeros({1}));
  counter.define(R"(
    def forward(self, x):
      if bool(x.sum() > -1000.0):
        self.calls.add_(1)
      return x + self.calls
  )");
  const auto model = Import(counter, Requests()[0]);
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.status().message(),
              AllOf(HasSubstr("calls"), HasSubstr("state")));
}

// As in a scripted TransformerEncoder with a padding mask.
TEST_F(RegionsTest, NestedTensorsAreRefusedByName) {
  EXPECT_THAT(RefusalOf(R"(
    def forward(self, x):
      y = x.unsqueeze(0)
      if bool(x.sum() > -1000.0):
        y = torch._nested_tensor_from_mask(y, torch.ones([1, x.size(0)]) > 0)
      return torch.to_padded_tensor(y, 0.0) + 1
  )"),
              HasSubstr("enable_nested_tensor=False"));
}

TEST_F(RegionsTest, WhatDropsNothingIsNotRandom) {
  Check(R"(
    def forward(self, x):
      if bool(x.sum() > 0):
        x = torch.dropout(x, 0.5, False) + 1
      else:
        x = torch.scaled_dot_product_attention(x, x, x)
      return x
  )");
  EXPECT_THAT(RefusalOf(R"(
    def forward(self, x):
      if bool(x.sum() > 0):
        x = torch.dropout(x, 0.5, True)
      return x
  )"),
              HasSubstr("aten::dropout"));
}

TEST_F(RegionsTest, OperatorsThatTrustTheirSizesAreChecked) {
  const auto model = Import(Define(R"(
    def forward(self, x):
      if bool(x.sum() > -1000.0):
        q = x.view(1, 1, x.size(0), 6)
        x = torch.scaled_dot_product_attention(q, q, q[:, :, :3])
      return x
  )"),
                            at::randn({3, 6}));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(RunImported(*model, {at::randn({3, 6})}).ok());
  const auto got = RunImported(*model, {at::randn({64, 6})});
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(got.status().message(), HasSubstr("attention with keys of"));
}

TEST_F(RegionsTest, ViewsShowWhatARegionWrites) {
  Check(R"(
    def forward(self, x):
      y = x * 2
      view = y[:, :3]
      before = view + 1
      for i in range(x.size(0)):
        y[i] += 1
      return y[:, 3:] + view * before
  )");
}

TEST_F(RegionsTest, ResultThatMayBeTheArgumentIsWritten) {
  Check(R"(
    def forward(self, x):
      y = torch.relu(x)
      z = y
      if bool(x.sum() > 0):
        z = y + 1
      z.add_(1)
      return y * z
  )");
  Check(R"(
    def forward(self, x):
      y = torch.relu(x)
      z = y
      if bool(x.sum() > 0):
        z = y + 1
      y.add_(1)
      return y * z
  )");
}

// LibTorch's interpreter divides what the processor cannot, and traps.
TEST_F(RegionsTest, NumbersThatCannotBeDividedAreRefused) {
  struct Case {
    std::string expression;
    float m, n;
    std::string why;
  };
  constexpr float kLowest = -9223372036854775808.0f;
  for (const Case& c : std::vector<Case>{
           {"m % n", 3, 0, "integer modulo by zero"},
           {"m % n", kLowest, -1, "lowest integer divided by -1"},
           {"m // n", kLowest, -1, "lowest integer divided by -1"},
           {"divmod(m, n)[0]", kLowest, -1, "lowest integer divided by -1"},
           {"y[0, 0].item() % y[0, 1].item()", 3, 0, "integer modulo by zero"},
           {"y[0, 0].item() // y[0, 1].item()", kLowest, -1,
            "lowest integer divided by -1"}}) {
    SCOPED_TRACE(c.expression);
    const auto model = Import(Define(absl::StrCat(R"(
    def forward(self, x):
      y = x.long()
      m = int(y[0, 0])
      n = int(y[0, 1])
      if m != 1:
        x = x + ()",
                                                  c.expression, R"()
      return x
  )")),
                              at::full({3, 6}, 2.0));
    ASSERT_TRUE(model.ok()) << model.status();
    at::Tensor x = at::full({3, 6}, 2.0);
    EXPECT_TRUE(RunImported(*model, {x}).ok());
    x[0][0] = c.m;
    x[0][1] = c.n;
    const auto got = RunImported(*model, {x});
    ASSERT_FALSE(got.ok());
    EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(got.status().message(), HasSubstr(c.why));
  }
}

TEST_F(RegionsTest, ErrorsOfTheScriptNameNodeAndReason) {
  const auto model = Import(Define(R"(
    def forward(self, x):
      for i in range(x.size(0)):
        x = x.view(3, 6) + i
      return x
  )"),
                            at::randn({3, 6}));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto got = RunImported(*model, {at::randn({4, 6})});
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(got.status().message(),
              AllOf(HasSubstr("script"), HasSubstr("shape '[3, 6]'"),
                    Not(HasSubstr("\n"))));
}

TEST_F(RegionsTest, LoopsEndWithTheRequestThatTheyRunFor) {
  const auto model = Import(Define(R"(
    def forward(self, x):
      while bool(x.sum() > 0.0):
        for i in range(x.size(0)):
          x = x + 1.0
      return x
  )"),
                            at::full({2, 6}, -1.0));
  ASSERT_TRUE(model.ok()) << model.status();
  const at::Tensor endless = at::ones({3, 6});
  int asked = 0;
  {
    const runtime::aten::ScopedLoopCheck check([&asked] {
      return ++asked == 50 ? absl::CancelledError("nobody waits")
                           : absl::OkStatus();
    });
    const auto got = RunImported(*model, {endless});
    EXPECT_EQ(got.status().code(), absl::StatusCode::kCancelled);
    EXPECT_THAT(got.status().message(),
                AllOf(HasSubstr("script"), HasSubstr("nobody waits"),
                      Not(HasSubstr("\n"))));
    EXPECT_EQ(asked, 50);
  }
  // The cancelled request leaves no state for the next request.
  const auto fine = RunImported(*model, {at::full({3, 6}, -1.0)});
  ASSERT_TRUE(fine.ok()) << fine.status();
  const runtime::aten::ScopedLoopCheck check([] { return absl::OkStatus(); },
                                             /*max_rounds=*/100);
  const auto got = RunImported(*model, {endless});
  EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(got.status().message(),
              HasSubstr("a loop has not ended after 100 rounds"));
}

TEST_F(RegionsTest, DamagedScriptIsRefused) {
  auto model = Import(Define(R"(
    def forward(self, x):
      for i in range(x.size(0)):
        x = x + i
      return x
  )"),
                      Requests()[0]);
  ASSERT_TRUE(model.ok()) << model.status();
  for (Node& node : model->graph.nodes) {
    for (NamedArgument& arg : node.args) {
      if (arg.name == kRegionScriptArg) arg.value = std::string("UEsDBA==");
    }
  }
  const auto got = RunImported(*model, {Requests()[0]});
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RegionsTest, ThreadsShareOneRegion) {
  torch::jit::Module module = Define(R"(
    def forward(self, x):
      for i in range(x.size(0)):
        if bool(x[i, 0] > 0):
          x = x + i
      return x
  )");
  const auto model = Import(module, Requests()[0]);
  ASSERT_TRUE(model.ok()) << model.status();
  const Node& region = *RegionsOf(model->graph)[0];
  const auto caller = runtime::aten::Caller::Create(region);
  ASSERT_TRUE(caller.ok()) << caller.status();
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> wanted;
  for (int t = 0; t < 4; ++t) {
    inputs.push_back(at::randn({t + 2, 6}));
    wanted.push_back(module.forward({inputs.back()}).toTensor());
  }
  const std::vector<ValueId> reads = InputsOf(region);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<runtime::aten::Operand> operands(reads.size());
      for (size_t i = 0; i < reads.size(); ++i) {
        if (model->graph.value(reads[i]).kind == ValueKind::kSymInt) {
          operands[i].kind = runtime::aten::Operand::Kind::kInt;
          operands[i].i = t + 2;
        } else {
          operands[i].kind = runtime::aten::Operand::Kind::kTensor;
          operands[i].tensor = ViewOf(inputs[t]);
        }
      }
      for (int round = 0; round < 100; ++round) {
        std::vector<runtime::aten::Result> results;
        if (!(*caller)->Call(operands, results).ok()) {
          ++wrong[t];
          continue;
        }
        const auto got =
            TensorOf(*base::Tensor::CopyOf(results[0].operand.tensor));
        wrong[t] += at::equal(got, wanted[t]) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

}  // namespace
}  // namespace refract::models::torchscript

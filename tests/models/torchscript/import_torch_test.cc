// The oracle is LibTorch: modules are written in TorchScript, saved, imported,
// run operator by operator, and compared with forward().

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/shapes/interpreter.h"
#include "models/torchscript/import.h"
#include "tests/models/testing/import_check_torch.h"
#include "tests/models/testing/script_module_torch.h"

namespace refract::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torchscript::Define;
using torchscript::Flatten;
using torchscript::RunImported;
using torchscript::SampleOf;

TEST(ImportTorchScriptTest, WeightsAreMappedWhereTheyLie) {
  torch::jit::Module module("test");
  torch::jit::Module child("child");
  child.register_parameter("weight", Seeded({3, 2}), false);
  child.register_buffer("shift", Seeded({3}).slice(0, 1));
  child.define(R"(
    def forward(self, x):
      return torch.matmul(x, self.weight.t())[:, 1:] + self.shift
  )");
  module.register_module("tower", child);
  module.define(R"(
    def forward(self, x):
      return self.tower.forward(x)
  )");
  const ImportedModel model = Check(module, {Seeded({4, 2})});
  EXPECT_THAT(model.graph.inputs.size(), 1u);
  EXPECT_EQ(model.graph.value(model.graph.inputs[0]).name, "x");
  std::vector<std::string> names;
  for (const WeightEntry& entry : model.weights.entries) {
    names.push_back(entry.name);
    EXPECT_GT(entry.offset, 0u);
  }
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre("tower.weight", "tower.shift"));
}

TEST(ImportTorchScriptTest, FrozenConstantsKeepTheirPlaceInTheFile) {
  torch::jit::Module module("test");
  module.register_parameter("weight", Seeded({3, 2}), false);
  module.register_parameter("bias", Seeded({3}), false);
  module.define(R"(
    def forward(self, x):
      return torch.addmm(self.bias, x, self.weight.t())
  )");
  module.eval();
  const ImportedModel model =
      Check(torch::jit::freeze_module(module), {Seeded({4, 2})});
  std::vector<std::string> names;
  for (const WeightEntry& entry : model.weights.entries) {
    names.push_back(entry.name);
  }
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre("constants.0", "constants.1"));
}

TEST(ImportTorchScriptTest, LargeConstantsOfOneShapeStayApart) {
  torch::jit::Module module("test");
  const at::Tensor first = Seeded({512, 1024});  // 2 MiB
  module.register_parameter("first", first, false);
  module.register_parameter("second", first.flip(0), false);
  module.define(R"(
    def forward(self, x):
      return torch.matmul(torch.matmul(x, self.first.t()), self.second)
  )");
  module.eval();
  const ImportedModel model =
      Check(torch::jit::freeze_module(module), {Seeded({2, 1024})});
  EXPECT_EQ(model.weights.entries.size(), 2u);
}

TEST(ImportTorchScriptTest, TensorsOfManyMiBAreMappedUnread) {
  torch::jit::Module module("test");
  module.register_parameter("table", Seeded({1 << 16, 8}), false);  // 2 MiB
  module.define(R"(
    def forward(self, ids):
      return torch.embedding(self.table, ids)
  )");
  Check(module, {at::tensor({0, 65535, 77}, at::kLong)});
}

TEST(ImportTorchScriptTest, StandInsKeepTheirStrides) {
  torch::jit::Module module("test");
  module.register_parameter("table", at::zeros({1}).expand({1000, 8}), false);
  module.define(R"(
    def forward(self, ids):
      return torch.embedding(self.table, ids)
  )");
  const ImportedModel model = Check(module, {at::tensor({0, 999}, at::kLong)});
  ASSERT_EQ(model.weights.entries.size(), 1u);
  const WeightEntry& entry = model.weights.entries[0];
  EXPECT_EQ(entry.name, "table");
  EXPECT_THAT(entry.sizes, ElementsAre(1000, 8));
  EXPECT_THAT(entry.strides, ElementsAre(0, 0));
  EXPECT_EQ(entry.bytes, 4u);
}

TEST(ImportTorchScriptTest, InPlaceOperatorsAndViewsKeepTheirMeaning) {
  const std::vector<std::string> bodies = {
      "y = x * 2\n      y.relu_()\n      return y + x",
      "y = x * 2\n      y[:, 1:3].mul_(3.0)\n      return y",
      "y = x * 2\n      z = y.t()\n      y[0].fill_(5.0)\n"
      "      z[1].add_(1.0)\n      return y, z",
      "y = x * 2\n      y[:, 0] = x[:, 1]\n      return y",
      "y = x.exp()\n      a, b = y.split([1, 3], 1)\n      b.neg_()\n"
      "      a.add_(b[:, :1])\n      return y, a, b",
      "y = x.exp()\n      v = y.view(-1)\n      v[2:7].zero_()\n"
      "      return y.sum(1), v",
      "y = x.clone()\n      y.unsqueeze(1).squeeze(1).transpose(0, 1).mul_(2)\n"
      "      return y",
      "y = x.permute(1, 0).contiguous()\n      y.add_(1)\n      return y",
      "x.add_(1.0)\n      return x * 2",
      "y = x * 2\n      d = x.double()\n      y.add_(d)\n      return y",
      "y = x.exp()\n      y.narrow(1, 1, 2).div_(2.0)\n"
      "      y.diagonal().copy_(torch.zeros(4))\n      return y",
      "y = x.exp()\n      y.masked_fill_(x > 0, 0.5)\n"
      "      y.clamp_(0.1, 0.9)\n      return y",
      "y = x.exp()\n      a = y.select(0, 1)\n      b = a.view(2, 2)\n"
      "      b.select(1, 0).fill_(9)\n      y.mul_(2)\n      return a, b, y",
      "y = x.detach().flatten()\n      y.mul_(2)\n      return y",
      "a, b, c, d = x.exp().unbind(1)\n      c.zero_()\n"
      "      return torch.stack([c, a])",
  };
  for (size_t i = 0; i < bodies.size(); ++i) {
    SCOPED_TRACE(bodies[i]);
    torch::jit::Module module = Define(
        absl::StrCat("\n    def forward(self, x):\n      ", bodies[i], "\n"));
    Check(module, {Seeded({4, 4})}, absl::StrCat(i));
  }
}

TEST(ImportTorchScriptTest, SizesAreComputedAtRunTime) {
  torch::jit::Module module = Define(R"(
    def forward(self, x, y):
      b = x.size(0)
      rows, columns = x.size()
      half = (columns + 1) // 2
      z = x.view(b, 2, half).expand(b, 2, half)
      n = torch.arange(y.shape[0])
      return z.reshape(b * 2, -1), n, torch.zeros([len(y), half])
  )");
  const ImportedModel model = Check(module, {Seeded({3, 4}), Seeded({5})});
  // The same graph at another batch.
  const auto got = RunImported(model, {Seeded({6, 4}), Seeded({2})});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT((*got)[0].sizes().vec(), ElementsAre(12, 2));
  EXPECT_THAT((*got)[1].sizes().vec(), ElementsAre(2));
  EXPECT_THAT((*got)[2].sizes().vec(), ElementsAre(2, 2));
}

// The trace of x.view(x.shape[0] * 2, x.shape[1] // 2) by torch.jit.
TEST(ImportTorchScriptTest, TracedSizeArithmeticIsFoldedToSizes) {
  auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(R"IR(
graph(%self, %x.1 : Tensor):
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %rows : int = aten::size(%x.1, %zero)
  %rows.t : Tensor = prim::NumToTensor(%rows)
  %columns : int = aten::size(%x.1, %one)
  %columns.t : Tensor = prim::NumToTensor(%columns)
  %two : Tensor = prim::NumToTensor(%one)
  %twice : Tensor = aten::mul(%rows.t, %two)
  %twice.i : int = aten::Int(%twice)
  %half : Tensor = aten::floor_divide(%columns.t, %two)
  %half.i : int = aten::Int(%half)
  %shape : int[] = prim::ListConstruct(%twice.i, %half.i)
  %y : Tensor = aten::view(%x.1, %shape)
  return (%y))IR",
                      graph.get());
  for (torch::jit::Node* node : graph->nodes()) {
    if (node->kind() != c10::prim::NumToTensor ||
        node->input()->node()->kind() != c10::prim::Constant) {
      continue;
    }
    const torch::jit::WithInsertPoint before(node);
    node->output()->replaceAllUsesWith(
        graph->insertConstant(at::scalar_tensor(2, at::kLong)));
    break;
  }
  torch::jit::Module module("traced");
  graph->inputs()[0]->setType(module.type());
  module.type()->addMethod(
      module._ivalue()->compilation_unit()->create_function(
          c10::QualifiedName(*module.type()->name(), "forward"), graph));
  const ImportedModel model = Check(module, {Seeded({3, 4})});
  EXPECT_THAT(Ops(model.graph),
              ::testing::UnorderedElementsAre(
                  "aten.sym_size.int", "aten.sym_size.int", "py.mul",
                  "py.floordiv", "aten.view.default"));
  const auto got = RunImported(model, {Seeded({5, 6})});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT((*got)[0].sizes().vec(), ElementsAre(10, 3));
}

TEST(ImportTorchScriptTest, CastsKeepTheirDtype) {
  torch::jit::Module module = Define(R"(
    def forward(self, x, ids):
      return x.double(), ids.to(x.dtype), ids.float(), (x > 0).long()
  )");
  Check(module, {Seeded({3}), at::tensor({1, 2, 3}, at::kLong)});
}

// The code that torch.jit.trace() writes for `x * 0.5`.
TEST(ImportTorchScriptTest, NumbersOfATraceDoNotPromote) {
  auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::Value* self = graph->addInput("self");
  torch::jit::Value* ids = graph->addInput("ids");
  const auto number = [&](const at::Scalar& value) {
    return graph->insertConstant(at::scalar_tensor(value, value.type()));
  };
  torch::jit::Value* scaled = graph->insert(c10::aten::mul, {ids, number(0.5)});
  torch::jit::Value* total = graph->insert(
      c10::aten::sum, {ids, torch::jit::NamedValue(c10::IValue())},
      {{"dtype", c10::IValue(static_cast<int64_t>(at::kFloat))}});
  torch::jit::Value* half = graph->insert(c10::aten::div, {total, number(2.0)});
  torch::jit::Value* more = graph->insert(c10::aten::add, {ids, number(1.5)});
  torch::jit::Value* less = graph->insert(c10::aten::sub, {ids, number(3)});
  graph->registerOutput(
      graph->insertNode(graph->createTuple({scaled, half, more, less}))
          ->output());
  torch::jit::Module module("traced");
  self->setType(module.type());
  module.type()->addMethod(
      module._ivalue()->compilation_unit()->create_function(
          c10::QualifiedName(*module.type()->name(), "forward"), graph));
  const at::Tensor rows = at::tensor({1, 2, 3}, at::kLong);
  Check(module, {rows});
  // LibTorch's own results have this type, too.
  const auto want = Flatten(module.forward({rows}));
  EXPECT_EQ(want[0].scalar_type(), at::kFloat);
  EXPECT_EQ(want[1].scalar_type(), at::kFloat);
}

TEST(ImportTorchScriptTest, ControlFlowWithoutSampleIsRefusedByName) {
  const absl::Status branch = Refusal(Define(R"(
    def forward(self, x):
      if bool(x.sum() > 0):
        x = x + 1
      return x
  )"));
  EXPECT_EQ(branch.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(branch.message(), HasSubstr("prim::If"));
  EXPECT_THAT(branch.message(), HasSubstr("--sample"));
  const absl::Status loop = Refusal(Define(R"(
    def forward(self, x):
      for i in range(x.size(0)):
        x = x + i
      return x
  )"));
  EXPECT_EQ(loop.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(loop.message(), HasSubstr("prim::Loop"));
}

TEST(ImportTorchScriptTest, RandomOperatorsAreRefusedByName) {
  const absl::Status random = Refusal(Define(R"(
    def forward(self, x):
      return x + torch.rand_like(x)
  )"));
  EXPECT_EQ(random.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(random.message(), HasSubstr("aten.rand_like.default"));
}

TEST(ImportTorchScriptTest, CounterIsRefused) {
  torch::jit::Module module("test");
  module.register_buffer("calls", at::zeros({1}));
  module.define(R"(
    def forward(self, x):
      self.calls.add_(1)
      return x + self.calls
  )");
  const absl::Status status = Refusal(module);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("weight calls"));
}

TEST(ImportTorchScriptTest, InputsThatAreNoTensorsAreRefused) {
  EXPECT_THAT(Refusal(Define("def forward(self, x, n: int):\n  return x + n\n"))
                  .message(),
              HasSubstr("input n"));
  EXPECT_THAT(
      Refusal(Define("def forward(self, x):\n  return x.size(0)\n")).message(),
      HasSubstr("the model returns no tensor"));
}

TEST(ImportTorchScriptTest, ResultsThatAreNoTensorsAreLeftOutAndNoted) {
  const std::string path = PathOf("model");
  torch::jit::Module module = Define(R"(
    def forward(self, x):
      return {"n": x.size(0)}, [x * 2, x], None, 0.5, x.size(), "name", x
  )");
  module.save(path);
  const auto model = ImportTorchScript(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->graph.output_names,
              ElementsAre("output_0", "output_1", "output_2"));
  EXPECT_THAT(
      model->notes,
      ElementsAre("result 0 is not a tensor (int), so answers leave it out",
                  "result 4 is not a tensor (float), so answers leave it out",
                  "result 5 is not a tensor (int[]), so answers leave it out",
                  "result 6 is not a tensor (str), so answers leave it out"));
  const at::Tensor x = Seeded({3, 4});
  const auto got = RunImported(*model, {x});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(at::equal((*got)[0], x * 2));
  EXPECT_TRUE(at::equal((*got)[1], x));
  EXPECT_TRUE(at::equal((*got)[2], x));
}

TEST(ImportTorchScriptTest, ConstantsThatShareRowsHaveTheirValues) {
  torch::jit::Module module("test");
  const at::Tensor rows = Seeded({4, 8});
  module.register_buffer("spread", rows[0].expand({3, 8}));
  module.register_parameter("every_other", rows[1].slice(0, 0, 8, 2), false);
  module.register_parameter("turned", rows.t(), false);
  module.register_buffer("first", rows.narrow(0, 0, 2));
  module.register_buffer("last", rows.narrow(0, 2, 2));
  module.register_buffer("nothing", at::zeros({0, 4}));
  module.register_parameter("bias", at::ones({1}), false);
  module.define(R"(
    def forward(self, x):
      y = torch.matmul(x, self.spread.t()) + self.bias.expand(3)
      z = torch.matmul(x, self.turned)[:, :2] * self.every_other[:2]
      w = torch.cat([z, self.nothing[:, :2]], 0) + torch.matmul(x, self.last.t())
      return y, w - torch.matmul(x, self.first.t())
  )");
  module.eval();
  const std::vector<at::Tensor> inputs = {Seeded({3, 8})};
  for (const bool frozen : {false, true}) {
    ImportedModel model =
        Check(frozen ? torch::jit::freeze_module(module) : module, inputs,
              frozen ? "frozen" : "saved");
    const absl::Status bound = BindTables({}, model);
    EXPECT_TRUE(bound.ok()) << bound;
  }
}

TEST(ImportTorchScriptTest, TablesWithoutValuesAreMissedFrozenOrNot) {
  torch::jit::Module module("test");
  module.register_parameter("table", at::zeros({1}).expand({1000, 8}), false);
  module.define(R"(
    def forward(self, ids):
      return torch.embedding(self.table.detach(), ids)
  )");
  module.eval();
  const at::Tensor ids = at::tensor({0, 999}, at::kLong);
  for (const bool frozen : {false, true}) {
    ImportedModel model =
        Check(frozen ? torch::jit::freeze_module(module) : module, {ids},
              frozen ? "frozen" : "saved");
    EXPECT_THAT(BindTables({}, model).message(),
                HasSubstr("[1000, 8] was exported without values"));
  }
}

TEST(ImportTorchScriptTest, ArgumentAndKeyOfOneName) {
  const at::Tensor a = Seeded({3, 4});
  const at::Tensor b = a * 2 + 1;
  c10::Dict<std::string, at::Tensor> features;
  features.insert("x", a);
  features.insert("item", b);
  torch::jit::Module module = Define(R"(
    def forward(self, features: Dict[str, Tensor], features_x):
      return features["x"] - features["item"] * features_x
  )");
  // The first in forward() has the name, as with torch.export.
  CheckSample(module,
              {{"features_x", a}, {"features_item", b}, {"features_x_1", b}},
              {features, b});
  torch::jit::Module turned = Define(R"(
    def forward(self, features_x, features: Dict[str, Tensor]):
      return features["x"] - features["item"] * features_x
  )");
  CheckSample(turned,
              {{"features_x", b}, {"features_item", b}, {"features_x_1", a}},
              {b, features});
  module.save(PathOf("one"));
  EXPECT_THAT(
      ImportTorchScript(PathOf("one"),
                        SampleOf({{"features_x", a}, {"features_item", b}}))
          .status()
          .message(),
      HasSubstr("the argument features_x and the key \"x\" of the argument "
                "features are both called features_x"));
}

TEST(ImportTorchScriptTest, OptionalArgumentIsNotAnotherThatBeginsAlike) {
  const at::Tensor a = Seeded({3, 4});
  torch::jit::Module module = Define(R"(
    def forward(self, x, mask: Optional[Tensor], mask_2):
      if mask is not None:
        x = x * mask
      return x + mask_2
  )");
  const ImportedModel model = CheckSample(module, {{"x", a}, {"mask_2", a * 3}},
                                          {a, c10::IValue(), a * 3});
  EXPECT_EQ(model.graph.inputs.size(), 2u);
}

TEST(ImportTorchScriptTest, LookUpsOfMaxNormScaleWhatTheyLookUp) {
  torch::jit::Module module("test");
  module.register_parameter("table", Seeded({9, 4}), false);
  module.define(R"(
    def forward(self, ids, offsets):
      table = self.table.detach()
      torch.embedding_renorm_(table, ids, 0.7, 2.0)
      one = torch.embedding(self.table, ids)
      torch.embedding_renorm_(table, ids, 0.7, 2.0)
      bags, _, _, _ = torch.embedding_bag(self.table, ids, offsets)
      return one, bags
  )");
  module.eval();
  const std::string path = PathOf("model");
  module.save(path);
  const auto model = ImportTorchScript(path);
  ASSERT_TRUE(model.ok()) << model.status();
  at::manual_seed(11);
  for (int i = 0; i < 5; ++i) {
    // forward() changes its table; its result does not depend on that.
    const at::Tensor ids = at::randint(9, {6}, at::kLong);
    const at::Tensor offsets = at::tensor({0, 2, 2}, at::kLong);
    const std::vector<at::Tensor> want =
        Flatten(module.forward({ids, offsets}));
    const auto got = RunImported(*model, {ids, offsets});
    ASSERT_TRUE(got.ok()) << got.status();
    for (size_t k = 0; k < 2; ++k) {
      EXPECT_TRUE(at::allclose((*got)[k], want[k], 1e-5, 1e-6)) << k;
    }
    EXPECT_LE((*got)[0].norm(2, 1).max().item<float>(), 0.7f + 1e-5f);
  }
  torch::jit::Module tied("test");
  tied.register_parameter("table", Seeded({9, 4}), false);
  tied.define(R"(
    def forward(self, ids):
      torch.embedding_renorm_(self.table.detach(), ids, 0.7, 2.0)
      return torch.matmul(torch.embedding(self.table, ids), self.table.t())
  )");
  EXPECT_THAT(Refusal(tied).message(),
              AllOf(HasSubstr("max_norm scales rows of the table table"),
                    HasSubstr("(aten.t.default) reads the table")));
}

// A trace of TransformerEncoder with a padding mask holds these operators.
TEST(ImportTorchScriptTest, EncoderLayersOfNestedTensorsRunOnPaddedOnes) {
  constexpr int64_t kWidth = 4;
  const auto encoder = [](const std::string& result) {
    torch::jit::Module module("test");
    const auto weight = [&](const std::string& name, at::IntArrayRef sizes) {
      module.register_parameter(name, Seeded(sizes) * 0.5, false);
    };
    weight("qkv", {3 * kWidth, kWidth});
    weight("qkv_bias", {3 * kWidth});
    weight("square", {kWidth, kWidth});
    weight("bias", {kWidth});
    module.define(absl::StrCat(R"(
    def layer(self, x):
      return torch._transformer_encoder_layer_fwd(
          x, 4, 2, self.qkv, self.qkv_bias, self.square, self.bias, True, False,
          1e-5, self.bias, self.bias, self.bias, self.bias, self.square,
          self.bias, self.square, self.bias, None, None)

    def forward(self, x, mask):
      nested = torch._nested_tensor_from_mask(x, mask > 0, False)
      nested = self.layer(self.layer(nested))
      return torch.to_padded_tensor()",
                               result,
                               ", 0.5, [x.size(0), x.size(1), x.size(2)])\n"));
    module.eval();
    return module;
  };
  // Padding at the end, at the begin (of which the nested tensor takes the
  // first steps all the same), and nothing but padding.
  const at::Tensor mask =
      at::tensor(std::vector<int64_t>{1, 1, 1, 0, 0, 0, 1, 0, 1, 1,
                                      0, 0, 0, 0, 0, 1, 1, 1, 1, 1})
          .view({4, 5});
  Check(encoder("nested"), {Seeded({4, 5, kWidth}), mask});
  EXPECT_THAT(Refusal(encoder("nested * 2")).message(),
              AllOf(HasSubstr("(aten.mul.Scalar) reads a nested tensor"),
                    HasSubstr("enable_nested_tensor=False")));
}

TEST(ImportTorchScriptTest, DamagedFilesAreRefusedByName) {
  const std::string path = PathOf("good");
  Define("def forward(self, x):\n  return x + 1\n").save(path);
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)),
                          std::istreambuf_iterator<char>());
  ASSERT_GT(bytes.size(), 100u);
  const std::string bad = PathOf("bad");
  const auto refused = [&bad](const std::string& content) {
    std::ofstream(bad, std::ios::binary) << content;
    const auto model = ImportTorchScript(bad);
    EXPECT_FALSE(model.ok());
    EXPECT_THAT(model.status().message(), HasSubstr(bad));
    EXPECT_THAT(std::string(model.status().message()), Not(HasSubstr("\n")));
  };
  refused("");
  refused("not a zip");
  refused(bytes.substr(0, bytes.size() / 2));
  refused(bytes.substr(0, bytes.size() - 1));
  EXPECT_FALSE(ImportTorchScript(PathOf("absent")).ok());
  // Any single damaged byte gives a model or an error, never a crash.
  for (size_t at = 0; at < bytes.size(); at += 37) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x5a);
    std::ofstream(bad, std::ios::binary) << damaged;
    (void)ImportTorchScript(bad);
  }
}

}  // namespace
}  // namespace refract::models

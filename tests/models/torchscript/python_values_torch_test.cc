// Values of Python that import computes or refuses: constants, texts, lists,
// tuples and dictionaries. The oracle is forward(), as in import_torch_test.cc.

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/freeze_module.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/torchscript/import.h"
#include "tests/models/testing/import_check_torch.h"
#include "tests/models/testing/script_module_torch.h"

namespace refract::models {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using torchscript::Define;
using torchscript::Named;
using torchscript::SampleOf;

TEST(PythonValuesTest, WhatConstantsDecideIsDecided) {
  torch::jit::Module module("test");
  module.register_attribute("scale", c10::FloatType::get(), 2.0);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_attribute("bias", c10::OptionalType::ofTensor(),
                            c10::IValue());
  module.define(R"(
    def forward(self, x):
      bias = self.bias
      if self.training:
        x = torch.rand_like(x)
      if bias is not None:
        x = x + bias
      y = torch.dropout(x, 0.5, self.training)
      return y * self.scale
  )");
  const ImportedModel model = Check(module, {Seeded({3})});
  EXPECT_THAT(Ops(model.graph), ElementsAre("aten.mul.Scalar"));
}

TEST(PythonValuesTest, ArgumentsThatAreNoTensorsHaveTheirDefaults) {
  const ImportedModel model = Check(Define(R"(
    def forward(self, x, scale: float=2.0, flip: bool=False, k: Optional[int]=3):
      if flip:
        x = -x
      if k is not None:
        x = x[:, :k]
      return x * scale
  )"),
                                    {Seeded({3, 4})});
  EXPECT_THAT(
      Ops(model.graph),
      ElementsAre("aten.slice.Tensor", "aten.slice.Tensor", "aten.mul.Scalar"));
  EXPECT_THAT(model.notes,
              ElementsAre(HasSubstr("input scale"), HasSubstr("input flip"),
                          HasSubstr("input k is not a tensor; it has its "
                                    "default, 3")));
}

TEST(PythonValuesTest, TypesOfArgumentsOfFunctionsAreDecided) {
  const ImportedModel model = Check(Define(R"(
    def lengths(self, x: Union[Tensor, List[int]]):
      if not isinstance(x, Tensor):
        y = torch.tensor(x)
      else:
        y = x * 2
      return y

    def forward(self, x):
      return x + self.lengths(x)
  )"),
                                    {Seeded({3})});
  EXPECT_THAT(Ops(model.graph),
              ElementsAre("aten.mul.Scalar", "aten.add.Tensor"));
}

TEST(PythonValuesTest, OutputsOfTuplesListsAndDictsAreNumbered) {
  torch::jit::Module module = Define(R"(
    def forward(self, x):
      return {"a": x + 1, "b": x + 2}
  )");
  const ImportedModel model = Check(module, {Seeded({3})});
  EXPECT_THAT(model.graph.output_names, ElementsAre("output_0", "output_1"));
  torch::jit::Module nested = Define(R"(
    def forward(self, x):
      return x + 1, [x + 2, x + 3]
  )");
  EXPECT_EQ(Check(nested, {Seeded({3})}).graph.outputs.size(), 3u);
}

TEST(PythonValuesTest, ListsOfTensorsAreFlat) {
  torch::jit::Module module = Define(R"(
    def forward(self, x):
      a, b = x.chunk(2, 1)
      c, d, e, f = x.unbind(1)
      return torch.cat([b, a], 1), torch.stack([f, c]), d * e
  )");
  Check(module, {Seeded({3, 4})});
}

TEST(PythonValuesTest, ListsDictsAndLoopsOfConstantsAreDecided) {
  const ImportedModel model = Check(Define(R"(
    def forward(self, x):
      parts = [x]
      for i in range(3):
        parts.append(parts[-1] * 2.0 + i)
      other = parts
      other.append(x + 10.0)
      named = {"a": parts[0], "b": parts[-2]}
      named["c"] = parts[2]
      total = torch.cat(parts[1:] + [x], 1)
      for key in named.keys():
        total = total - named[key].sum(1, keepdim=True)
      if "d" in named:
        total = torch.zeros_like(x)
      return total, len(parts) * x
  )"),
                                    {Seeded({3, 4})});
  for (const Node& node : model.graph.nodes) {
    EXPECT_FALSE(absl::StartsWith(node.op, "prim.")) << node.op;
  }
}

TEST(PythonValuesTest, TextsOfKnownValuesAreComputed) {
  Check(Define(R"(
    def forward(self, x):
      d: Dict[str, Tensor] = {}
      for i in range(3):
        d["f{}".format(i)] = x * float(i + 1)
        d["g" + str(i)] = x + i
        d["h%d" % i] = x - i
      if "f{}".format(len(d)) == "f9":
        x = x * 2.0
      return d["f0"], d["f2"], d["g1"], d["h2"], len(d) * x
  )"),
        {Seeded({3, 4})});
  const at::Tensor a = Seeded({3, 4});
  c10::Dict<std::string, at::Tensor> features;
  features.insert("a_0", a);
  features.insert("a_1", a * 2);
  CheckSample(Define(R"(
    def forward(self, f: Dict[str, Tensor]):
      return f["a_{}".format(0)] / f["a_" + str(1)]
  )"),
              {{"f_a_0", a}, {"f_a_1", a * 2}}, {features});
}

TEST(PythonValuesTest, TextsThatRequestsDecideAreReportedOnly) {
  // The message of an exception, and output.
  Check(Define(R"(
    def forward(self, x):
      text = "{} rows".format(x.size(0))
      print(text)
      assert x.size(0) < 100, text
      return x + 1
  )"),
        {Seeded({3, 4})});
  for (const char* use : {"d[\"f{}\".format(x.size(0))] = x * 2",
                          "d = {\"f{}\".format(x.size(0)): x}",
                          "if str(x.size(0)) == \"3\":\n        x = x * 2"}) {
    SCOPED_TRACE(use);
    torch::jit::Module module = Define(absl::StrCat(
        "\n    def forward(self, x):\n      d = {\"f3\": x}\n      ", use,
        "\n      return d[\"f3\"] + x\n"));
    EXPECT_EQ(Refusal(module).code(), absl::StatusCode::kUnimplemented);
  }
}

TEST(PythonValuesTest, ListsChangeAsInPython) {
  Check(Define(R"(
    def forward(self, x):
      parts = [x]
      parts.insert(7, x * 2.0)
      parts.insert(-9, x * 3.0)
      parts.insert(-1, x * 4.0)
      return torch.cat(parts, 1)
  )"),
        {Seeded({3, 4})});
  // All names of a list see a change.
  const at::Tensor x = Seeded({3, 4});
  torch::jit::Module sizes = Define(R"(
    def forward(self, x):
      s = x.size()
      s.extend([1])
      return x.view(s)
  )");
  EXPECT_THAT(Refusal(sizes).message(), HasSubstr("aten::extend"));
  CheckSample(sizes, {{"x", x}}, {x});
}

TEST(PythonValuesTest, ScalarsInLargeBuffersAreRead) {
  torch::jit::Module module("test");
  const at::Tensor large = at::arange(1 << 18).to(at::kInt);  // 1 MiB
  module.register_buffer("scale", large[43]);
  module.define(R"(
    def forward(self, x):
      y = x
      for i in range(int(self.scale)):
        y = y + x
      return y * int(self.scale) + self.scale
  )");
  Check(module, {Seeded({3})});
}

TEST(PythonValuesTest, CopiesOfInputDictionariesHaveTheirKeys) {
  const at::Tensor a = Seeded({3, 4});
  const at::Tensor b = a * 2;
  torch::jit::Module module = Define(R"(
    def forward(self, f: Dict[int, Tensor]):
      d = dict(f)
      e = f.copy()
      d[1] = d[0] * 3.0
      return d[0] + d[1] - f[0] / f[1] + e[1]
  )");
  c10::Dict<int64_t, at::Tensor> features;
  features.insert(0, a);
  features.insert(1, b);
  CheckSample(module, {{"f_0", a}, {"f_1", b}}, {features});
  // Whether requests have a key is not known, nor are all keys.
  for (const char* body :
       {"return f.get(0)", "return f[0] + float(len(dict(f)))"}) {
    SCOPED_TRACE(body);
    EXPECT_EQ(Refusal(Define(absl::StrCat(
                          "\n    def forward(self, f: Dict[int, Tensor]):\n"
                          "      ",
                          body, "\n")))
                  .code(),
              absl::StatusCode::kUnimplemented);
  }
  torch::jit::Module values = Define(R"(
    def forward(self, f: Dict[int, Tensor]):
      y = f[0]
      for v in f.values():
        y = y + v
      return y
  )");
  const std::string path = PathOf("values");
  values.save(path);
  EXPECT_THAT(ImportTorchScript(path, SampleOf({{"f_0", a}, {"f_1", b}}))
                  .status()
                  .message(),
              HasSubstr("keys of the input dictionary f"));
}

TEST(PythonValuesTest, SampleDecidesRanksAndLengthsOfLists) {
  const at::Tensor x = Seeded({3, 4});
  torch::jit::Module module = Define(R"(
    def forward(self, x):
      if x.dim() == 2:
        y = x + 1
      else:
        y = x.sum()
      assert x.size(1) == 4, "four columns"
      assert list(x.size())[1:] == [4]
      parts = x.unbind(1)
      rows = torch.zeros(x.size(), dtype=x.dtype)
      for i, part in enumerate(parts):
        rows = rows + part.unsqueeze(1) * i
      return rows * y
  )");
  CheckSample(module, {{"x", x}}, {x});
  // Without one the rank is open.
  EXPECT_THAT(Refusal(module).message(), HasSubstr("--sample"));
}

TEST(PythonValuesTest, DictsListsAndTuplesOfTensorsAreInputs) {
  const at::Tensor a = Seeded({3, 4});
  const at::Tensor b = a * 2 + 1;
  torch::jit::Module module = Define(R"(
    def forward(self, f: Dict[str, Tensor], xs: List[Tensor],
                pair: Tuple[Tensor, Tensor], extra: Optional[Tensor]):
      y = f["user"] - f["item"] * xs[1]
      for x in xs:
        y = y * x
      if extra is not None:
        y = y + extra
      return y + pair[0] / pair[1]
  )");
  c10::Dict<std::string, at::Tensor> features;
  features.insert("user", a);
  features.insert("item", b);
  const Named sample = {{"f_user", a}, {"f_item", b}, {"xs_0", a},
                        {"xs_1", b},   {"pair_0", b}, {"pair_1", b + 3}};
  CheckSample(module, sample,
              {features, c10::List<at::Tensor>({a, b}),
               c10::ivalue::Tuple::create({b, b + 3}), c10::IValue()});
}

// Features by the beginnings of their names.
TEST(PythonValuesTest, QuestionsAboutKnownTextsAreAnswered) {
  const at::Tensor a = Seeded({3, 4});
  const torch::jit::Module module = Define(R"(
    def forward(self, f: Dict[str, Tensor]):
      user = []
      item = []
      for name, x in f.items():
        if name.startswith("user_") and len(name) > 5:
          user.append(x)
        elif name.find("m_") == 3:
          item.append(x)
      return torch.stack(user).sum(0) * torch.stack(item).mean(0)
  )");
  c10::Dict<std::string, at::Tensor> features;
  features.insert("user_a", a);
  features.insert("item_b", a + 1);
  features.insert("user_c", a * 3);
  const ImportedModel model = CheckSample(
      module, {{"f_user_a", a}, {"f_item_b", a + 1}, {"f_user_c", a * 3}},
      {features});
  EXPECT_THAT(Ops(model.graph), Not(Contains("refract.script.default")));
}

// The sample decides which optional tensors are there.
TEST(PythonValuesTest, TypesOfOptionalTensorsAreDecided) {
  const at::Tensor a = Seeded({3, 4});
  const torch::jit::Module module = Define(R"(
    def forward(self, x, extra: Optional[Tensor]):
      if isinstance(extra, Tensor):
        x = x + extra
      return x * 2
  )");
  const ImportedModel without =
      CheckSample(module, {{"x", a}}, {a, c10::IValue()});
  EXPECT_THAT(Ops(without.graph), ElementsAre("aten.mul.Scalar"));
  const ImportedModel with =
      CheckSample(module, {{"x", a}, {"extra", a}}, {a, a});
  EXPECT_THAT(Ops(with.graph),
              ElementsAre("aten.add.Tensor", "aten.mul.Scalar"));
}

}  // namespace
}  // namespace refract::models

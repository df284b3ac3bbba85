// Complex numbers in TorchScript: scripted modules are saved, imported with a
// sample, run as the IR graph and compared with forward() on other requests.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/passes/complex_numbers.h"
#include "models/graph/script_region.h"
#include "models/torchscript/import.h"
#include "tests/models/testing/script_module_torch.h"

namespace refract::models::torchscript {
namespace {

using ::testing::HasSubstr;

class ComplexTest : public ::testing::Test {
 protected:
  ComplexTest() { at::manual_seed(seed_); }

  absl::StatusOr<ImportedModel> Import(torch::jit::Module module) {
    module.eval();
    module.save(path_);
    return ImportTorchScript(path_,
                             SampleOf({{"x", at::randn({3, 6, 4})}}));
  }

  // Imports and compares at several numbers of rows.
  Graph Check(torch::jit::Module module) {
    const auto model = Import(module);
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return {};
    EXPECT_TRUE(ValidateGraph(model->graph).ok());
    for (const int64_t rows : {3, 1, 2, 33}) {
      for (const double scale : {1.0, -1.0}) {
        const at::Tensor x = at::rand({rows, 6, 4}) * scale;
        const at::Tensor before = x.clone();
        const auto got = RunImported(*model, {x});
        EXPECT_TRUE(got.ok()) << got.status();
        if (!got.ok()) return {};
        EXPECT_TRUE(at::equal(x, before)) << "the request was written into";
        const auto want = Flatten(module.forward({x.clone()}));
        EXPECT_EQ(got->size(), want.size());
        for (size_t i = 0; i < std::min(got->size(), want.size()); ++i) {
          EXPECT_TRUE(at::allclose((*got)[i], want[i], 1e-5, 1e-6))
              << "output " << i << ", " << rows << " rows, seed " << seed_;
        }
      }
    }
    return model->graph;
  }

  static int CountRegions(const Graph& graph) {
    int count = 0;
    for (const Node& node : graph.nodes) count += IsScriptRegion(node);
    return count;
  }

  const uint64_t seed_ = ::testing::UnitTest::GetInstance()->random_seed() + 1;
  const std::string path_ = absl::StrCat(
      ::testing::TempDir(), "/complex_",
      ::testing::UnitTest::GetInstance()->current_test_info()->name(), ".pt");
};

TEST_F(ComplexTest, FilterIsAGraph) {
  torch::jit::Module module("test");
  const auto filter = at::randn({4, 4}, at::kComplexFloat);
  module.register_buffer("filter", filter);
  module.define(R"(
    def forward(self, x):
      f = torch.fft_rfft(x, dim=1, norm="ortho")
      f = f * self.filter
      g = f.transpose(1, 2).contiguous()
      y = torch.fft_irfft(f, n=6, dim=1, norm="ortho")
      return y, g.abs().sum(2), torch.imag(torch.conj(f)), f.size(-1) * x
  )");
  const Graph graph = Check(module);
  EXPECT_EQ(CountRegions(graph), 0);
  int complex = 0;
  for (const Node& node : graph.nodes) complex += IsComplexOp(node.op);
  EXPECT_GE(complex, 6);
}

TEST_F(ComplexTest, WritesAndCasts) {
  const Graph graph = Check(Define(R"(
    def forward(self, x):
      c = torch.complex(x, x * 2)
      c[:, 0] = c[:, 0] * 3
      c.mul_(0.5)
      d = x.to(dtype=9)
      return torch.view_as_real(c + d), torch.angle(d)
  )"));
  EXPECT_EQ(CountRegions(graph), 0);
}

TEST_F(ComplexTest, ComplexTensorsGoIntoAndOutOfRegions) {
  const Graph graph = Check(Define(R"(
    def forward(self, x):
      c = torch.fft_rfft(x, dim=1)
      if bool(x.sum() > 0):
        c = c * 2
      else:
        c = torch.conj(c)
      return torch.fft_irfft(c, n=6, dim=1), torch.abs(c)
  )"));
  EXPECT_EQ(CountRegions(graph), 1);
}

TEST_F(ComplexTest, RegionsWriteIntoCopies) {
  const Graph graph = Check(Define(R"(
    def forward(self, x):
      c = torch.fft_rfft(x, dim=1)
      i = 0
      while bool(x[0, 0, 0] * i < 0.5) and i < 3:
        c[:, i] = c[:, i] * 2
        i += 1
      return torch.view_as_real(c)
  )"));
  EXPECT_GE(CountRegions(graph), 1);
}

TEST_F(ComplexTest, ComplexResultIsRefused) {
  const auto model = Import(Define(R"(
    def forward(self, x):
      return torch.fft_rfft(x, dim=1)
  )"));
  EXPECT_EQ(model.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(model.status().message(), HasSubstr("output_0 is complex"));
}

}  // namespace
}  // namespace refract::models::torchscript

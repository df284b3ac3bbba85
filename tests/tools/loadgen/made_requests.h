#ifndef REFRACT_TESTS_TOOLS_LOADGEN_MADE_REQUESTS_H_
#define REFRACT_TESTS_TOOLS_LOADGEN_MADE_REQUESTS_H_

// Requests that RequestMaker makes for a served model, for its tests.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tools/loadgen/request_maker.h"

namespace refract::loadgen {

inline constexpr auto kInt64 = base::DType::kInt64;
inline constexpr auto kFloat = base::DType::kFloat32;

inline absl::StatusOr<RequestMaker> MakerFor(const ServedModel& model,
                                      const std::string& bags = "fixed:1",
                                      RequestOptions options = {}) {
  auto plan = PlanRequests(model, {});
  if (!plan.ok()) return plan.status();
  const auto sizes = BagSizes::Parse(bags);
  if (!sizes.ok()) return sizes.status();
  options.bags = *sizes;
  return RequestMaker::Create(*std::move(plan), std::move(options));
}

inline std::vector<base::Tensor> Made(absl::StatusOr<RequestMaker> maker,
                               int64_t items) {
  EXPECT_TRUE(maker.ok()) << maker.status();
  if (!maker.ok()) return {};
  auto tensors = maker->Make(items);
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  return tensors.ok() ? *std::move(tensors) : std::vector<base::Tensor>();
}

inline std::vector<int64_t> Ints(const base::Tensor& tensor) {
  const auto span = tensor.view().as<int64_t>();
  return {span.begin(), span.end()};
}

// 26 bags and 13 dense features, tables of 1000 rows.
inline ServedModel CriteoModel() {
  ServedModel model{.name = "m",
                    .inputs = {{"dense", kFloat, {-1, 13}}},
                    .parameters = {{"batch_symbol", "s0"}}};
  model.parameters["shape.dense"] = "s0;13";
  for (int i = 0; i < 26; ++i) {
    const std::string ids = absl::StrCat("ids_", i);
    const std::string offsets = absl::StrCat("offsets_", i);
    model.inputs.push_back({ids, kInt64, {-1}});
    model.inputs.push_back({offsets, kInt64, {-1}});
    model.parameters["ids." + ids] = "table=t rows=1000";
    model.parameters["bags." + offsets] =
        absl::StrCat("ids=", ids, " include_last=true");
    model.parameters["shape." + ids] = absl::StrCat("n", i);
    model.parameters["shape." + offsets] = "s0 + 1";
  }
  return model;
}

inline std::vector<CriteoRow> ThreeRows() {
  std::vector<CriteoRow> rows(3);
  for (uint32_t r = 0; r < 3; ++r) {
    rows[r].dense[12] = static_cast<float>(r);
    rows[r].categories[25] = 5000 + r;
  }
  return rows;
}

}  // namespace refract::loadgen

#endif  // REFRACT_TESTS_TOOLS_LOADGEN_MADE_REQUESTS_H_

#ifndef REFRACT_TESTS_RUNTIME_FUSION_EXPECT_FUSED_H_
#define REFRACT_TESTS_RUNTIME_FUSION_EXPECT_FUSED_H_

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/testing/expect_right.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime::testing {

// Compares the whole with LibTorch, and with every cut in two and in three.
inline void ExpectFused(GraphBuilder& builder,
                        const std::vector<base::Tensor>& inputs,
                        float tolerance) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  ExpectLibTorchs(builder, inputs, tolerance);
  ExpectCutsChangeNothing(builder, inputs);
}

}  // namespace refract::runtime::testing

#endif  // REFRACT_TESTS_RUNTIME_FUSION_EXPECT_FUSED_H_

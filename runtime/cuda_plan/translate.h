#ifndef REFRACT_RUNTIME_CUDA_PLAN_TRANSLATE_H_
#define REFRACT_RUNTIME_CUDA_PLAN_TRANSLATE_H_

// From a compiled part of a graph to a program for a GPU (runtime/cuda).
//
// The graph compiler's steps, constants folded and neighbours merged, become
// operators of the device: products with weights go to cuBLASLt with bias and
// ReLU in their epilogue, dot interactions of all pairs and concatenations use
// the device's own forms, everything else the kernels over strided tensors.
// Views, slices, permutations and broadcasts are strides and cost nothing; the
// operator that computes a part of a concatenation writes it to its final
// place.
//
// Operators without a device form become foreign operators, if there is a maker
// of these (TranslateOptions::foreign). A foreign operator gets the rows of one
// request alone, so that it may mix them.
//
// Sizes that depend on something else than the batch (free_sizes.h) are fixed
// in a program: a Translator makes one for each combination that requests
// bring. With TranslateOptions::fix_batch the batch is fixed as well: rows then
// are a dimension like any other, and may mix. The number of entries of a bag is
// not among these sizes: a program has room for a largest number (bags.h).
//
// A part that cannot be translated is refused by name, never run wrongly: for
// operators without a kernel on the device, sizes that depend on data, types
// other than float32, float16, bfloat16, int32, int64 and bool. Integers are
// exact. In our own kernels rows of a batch that is not fixed do not mix.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"
#include "runtime/cuda/instance/instance.h"
#include "runtime/cuda/program/device_program.h"
#include "runtime/cuda_plan/bags.h"
#include "runtime/cuda_plan/foreign.h"
#include "runtime/cuda_plan/free_sizes.h"
#include "runtime/program.h"

namespace refract::runtime::cuda_plan {

// Precision of a model's arithmetic on a GPU. Sums are float32 in all of them.
enum class Precision : uint8_t {
  kFloat32,
  kTf32,  // float32 data; factors of products rounded to 10 bits of mantissa
  kFloat16,
  kBFloat16,
};
// "fp32", "tf32", "fp16", "bf16".
const char* Name(Precision precision);

struct TranslateOptions {
  std::string model;   // for messages: "dlrm"
  std::string device;  // "cuda:0"
  Precision precision = Precision::kFloat32;
  // Largest batch, for which buffers are planned. ≥ 1. A program of a part with
  // other free sizes is checked for a batch of 1 only: memory for rows depends
  // on those sizes.
  int64_t max_batch = 1024;
  // The largest value of a free size, if the model does not declare it. ≥ 1.
  int64_t max_size = 1024;
  // Whether the batch is a free size, too, of `max_batch` and `max_size` at
  // most: for parts whose rows may depend on each other.
  bool fix_batch = false;
  // Memory of the entries of a request's bags, bytes, all tables together. Room
  // is reserved for the number of ids that the model declares, or `max_size`
  // per row of the largest batch, up to this limit.
  int64_t entry_memory = int64_t{64} << 20;
  CompileOptions compile;
  // Makes kernels for operators without a form of our own; the kernels must
  // work after its destruction. Null: these operators are refused.
  ForeignOperators* foreign = nullptr;
};

struct Translation {
  cuda::DeviceProgram program;
  // Weights of the program. Their memory is that of the model's weight files,
  // or of `owned`.
  std::vector<cuda::WeightData> weights;
  // Per input of the program, its index among the part's inputs. Inputs that
  // nothing on the device reads, and sizes, are missing.
  std::vector<int> inputs;
  // Per output of the part, the program's output.
  std::vector<int> outputs;
  // Bags that requests bring with any number of entries: their inputs have
  // neither a row per item nor a row for all.
  std::vector<BagRoom> bags;
  // Per input of the program, whether it belongs to bags.
  std::vector<bool> is_of_bags;
  // Checks of all bags.
  std::vector<BagCheck> bag_checks;
  // Lines for logs: the device form of each step.
  std::vector<std::string> steps;
  // Owns memory of weights.
  std::shared_ptr<const void> owned;
};

// The programs of a part. The graph must outlive the Translator, and the
// objects of Create() must outlive the translations. Not thread-safe.
class Translator {
 public:
  // Compiles the part. Errors as Program::Compile, and Unimplemented for a size
  // that inputs do not show.
  static absl::StatusOr<std::unique_ptr<Translator>> Create(
      const models::Graph& graph, const Part& part,
      std::shared_ptr<const models::WeightStore> weights,
      TranslateOptions options);
  // For a user that runs each request alone and whole, of any size up to
  // `max_size`: with the batch fixed, if the part's rows are not independent
  // (`rows_alone`) and it cannot be translated otherwise. `max_batch` is the
  // limit of a batch that is not fixed.
  static absl::StatusOr<std::unique_ptr<Translator>> CreateForSingleRequests(
      const models::Graph& graph, const Part& part,
      std::shared_ptr<const models::WeightStore> weights,
      const TranslateOptions& options, bool rows_alone);
  ~Translator();

  const FreeSizes& sizes() const { return sizes_; }
  // Without the program's inputs.
  const std::vector<BagRoom>& bags() const { return rooms_; }
  // The program at these values of sizes(). Equal weights of two programs have
  // equal addresses (Translation::weights); the program of the largest sizes
  // has all weights that others need, except forms that only others use, so
  // make it first. Unimplemented as Translate() below.
  absl::StatusOr<Translation> Translate(const SizeValues& values);

 private:
  struct Kept;
  Translator(const models::Graph& graph, TranslateOptions options);

  const models::Graph& graph_;
  const TranslateOptions options_;
  FreeSizes sizes_;
  std::vector<BagRoom> rooms_;
  // Shared with translations.
  std::shared_ptr<Kept> kept_;
};

// The only program of a part whose sizes depend on the batch alone.
// Unimplemented: "operator aten.sort.default (node sort_1) of model m cannot
// run on cuda:0: …". Otherwise as Program::Compile.
absl::StatusOr<Translation> Translate(
    const models::Graph& graph, const Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const TranslateOptions& options);

}  // namespace refract::runtime::cuda_plan

#endif  // REFRACT_RUNTIME_CUDA_PLAN_TRANSLATE_H_

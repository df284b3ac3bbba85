#ifndef REFRACT_GPU_NODE_DEVICE_CUDA_PROGRAMS_H_
#define REFRACT_GPU_NODE_DEVICE_CUDA_PROGRAMS_H_

// The programs of a model on a GPU: one, or, where sizes besides the batch
// differ between requests, one per combination that requests bring, made when
// it is first seen. So many are kept; the one that was used longest ago goes.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "runtime/cuda/instance/instance.h"
#include "runtime/cuda_plan/translate.h"

namespace refract::gpu_node {

// Not thread-safe.
class CudaPrograms {
 public:
  struct Options {
    int64_t max_rows = 1024;
    int instances = 1;
    int num_slots = 2;
    int64_t workspace_bytes = int64_t{32} << 20;
    // What an instance reserves for inputs, results and intermediates of a
    // model with other sizes, at the largest of these: as many rows as fit, at
    // least one. Of a model with bags half of it is for their entries. Bytes.
    int64_t sized_memory = int64_t{256} << 20;
    // Programs of such a model, beside that of its largest sizes.
    size_t max_programs = 64;
  };

  // Translates the part at its largest sizes. The graph must outlive it. Errors
  // as runtime::cuda_plan::Translator.
  static absl::StatusOr<std::unique_ptr<CudaPrograms>> Create(
      const models::Graph& graph, const runtime::Part& part,
      std::shared_ptr<const models::WeightStore> weights,
      const runtime::cuda_plan::TranslateOptions& translate,
      const Options& options);

  // Of the largest sizes: what instances are made with.
  const runtime::cuda_plan::Translation& first() const {
    return first_->translation;
  }
  runtime::cuda::InstanceOptions instance_options() const;
  const runtime::cuda_plan::FreeSizes& sizes() const {
    return translator_->sizes();
  }
  // Of requests that a warm-up makes.
  runtime::cuda_plan::SizeValues TypicalSizes() const;
  // For logs: "steps up to 1024 (not declared), 16 rows at that", "up to 900
  // entries in the bags of input 'ids'"; empty without other sizes and bags.
  std::string Describe() const;

  // What a request executes with.
  struct Use {
    const runtime::cuda_plan::Translation* translation = nullptr;
    runtime::cuda::VariantId id = runtime::cuda::kFirstProgram;
    int64_t max_rows = 0;
    // Every input and output has rows, or (an input) is the same for all rows,
    // so that requests may be put together and cut.
    bool by_rows = false;
  };
  // The program at `values` (of sizes()), in instance number `index`. Valid
  // while a slot is in use with it, or until the next call. Of the request are
  // Unimplemented and ResourceExhausted; an error of the device leaves the
  // instance failed.
  absl::StatusOr<Use> At(const runtime::cuda_plan::SizeValues& values,
                         size_t index, runtime::cuda::Instance& instance);
  // How many programs there are now, the first one included.
  size_t size() const { return programs_.size() + 1; }

 private:
  // In one instance.
  struct Held {
    runtime::cuda::Instance* instance = nullptr;
    uint64_t loads = 0;  // when it was added
    runtime::cuda::VariantId id = -1;
    // Whether it is still there.
    bool there() const { return id >= 0 && instance->loads() == loads; }
  };
  struct One {
    runtime::cuda_plan::Translation translation;
    bool by_rows = false;
    uint64_t last_use = 0;
    std::vector<Held> held;  // per instance
  };

  CudaPrograms(std::unique_ptr<runtime::cuda_plan::Translator> translator,
               const Options& options);
  absl::StatusOr<std::unique_ptr<One>> Make(
      const runtime::cuda_plan::SizeValues& values);
  // Makes room for one more.
  void DropOldest();

  const std::unique_ptr<runtime::cuda_plan::Translator> translator_;
  const Options options_;
  std::unique_ptr<One> first_;
  int64_t first_rows_ = 0;
  // Has bags whose entries are neither rows nor inputs that there is room for.
  bool goes_whole_ = false;
  std::map<runtime::cuda_plan::SizeValues, std::unique_ptr<One>> programs_;
  uint64_t uses_ = 0;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_DEVICE_CUDA_PROGRAMS_H_

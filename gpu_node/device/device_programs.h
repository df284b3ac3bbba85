#ifndef REFRACT_GPU_NODE_DEVICE_DEVICE_PROGRAMS_H_
#define REFRACT_GPU_NODE_DEVICE_DEVICE_PROGRAMS_H_

// The device programs of a model on a GPU. A model whose requests differ in the
// batch alone has one program. Otherwise each combination of sizes has its own
// program, which is translated when a request first brings the combination;
// beyond Options::max_programs the least recently used program is dropped.

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
class DevicePrograms {
 public:
  struct Options {
    int64_t max_rows = 1024;
    int instances = 1;
    int num_slots = 2;
    int64_t workspace_bytes = int64_t{32} << 20;
    // Memory that an instance reserves for inputs, results and intermediates of
    // a model with other sizes: as many rows of the largest sizes as fit, at
    // least one. A model with bags uses half of it for bag entries. Bytes.
    int64_t sized_memory = int64_t{256} << 20;
    // Most programs of such a model, besides the program of its largest sizes.
    size_t max_programs = 64;
  };

  // Translates the part at its largest sizes. The graph must outlive the
  // programs. Errors as runtime::cuda_plan::Translator.
  static absl::StatusOr<std::unique_ptr<DevicePrograms>> Create(
      const models::Graph& graph, const runtime::Part& part,
      std::shared_ptr<const models::WeightStore> weights,
      const runtime::cuda_plan::TranslateOptions& translate,
      const Options& options);

  // The program of the largest sizes; instances are created with it.
  const runtime::cuda_plan::Translation& first() const {
    return first_->translation;
  }
  runtime::cuda::InstanceOptions instance_options() const;
  const runtime::cuda_plan::FreeSizes& sizes() const {
    return translator_->sizes();
  }
  // Sizes for warm-up requests.
  runtime::cuda_plan::SizeValues TypicalSizes() const;
  // For logs: "steps up to 1024 (not declared), 16 rows at that", "up to 900
  // entries in the bags of input 'ids'"; empty without other sizes and bags.
  std::string Describe() const;

  // The program for a request.
  struct Use {
    const runtime::cuda_plan::Translation* translation = nullptr;
    runtime::cuda::VariantId id = runtime::cuda::kFirstProgram;
    int64_t max_rows = 0;
    // Every output has rows, and every input has rows or is the same for all
    // rows, so that requests may be merged and cut.
    bool by_rows = false;
  };
  // The program at `values` (of sizes()) in instance number `index`. Valid
  // while a slot uses it, or until the next call. Unimplemented and
  // ResourceExhausted are errors of the request; an error of the device leaves
  // the instance failed.
  absl::StatusOr<Use> At(const runtime::cuda_plan::SizeValues& values,
                         size_t index, runtime::cuda::Instance& instance);
  // Number of programs now, first() included.
  size_t size() const { return programs_.size() + 1; }

 private:
  // A program in one instance.
  struct Held {
    runtime::cuda::Instance* instance = nullptr;
    uint64_t loads = 0;  // instance's load count when added
    runtime::cuda::VariantId id = -1;
    // Whether the instance still has the program.
    bool there() const { return id >= 0 && instance->loads() == loads; }
  };
  struct Entry {
    runtime::cuda_plan::Translation translation;
    bool by_rows = false;
    uint64_t last_use = 0;
    std::vector<Held> held;  // per instance
  };

  DevicePrograms(std::unique_ptr<runtime::cuda_plan::Translator> translator,
                 const Options& options);
  absl::StatusOr<std::unique_ptr<Entry>> Make(
      const runtime::cuda_plan::SizeValues& values);
  // Makes room for one more program.
  void DropOldest();

  const std::unique_ptr<runtime::cuda_plan::Translator> translator_;
  const Options options_;
  std::unique_ptr<Entry> first_;
  int64_t first_rows_ = 0;
  // Has bags whose entries are neither rows nor inputs with reserved room.
  bool goes_whole_ = false;
  std::map<runtime::cuda_plan::SizeValues, std::unique_ptr<Entry>> programs_;
  uint64_t uses_ = 0;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_DEVICE_DEVICE_PROGRAMS_H_

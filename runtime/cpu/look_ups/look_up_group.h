#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_LOOK_UP_GROUP_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_LOOK_UP_GROUP_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// A member of a group of look-ups. Operands and results of members follow each
// other in the members' order.
struct LookUpMember {
  std::string node;  // for errors
  // Kernel::look_up() is not null.
  std::unique_ptr<const Kernel> kernel;
  size_t num_operands = 0;
  size_t num_outputs = 0;
};

// Matrices side by side, some of which are results of look-ups that nothing
// else reads. These results are written directly to their columns.
struct LookUpCat {
  std::string node;
  struct Part {
    int member = -1;   // its first result
    int operand = -1;  // or an operand of the step, behind the members'
  };
  std::vector<Part> parts;
};

// Independent look-ups as one kernel (RunLookUps). Errors of sizes name the
// node.
class LookUpGroup final : public Kernel {
 public:
  explicit LookUpGroup(std::vector<LookUpMember> members);

  // The members of `group`, which has no cat; the result of `cat` follows
  // theirs.
  LookUpGroup(const LookUpGroup& group, LookUpCat cat);
  const std::vector<LookUpMember>& members() const { return *members_; }

  absl::string_view name() const override { return name_; }
  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override;
  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats& stats) const override;

 private:
  absl::Status InferCat(const Operands& operands,
                        absl::Span<KernelOutput> outputs) const;
  // Dims of part `i`.
  const base::Dims& DimsOf(const Operands& operands,
                           absl::Span<const KernelOutput> outputs,
                           size_t i) const;

  // Shared with the group that a cat was added to.
  std::shared_ptr<const std::vector<LookUpMember>> members_;
  std::vector<size_t> first_output_;  // of each member
  std::optional<LookUpCat> cat_;
  std::string name_;
};

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_LOOK_UP_GROUP_H_

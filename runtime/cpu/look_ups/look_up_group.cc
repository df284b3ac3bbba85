#include "runtime/cpu/look_ups/look_up_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/container/fixed_array.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/look_ups/look_up.h"

namespace refract::runtime::cpu {
namespace {

// Members that run as one stream; larger groups run in pieces.
constexpr size_t kMembersAtOnce = 64;

// Copies `count` rows of `bytes` into columns of rows that are `stride` apart.
void CopyColumns(const std::byte* from, int64_t count, size_t bytes,
                 size_t stride, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to, from, bytes);
    from += bytes;
    to += stride;
  }
}

}  // namespace

LookUpGroup::LookUpGroup(std::vector<LookUpMember> members)
    : members_(std::make_shared<const std::vector<LookUpMember>>(
          std::move(members))),
      name_(absl::StrCat("look_ups/", members_->size())) {
  size_t next = 0;
  for (const LookUpMember& member : *members_) {
    first_output_.push_back(next);
    next += member.num_outputs;
  }
  first_output_.push_back(next);
}

LookUpGroup::LookUpGroup(const LookUpGroup& group, LookUpCat cat)
    : members_(group.members_),
      first_output_(group.first_output_),
      cat_(std::move(cat)),
      name_(absl::StrCat(group.name_, "+cat")) {}

absl::Status LookUpGroup::Infer(const Operands& operands,
                                absl::Span<KernelOutput> outputs) const {
  size_t first = 0;
  for (size_t m = 0; m < members_->size(); ++m) {
    const LookUpMember& member = (*members_)[m];
    const absl::Status status = member.kernel->Infer(
        operands.Part(first, member.num_operands),
        outputs.subspan(first_output_[m], member.num_outputs));
    if (!status.ok()) return base::Annotate(status, member.node);
    first += member.num_operands;
  }
  return cat_ ? InferCat(operands, outputs) : absl::OkStatus();
}

const base::Dims& LookUpGroup::DimsOf(const Operands& operands,
                                      absl::Span<const KernelOutput> outputs,
                                      size_t i) const {
  const LookUpCat::Part& part = cat_->parts[i];
  return part.member >= 0 ? outputs[first_output_[part.member]].spec.dims
                          : operands[part.operand].tensor.dims;
}

absl::Status LookUpGroup::InferCat(const Operands& operands,
                                   absl::Span<KernelOutput> outputs) const {
  base::TensorSpec& spec = outputs[first_output_.back()].spec;
  spec.dtype = base::DType::kFloat32;
  const int64_t rows = DimsOf(operands, outputs, 0)[0];
  int64_t columns = 0;
  for (size_t i = 0; i < cat_->parts.size(); ++i) {
    const base::Dims& dims = DimsOf(operands, outputs, i);
    if (dims[0] != rows) {
      return absl::InvalidArgumentError(
          absl::StrCat(cat_->node, ": tensor ", i, " is ",
                       base::DimsToString(dims), ", which does not fit ",
                       base::DimsToString(DimsOf(operands, outputs, 0))));
    }
    columns += dims[1];
  }
  spec.dims = {rows, columns};
  return absl::OkStatus();
}

absl::Status LookUpGroup::Run(const Operands& operands,
                              absl::Span<const KernelOutput> outputs,
                              RunStats& stats) const {
  // Destinations of the members: their own results, or columns of the cat's.
  absl::FixedArray<LookUp, kMembersAtOnce> look_ups(
      std::min(kMembersAtOnce, members_->size()));
  const KernelOutput* const joined =
      cat_ ? &outputs[first_output_.back()] : nullptr;
  const int64_t stride =
      joined == nullptr
          ? 0
          : joined->spec.dims[1] * static_cast<int64_t>(sizeof(float));
  // Byte of each part in a row of the cat.
  std::array<int64_t, kMembersAtOnce> columns;
  size_t first_operand = 0;
  int64_t prefetched = 0;
  // Members are described and run in pieces of kMembersAtOnce. Each piece finds
  // the columns of its own members in the row of the cat.
  for (size_t first = 0; first < members_->size(); first += kMembersAtOnce) {
    const size_t count = std::min(kMembersAtOnce, members_->size() - first);
    columns.fill(-1);
    if (joined != nullptr && joined->data != nullptr) {
      int64_t column = 0;
      for (size_t i = 0; i < cat_->parts.size(); ++i) {
        const int member = cat_->parts[i].member - static_cast<int>(first);
        if (cat_->parts[i].member >= 0 && member >= 0 &&
            member < static_cast<int>(count)) {
          columns[static_cast<size_t>(member)] = column;
        }
        column += DimsOf(operands, outputs, i)[1] *
                  static_cast<int64_t>(sizeof(float));
      }
    }
    for (size_t m = 0; m < count; ++m) {
      const LookUpMember& member = (*members_)[first + m];
      LookUp& look_up = look_ups[m];
      if (first > 0) look_up = LookUp();
      const absl::Status described = member.kernel->look_up()->Describe(
          operands.Part(first_operand, member.num_operands), look_up);
      if (!described.ok()) {
        // A wrong id of an earlier member goes first, as if the members ran one
        // after the other.
        REFRACT_RETURN_IF_ERROR(
            CheckIds(absl::MakeConstSpan(look_ups).first(m)));
        return described;
      }
      prefetched = PrefetchFirst(look_up, prefetched);
      first_operand += member.num_operands;
      if (columns[m] >= 0) {
        look_up.out = joined->data + columns[m];
        look_up.out_stride = stride;
      } else {
        look_up.out = outputs[first_output_[first + m]].data;
        look_up.out_stride =
            look_up.dim * static_cast<int64_t>(base::SizeOf(look_up.dtype));
      }
    }
    REFRACT_RETURN_IF_ERROR(RunLookUps({look_ups.data(), count}, stats));
  }
  // Look-ups have written their columns; operands that are no look-ups follow.
  if (joined == nullptr || joined->data == nullptr) return absl::OkStatus();
  size_t column = 0;
  for (size_t i = 0; i < cat_->parts.size(); ++i) {
    const size_t bytes =
        static_cast<size_t>(DimsOf(operands, outputs, i)[1]) * sizeof(float);
    if (cat_->parts[i].operand >= 0) {
      CopyColumns(operands[cat_->parts[i].operand].tensor.data,
                  joined->spec.dims[0], bytes, static_cast<size_t>(stride),
                  joined->data + column);
    }
    column += bytes;
  }
  return absl::OkStatus();
}

}  // namespace refract::runtime::cpu

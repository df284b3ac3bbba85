#ifndef REFRACT_CPU_NODE_HTTP_JSON_ELEMENTS_H_
#define REFRACT_CPU_NODE_HTTP_JSON_ELEMENTS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/process/byte_budget.h"
#include "base/tensor.h"

namespace refract::cpu_node {

// Elements of a tensor in JSON, kept as read: `data` may precede `datatype`.
// Takes eight bytes per element; values of a JSON library take 16 and more.
class JsonElements {
 public:
  // `memory` must outlive the elements.
  explicit JsonElements(base::ByteBudget& memory) : memory_(&memory) {}

  // InvalidArgument: booleans mixed with numbers. ResourceExhausted: `memory`
  // is used up. Integers beside fractions become doubles.
  absl::Status Add(bool value) {
    return Push(Kind::kBool, static_cast<uint64_t>(value));
  }
  absl::Status Add(int64_t value) {
    if (kind_ == Kind::kFloat) return Add(static_cast<double>(value));
    return Push(Kind::kInteger, std::bit_cast<uint64_t>(value));
  }
  absl::Status Add(double value) {
    if (kind_ == Kind::kInteger) ToFloats();
    return Push(Kind::kFloat, std::bit_cast<uint64_t>(value));
  }

  size_t size() const { return words_.size(); }

  // InvalidArgument continues a sentence that begins with the tensor: wrong
  // number of elements, or elements outside the datatype.
  absl::StatusOr<base::Tensor> ToTensor(const base::TensorSpec& spec) const;

 private:
  enum class Kind : uint8_t { kNone, kBool, kInteger, kFloat };

  absl::Status Push(Kind kind, uint64_t word) {
    if (kind_ != kind && kind_ != Kind::kNone) return Mixed();
    kind_ = kind;
    if (words_.size() == words_.capacity()) {
      if (absl::Status grown = Grow(); !grown.ok()) return grown;
    }
    words_.push_back(word);
    return absl::OkStatus();
  }
  static absl::Status Mixed();
  absl::Status Grow();
  void ToFloats();
  template <typename To>
  absl::Status CopyTo(absl::Span<To> out) const;

  base::ByteBudget* memory_;
  Kind kind_ = Kind::kNone;
  std::vector<uint64_t> words_;  // the bits of an int64, a double or a bool
  base::ByteBudget::Hold hold_;  // of words_
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_HTTP_JSON_ELEMENTS_H_

#ifndef REFRACT_MODELS_REPOSITORY_WIRE_FORM_H_
#define REFRACT_MODELS_REPOSITORY_WIRE_FORM_H_

// The form in which a tensor crosses between the nodes. A plan chooses a form
// for each value that crosses; runtime/wire encodes and decodes,
// docs/design/wire_format.md has the bytes.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"

namespace refract::models {

// Type of the elements. The numbers are stored in plans and part of the schema
// on which nodes agree: never renumber.
enum class WireType : uint8_t {
  kAsIs = 0,      // as in memory
  kFloat16 = 1,   // lossy; of float32 and float64
  kBFloat16 = 2,  // lossy; of float32 and float64
  kInt8 = 3,      // lossy; per row of the last dimension, with scale and offset
  kInt32 = 4,     // of int64; tensors with an element that does not fit go as
                  // they are, so nothing is lost
};
inline constexpr int kNumWireTypes = 5;

// Properties of a wire type besides its encoding (runtime/wire/elements.cc).
struct WireTypeRecord {
  absl::string_view name;  // "fp32" for kAsIs: most tensors are float32
  bool lossy = false;
  // Not 0: elements are encoded in rows of the last dimension, and this many
  // bytes follow each row.
  int64_t row_extra = 0;
  // Whether some values of its dtypes do not fit the type. A tensor with such a
  // value is sent plain.
  bool may_not_fit = false;
};
const WireTypeRecord& RecordOf(WireType type);
inline absl::string_view Name(WireType type) { return RecordOf(type).name; }
std::optional<WireType> WireTypeFromName(absl::string_view name);
std::vector<WireType> LossyWireTypes();
std::vector<absl::string_view> LossyWireNames();

struct WireForm {
  WireType type = WireType::kAsIs;
  // Rows (of the first dimension) that are equal, bit by bit, are sent once,
  // with an index per row, in requests where that is smaller. Lossless.
  bool unique_rows = false;

  bool is_plain() const { return type == WireType::kAsIs && !unique_rows; }
  // Whether the number of bytes of a tensor depends on its values.
  bool size_depends_on_data() const {
    return unique_rows || RecordOf(type).may_not_fit;
  }
  friend bool operator==(const WireForm&, const WireForm&) = default;
};

// Bytes behind each row of WireType::kInt8: scale and offset, both float32.
inline constexpr int64_t kInt8RowExtra = 8;

// OK, or why `value` cannot cross in `form`: InvalidArgument names it. Unique
// rows, and types that are encoded in rows, need a known rank of at least 1,
// both together of 2.
absl::Status CheckWireForm(const Value& value, WireForm form);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_WIRE_FORM_H_

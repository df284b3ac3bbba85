#ifndef REFRACT_RUNTIME_WIRE_CODEC_H_
#define REFRACT_RUNTIME_WIRE_CODEC_H_

// Conversion between values that cross and the tensors of their message
// (docs/design/wire_format.md, "Values in messages"). Independent of the
// transport: messages are views and addresses.
//
// A value is one tensor of the message and, if the plan allows unique rows, a
// second one, its index. A message itself shows how each value was sent, within
// the plan's limits.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/wire_form.h"

namespace refract::runtime::wire {

// A few bytes of index can expand to any number of rows. This limits the
// expanded bytes of one message, with 4 bytes counted per row: the longest
// message (64 MiB) with each row repeated eight times. Senders use no index
// beyond it.
inline constexpr size_t kMaxExpandedBytes = size_t{512} << 20;
inline constexpr size_t kExpandedRowExtra = sizeof(int32_t);

// The values that cross in one direction. Immutable and thread-safe.
class Codec {
 public:
  // `forms` as in SplitPlan: empty or one per id, and legal (ValidatePlan).
  Codec(const models::Graph& graph, absl::Span<const models::ValueId> ids,
        absl::Span<const models::WireForm> forms);

  struct Value {
    std::string name;
    base::DType dtype = base::DType::kUnknown;
    models::WireForm form;
    size_t tensor = 0;  // index of its first tensor in a message
  };
  const std::vector<Value>& values() const { return values_; }
  size_t num_tensors() const { return num_tensors_; }

  // All values are sent unchanged: their views are the message's tensors.
  bool plain() const { return plain_; }
  // The shapes of a message's tensors follow from the shapes of its values.
  bool sizes_known() const { return sizes_known_; }

  // The tensors of a message, in the memory of `specs`, whose contents are
  // overwritten. Only if sizes_known().
  std::vector<base::TensorSpec> MessageSpecs(
      absl::Span<const base::TensorSpec> values,
      std::vector<base::TensorSpec> specs = {}) const;

  // Views of the values of a message before it is decoded, with or without its
  // payload (see transport::RequestDescriptor): values sent unchanged, and
  // dtype and dims of the others. A dimension 0 that only the payload shows is
  // -1. Empty: not a message of this codec. Nothing is checked, and a hostile
  // peer may still change the payload: only Decode() validates. In the memory
  // of `views`, whose contents are overwritten.
  std::vector<base::TensorView> Peek(
      absl::Span<const base::TensorView> message,
      std::vector<base::TensorView> views = {}) const;

 private:
  std::vector<Value> values_;
  size_t num_tensors_ = 0;
  bool plain_ = true;
  bool sizes_known_ = true;
};

// The distinct rows of one tensor, and the index that restores all rows.
struct UniqueRows {
  int64_t num_rows = 0;
  std::vector<int32_t> first;  // per distinct row: its first occurrence
  // Per row: its distinct row. With `runs`, where that is shorter: pairs of a
  // distinct row and the length of its run.
  base::DType index_dtype = base::DType::kUnknown;
  bool runs = false;
  std::vector<int32_t> index;

  base::TensorSpec index_spec() const;
  // Whether distinct rows of `row_bytes` and the index, both padded, are
  // shorter than all rows. An index is used only then.
  bool Shortens(size_t row_bytes) const;
};

// Finds equal rows. Keeps its memory from one tensor to the next. Not
// thread-safe.
class UniqueRowFinder {
 public:
  // Compares the rows of `tensor` (dimension 0) bit by bit. Distinct rows are
  // in order of first appearance. Rank at least 1, at most 2^31 - 1 rows.
  // `rows` is overwritten and keeps its memory.
  void Find(const base::TensorView& tensor, UniqueRows& rows);
  // The same for rows that need not be equally long.
  void Find(absl::Span<const absl::string_view> rows, UniqueRows& result);

 private:
  std::vector<absl::string_view> rows_;  // of a tensor
  std::vector<int32_t> slots_;  // a hash table of distinct rows
  std::vector<int32_t> pairs_;
};
UniqueRows FindUniqueRows(const base::TensorView& tensor);

// Bytes of a row (all dimensions but the first) of `spec` in wire form `type`;
// rank at least 1, for kInt8 at least 2.
size_t WireRowBytes(const base::TensorSpec& spec, models::WireType type);

// Turns values into messages, one message at a time. Not thread-safe. Allocates
// nothing once it has had values of these sizes and ranks of at most 6.
class Encoder {
 public:
  // `codec` must outlive it.
  explicit Encoder(const Codec& codec) : codec_(codec) {}

  // Chooses how each value is sent and returns the message's tensors. `values`
  // must not change until Write(). Valid until the next call. InvalidArgument:
  // not the values of the codec.
  absl::StatusOr<absl::Span<const base::TensorSpec>> Prepare(
      absl::Span<const base::TensorView> values);
  // The same for values of which equal rows are known: a value with an index
  // has its distinct rows only, in the order of the index; null: all rows,
  // which are sent. No form may be one that does not fit every element (int32).
  // `values` need no data before SetValues().
  absl::StatusOr<absl::Span<const base::TensorSpec>> Prepare(
      absl::Span<const base::TensorView> values,
      absl::Span<const UniqueRows* const> indexes);
  // The prepared values, with their data.
  void SetValues(absl::Span<const base::TensorView> values) {
    values_.assign(values.begin(), values.end());
  }

  // Writes the tensors to their addresses, aligned to base::kTensorAlignBytes.
  // A value that already lies at its address is not copied.
  void Write(absl::Span<std::byte* const> tensors);
  // The same, with `place_of(i)` as the address of tensor i.
  template <typename PlaceOf>
  void WriteTo(const PlaceOf& place_of) {
    places_.clear();
    for (size_t i = 0; i < specs_.size(); ++i) places_.push_back(place_of(i));
    Write(places_);
  }

 private:
  struct Choice {
    models::WireType type = models::WireType::kAsIs;
    const UniqueRows* index = nullptr;  // null: all rows are sent
    bool all_rows = true;  // the value has them: those of the index are picked
    UniqueRows rows;       // the index, where Prepare() found it
  };
  absl::Status CheckForm(const Codec::Value& value,
                         const base::TensorView& view) const;
  void AddSpecs(const Codec::Value& value, const base::TensorView& view,
                const Choice& choice);
  void WriteValue(const base::TensorView& value, const Choice& choice,
                  std::byte* to);

  const Codec& codec_;
  std::vector<base::TensorView> values_;
  std::vector<Choice> choices_;  // of each value
  std::vector<base::TensorSpec> specs_;
  std::vector<std::byte*> places_;
  UniqueRowFinder finder_;
  std::vector<float> floats_;  // see EncodeElements()
};

// Turns messages into values. Not thread-safe. Allocates nothing once it has
// had messages of these sizes and ranks of at most 6.
class Decoder {
 public:
  // `codec` must outlive it.
  explicit Decoder(const Codec& codec) : codec_(codec) {}

  // The values, valid until the next call. A value sent unchanged is a view of
  // the message's memory and as stable as that; decoded values are private
  // copies. `message` is untrusted and may even be written meanwhile.
  // InvalidArgument names the value whose encoding contradicts the plan; the
  // computing code checks shapes.
  absl::StatusOr<absl::Span<const base::TensorView>> Decode(
      absl::Span<const base::TensorView> message);

 private:
  // How one value of the current message is decoded.
  struct Job {
    models::WireType type = models::WireType::kAsIs;
    bool indexed = false;
    int64_t rows_sent = 0;
    base::Dims sent;             // decoded dims of the sent rows
    std::vector<int32_t> index;  // per row
    size_t offset = 0;           // in buffer_
  };
  // `budget`: remaining bytes of expanded rows.
  absl::Status Check(const Codec::Value& value,
                     absl::Span<const base::TensorView> message, Job& job,
                     base::TensorView& view, size_t& budget);
  absl::Status ReadIndex(const Codec::Value& value,
                         const base::TensorView& tensor, size_t row_bytes,
                         Job& job, size_t& budget);
  void Write(const Codec::Value& value, const base::TensorView& sent,
             const Job& job, base::TensorView& view);

  const Codec& codec_;
  std::vector<base::TensorView> views_;
  std::vector<Job> jobs_;  // of each value
  std::vector<int32_t> per_row_;
  std::vector<float> floats_;  // see DecodeElements()
  base::AlignedBuffer buffer_;
  base::AlignedBuffer distinct_;  // rows before expansion
};

}  // namespace refract::runtime::wire

#endif  // REFRACT_RUNTIME_WIRE_CODEC_H_

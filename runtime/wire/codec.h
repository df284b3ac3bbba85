#ifndef REFRACT_RUNTIME_WIRE_CODEC_H_
#define REFRACT_RUNTIME_WIRE_CODEC_H_

// Between the values that cross and the tensors of the message that carries
// them (docs/wire_format.md, "Values in messages"). Knows nothing of
// transports: messages are views and places.
//
// A value is one tensor of the message, and a second one, its index, if the
// plan lets it have unique rows. A message says itself how each value was sent,
// within what the plan allows.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/wire_form.h"

namespace refract::runtime::wire {

// A few bytes of index stand for any number of rows, so what the rows of one
// message may grow to, with 4 bytes for each row, has a limit: enough for the
// longest message (64 MiB) with each row eight times. Senders do not use an
// index beyond it.
inline constexpr size_t kMaxExpandedBytes = size_t{512} << 20;
inline constexpr size_t kExpandedRowExtra = sizeof(int32_t);

// What crosses in one direction. Immutable and thread-safe.
class Codec {
 public:
  // `forms` as in SplitPlan: empty or one per id, and legal (ValidatePlan).
  Codec(const models::Graph& graph, absl::Span<const models::ValueId> ids,
        absl::Span<const models::WireForm> forms);

  struct Value {
    std::string name;
    base::DType dtype = base::DType::kUnknown;
    models::WireForm form;
    size_t tensor = 0;  // of a message: the first of this value
  };
  const std::vector<Value>& values() const { return values_; }
  size_t num_tensors() const { return num_tensors_; }

  // All values are sent as they are: their views are the message's.
  bool plain() const { return plain_; }
  // What a message's tensors look like follows from what its values look like.
  bool sizes_known() const { return sizes_known_; }

  // The tensors of a message, in the memory of `specs`, whose contents are
  // lost. Only if sizes_known().
  std::vector<base::TensorSpec> MessageSpecs(
      absl::Span<const base::TensorSpec> values,
      std::vector<base::TensorSpec> specs = {}) const;

  // What the values of a message look like, before it is decoded and whether
  // or not it is here (without data, see transport::RequestDescriptor): those
  // that are sent as they are, and of the others dtype and dims. A dimension 0
  // that only the data tells is -1. Empty: not a message of this codec. Nothing
  // is checked, and a hostile peer may change it: Decode() says what is true.
  // In the memory of `views`, whose contents are lost.
  std::vector<base::TensorView> Peek(
      absl::Span<const base::TensorView> message,
      std::vector<base::TensorView> views = {}) const;

 private:
  std::vector<Value> values_;
  size_t num_tensors_ = 0;
  bool plain_ = true;
  bool sizes_known_ = true;
};

// Rows of one tensor of which some are equal.
struct UniqueRows {
  std::vector<int32_t> first;  // per distinct row: where it is first
  // Per row: which distinct row it is; or, where that is shorter, pairs of a
  // distinct row and how often it follows itself.
  base::DType index_dtype = base::DType::kUnknown;
  bool runs = false;
  std::vector<int32_t> index;

  base::TensorSpec index_spec() const;
};

// Finds equal rows, in memory that it keeps from one tensor to the next. Not
// thread-safe.
class UniqueRowFinder {
 public:
  // Compares the rows of `tensor` bit by bit (dimension 0). Distinct rows are
  // in order of their first appearance. Rank at least 1, at most 2^31 - 1 rows.
  // `rows` is overwritten and keeps its memory.
  void Find(const base::TensorView& tensor, UniqueRows& rows);

 private:
  std::vector<int32_t> slots_;  // a hash table of distinct rows
  std::vector<int32_t> pairs_;
};
UniqueRows FindUniqueRows(const base::TensorView& tensor);

// Bytes of a row of a tensor like `spec` (all but dimension 0) in `type`; rank
// at least 1, for kInt8 at least 2.
size_t WireRowBytes(const base::TensorSpec& spec, models::WireType type);

// Turns values into messages, one after the other. Not thread-safe. Allocates
// nothing once it has had values of these sizes and ranks of at most 6.
class Encoder {
 public:
  // `codec` must outlive it.
  explicit Encoder(const Codec& codec) : codec_(codec) {}

  // Decides how each value goes and returns the message's tensors. `values`
  // must stay as they are until Write(). Valid until the next call.
  // InvalidArgument: not the values of the codec.
  absl::StatusOr<absl::Span<const base::TensorSpec>> Prepare(
      absl::Span<const base::TensorView> values);

  // Writes the tensors to their places, aligned to base::kTensorAlignBytes. A
  // value that already lies in its place stays.
  void Write(absl::Span<std::byte* const> tensors);
  // The same where `place_of(i)` is the place of tensor i.
  template <typename PlaceOf>
  void WriteTo(const PlaceOf& place_of) {
    places_.clear();
    for (size_t i = 0; i < specs_.size(); ++i) places_.push_back(place_of(i));
    Write(places_);
  }

 private:
  struct Choice {
    models::WireType type = models::WireType::kAsIs;
    bool unique = false;
    UniqueRows rows;
  };
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

  // The values, valid until the next call, or the message's own memory where a
  // value is sent as it is: then as stable as that. Values that were decoded
  // do not change any more. `message` is not trusted, and may even be written
  // to meanwhile. InvalidArgument names the value that is not encoded as the
  // plan says; shapes are checked by who computes with them.
  absl::StatusOr<absl::Span<const base::TensorView>> Decode(
      absl::Span<const base::TensorView> message);

 private:
  // How one value of the message at hand is to be decoded.
  struct Job {
    models::WireType type = models::WireType::kAsIs;
    bool indexed = false;
    int64_t rows_sent = 0;
    base::Dims sent;             // decoded dims of what was sent
    std::vector<int32_t> index;  // per row
    size_t offset = 0;           // in buffer_
  };
  // `budget`: how many bytes rows may still be repeated to.
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
  base::AlignedBuffer distinct_;  // rows before they are repeated
};

}  // namespace refract::runtime::wire

#endif  // REFRACT_RUNTIME_WIRE_CODEC_H_

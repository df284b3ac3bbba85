// Decoding of messages. The message is untrusted: all checks run before any
// memory is sized by it, and only private copies of index entries are used.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/wire/codec.h"
#include "runtime/wire/elements.h"

namespace refract::runtime::wire {
namespace {

using models::WireType;

absl::Status Broken(const Codec::Value& value, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("value '", value.name, "' of the message ", what));
}

std::string Describe(const base::TensorView& tensor) {
  return absl::StrCat(base::Name(tensor.dtype),
                      base::DimsToString(tensor.dims));
}

template <typename T>
void CopyIndex(const base::TensorView& tensor, std::vector<int32_t>& index) {
  // Only these copies are checked and used, because the peer can still write to
  // the message (see StableInputs).
  index.resize(tensor.bytes / sizeof(T));
  for (size_t i = 0; i < index.size(); ++i) {
    T entry;
    std::memcpy(&entry, tensor.data + i * sizeof(T), sizeof(T));
    index[i] = entry;
  }
}

}  // namespace

absl::Status Decoder::ReadIndex(const Codec::Value& value,
                                const base::TensorView& tensor,
                                size_t row_bytes, Job& job, size_t& budget) {
  const bool runs = tensor.dims.size() == 2;
  // An index of a few bytes may repeat a row any number of times. `budget` is
  // what is left of kMaxExpandedBytes for all values of the message.
  const size_t max_rows = budget / (row_bytes + kExpandedRowExtra);
  const auto too_long = [&] {
    return Broken(
        value, absl::StrCat("repeats its rows beyond the ", kMaxExpandedBytes,
                            " bytes of a message"));
  };
  if (runs && tensor.dtype == base::DType::kInt32 && tensor.dims[1] == 2) {
    CopyIndex<int32_t>(tensor, job.index);
  } else if (tensor.dims.size() == 1 && tensor.dims[0] <= INT32_MAX) {
    // Before the copy, which allocates.
    if (static_cast<size_t>(tensor.dims[0]) > max_rows) return too_long();
    switch (tensor.dtype) {
      case base::DType::kUInt8:
        CopyIndex<uint8_t>(tensor, job.index);
        break;
      case base::DType::kInt16:
        CopyIndex<int16_t>(tensor, job.index);
        break;
      case base::DType::kInt32:
        CopyIndex<int32_t>(tensor, job.index);
        break;
      default:
        return Broken(value,
                      absl::StrCat("has an index of ", Describe(tensor)));
    }
  } else {
    return Broken(value, absl::StrCat("has an index of ", Describe(tensor)));
  }
  const auto check = [&](int32_t row) {
    if (row >= 0 && row < job.rows_sent) return absl::OkStatus();
    return Broken(value, absl::StrCat("has index ", row, " for ", job.rows_sent,
                                      " rows"));
  };
  if (!runs) {
    for (const int32_t row : job.index) REFRACT_RETURN_IF_ERROR(check(row));
    // The budget covers all values of the message together.
    budget -= job.index.size() * (row_bytes + kExpandedRowExtra);
    return absl::OkStatus();
  }
  size_t rows = 0;
  for (size_t i = 0; i < job.index.size(); i += 2) {
    REFRACT_RETURN_IF_ERROR(check(job.index[i]));
    if (job.index[i + 1] < 1) {
      return Broken(value, absl::StrCat("has a run of ", job.index[i + 1]));
    }
    // Bounded after each run, so that a hostile index cannot overflow the sum.
    rows += job.index[i + 1];
    if (rows > max_rows) return too_long();
  }
  budget -= rows * (row_bytes + kExpandedRowExtra);
  per_row_.clear();
  per_row_.reserve(rows);
  for (size_t i = 0; i < job.index.size(); i += 2) {
    per_row_.insert(per_row_.end(), job.index[i + 1], job.index[i]);
  }
  // Copied, not swapped: swapping would make both vectors grow alternately.
  job.index.assign(per_row_.begin(), per_row_.end());
  return absl::OkStatus();
}

absl::Status Decoder::Check(const Codec::Value& value,
                            absl::Span<const base::TensorView> message,
                            Job& job, base::TensorView& view, size_t& budget) {
  const base::TensorView& sent = message[value.tensor];
  view = sent;
  job.type = value.form.type;
  job.indexed = false;
  if (value.form.is_plain()) return absl::OkStatus();
  // The sender kept int64 because an element did not fit (see WireType).
  if (models::RecordOf(job.type).may_not_fit && sent.dtype == value.dtype) {
    job.type = WireType::kAsIs;
  }
  if (sent.dtype != CarrierOf(value.dtype, job.type)) {
    return Broken(value,
                  absl::StrCat("is ", Describe(sent), ", not ",
                               base::Name(CarrierOf(value.dtype, job.type))));
  }
  job.sent = sent.dims;
  // The last dimension of an int8 tensor counts the bytes of scale and offset,
  // which the value does not have.
  if (const int64_t extra = models::RecordOf(job.type).row_extra) {
    if (job.sent.empty() || job.sent.back() < extra) {
      return Broken(value, absl::StrCat("is ", Describe(sent),
                                        ", rows without scale and offset"));
    }
    job.sent.back() -= extra;
  }
  view.dtype = value.dtype;
  view.dims = job.sent;
  REFRACT_ASSIGN_OR_RETURN(view.bytes, base::ByteSize(view.dtype, view.dims));
  if (!value.form.unique_rows) return absl::OkStatus();
  if (view.dims.empty()) return Broken(value, "has no rows");
  const base::TensorView& index = message[value.tensor + 1];
  // An empty index: every row was sent.
  if (index.dims == base::Dims{0}) return absl::OkStatus();
  job.indexed = true;
  job.rows_sent = view.dims[0];
  const size_t row_bytes = job.rows_sent == 0 ? 0 : view.bytes / job.rows_sent;
  REFRACT_RETURN_IF_ERROR(ReadIndex(value, index, row_bytes, job, budget));
  view.dims[0] = static_cast<int64_t>(job.index.size());
  view.bytes = job.index.size() * row_bytes;
  return absl::OkStatus();
}

void Decoder::Write(const Codec::Value& value, const base::TensorView& sent,
                    const Job& job, base::TensorView& view) {
  std::byte* to = buffer_.data() + job.offset;
  view.data = to;
  if (view.bytes == 0) return;
  const bool in_rows = models::RecordOf(job.type).row_extra > 0;
  const size_t columns = in_rows ? static_cast<size_t>(job.sent.back()) : 1;
  if (!job.indexed) {
    return DecodeElements(value.dtype, job.type, sent.data, view.num_elements(),
                          columns, to, floats_);
  }
  const size_t row_bytes = view.bytes / job.index.size();
  // Each distinct row is decoded once and then copied to every row that repeats
  // it.
  const std::byte* rows = sent.data;
  if (job.type != WireType::kAsIs) {
    DecodeElements(value.dtype, job.type, sent.data,
                   job.rows_sent * (row_bytes / base::SizeOf(value.dtype)),
                   columns, distinct_.data(), floats_);
    rows = distinct_.data();
  }
  for (const int32_t row : job.index) {
    std::memcpy(to, rows + row * row_bytes, row_bytes);
    to += row_bytes;
  }
}

absl::StatusOr<absl::Span<const base::TensorView>> Decoder::Decode(
    absl::Span<const base::TensorView> message) {
  if (message.size() != codec_.num_tensors()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the message has ", message.size(), " tensors, wanted ",
                     codec_.num_tensors()));
  }
  if (codec_.plain()) return message;
  const std::vector<Codec::Value>& values = codec_.values();
  views_.resize(values.size());
  jobs_.resize(values.size());  // each keeps the memory of its index
  size_t bytes = 0;
  size_t budget = kMaxExpandedBytes;
  size_t distinct = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    Job& job = jobs_[i];
    REFRACT_RETURN_IF_ERROR(Check(values[i], message, job, views_[i], budget));
    // Tensors of the message that are used in place.
    if (job.type == WireType::kAsIs && !job.indexed) continue;
    job.offset = bytes;
    bytes += RoundUp(views_[i].bytes);
    if (!job.indexed || job.type == WireType::kAsIs) continue;
    // Check() computed ByteSize() of these dims, so no overflow.
    size_t sent_bytes = base::SizeOf(values[i].dtype);
    for (const int64_t dim : job.sent) {
      sent_bytes *= static_cast<size_t>(dim);
    }
    distinct = std::max(distinct, sent_bytes);
  }
  // Buffers only grow, since the next message is probably as long.
  if (buffer_.size() < bytes) buffer_ = base::AlignedBuffer(bytes);
  if (distinct_.size() < distinct) distinct_ = base::AlignedBuffer(distinct);
  for (size_t i = 0; i < values.size(); ++i) {
    const Job& job = jobs_[i];
    if (job.type == WireType::kAsIs && !job.indexed) continue;
    Write(values[i], message[values[i].tensor], job, views_[i]);
  }
  return absl::MakeConstSpan(views_);
}

}  // namespace refract::runtime::wire

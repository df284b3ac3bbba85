#ifndef REFRACT_MODELS_REPOSITORY_FILES_SAFETENSORS_H_
#define REFRACT_MODELS_REPOSITORY_FILES_SAFETENSORS_H_

// The safetensors file format: 8-byte little-endian header length, a JSON
// header, then the tensors' bytes
// (https://huggingface.co/docs/safetensors/index, "Format").

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/process/mapped_file.h"
#include "base/tensor.h"

namespace refract::models {

struct SafetensorsEntry {
  std::string name;
  base::DType dtype = base::DType::kUnknown;
  std::vector<int64_t> dims;
  uint64_t offset = 0;  // in the file, header included
  uint64_t bytes = 0;
};

// The tensors of a file whose bytes are in memory, ordered by their bytes, and
// the text values of "__metadata__". Errors as SafetensorsFile::Open(), without
// a path.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensors(
    absl::Span<const std::byte> file,
    absl::btree_map<std::string, std::string>& metadata);

// A mapped, checked file. Only its header is read. Thread-safe.
class SafetensorsFile {
 public:
  // InvalidArgument names `path` and its fault: truncated, header longer than
  // 100 MB (the format's own limit), bad JSON, unknown dtype, ranges that
  // overlap, leave gaps, or do not match shape × element size.
  static absl::StatusOr<SafetensorsFile> Open(absl::string_view path);

  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsEntry* Find(absl::string_view name) const;
  // The text values of "__metadata__".
  const absl::btree_map<std::string, std::string>& metadata() const {
    return metadata_;
  }
  // Valid while this object (or a copy of file()) lives. May be less aligned
  // than kTensorAlignBytes.
  base::TensorView View(const SafetensorsEntry& entry) const;
  const std::shared_ptr<const base::MappedFile>& file() const { return file_; }

 private:
  std::shared_ptr<const base::MappedFile> file_;
  std::vector<SafetensorsEntry> entries_;
  absl::btree_map<std::string, std::string> metadata_;
};

// Writes a file piece by piece, so that a table larger than memory needs only a
// buffer. Data begins at a multiple of kTensorAlignBytes. One thread.
class SafetensorsWriter {
 public:
  // Replaces the file `path`. `tensors`: names, dtypes and shapes, in the order
  // of their bytes. InvalidArgument: a repeated name, an unknown dtype.
  static absl::StatusOr<SafetensorsWriter> Create(
      absl::string_view path,
      absl::Span<const std::pair<std::string, base::TensorSpec>> tensors,
      const absl::btree_map<std::string, std::string>& metadata = {});

  // Appends the next bytes of the tensors.
  void Append(absl::Span<const std::byte> bytes);
  // Internal names `path`: the disk refused bytes, or their number differs from
  // the size given to Create().
  absl::Status Finish();

 private:
  SafetensorsWriter() = default;
  std::string path_;
  std::ofstream out_;
  uint64_t missing_ = 0;  // bytes; wraps if there are too many
};

// Data begins at a multiple of kTensorAlignBytes.
absl::Status WriteSafetensors(
    absl::string_view path,
    absl::Span<const std::pair<std::string, base::TensorView>> tensors);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_FILES_SAFETENSORS_H_

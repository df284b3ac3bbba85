#include "models/repository/weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor.h"

namespace refract::models {
namespace {

std::string JoinPath(absl::string_view folder, absl::string_view file) {
  if (folder.empty() || (!file.empty() && file[0] == '/')) {
    return std::string(file);
  }
  return absl::StrCat(folder, folder.back() == '/' ? "" : "/", file);
}

// Elements that `entry` spans from the first of its storage; 0 if it is empty.
// Strides and sizes come from a file. The sum is kept in 128 bits, so that the
// comparison with the storage's bytes cannot be fooled by a wrap.
absl::StatusOr<unsigned __int128> SpannedElements(const WeightEntry& entry) {
  if (entry.storage_offset < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("storage offset ", entry.storage_offset, " is negative"));
  }
  if (entry.sizes.size() != entry.strides.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        entry.sizes.size(), " sizes but ", entry.strides.size(), " strides"));
  }
  // NumElements() limits the number of elements, as for all tensors.
  REFRACT_ASSIGN_OR_RETURN(const int64_t elements,
                           base::NumElements(entry.sizes));
  unsigned __int128 last = static_cast<uint64_t>(entry.storage_offset);
  for (size_t i = 0; i < entry.sizes.size(); ++i) {
    // PyTorch has no negative strides.
    if (entry.strides[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("stride ", entry.strides[i], " is negative"));
    }
    if (entry.sizes[i] > 0) {
      // Below 2^126 each, and a tensor has few dimensions with size > 1.
      last += static_cast<unsigned __int128>(entry.sizes[i] - 1) *
              static_cast<uint64_t>(entry.strides[i]);
      if (last >> 64 != 0) {
        return absl::InvalidArgumentError("strides overflow 64 bits");
      }
    }
  }
  // An empty tensor reads nothing, whatever its offset.
  return elements == 0 ? 0 : last + 1;
}

// Rows in a format are dense: no offset, no strides of their own.
absl::Status CheckRows(const WeightEntry& entry) {
  const RowLayout& rows = *entry.rows;
  if (entry.dtype != base::DType::kFloat32 || entry.sizes.size() != 2 ||
      entry.sizes[0] < 0 || entry.sizes[1] != rows.dim ||
      entry.storage_offset != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of ", RowsText(rows), " for ",
                     base::Name(entry.dtype), base::DimsToString(entry.sizes),
                     " from element ", entry.storage_offset));
  }
  const unsigned __int128 bytes =
      static_cast<unsigned __int128>(entry.sizes[0]) *
      static_cast<uint64_t>(rows.stride);
  if (bytes != entry.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(entry.sizes[0], " rows of ", rows.stride, " bytes (",
                     RowsText(rows), ") in ", entry.bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightView> MakeView(const WeightEntry& entry,
                                    const base::MappedFile& file) {
  const size_t element = base::SizeOf(entry.dtype);
  if (element == 0) return absl::InvalidArgumentError("dtype is not known");
  const absl::Span<const std::byte> bytes = file.bytes();
  if (entry.offset > bytes.size() ||
      entry.bytes > bytes.size() - entry.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat(entry.bytes, " bytes at ", entry.offset, " lie outside ",
                     file.path(), " of ", bytes.size(), " bytes"));
  }
  REFRACT_ASSIGN_OR_RETURN(const unsigned __int128 elements,
                           SpannedElements(entry));
  if (entry.rows) {
    REFRACT_RETURN_IF_ERROR(CheckRows(entry));
  } else if (elements * element > entry.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("sizes ", base::DimsToString(entry.sizes), " and strides ",
                     base::DimsToString(entry.strides), " reach outside its ",
                     entry.bytes, " bytes"));
  }
  const size_t alignment =
      entry.rows ? AlignmentOf(entry.rows->format) : element;
  // Kernels read elements in place. mmap() aligns the file's begin to a page.
  if (entry.offset % alignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "begins at byte ", entry.offset, " of ", file.path(),
        ", which is no multiple of its ", alignment, " byte elements"));
  }
  WeightView view;
  view.dtype = entry.dtype;
  view.sizes = entry.sizes;
  view.strides = entry.strides;
  view.rows = entry.rows;
  view.data = bytes.data() + entry.offset;
  if (elements != 0) {
    view.data += static_cast<uint64_t>(entry.storage_offset) * element;
  }
  return view;
}

}  // namespace

bool WeightView::is_contiguous() const {
  int64_t expected = 1;
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  for (size_t i = sizes.size(); i-- > 0;) {
    // The stride of a dimension of size 1 is never used.
    if (sizes[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

size_t WeightView::bytes() const {
  if (rows) return static_cast<size_t>(sizes[0] * rows->stride);
  size_t bytes = base::SizeOf(dtype);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  return bytes;
}

absl::StatusOr<std::shared_ptr<const WeightStore>> WeightStore::Open(
    absl::string_view folder, const WeightTable& table) {
  std::shared_ptr<WeightStore> store(new WeightStore);
  store->table_ = table;
  absl::flat_hash_map<absl::string_view, const base::MappedFile*> by_name;
  for (const WeightFile& file : table.files) {
    const std::string path = JoinPath(folder, file.file);
    REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<const base::MappedFile> mapped,
                             base::MappedFile::Open(path));
    // A cheap check that most changes of a file fail; digests are the caller's
    // part (verified_files.h).
    if (mapped->bytes().size() != file.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": has ", mapped->bytes().size(),
                       " bytes, but had ", file.bytes, " at import"));
    }
    if (!by_name.emplace(file.file, mapped.get()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight file ", file.file, " is listed twice"));
    }
    store->files_.push_back(std::move(mapped));
  }
  for (const WeightEntry& entry : table.entries) {
    const auto file = by_name.find(entry.file);
    if (file == by_name.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "weight ", entry.name, ": its file ", entry.file, " is not listed"));
    }
    auto view = MakeView(entry, *file->second);
    if (!view.ok()) {
      return base::Annotate(view.status(), absl::StrCat("weight ", entry.name));
    }
    if (!store->views_.emplace(entry.name, *std::move(view)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight ", entry.name, " is listed twice"));
    }
  }
  return store;
}

absl::StatusOr<WeightView> WeightStore::Get(absl::string_view name) const {
  auto view = GetAsStored(name);
  if (view.ok() && view->rows) {
    return absl::UnimplementedError(
        absl::StrCat("table ", name, " has rows of ", RowsText(*view->rows),
                     ", which only look-ups on a CPU read; import it as ",
                     base::Name(view->dtype), " for other uses"));
  }
  return view;
}

absl::StatusOr<WeightView> WeightStore::GetAsStored(
    absl::string_view name) const {
  const auto it = views_.find(name);
  if (it == views_.end()) {
    return absl::NotFoundError(absl::StrCat("no weight is named ", name));
  }
  return it->second;
}

absl::StatusOr<std::shared_ptr<const WeightStore>> WeightStore::WithData(
    const absl::flat_hash_map<std::string, const std::byte*>& data,
    const absl::flat_hash_map<std::string, int64_t>& rows,
    std::shared_ptr<const void> memory) const {
  std::shared_ptr<WeightStore> store(new WeightStore(*this));
  // shared_ptr's aliasing constructor: owns `memory`, points to no file.
  // IsMapped() skips the null.
  store->files_.emplace_back(std::move(memory), nullptr);
  for (const auto& [name, address] : data) {
    const auto view = store->views_.find(name);
    if (view == store->views_.end()) {
      return absl::NotFoundError(absl::StrCat("no weight is named ", name));
    }
    view->second.data = address;
    const auto count = rows.find(name);
    if (count != rows.end()) view->second.sizes[0] = count->second;
  }
  return store;
}

bool WeightStore::IsMapped(const WeightView& view) const {
  return std::any_of(files_.begin(), files_.end(), [&](const auto& file) {
    return file != nullptr && view.data >= file->bytes().data() &&
           view.data < file->bytes().data() + file->bytes().size();
  });
}

}  // namespace refract::models

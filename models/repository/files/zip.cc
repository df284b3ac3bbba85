#include "models/repository/files/zip.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::models {
namespace {

// Record signatures and fixed sizes, APPNOTE 4.3.7 to 4.3.16.
constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kCentralBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kLocator64Bytes = 20;
constexpr uint64_t kMaxCommentBytes = 0xFFFF;
constexpr uint16_t kZip64ExtraId = 0x0001;
constexpr uint32_t kInZip64_32 = 0xFFFFFFFF;
constexpr uint16_t kInZip64_16 = 0xFFFF;

// Little-endian numbers out of the file; callers check bounds first.
class Reader {
 public:
  explicit Reader(absl::Span<const std::byte> data) : data_(data) {}

  uint64_t size() const { return data_.size(); }
  // [at, at + bytes) lies within; no overflow.
  bool Has(uint64_t at, uint64_t bytes) const {
    return at <= data_.size() && bytes <= data_.size() - at;
  }
  uint16_t U16(uint64_t at) const { return Load<uint16_t>(at); }
  uint32_t U32(uint64_t at) const { return Load<uint32_t>(at); }
  uint64_t U64(uint64_t at) const { return Load<uint64_t>(at); }
  absl::string_view Text(uint64_t at, uint64_t bytes) const {
    return {reinterpret_cast<const char*>(data_.data()) + at, bytes};
  }

 private:
  template <typename T>
  T Load(uint64_t at) const {
    T value;
    std::memcpy(&value, data_.data() + at, sizeof(value));
    return value;
  }
  absl::Span<const std::byte> data_;
};

struct Directory {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t count = 0;
};

absl::Status Broken(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

// The end record is at the end; only its comment follows.
absl::StatusOr<uint64_t> FindEndRecord(const Reader& file) {
  if (!file.Has(0, 4) ||
      (file.U32(0) != kLocalSignature && file.U32(0) != kEndSignature)) {
    return Broken("not a zip archive");
  }
  if (file.size() < kEndBytes) return Broken("zip archive is truncated");
  const uint64_t last = file.size() - kEndBytes;
  const uint64_t first = last > kMaxCommentBytes ? last - kMaxCommentBytes : 0;
  // Backwards from the last place where the record fits. The signature may also
  // occur in the comment, so the comment's length must lead exactly to the
  // file's end.
  for (uint64_t at = last + 1; at-- > first;) {
    if (file.U32(at) == kEndSignature &&
        at + kEndBytes + file.U16(at + 20) == file.size()) {
      return at;
    }
  }
  return Broken("zip archive is truncated: its directory is missing");
}

absl::StatusOr<Directory> FindDirectory(const Reader& file) {
  REFRACT_ASSIGN_OR_RETURN(const uint64_t end, FindEndRecord(file));
  Directory directory;
  if (file.U16(end + 4) != 0 && file.U16(end + 4) != kInZip64_16) {
    return absl::UnimplementedError("zip archive in several parts");
  }
  directory.count = file.U16(end + 10);
  directory.bytes = file.U32(end + 12);
  directory.offset = file.U32(end + 16);
  // PyTorch writes the zip64 records always, other writers when a number does
  // not fit.
  if (end >= kLocator64Bytes &&
      file.U32(end - kLocator64Bytes) == kLocator64Signature) {
    const uint64_t end64 = file.U64(end - kLocator64Bytes + 8);
    if (!file.Has(end64, kEnd64Bytes) || file.U32(end64) != kEnd64Signature) {
      return Broken("zip64 end record is not where the locator says");
    }
    if (file.U32(end64 + 16) != 0 || file.U32(end64 + 20) != 0) {
      return absl::UnimplementedError("zip archive in several parts");
    }
    directory.count = file.U64(end64 + 32);
    directory.bytes = file.U64(end64 + 40);
    directory.offset = file.U64(end64 + 48);
  }
  if (!file.Has(directory.offset, directory.bytes)) {
    return Broken(absl::StrCat("zip directory (", directory.bytes, " bytes at ",
                               directory.offset, ") lies outside the file"));
  }
  // Bounds the memory that ReadDirectory() reserves by the size of the file.
  if (directory.count > directory.bytes / kCentralBytes) {
    return Broken(absl::StrCat("zip directory of ", directory.bytes,
                               " bytes can't hold ", directory.count,
                               " entries"));
  }
  return directory;
}

// Numbers that exceed 32 bits, from the extra field of a central record.
struct Sizes {
  uint64_t content = 0;  // uncompressed
  uint64_t stored = 0;   // in the file
  uint64_t header = 0;   // offset of the local header
};

absl::Status ReadZip64Extra(const Reader& file, uint64_t at, uint64_t bytes,
                            absl::string_view name, Sizes& sizes) {
  // The extra field holds only the numbers whose 32-bit field is all ones, in
  // this order (APPNOTE 4.5.3).
  uint64_t* wanted[] = {&sizes.content, &sizes.stored, &sizes.header};
  const uint64_t end = at + bytes;
  while (at + 4 <= end) {
    const uint16_t id = file.U16(at);
    const uint64_t field_end = at + 4 + file.U16(at + 2);
    if (field_end > end) break;
    if (id == kZip64ExtraId) {
      at += 4;
      for (uint64_t* value : wanted) {
        if (*value != kInZip64_32) continue;
        if (at + 8 > field_end) {
          return Broken(absl::StrCat("entry ", name, ": zip64 sizes missing"));
        }
        *value = file.U64(at);
        at += 8;
      }
      return absl::OkStatus();
    }
    at = field_end;
  }
  for (const uint64_t* value : wanted) {
    if (*value == kInZip64_32) {
      return Broken(absl::StrCat("entry ", name, ": zip64 sizes missing"));
    }
  }
  return absl::OkStatus();
}

// Reads the central record at `at` and moves `at` behind it.
absl::StatusOr<ZipEntry> ReadEntry(const Reader& file, uint64_t end,
                                   uint64_t& at) {
  if (end - at < kCentralBytes || file.U32(at) != kCentralSignature) {
    return Broken("zip directory is damaged");
  }
  const uint64_t name_bytes = file.U16(at + 28);
  const uint64_t extra_bytes = file.U16(at + 30);
  const uint64_t comment_bytes = file.U16(at + 32);
  const uint64_t record =
      kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  if (end - at < record) return Broken("zip directory is damaged");
  ZipEntry entry;
  entry.name = std::string(file.Text(at + kCentralBytes, name_bytes));
  if (file.U16(at + 8) & 1) {
    return absl::UnimplementedError(
        absl::StrCat("entry ", entry.name, " is encrypted"));
  }
  entry.stored = file.U16(at + 10) == 0;
  entry.crc32 = file.U32(at + 16);
  Sizes sizes;
  sizes.stored = file.U32(at + 20);
  sizes.content = file.U32(at + 24);
  sizes.header = file.U32(at + 42);
  REFRACT_RETURN_IF_ERROR(ReadZip64Extra(file, at + kCentralBytes + name_bytes,
                                         extra_bytes, entry.name, sizes));
  at += record;
  entry.bytes = sizes.stored;
  if (entry.stored && sizes.stored != sizes.content) {
    return Broken(absl::StrCat("entry ", entry.name, ": sizes disagree"));
  }
  // The local header repeats the name; its extra field may differ in length
  // (PyTorch pads with it), so only it says where the bytes begin.
  if (!file.Has(sizes.header, kLocalBytes) ||
      file.U32(sizes.header) != kLocalSignature) {
    return Broken(
        absl::StrCat("entry ", entry.name, " has no header at ", sizes.header));
  }
  const uint64_t local_name_bytes = file.U16(sizes.header + 26);
  if (!file.Has(sizes.header + kLocalBytes, local_name_bytes) ||
      file.Text(sizes.header + kLocalBytes, local_name_bytes) != entry.name) {
    return Broken(
        absl::StrCat("entry ", entry.name, ": its header has another name"));
  }
  entry.offset = sizes.header + kLocalBytes + local_name_bytes +
                 file.U16(sizes.header + 28);
  if (!file.Has(entry.offset, entry.bytes)) {
    return Broken(absl::StrCat("entry ", entry.name, " (", entry.bytes,
                               " bytes at ", entry.offset,
                               ") lies outside the file"));
  }
  return entry;
}

absl::StatusOr<std::vector<ZipEntry>> ReadDirectory(const Reader& file) {
  REFRACT_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(file));
  std::vector<ZipEntry> entries;
  entries.reserve(directory.count);
  absl::flat_hash_set<std::string> names;
  uint64_t at = directory.offset;
  const uint64_t end = directory.offset + directory.bytes;
  for (uint64_t i = 0; i < directory.count; ++i) {
    REFRACT_ASSIGN_OR_RETURN(ZipEntry entry, ReadEntry(file, end, at));
    // Readers of zip files differ in which of two equal names they take.
    if (!names.insert(entry.name).second) {
      return Broken(absl::StrCat("entry ", entry.name, " is there twice"));
    }
    entries.push_back(std::move(entry));
  }
  if (at != end) return Broken("zip directory has bytes left over");
  return entries;
}

}  // namespace

absl::StatusOr<ZipArchive> ZipArchive::Open(absl::string_view path) {
  ZipArchive archive;
  REFRACT_ASSIGN_OR_RETURN(archive.file_, base::MappedFile::Open(path));
  auto entries = ReadDirectory(Reader(archive.file_->bytes()));
  if (!entries.ok()) return base::Annotate(entries.status(), path);
  archive.entries_ = *std::move(entries);
  return archive;
}

const ZipEntry* ZipArchive::Find(absl::string_view name) const {
  auto it = std::find_if(
      entries_.begin(), entries_.end(),
      [name](const ZipEntry& entry) { return entry.name == name; });
  return it == entries_.end() ? nullptr : &*it;
}

absl::StatusOr<absl::Span<const std::byte>> ZipArchive::Bytes(
    const ZipEntry& entry) const {
  if (!entry.stored) {
    return absl::UnimplementedError(
        absl::StrCat(file_->path(), ": entry ", entry.name,
                     " is compressed; PyTorch stores entries uncompressed"));
  }
  return file_->bytes().subspan(entry.offset, entry.bytes);
}

absl::StatusOr<absl::string_view> ZipArchive::CheckedText(
    const ZipEntry& entry) const {
  REFRACT_ASSIGN_OR_RETURN(absl::Span<const std::byte> bytes, Bytes(entry));
  if (Crc32(bytes) != entry.crc32) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_->path(), ": entry ", entry.name,
                     " is damaged: its checksum does not match"));
  }
  return absl::string_view(reinterpret_cast<const char*>(bytes.data()),
                           bytes.size());
}

uint32_t Crc32(absl::Span<const std::byte> bytes) {
  // CRC-32 of IEEE 802.3, reflected, a byte at a time: `table` has the
  // remainder of each byte.
  static const auto& table = *new std::array<uint32_t, 256>([] {
    std::array<uint32_t, 256> entries;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0);
      }
      entries[i] = value;
    }
    return entries;
  }());
  uint32_t crc = 0xFFFFFFFF;
  for (std::byte b : bytes) {
    crc = (crc >> 8) ^ table[(crc ^ static_cast<uint32_t>(b)) & 0xFF];
  }
  return ~crc;
}

}  // namespace refract::models

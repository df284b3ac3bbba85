#ifndef REFRACT_TESTS_MODELS_TESTING_ZIP_WRITER_H_
#define REFRACT_TESTS_MODELS_TESTING_ZIP_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "models/repository/files/zip.h"

namespace refract::models::testing {

// Builds archives as torch.save does: stored entries, each payload padded to 64
// bytes by the local header's extra field. Fields can be falsified per entry.
class ZipWriter {
 public:
  struct Entry {
    std::string name;
    std::string content;
    uint16_t method = 0;
    uint16_t flags = 0;
    bool zip64 = false;      // sizes in the extra field
    uint32_t crc_delta = 0;  // added to the true checksum
    std::string local_name;  // of the local header; empty: name
  };

  ZipWriter& Add(absl::string_view name, absl::string_view content) {
    entries_.push_back({std::string(name), std::string(content)});
    return *this;
  }
  ZipWriter& Add(Entry entry) {
    entries_.push_back(std::move(entry));
    return *this;
  }

  std::string Finish(bool zip64_end = false,
                     absl::string_view comment = "") const {
    std::string out;
    std::string directory;
    for (const Entry& entry : entries_) Append(entry, out, directory);
    const uint64_t offset = out.size();
    out += directory;
    const uint64_t end64 = out.size();
    if (zip64_end) {
      U32(out, 0x06064b50), U64(out, 44), U16(out, 45), U16(out, 45);
      U32(out, 0), U32(out, 0), U64(out, entries_.size());
      U64(out, entries_.size()), U64(out, directory.size()), U64(out, offset);
      U32(out, 0x07064b50), U32(out, 0), U64(out, end64), U32(out, 1);
    }
    U32(out, 0x06054b50), U16(out, 0), U16(out, 0);
    const uint16_t count = zip64_end ? 0xFFFF : entries_.size();
    U16(out, count), U16(out, count);
    U32(out, zip64_end ? 0xFFFFFFFF : directory.size());
    U32(out, zip64_end ? 0xFFFFFFFF : offset);
    U16(out, comment.size());
    out.append(comment.data(), comment.size());
    return out;
  }

 private:
  static void Number(std::string& out, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out.push_back(char(value >> (8 * i)));
  }
  static void U16(std::string& out, uint64_t v) { Number(out, v, 2); }
  static void U32(std::string& out, uint64_t v) { Number(out, v, 4); }
  static void U64(std::string& out, uint64_t v) { Number(out, v, 8); }

  static void Append(const Entry& entry, std::string& out,
                     std::string& directory) {
    const uint64_t header = out.size();
    const uint32_t crc =
        Crc32({reinterpret_cast<const std::byte*>(entry.content.data()),
               entry.content.size()}) +
        entry.crc_delta;
    const uint32_t size = entry.zip64 ? 0xFFFFFFFF : entry.content.size();
    const std::string& local =
        entry.local_name.empty() ? entry.name : entry.local_name;
    const size_t unpadded = header + 30 + local.size() + 4;
    const size_t padding = (64 - unpadded % 64) % 64;
    U32(out, 0x04034b50), U16(out, 45), U16(out, entry.flags);
    U16(out, entry.method), U32(out, 0), U32(out, crc);
    U32(out, size), U32(out, size), U16(out, local.size());
    U16(out, 4 + padding);
    out += local;
    U16(out, 0x4246), U16(out, padding);  // "FB", as PyTorch pads
    out.append(padding, 'Z');
    out += entry.content;

    U32(directory, 0x02014b50), U16(directory, 45), U16(directory, 45);
    U16(directory, entry.flags), U16(directory, entry.method);
    U32(directory, 0), U32(directory, crc);
    U32(directory, size), U32(directory, size);
    U16(directory, entry.name.size()), U16(directory, entry.zip64 ? 28 : 0);
    U16(directory, 0), U16(directory, 0), U16(directory, 0);
    U32(directory, 0);
    U32(directory, entry.zip64 ? 0xFFFFFFFF : header);
    directory += entry.name;
    if (entry.zip64) {
      U16(directory, 1), U16(directory, 24);
      U64(directory, entry.content.size());
      U64(directory, entry.content.size());
      U64(directory, header);
    }
  }

  std::vector<Entry> entries_;
};

}  // namespace refract::models::testing

#endif  // REFRACT_TESTS_MODELS_TESTING_ZIP_WRITER_H_

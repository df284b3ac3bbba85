// A file of tensors: the tensors of one that is accepted lie one after the
// other in what follows its header, as long as their sizes say in 128-bit
// arithmetic, and come out again as they went in.
#include <glog/logging.h>

#include "models/repository/files/safetensors.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/target.h"

namespace refract::fuzz {
namespace {

using models::SafetensorsEntry;
using models::SafetensorsFile;

void CheckEntries(const SafetensorsFile& file) {
  const absl::Span<const std::byte> bytes = file.file()->bytes();
  size_t end = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    unsigned __int128 wanted = base::SizeOf(entry.dtype);
    CHECK(wanted > 0);
    for (const int64_t dim : entry.dims) {
      CHECK_GE(dim, 0);
      wanted *= static_cast<uint64_t>(dim);
      // Zeros may come later.
      if (wanted >> 64 != 0) wanted = static_cast<unsigned __int128>(1) << 64;
    }
    CHECK(wanted == entry.bytes);
    CHECK(end == 0 || entry.offset == end);
    end = entry.offset + entry.bytes;
    CHECK_LE(end, bytes.size());
    const base::TensorView view = file.View(entry);
    CHECK_EQ(view.bytes, entry.bytes);
    CHECK(view.data == bytes.data() + entry.offset);
    CHECK_NOTNULL(file.Find(entry.name));
  }
  CHECK(end == 0 || end == bytes.size());
}

void CheckWrittenAgain(const SafetensorsFile& file) {
  std::vector<std::pair<std::string, base::TensorView>> tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    tensors.emplace_back(entry.name, file.View(entry));
  }
  const MemoryFile copy("");
  const absl::Status written = models::WriteSafetensors(copy.path(), tensors);
  CHECK(written.ok()) << written;
  const auto again = SafetensorsFile::Open(copy.path());
  CHECK(again.ok()) << again.status();
  CHECK_EQ(again->entries().size(), file.entries().size());
  for (const SafetensorsEntry& entry : file.entries()) {
    const SafetensorsEntry* found = again->Find(entry.name);
    CHECK(found != nullptr) << entry.name;
    CHECK(found->dtype == entry.dtype && found->dims == entry.dims);
    const base::TensorView before = file.View(entry);
    const base::TensorView after = again->View(*found);
    CHECK(std::equal(before.data, before.data + before.bytes, after.data,
                     after.data + after.bytes));
  }
}

std::string File(absl::string_view header, size_t data_bytes) {
  return Script()
      .U64(header.size())
      .Raw(header)
      .Raw(std::string(data_bytes, '\x5a'))
      .bytes();
}

}  // namespace

std::vector<Seed> Seeds() {
  return {
      {"two",
       File(R"({"__metadata__":{"format":"pt"},)"
            R"("b":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
            R"("a":{"dtype":"F32","shape":[1,3],"data_offsets":[16,28]}})",
            28)},
      {"empty", File(R"({"e":{"dtype":"F16","shape":[0,4],)"
                     R"("data_offsets":[0,0]},"s":{"dtype":"BF16",)"
                     R"("shape":[],"data_offsets":[0,2]}})",
                     2)},
      {"overlap", File(R"({"a":{"dtype":"U8","shape":[4],)"
                       R"("data_offsets":[0,4]},"b":{"dtype":"U8",)"
                       R"("shape":[4],"data_offsets":[2,6]}})",
                       6)},
      {"nested", File(R"({"a":{"dtype":"I8","shape":[[[[1]]]],)"
                      R"("data_offsets":[0,1]}})",
                      1)},
      {"escaped", File(R"({"\u00e9\n\"":{"dtype":"BOOL","shape":[1],)"
                       R"("data_offsets":[0,1]}})",
                       1)},
  };
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace refract;
  const fuzz::MemoryFile bytes(
      absl::string_view(reinterpret_cast<const char*>(data), size));
  const auto file = models::SafetensorsFile::Open(bytes.path());
  if (!file.ok()) {
    CHECK(absl::IsInvalidArgument(file.status())) << file.status();
    return 0;
  }
  fuzz::CheckEntries(*file);
  fuzz::CheckWrittenAgain(*file);
  return 0;
}

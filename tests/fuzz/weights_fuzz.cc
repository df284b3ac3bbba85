// A version's table of weights beside a file: every element of a weight that is
// accepted lies in the bytes that the table gives its storage, in 128-bit
// arithmetic, and what is read is what lies there.
#include <glog/logging.h>

#include <map>

#include "models/graph/graph_proto.h"
#include "models/repository/weights.h"
#include "proto/graph.pb.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/target.h"

namespace refract::fuzz {
namespace {

using models::WeightEntry;
using models::WeightView;
using Wide = unsigned __int128;

// In tables; the file's real name is another one each time.
constexpr absl::string_view kFile = "w";

char ByteAt(uint64_t position) {
  return static_cast<char>(position * 7 + (position >> 8));
}

// All of them, or about this many.
constexpr uint64_t kMostLooked = 4096;

void CheckElements(const WeightEntry& entry, const WeightView& view,
                   size_t file_bytes) {
  CHECK(view.dtype == entry.dtype && view.sizes == entry.sizes &&
        view.strides == entry.strides);
  const size_t element = base::SizeOf(entry.dtype);
  CHECK_GT(element, 0u);
  CHECK(Wide{entry.offset} + entry.bytes <= file_bytes);
  for (const int64_t size : entry.sizes) {
    if (size == 0) return;
  }
  // Counts the index like an odometer: the first, the last, some between.
  std::vector<int64_t> at(entry.sizes.size(), 0);
  for (uint64_t looked = 0; looked < kMostLooked; ++looked) {
    Wide index = 0;  // in elements, from [0, …, 0] on
    for (size_t i = 0; i < at.size(); ++i) {
      index += Wide{static_cast<uint64_t>(at[i])} *
               static_cast<uint64_t>(entry.strides[i]);
    }
    const Wide begin =
        (Wide{static_cast<uint64_t>(entry.storage_offset)} + index) * element;
    CHECK(begin + element <= entry.bytes);
    const auto* data = reinterpret_cast<const char*>(view.data) +
                       static_cast<uint64_t>(index) * element;
    CHECK_EQ(data[element - 1],
             ByteAt(entry.offset + static_cast<uint64_t>(begin) + element - 1));
    size_t dim = at.size();
    while (dim > 0 && at[dim - 1] == entry.sizes[dim - 1] - 1) at[--dim] = 0;
    if (dim == 0) return;
    // Every other time as far as it goes.
    if (looked > kMostLooked / 2) {
      at[dim - 1] = entry.sizes[dim - 1] - 1;
    } else {
      ++at[dim - 1];
    }
  }
}

void AddEntry(proto::WeightTable& table, const std::string& name,
              uint64_t offset, uint64_t bytes, base::DType dtype,
              std::vector<int64_t> sizes, std::vector<int64_t> strides,
              int64_t storage_offset) {
  models::WeightTable one;
  one.entries.push_back({name, std::string(kFile), offset, bytes, dtype,
                         std::move(sizes), std::move(strides), storage_offset});
  *table.add_entries() = models::ToProto(one).entries(0);
}

std::string Case(const proto::WeightTable& wanted, uint16_t file_bytes) {
  proto::WeightTable table = wanted;
  models::WeightTable files;
  files.files.push_back({std::string(kFile), file_bytes, {}});
  *table.add_files() = models::ToProto(files).files(0);
  return Script().U16(file_bytes).Raw(table.SerializeAsString()).bytes();
}

}  // namespace

std::vector<Seed> Seeds() {
  using base::DType;
  proto::WeightTable plain;
  AddEntry(plain, "dense", 0, 96, DType::kFloat32, {4, 6}, {6, 1}, 0);
  AddEntry(plain, "half", 96, 20, DType::kFloat16, {10}, {1}, 0);
  proto::WeightTable strided;
  AddEntry(strided, "transposed", 8, 96, DType::kFloat32, {6, 4}, {1, 6}, 0);
  AddEntry(strided, "stand_in", 64, 4, DType::kFloat32, {1000, 64}, {0, 0}, 0);
  AddEntry(strided, "part", 0, 64, DType::kInt64, {2, 2}, {3, 1}, 2);
  proto::WeightTable empty;
  AddEntry(empty, "none", 16, 0, DType::kInt8, {0, 9}, {9, 1}, 0);
  AddEntry(empty, "number", 16, 8, DType::kFloat64, {}, {}, 0);
  proto::WeightTable outside;
  AddEntry(outside, "outside", 8, 64, DType::kFloat32, {4, 4}, {5, 1}, 0);
  return {{"plain", Case(plain, 128)},
          {"strided", Case(strided, 128)},
          {"empty", Case(empty, 24)},
          {"outside", Case(outside, 72)}};
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace refract;
  google::protobuf::SetLogHandler(nullptr);  // names that are no UTF-8
  fuzz::Input input(data, size);
  std::string bytes(input.U16() % 8192, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = fuzz::ByteAt(i);
  const absl::string_view text = input.Take(size);
  proto::WeightTable read;
  if (!read.ParseFromArray(text.data(), static_cast<int>(text.size())))
    return 0;
  auto table = models::FromProto(read);
  if (!table.ok()) return 0;
  // A record that was read is written with the same meaning.
  const std::string written = models::ToProto(*table).SerializeAsString();
  const auto again = models::FromProto(models::ToProto(*table));
  CHECK(again.ok()) << again.status();
  CHECK(models::ToProto(*again).SerializeAsString() == written);

  const fuzz::MemoryFile file(bytes);
  for (models::WeightFile& named : table->files) {
    // No other file of the machine.
    if (named.file != fuzz::kFile) return 0;
    named.file = file.name();
  }
  for (models::WeightEntry& entry : table->entries) {
    if (entry.file == fuzz::kFile) entry.file = file.name();
  }
  const auto store =
      models::WeightStore::Open(fuzz::MemoryFile::kFolder, *table);
  if (!store.ok()) {
    CHECK(absl::IsInvalidArgument(store.status())) << store.status();
    return 0;
  }
  for (const models::WeightEntry& entry : table->entries) {
    const auto view = (*store)->Get(entry.name);
    CHECK(view.ok()) << view.status();
    fuzz::CheckElements(entry, *view, bytes.size());
  }
  return 0;
}

#include "bench/gather/tables.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/look_ups/encode_rows.h"

namespace refract::bench {
namespace {

constexpr int64_t kTableAlignBytes = 128;
// Rows that are encoded; tables repeat them, since encoding gigabytes would
// take minutes. Each copy has memory of its own.
constexpr int64_t kEncodedRows = 4096 + 7;

absl::Status WriteAt(int file, int64_t at, absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = pwrite(file, bytes.data(), bytes.size(), at);
    if (done <= 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("tables: write: ", std::strerror(errno)));
    }
    bytes.remove_prefix(static_cast<size_t>(done));
    at += done;
  }
  return absl::OkStatus();
}

base::Tensor Ints(int64_t count) {
  return *base::Tensor::Allocate(base::DType::kInt64, base::Dims({count}));
}

}  // namespace

const std::byte* Tables::at(int64_t table) const {
  return store->GetAsStored(absl::StrCat("t", table))->data;
}

absl::StatusOr<Tables> MakeTables(const std::string& folder, Place place,
                                  const models::RowLayout& layout,
                                  int64_t count, int64_t rows,
                                  size_t& huge_bytes) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<std::byte> encoded(
      static_cast<size_t>(kEncodedRows * layout.stride));
  std::vector<float> values(static_cast<size_t>(layout.dim));
  for (int64_t r = 0; r < kEncodedRows; ++r) {
    for (float& value : values) value = uniform(random);
    REFRACT_RETURN_IF_ERROR(runtime::cpu::EncodeRow(
        values, layout, encoded.data() + r * layout.stride));
  }
  const int64_t each = rows * layout.stride;
  const int64_t apart =
      (each + kTableAlignBytes - 1) / kTableAlignBytes * kTableAlignBytes;
  const auto bytes = static_cast<size_t>(apart * count);
  std::string path = absl::StrCat(folder, "/bench_gather_XXXXXX");
  const int file = mkstemp(path.data());
  if (file < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": ", std::strerror(errno)));
  }
  // Without a byte written the file takes no memory.
  absl::Status status;
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    status = absl::ResourceExhaustedError(
        absl::StrCat(path, ": ", std::strerror(errno)));
  }
  Tables tables = {layout, count, rows, nullptr};
  models::WeightTable table;
  for (int64_t t = 0; t < count; ++t) {
    models::WeightEntry entry;
    entry.name = absl::StrCat("t", t);
    entry.file = path;
    entry.offset = static_cast<uint64_t>(t * apart);
    entry.bytes = static_cast<uint64_t>(each);
    entry.dtype = base::DType::kFloat32;
    entry.sizes = {rows, layout.dim};
    entry.strides = {layout.dim, 1};
    if (layout.format.element != models::RowElement::kFloat32) {
      entry.rows = layout;
    }
    table.entries.push_back(entry);
  }
  table.files.push_back({path, static_cast<uint64_t>(bytes), {}});
  std::shared_ptr<base::LargeMemory> memory;
  if (status.ok() && place != Place::kMapped) {
    auto allocated = base::LargeMemory::Allocate(
        bytes, place == Place::kHuge ? base::LargeMemory::Pages::kHuge
                                     : base::LargeMemory::Pages::kSmall);
    status = allocated.status();
    if (status.ok()) memory = *std::move(allocated);
  }
  // Tables in memory leave the file empty: the store needs a file of the right
  // size only to be opened, and gets the data afterwards (WithData).
  for (int64_t t = 0; t < count && status.ok(); ++t) {
    for (int64_t r = 0; r < rows && status.ok(); r += kEncodedRows) {
      const auto some = static_cast<size_t>(
          std::min(kEncodedRows, rows - r) * layout.stride);
      const int64_t at = t * apart + r * layout.stride;
      if (memory != nullptr) {
        std::memcpy(memory->bytes().data() + at, encoded.data(), some);
      } else {
        status = WriteAt(file, at, {encoded.data(), some});
      }
    }
  }
  close(file);
  if (status.ok()) {
    auto store = models::WeightStore::Open("", table);
    status = store.status();
    if (store.ok()) tables.store = *std::move(store);
  }
  // After the store has mapped it: the mapping keeps the file alive, and
  // nothing is left behind if the process is killed.
  unlink(path.c_str());
  if (!status.ok()) return status;
  huge_bytes = 0;
  if (memory == nullptr) return tables;
  huge_bytes = memory->HugeBytes();
  absl::flat_hash_map<std::string, const std::byte*> data;
  for (int64_t t = 0; t < count; ++t) {
    data[absl::StrCat("t", t)] = memory->bytes().data() + t * apart;
  }
  REFRACT_ASSIGN_OR_RETURN(tables.store,
                           tables.store->WithData(data, {}, std::move(memory)));
  return tables;
}

Request MakeRequest(const Tables& tables, int64_t batch, int64_t look_ups) {
  Request request;
  request.batch = batch;
  request.look_ups = look_ups;
  const int64_t per_table = batch * look_ups;
  request.joined_ids = Ints(tables.count * per_table);
  request.joined_offsets = Ints(tables.count * batch + 1);
  std::ranges::fill(request.joined_ids.as<int64_t>(), 0);
  for (int64_t t = 0; t < tables.count; ++t) {
    request.ids.push_back(Ints(per_table));
    std::ranges::fill(request.ids.back().as<int64_t>(), 0);
    base::Tensor offsets = Ints(batch);
    for (int64_t b = 0; b < batch; ++b) {
      offsets.as<int64_t>()[static_cast<size_t>(b)] = b * look_ups;
    }
    request.offsets.push_back(std::move(offsets));
  }
  const auto bags = request.joined_offsets.as<int64_t>();
  for (size_t b = 0; b < bags.size(); ++b) {
    bags[b] = static_cast<int64_t>(b) * look_ups;
  }
  for (size_t t = 0; t < request.ids.size(); ++t) {
    request.views.push_back(request.ids[t].view());
    request.views.push_back(request.offsets[t].view());
  }
  return request;
}

void DrawIds(RowSource& source, bool joined, Request& request) {
  if (joined) {
    for (int64_t& id : request.joined_ids.as<int64_t>()) id = source.Next();
    return;
  }
  for (base::Tensor& ids : request.ids) {
    for (int64_t& id : ids.as<int64_t>()) id = source.Next();
  }
}

void JoinIds(Request& request) {
  int64_t* to = request.joined_ids.as<int64_t>().data();
  for (base::Tensor& ids : request.ids) {
    to = std::ranges::copy(ids.as<int64_t>(), to).out;
  }
}

}  // namespace refract::bench

// A row's key in its cache is the number of its table and its own. Rows that a
// batch misses are sorted by place, so that rows of one block of the disk cost
// one read.

#include "cpu_node/embedding/disk_tables.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory/large_memory.h"
#include "base/status_macros.h"
#include "cpu_node/embedding/table_store.h"
#include "glog/logging.h"
#include "models/tables/table_memory.h"

namespace refract::cpu_node {
namespace {

using runtime::cpu::WantedRows;

constexpr int kRowBits = 40;
// Blocks that are read in one piece, at most.
constexpr size_t kMostReadBytes = size_t{128} << 10;
// Bytes of blocks that a thread reads before it takes rows out of them.
constexpr size_t kBufferBytes = size_t{4} << 20;

constexpr uint64_t RoundDown(uint64_t at) {
  return at / base::kReadAlignBytes * base::kReadAlignBytes;
}
constexpr uint64_t RoundUp(uint64_t at) {
  return RoundDown(at + base::kReadAlignBytes - 1);
}

}  // namespace

struct DiskTables::Miss {
  uint64_t key = 0;
  std::byte* to = nullptr;

  const Table* table = nullptr;
  uint64_t offset() const {
    return table->offset + row() * table->row_bytes;
  }
  uint64_t row() const { return key & ((uint64_t{1} << kRowBits) - 1); }
};

// Memory of a thread, kept for the next request.
struct DiskTables::Working {
  std::vector<Miss> misses;
  std::vector<base::FileRead> reads;
  std::vector<size_t> first_misses;  // of each read
  std::unique_ptr<base::LargeMemory> buffer;
};

absl::StatusOr<std::unique_ptr<DiskTables>> DiskTables::Create(
    const models::LoadedModel& model, bool whole, size_t cache_bytes,
    std::optional<size_t> shard, uint64_t available_bytes) {
  const auto divided = DividedTables(model, shard);
  std::unique_ptr<DiskTables> tables(new DiskTables);
  std::map<std::string, std::shared_ptr<const base::ReadFile>> files;
  std::map<size_t, uint64_t> bytes_of;  // by length of a row
  const std::set<std::string> names = models::TablesOf(
      model.graph, model.plan ? &*model.plan : nullptr, whole);
  for (const models::WeightEntry& entry : model.weights->table().entries) {
    if (!names.contains(entry.name)) continue;
    REFRACT_ASSIGN_OR_RETURN(const models::WeightView view,
                             model.weights->GetAsStored(entry.name));
    if (view.sizes.empty() || view.sizes[0] == 0 || view.bytes() == 0) continue;
    const size_t row_bytes =
        view.bytes() / static_cast<size_t>(view.sizes[0]);
    if ((!view.rows && !view.is_contiguous()) ||
        row_bytes > static_cast<size_t>(runtime::cpu::kMaxSourceRowBytes)) {
      LOG(WARNING) << "model '" << model.name << "' version " << model.version
                   << ": table '" << entry.name
                   << "' stays mapped: its rows are not one after the other, "
                      "or longer than 64 KiB";
      continue;
    }
    std::shared_ptr<const base::ReadFile>& file = files[entry.file];
    if (file == nullptr) {
      REFRACT_ASSIGN_OR_RETURN(
          file, base::ReadFile::Open(
                    absl::StrCat(model.folder, "/", entry.file)));
    }
    Table table;
    table.name = entry.name;
    table.file = file;
    table.offset = entry.offset;
    if (!view.rows) {
      table.offset += static_cast<uint64_t>(entry.storage_offset) *
                      base::SizeOf(entry.dtype);
    }
    table.row_bytes = row_bytes;
    uint64_t bytes = view.bytes();
    const auto shards = divided.find(entry.name);
    // A package has the own rows alone.
    if (shards != divided.end() && !shards->second->by_ids &&
        !model.packaged_shard.has_value()) {
      table.first_row = static_cast<uint64_t>(shards->second->begin(*shard));
      table.offset += table.first_row * row_bytes;
      bytes = static_cast<uint64_t>(shards->second->rows(*shard)) * row_bytes;
      if (bytes == 0) continue;
    }
    tables->sources_[entry.name] = {tables.get(),
                                    static_cast<int>(tables->tables_.size())};
    tables->tables_.push_back(std::move(table));
    bytes_of[row_bytes] += bytes;
    tables->table_bytes_ += bytes;
  }
  std::map<size_t, size_t> caches;  // their bytes, by length of a row
  size_t all_caches = 0;
  for (const auto& [row_bytes, bytes] : bytes_of) {
    const double part = static_cast<double>(bytes) /
                        static_cast<double>(tables->table_bytes_);
    // A cache is never larger than the tables themselves.
    const auto most =
        static_cast<double>(bytes) * (1 + 80.0 / static_cast<double>(row_bytes));
    caches[row_bytes] = static_cast<size_t>(
        std::min(part * static_cast<double>(cache_bytes), most));
    all_caches += caches[row_bytes];
  }
  if (available_bytes > 0 && all_caches > available_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("--row-cache-mib: row caches of ", all_caches,
                     " bytes do not fit into the ", available_bytes,
                     " bytes of memory that are available"));
  }
  for (const auto& [row_bytes, bytes] : caches) {
    REFRACT_ASSIGN_OR_RETURN(auto cache, RowCache::Create(bytes, row_bytes));
    for (Table& table : tables->tables_) {
      if (table.row_bytes == row_bytes) table.cache = cache.get();
    }
    tables->caches_.push_back(std::move(cache));
  }
  return tables;
}

absl::Status DiskTables::Fetch(absl::Span<const WantedRows> wanted,
                               runtime::RunStats& /*stats*/) const {
  static thread_local Working working;
  working.misses.clear();
  uint64_t count = 0;
  for (const WantedRows& some : wanted) {
    const Table& table = tables_[static_cast<size_t>(some.table)];
    std::byte* to = some.to;
    for (const uint64_t row : some.rows) {
      const uint64_t key =
          (static_cast<uint64_t>(some.table) << kRowBits) | row;
      if (!table.cache->Get(key, to)) {
        working.misses.push_back({key, to, &table});
      }
      to += table.row_bytes;
    }
    count += some.rows.size();
  }
  hits_.fetch_add(count - working.misses.size(), std::memory_order_relaxed);
  if (working.misses.empty()) return absl::OkStatus();
  misses_.fetch_add(working.misses.size(), std::memory_order_relaxed);
  return ReadMisses(working);
}

absl::Status DiskTables::ReadMisses(Working& working) const {
  if (working.buffer == nullptr) {
    REFRACT_ASSIGN_OR_RETURN(working.buffer,
                             base::LargeMemory::Allocate(
                                 kBufferBytes, base::LargeMemory::Pages::kSmall));
  }
  std::vector<Miss>& misses = working.misses;
  std::sort(misses.begin(), misses.end(), [](const Miss& a, const Miss& b) {
    return std::pair(a.table->file.get(), a.offset()) <
           std::pair(b.table->file.get(), b.offset());
  });
  size_t next = 0;
  while (next < misses.size()) {
    working.reads.clear();
    working.first_misses.clear();
    size_t filled = 0;
    for (; next < misses.size(); ++next) {
      const Miss& miss = misses[next];
      const uint64_t end = miss.offset() + miss.table->row_bytes;
      const uint64_t begin = RoundDown(miss.offset());
      if (!working.reads.empty()) {
        base::FileRead& last = working.reads.back();
        const uint64_t grown = RoundUp(std::max<uint64_t>(
                                   end, last.offset + last.bytes)) -
                               last.offset;
        const bool touches = last.file == miss.table->file.get() &&
                             begin <= last.offset + last.bytes;
        if (touches && grown <= kMostReadBytes + base::kReadAlignBytes &&
            filled + grown - last.bytes <= kBufferBytes) {
          filled += grown - last.bytes;
          last.bytes = grown;
          last.wanted = std::max<size_t>(last.wanted, end - last.offset);
          continue;
        }
      }
      const size_t bytes = RoundUp(end) - begin;
      if (filled + bytes > kBufferBytes) break;
      base::FileRead read;
      read.file = miss.table->file.get();
      read.offset = begin;
      read.to = working.buffer->bytes().data() + filled;
      read.bytes = bytes;
      read.wanted = end - begin;
      working.reads.push_back(read);
      working.first_misses.push_back(next);
      filled += bytes;
    }
    size_t failed = 0;
    const absl::Status read = base::ReadAll(working.reads, failed);
    if (!read.ok()) {
      const Miss& first = misses[working.first_misses[failed]];
      return base::Annotate(read,
                            absl::StrCat("table '", first.table->name,
                                         "': row ",
                                         first.table->first_row + first.row()));
    }
    reads_.fetch_add(working.reads.size(), std::memory_order_relaxed);
    read_bytes_.fetch_add(filled, std::memory_order_relaxed);
    for (size_t r = 0; r < working.reads.size(); ++r) {
      const size_t end = r + 1 < working.reads.size()
                             ? working.first_misses[r + 1]
                             : next;
      for (size_t m = working.first_misses[r]; m < end; ++m) {
        const Miss& miss = misses[m];
        const std::byte* const row =
            working.reads[r].to + (miss.offset() - working.reads[r].offset);
        std::memcpy(miss.to, row, miss.table->row_bytes);
        // A row that the batch has several times is put in once.
        if (m + 1 < end && misses[m + 1].key == miss.key) continue;
        miss.table->cache->Put(miss.key, row);
      }
    }
  }
  return absl::OkStatus();
}

DiskTables::Counts DiskTables::counts() const {
  Counts counts;
  counts.hits = hits_.load(std::memory_order_relaxed);
  counts.misses = misses_.load(std::memory_order_relaxed);
  counts.reads = reads_.load(std::memory_order_relaxed);
  counts.read_bytes = read_bytes_.load(std::memory_order_relaxed);
  return counts;
}

size_t DiskTables::cache_bytes() const {
  size_t bytes = 0;
  for (const auto& cache : caches_) bytes += cache->memory_bytes();
  return bytes;
}

}  // namespace refract::cpu_node

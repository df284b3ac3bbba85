// Tables of a version may share bytes of a file (two names of one table), and
// usually follow each other in it. The bytes are therefore copied by file
// segments: unions of tables that share bytes.

#include "models/tables/table_memory.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/memory/resident_pages.h"
#include "base/process/thread.h"
#include "base/status_macros.h"
#include "base/tensor.h"
#include "models/graph/op_traits.h"

namespace refract::models {
namespace {

// Bytes of one read. Large enough for a disk's queue, small enough that two
// threads share the last pieces.
constexpr uint64_t kPieceBytes = uint64_t{8} << 20;
constexpr int kLowPriority = 10;  // nice

// Bytes [begin, end) of a file, which will be at byte `at` of the memory.
struct Segment {
  std::string file;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t at = 0;
};

uint64_t RoundUp(uint64_t bytes, uint64_t to) {
  return (bytes + to - 1) / to * to;
}

// The byte of its file where the first element of a weight lies.
uint64_t BeginOf(const WeightEntry& entry) {
  return entry.offset + static_cast<uint64_t>(entry.storage_offset) *
                            base::SizeOf(entry.dtype);
}

// Bytes of rows [first, second) of a table: their offset from its first row,
// and their number.
std::pair<uint64_t, uint64_t> BytesOfRows(const WeightEntry& entry,
                                          std::pair<int64_t, int64_t> rows) {
  auto row_bytes = static_cast<int64_t>(base::SizeOf(entry.dtype));
  for (size_t d = 1; d < entry.sizes.size(); ++d) row_bytes *= entry.sizes[d];
  if (entry.rows) row_bytes = entry.rows->stride;
  return {static_cast<uint64_t>(rows.first * row_bytes),
          static_cast<uint64_t>((rows.second - rows.first) * row_bytes)};
}

// Bytes [first, second) of a weight's file: of all of it, or of `rows` of it.
std::pair<uint64_t, uint64_t> BytesOf(const WeightEntry& entry,
                                      const RowRanges& rows) {
  const auto range = rows.find(entry.name);
  if (range == rows.end()) return {entry.offset, entry.offset + entry.bytes};
  const auto [offset, size] = BytesOfRows(entry, range->second);
  const uint64_t first = BeginOf(entry) + offset;
  return {first, first + size};
}

std::vector<Segment> SegmentsOf(const WeightTable& weights,
                                const std::set<std::string>& names,
                                const RowRanges& rows = {}) {
  // Tables join one segment only where they share bytes, not where they merely
  // touch, so that each table begins at an aligned address.
  std::map<std::string, std::vector<std::pair<uint64_t, uint64_t>>> ranges;
  for (const WeightEntry& entry : weights.entries) {
    if (!names.contains(entry.name) || entry.bytes == 0) continue;
    const auto bytes = BytesOf(entry, rows);
    if (bytes.first < bytes.second) ranges[entry.file].push_back(bytes);
  }
  std::vector<Segment> segments;
  uint64_t at = 0;
  for (auto& [file, list] : ranges) {
    // Sorted by begin, a range overlaps the segment before it or begins a new
    // one.
    std::sort(list.begin(), list.end());
    const size_t first = segments.size();
    for (const auto& [begin, end] : list) {
      if (segments.size() > first && begin < segments.back().end) {
        segments.back().end = std::max(segments.back().end, end);
      } else {
        segments.push_back({file, begin, end, 0});
      }
    }
  }
  for (Segment& segment : segments) {
    // The memory is the segments of all files, each at a multiple of 64 bytes.
    segment.at = at;
    at = RoundUp(at + segment.end - segment.begin, base::kTensorAlignBytes);
  }
  return segments;
}

struct Piece {
  const Segment* segment = nullptr;
  uint64_t begin = 0;  // in the file
  uint64_t end = 0;
};

// Reads the pieces by several threads; the first error ends it.
class Reader {
 public:
  Reader(absl::string_view folder, const std::vector<Segment>& segments,
         std::byte* memory)
      : folder_(folder), memory_(memory) {
    for (const Segment& segment : segments) {
      for (uint64_t at = segment.begin; at < segment.end; at += kPieceBytes) {
        pieces_.push_back(
            {&segment, at, std::min(at + kPieceBytes, segment.end)});
        total_ += pieces_.back().end - at;
      }
    }
  }
  ~Reader() {
    for (const auto& [file, descriptor] : files_) close(descriptor);
  }

  absl::Status Run(const LoadTablesOptions& options) {
    // All files are open before the first thread starts: threads read `files_`
    // without a lock.
    for (const Piece& piece : pieces_) {
      REFRACT_RETURN_IF_ERROR(Open(piece.segment->file));
    }
    std::vector<std::thread> threads;
    const auto wanted =
        std::min<size_t>(std::max(options.threads, 1), pieces_.size());
    for (size_t t = 1; t < wanted; ++t) {
      auto thread = base::StartThread([this] {
        // Lowers the priority of this thread alone; a refusal changes no
        // result.
        setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)),
                    kLowPriority);
        while (ReadNext()) continue;
      });
      if (!thread.ok()) break;  // fewer threads read as well
      threads.push_back(*std::move(thread));
    }
    // The calling thread reads, too, so that one thread needs no other, and
    // `progress` is called from here alone.
    while (ReadNext()) {
      if (options.progress != nullptr) options.progress(done_, total_);
    }
    for (std::thread& thread : threads) thread.join();
    if (options.progress != nullptr) options.progress(done_, total_);
    absl::MutexLock lock(&mu_);
    return error_;
  }

 private:
  absl::Status Open(const std::string& file) {
    if (files_.contains(file)) return absl::OkStatus();
    const std::string path = PathOf(file);
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": ", std::strerror(errno)));
    }
    files_[file] = descriptor;
    return absl::OkStatus();
  }

  std::string PathOf(const std::string& file) const {
    return folder_.empty() ? file : absl::StrCat(folder_, "/", file);
  }

  // False: nothing is left, or a read has failed.
  bool ReadNext() {
    // Threads take pieces in the order of the file, which keeps the disk's
    // reads sequential. The counter may pass the end by the number of threads.
    const size_t i = next_.fetch_add(1);
    if (i >= pieces_.size()) return false;
    const absl::Status status = Read(pieces_[i]);
    if (status.ok()) return true;
    next_ = pieces_.size();
    absl::MutexLock lock(&mu_);
    if (error_.ok()) error_ = status;
    return false;
  }

  absl::Status Read(const Piece& piece) {
    const Segment& segment = *piece.segment;
    const int file = files_.at(segment.file);
    std::byte* to = memory_ + segment.at + (piece.begin - segment.begin);
    for (uint64_t at = piece.begin; at < piece.end;) {
      const ssize_t count =
          pread(file, to, piece.end - at, static_cast<off_t>(at));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        return absl::DataLossError(absl::StrCat(
            PathOf(segment.file), ": ",
            count == 0 ? "ends" : std::strerror(errno), " at byte ", at,
            " of tables that reach to byte ", segment.end));
      }
      at += static_cast<uint64_t>(count);
      to += count;
    }
    // Drops the piece from the page cache: its bytes are in our memory now.
    posix_fadvise(file, static_cast<off_t>(piece.begin),
                  static_cast<off_t>(piece.end - piece.begin),
                  POSIX_FADV_DONTNEED);
    done_ += piece.end - piece.begin;
    return absl::OkStatus();
  }

  const std::string folder_;
  std::byte* const memory_;
  std::vector<Piece> pieces_;
  uint64_t total_ = 0;
  std::map<std::string, int> files_;
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> done_{0};
  absl::Mutex mu_;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::string_view Name(TableMemory memory) {
  switch (memory) {
    case TableMemory::kMap:
      return "map";
    case TableMemory::kLoad:
      return "load";
    case TableMemory::kDisk:
      return "disk";
  }
  return "";
}

std::optional<TableMemory> TableMemoryNamed(absl::string_view name) {
  for (const TableMemory memory :
       {TableMemory::kMap, TableMemory::kLoad, TableMemory::kDisk}) {
    if (Name(memory) == name) return memory;
  }
  return std::nullopt;
}

std::set<std::string> TablesOf(const Graph& graph, const SplitPlan* plan,
                               bool whole) {
  std::set<std::string> names;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!whole && plan != nullptr && plan->stages[n] == Stage::kHn) continue;
    if (ClassOf(graph, node) != OpClass::kEmbedding) continue;
    absl::string_view argument = EmbeddingArgsOf(node.op).weight;
    if (argument.empty()) argument = "self";
    const ValueId table = node.ValueArg(argument);
    if (table == kNoValue) continue;
    const Value& value = graph.value(table);
    if (value.is_weight()) names.insert(value.weight);
  }
  return names;
}

uint64_t BytesOfTables(const WeightTable& weights,
                       const std::set<std::string>& names,
                       const RowRanges& rows) {
  uint64_t bytes = 0;
  std::set<std::string> whole = names;
  for (const WeightEntry& entry : weights.entries) {
    const auto range = rows.find(entry.name);
    if (range == rows.end() || whole.erase(entry.name) == 0) continue;
    bytes += BytesOfRows(entry, range->second).second;
  }
  for (const Segment& segment : SegmentsOf(weights, whole)) {
    bytes += segment.end - segment.begin;
  }
  return bytes;
}

absl::StatusOr<LoadedTables> LoadTables(const WeightStore& store,
                                        absl::string_view folder,
                                        const std::set<std::string>& names,
                                        const LoadTablesOptions& options) {
  for (const std::string& name : names) {
    REFRACT_RETURN_IF_ERROR(store.GetAsStored(name).status());
  }
  const std::vector<Segment> segments =
      SegmentsOf(store.table(), names, options.rows);
  const uint64_t bytes =
      segments.empty() ? 0
                       : segments.back().at + segments.back().end -
                             segments.back().begin;
  if (options.available_bytes > 0 && bytes > options.available_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "tables of ", bytes, " bytes do not fit into the ",
        options.available_bytes, " bytes of memory that are available"));
  }
  REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<base::LargeMemory> memory,
                           base::LargeMemory::Allocate(bytes, options.pages));
  std::byte* const begin = memory->bytes().data();
  REFRACT_RETURN_IF_ERROR(Reader(folder, segments, begin).Run(options));
  // A stray write into a table would change scores silently; now it faults.
  memory->MakeReadOnly();
  LoadedTables loaded;
  loaded.bytes = bytes;
  loaded.huge_bytes = std::min<uint64_t>(memory->HugeBytes(), bytes);
  absl::flat_hash_map<std::string, const std::byte*> data;
  absl::flat_hash_map<std::string, int64_t> rows;
  for (const WeightEntry& entry : store.table().entries) {
    if (!names.contains(entry.name) || entry.bytes == 0) continue;
    const auto range = options.rows.find(entry.name);
    const bool all = range == options.rows.end();
    if (!all) rows[entry.name] = range->second.second - range->second.first;
    const uint64_t offset = BytesOf(entry, options.rows).first;
    const auto segment = std::find_if(
        segments.begin(), segments.end(), [&](const Segment& one) {
          return one.file == entry.file && one.begin <= offset &&
                 offset < one.end;
        });
    // A table without rows here.
    if (segment == segments.end()) {
      data[entry.name] = begin;
      continue;
    }
    data[entry.name] = begin + segment->at + (offset - segment->begin) +
                       (all ? BeginOf(entry) - entry.offset : 0);
  }
  REFRACT_ASSIGN_OR_RETURN(loaded.store,
                           store.WithData(data, rows, std::move(memory)));
  return loaded;
}

void ReadMappedTables(
    const WeightStore& store, const std::set<std::string>& names,
    const std::function<bool(uint64_t done, uint64_t total)>& go_on,
    const RowRanges& rows) {
  const uint64_t total = BytesOfTables(store.table(), names, rows);
  uint64_t done = 0;
  // Two names of the same bytes are read twice, the second time from the page
  // cache; `done` then stops at `total`.
  for (const WeightEntry& entry : store.table().entries) {
    if (!names.contains(entry.name) || entry.bytes == 0) continue;
    const absl::StatusOr<WeightView> view = store.GetAsStored(entry.name);
    if (!view.ok() || !store.IsMapped(*view)) continue;
    const std::byte* begin =
        view->data - static_cast<size_t>(entry.storage_offset) *
                         base::SizeOf(entry.dtype);
    uint64_t end = entry.bytes;
    if (const auto range = rows.find(entry.name); range != rows.end()) {
      const auto [offset, size] = BytesOfRows(entry, range->second);
      begin = view->data + offset;
      end = size;
    }
    for (uint64_t at = 0; at < end; at += kPieceBytes) {
      const uint64_t bytes = std::min(kPieceBytes, end - at);
      base::BringIntoMemory({begin + at, static_cast<size_t>(bytes)});
      done = std::min(done + bytes, total);
      if (!go_on(done, total)) return;
    }
  }
}

}  // namespace refract::models

#include "cpu_node/embedding/table_loading.h"

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/memory/usable_memory.h"
#include "base/process/idle_thread.h"
#include "base/process/thread.h"
#include "base/status_macros.h"
#include "cpu_node/embedding/table_store.h"
#include "glog/logging.h"

namespace refract::cpu_node {
namespace {

// More readers than a disk's queue or the memory's bandwidth needs would only
// take processors from requests.
constexpr unsigned kMaxThreads = 8;
constexpr absl::Duration kBetweenLines = absl::Seconds(2);

std::string Gib(uint64_t bytes) {
  return absl::StrFormat("%.3f GiB", static_cast<double>(bytes) / 0x1p30);
}

std::string LabelOf(const models::LoadedModel& model,
                    const std::set<std::string>& names) {
  return absl::StrCat("model '", model.name, "' version ", model.version, ": ",
                      names.size(), " table(s)");
}

// The rows that this node reads of the tables that are divided over a group.
models::RowRanges OwnRows(const models::LoadedModel& model,
                          std::optional<size_t> shard) {
  models::RowRanges rows;
  if (model.packaged_shard.has_value()) return rows;  // it has no others
  for (const auto& [table, shards] : DividedTables(model, shard)) {
    // An owner of several is chosen by a hash of the id.
    if (shards->by_ids && !shards->sole_owner()) continue;
    rows[table] = {shards->begin(*shard), shards->ends[*shard]};
  }
  return rows;
}

// Log lines that say how far a long work has come.
class ProgressLog {
 public:
  ProgressLog(std::string label, absl::string_view how)
      : label_(std::move(label)), how_(how), last_(absl::Now()) {}
  void Add(uint64_t done, uint64_t of) {
    const absl::Time now = absl::Now();
    if (now - last_ < kBetweenLines || done == of) return;
    last_ = now;
    LOG(INFO) << label_ << ", " << Gib(done) << " of " << Gib(of) << " "
              << how_;
  }

 private:
  const std::string label_;
  const absl::string_view how_;
  absl::Time last_;
};

absl::StatusOr<std::shared_ptr<const models::LoadedModel>> Place(
    std::shared_ptr<const models::LoadedModel> model,
    models::TableMemory memory, bool whole, std::optional<size_t> shard,
    const std::function<bool()>& beside_requests, TableBytes& bytes) {
  const std::set<std::string> names = models::TablesOf(
      model->graph, model->plan ? &*model->plan : nullptr, whole);
  const uint64_t total =
      models::BytesOfTables(model->weights->table(), names);
  std::string label = LabelOf(*model, names);
  if (memory != models::TableMemory::kLoad || names.empty()) {
    bytes.mapped = total;
    if (names.empty()) return model;
    LOG(INFO) << label << " of " << Gib(total) << " are mapped";
    if (beside_requests != nullptr) {
      ReadTablesAhead(*model, names, shard, beside_requests);
    }
    return model;
  }
  const absl::Time begin = absl::Now();
  models::LoadTablesOptions options;
  options.rows = OwnRows(*model, shard);
  // The index of a table with ids numbers the rows of the whole table.
  const auto divided = DividedTables(*model, shard);
  std::erase_if(options.rows, [&](const auto& table) {
    return divided.at(table.first)->by_ids;
  });
  if (!options.rows.empty()) {
    absl::StrAppend(&label, ", of ", options.rows.size(),
                    " of them the rows of shard ", *shard, " alone,");
  }
  ProgressLog progress(label, "loaded");
  // Also in idle time, a thread that clears huge pages holds up requests on its
  // processor for milliseconds: beside requests, half of the processors have no
  // such thread.
  const unsigned processors = std::thread::hardware_concurrency();
  options.threads = static_cast<int>(
      std::clamp(beside_requests == nullptr ? processors : processors / 2, 1U,
                 kMaxThreads));
  options.available_bytes = base::AvailableMemory();
  options.progress = [&progress](uint64_t done, uint64_t of) {
    progress.Add(done, of);
  };
  absl::StatusOr<models::LoadedTables> loaded = models::LoadTables(
      *model->weights, model->folder, names, options);
  if (!loaded.ok()) {
    return base::Annotate(loaded.status(), "--table-memory load");
  }
  bytes.huge_pages = loaded->huge_bytes;
  bytes.small_pages = loaded->bytes - loaded->huge_bytes;
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  LOG(INFO) << label << " of "
            << Gib(models::BytesOfTables(model->weights->table(), names,
                                         options.rows))
            << " loaded in "
            << absl::StrFormat("%.1f", seconds) << " s; they take "
            << Gib(loaded->bytes) << " of memory, " << Gib(bytes.huge_pages)
            << " of it in huge pages";
  auto result = std::make_shared<models::LoadedModel>(*model);
  result->weights = std::move(loaded->store);
  return result;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const models::LoadedModel>> PlaceTables(
    std::shared_ptr<const models::LoadedModel> model,
    models::TableMemory memory, bool whole, std::optional<size_t> shard,
    const std::function<bool()>& beside_requests, TableBytes& bytes) {
  if (beside_requests == nullptr) {
    return Place(std::move(model), memory, whole, shard, beside_requests,
                 bytes);
  }
  std::shared_ptr<const models::LoadedModel> placed;
  REFRACT_RETURN_IF_ERROR(base::RunInIdleTime([&]() -> absl::Status {
    REFRACT_ASSIGN_OR_RETURN(
        placed, Place(model, memory, whole, shard, beside_requests, bytes));
    return absl::OkStatus();
  }));
  return placed;
}

void ReadTablesAhead(const models::LoadedModel& model,
                     const std::set<std::string>& names,
                     std::optional<size_t> shard,
                     const std::function<bool()>& go_on,
                     const std::string& root) {
  const models::RowRanges own_rows = OwnRows(model, shard);
  const uint64_t total =
      models::BytesOfTables(model.weights->table(), names, own_rows);
  const std::string label = LabelOf(model, names);
  // Tables that do not fit beside the tables that serve now would push these,
  // and each other, out of the page cache.
  const uint64_t available = base::AvailableMemory(root);
  const uint64_t mapped = base::MappedFileMemory(root);
  if (available > 0 && total + mapped > available) {
    LOG(INFO) << label << " are not read ahead of requests: they take more "
              << "than the " << Gib(available) << " of available memory, of "
              << "which mapped files have " << Gib(mapped);
    return;
  }
  const absl::Time begin = absl::Now();
  ProgressLog progress(label, "read into the page cache");
  bool ended = !go_on();
  if (!ended) {
    models::ReadMappedTables(
        *model.weights, names,
        [&](uint64_t done, uint64_t of) {
          progress.Add(done, of);
          ended = !go_on();
          return !ended;
        },
        own_rows);
  }
  if (ended) return;
  LOG(INFO) << label << " of " << Gib(total) << " were read into the page "
            << "cache in "
            << absl::StrFormat("%.1f",
                               absl::ToDoubleSeconds(absl::Now() - begin))
            << " s";
}

absl::StatusOr<std::unique_ptr<TableReadAhead>> TableReadAhead::Start(
    std::vector<Version> versions, Read read) {
  std::unique_ptr<TableReadAhead> result(new TableReadAhead);
  REFRACT_ASSIGN_OR_RETURN(
      result->thread_,
      base::StartThread([self = result.get(), versions = std::move(versions),
                         read = std::move(read)] {
        base::TakeIdleTimeOnly();
        for (const Version& version : versions) {
          const auto model = version.model.lock();
          if (model == nullptr) continue;
          read(*model, version.tables, [&] {
            // The last holder cannot get company: all others held it before.
            return !self->stop_ && model.use_count() > 1;
          });
        }
      }));
  return result;
}

TableReadAhead::~TableReadAhead() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace refract::cpu_node

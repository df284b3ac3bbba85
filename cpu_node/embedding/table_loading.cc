#include "cpu_node/embedding/table_loading.h"

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/memory/usable_memory.h"
#include "base/process/idle_thread.h"
#include "base/status_macros.h"
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

absl::StatusOr<std::shared_ptr<const models::LoadedModel>> Place(
    std::shared_ptr<const models::LoadedModel> model,
    models::TableMemory memory, bool whole, bool beside_requests,
    TableBytes& bytes) {
  const std::set<std::string> names = models::TablesOf(
      model->graph, model->plan ? &*model->plan : nullptr, whole);
  const uint64_t total =
      models::BytesOfTables(model->weights->table(), names);
  const std::string label =
      absl::StrCat("model '", model->name, "' version ", model->version, ": ",
                   names.size(), " table(s)");
  const absl::Time begin = absl::Now();
  absl::Time last = begin;
  const auto progress = [&](absl::string_view how) {
    return [&, how](uint64_t done, uint64_t of) {
      const absl::Time now = absl::Now();
      if (now - last < kBetweenLines || done == of) return;
      last = now;
      LOG(INFO) << label << ", " << Gib(done) << " of " << Gib(of) << " "
                << how;
    };
  };
  if (memory != models::TableMemory::kLoad || names.empty()) {
    bytes.mapped = total;
    if (names.empty()) return model;
    LOG(INFO) << label << " of " << Gib(total) << " are mapped";
    if (!beside_requests) return model;
    // Tables that do not fit beside the tables that serve now would push these,
    // and each other, out of the page cache.
    const uint64_t available = base::AvailableMemory();
    const uint64_t mapped = base::MappedFileMemory();
    if (available > 0 && total + mapped > available) {
      LOG(INFO) << label << " are not read ahead of requests: they take more "
                << "than the " << Gib(available) << " of available memory, of "
                << "which mapped files have " << Gib(mapped);
      return model;
    }
    models::ReadMappedTables(*model->weights, names,
                             progress("read into the page cache"));
    return model;
  }
  models::LoadTablesOptions options;
  options.threads = static_cast<int>(
      std::clamp(std::thread::hardware_concurrency(), 1U, kMaxThreads));
  options.available_bytes = base::AvailableMemory();
  options.progress = progress("loaded");
  absl::StatusOr<models::LoadedTables> loaded = models::LoadTables(
      *model->weights, model->folder, names, options);
  if (!loaded.ok()) {
    return base::Annotate(loaded.status(), "--table-memory load");
  }
  bytes.huge_pages = loaded->huge_bytes;
  bytes.small_pages = loaded->bytes - loaded->huge_bytes;
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  LOG(INFO) << label << " of " << Gib(total) << " loaded in "
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
    models::TableMemory memory, bool whole, bool beside_requests,
    TableBytes& bytes) {
  if (!beside_requests) {
    return Place(std::move(model), memory, whole, beside_requests, bytes);
  }
  std::shared_ptr<const models::LoadedModel> placed;
  REFRACT_RETURN_IF_ERROR(base::RunInIdleTime([&]() -> absl::Status {
    REFRACT_ASSIGN_OR_RETURN(
        placed, Place(model, memory, whole, beside_requests, bytes));
    return absl::OkStatus();
  }));
  return placed;
}

}  // namespace refract::cpu_node

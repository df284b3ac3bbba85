#ifndef REFRACT_CPU_NODE_EMBEDDING_TABLE_STORE_H_
#define REFRACT_CPU_NODE_EMBEDDING_TABLE_STORE_H_

// The embedding tables of a model version and the changes of their rows.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "models/deltas/delta.h"
#include "models/repository/repository.h"
#include "models/repository/table_shards.h"
#include "models/tables/id_index.h"
#include "models/tables/new_ids.h"
#include "runtime/cpu/look_ups/row_overlay.h"
#include "runtime/program.h"

namespace refract::cpu_node {

// By table.
using IdIndexes =
    absl::flat_hash_map<std::string, std::shared_ptr<const models::IdIndex>>;

// The tables that the plan of `model` divides over a group of which this node is
// `shard`; nullopt: it is in no group, and there are none.
absl::flat_hash_map<std::string, const models::TableShards*> DividedTables(
    const models::LoadedModel& model, std::optional<size_t> shard);

// Builds the indexes of the tables of `model` that have ids, and logs the bytes
// of each. `shard`: as TableStore. Errors as IdIndex::Of().
absl::StatusOr<IdIndexes> IndexIds(
    const models::LoadedModel& model,
    std::optional<size_t> shard = std::nullopt);

// Tables stay mapped; changed rows lie in memory beside them. All changes of a
// delta become visible at once, and a request reads one state of all tables
// from its first look-up to its last: it holds a Pin.
//
// Pin() may be called by any thread; Apply() by one at a time.
class TableStore {
 public:
  // Tables of `model` that some look-up reads.
  // `id_indexes`: of tables whose ids are no row numbers; look-ups and deltas
  // use the ids. `shard`: the number of this node in its shard group, for a
  // plan that divides tables; of a divided table, deltas are checked against
  // all rows, and only the rows that the node owns change here. Deltas may add
  // up to `new_ids` ids to each table of `id_indexes`; of a table that is
  // divided by ids, each node counts the ids that are its own.
  explicit TableStore(const models::LoadedModel& model,
                      const IdIndexes& id_indexes = {},
                      std::optional<size_t> shard = std::nullopt,
                      int64_t new_ids = 0);

  // Has look-ups take the rows of these tables from their source, which
  // outlives the store. Before the first look-up.
  void SetSources(
      const absl::flat_hash_map<std::string, runtime::cpu::TableSource>&
          sources);

  // Overlays for CompileOptions::overlays, which live as long as the store.
  const absl::flat_hash_map<std::string, const runtime::cpu::RowOverlay*>&
  overlays() const {
    return overlays_;
  }
  // Finds the tables that cannot change, because something other than a look-up
  // of this node reads them. `ways`: the programs of each way of executing the
  // model here, compiled with overlays(). Before the first Apply().
  void CheckReaders(
      absl::Span<const std::vector<const runtime::Program*>> ways);

  // Tables by weight name, with the reason for each table that cannot change.
  const absl::btree_map<std::string, models::DeltaTable>& tables() const {
    return tables_;
  }

  // A state of all tables, which stays readable while the pin lives. Holds
  // memory of rows that newer states have replaced: a request at a time. Must
  // not outlive the store.
  class Pin {
   public:
    Pin() = default;  // of no store: the tables as imported
    Pin(Pin&& other) noexcept { *this = std::move(other); }
    Pin& operator=(Pin&& other) noexcept {
      Release();
      readers_ = std::exchange(other.readers_, nullptr);
      state_ = other.state_;
      sequence_ = other.sequence_;
      return *this;
    }
    ~Pin() { Release(); }

    // RunContext::set_tables_at().
    uint64_t state() const { return state_; }
    // Of the delta that led to the state; 0: none.
    int64_t sequence() const { return sequence_; }

   private:
    friend class TableStore;
    void Release() {
      if (readers_ == nullptr) return;
      readers_->fetch_sub(1, std::memory_order_release);
      readers_ = nullptr;
    }
    std::atomic<uint32_t>* readers_ = nullptr;
    uint64_t state_ = 0;
    int64_t sequence_ = 0;
  };
  // The newest state.
  Pin PinNewest() const;

  // Called between pieces of work of 1024 rows, to slow it down.
  using Pause = std::function<void()>;
  // Applies the changes of one delta and makes them visible. Rows of floats
  // are brought into the table's own format first, as `refract quantize` does.
  //   InvalidArgument    a row has a NaN or an infinity, or a value that does
  //                      not fit the format (names table, id and column)
  //   ResourceExhausted  no memory, or more new ids than a table may have
  //                      (names the table)
  //   Unavailable        a request is still under way that began kStates
  //                      deltas ago, or that may see removed ids whose rows
  //                      are needed
  // Then nothing has changed.
  absl::Status Apply(absl::Span<const models::TableDelta> deltas,
                     int64_t sequence, const Pause& pause);

  // Refuses the rows that Apply() would refuse. Of any thread; NotFound names
  // an unknown table.
  absl::Status Check(absl::Span<const models::TableDelta> deltas) const;
  // Refuses a delta that follows the newest state if a table would have more
  // new ids than it may have. Of any thread.
  absl::Status CheckRoom(absl::Span<const models::TableDelta> deltas) const;

  size_t changed_rows() const;
  size_t memory_bytes() const;  // of the changes
  int64_t new_ids() const;      // that deltas have added

 private:
  // States that pins may refer to at a time.
  static constexpr uint64_t kStates = 256;

  struct Table {
    // `rows`: of the overlay, which counts from the first own row. `ids`: null,
    // or of a table that may have `new_ids` more ids.
    Table(const models::WeightView& view, int64_t rows, size_t row_bytes,
          std::shared_ptr<const models::IdIndex> ids, int64_t new_ids);
    runtime::cpu::RowOverlay overlay;
    size_t row_bytes;
    // Of the rows, also where the file does not say it: to encode floats.
    models::RowLayout layout;
    std::shared_ptr<const models::IdIndex> index;  // null: ids are row numbers
    std::unique_ptr<models::NewIds> new_ids;       // null: it takes none
    // The own rows of a table that is divided by row numbers, or by ids; null
    // and nullopt: all rows are here.
    const models::TableShards* shards = nullptr;
    size_t shard = 0;
    std::optional<models::OwnIds> own_ids;
    // Whether the row of `id` is here.
    bool Owns(int64_t id) const {
      if (own_ids) return own_ids->Has(id);
      return shards == nullptr ||
             (id >= shards->begin(shard) && id < shards->ends[shard]);
    }
    size_t CountOwn(absl::Span<const int64_t> ids) const;
    // The row as imported, or kNoRow.
    int64_t RowOf(int64_t id) const {
      if (index != nullptr) return index->Find(id);
      return shards == nullptr ? id : id - shards->begin(shard);
    }
    // The row of an id that has a row in `state`, or kNoRow. Of tables with ids.
    int64_t Find(int64_t id, uint64_t state) const;
    // By the writer, with room for them.
    void Upsert(int64_t id, uint64_t state, absl::Span<const std::byte> bytes);
    void Delete(int64_t id, uint64_t state);
  };
  struct State {
    std::atomic<uint32_t> readers{0};
    int64_t sequence = 0;
  };

  // Number of ids that the delta adds to a table that takes new ids, after
  // `state`. ResourceExhausted: more than the table may have.
  static absl::StatusOr<size_t> Added(const models::TableDelta& delta,
                                      const Table& table, uint64_t state);
  State& slot(uint64_t state) const { return states_[state % kStates]; }
  // The oldest state that a reader has or may get.
  uint64_t Oldest() const;
  // The rows of `delta` as the table keeps them. `buffer` holds them where they
  // had to be encoded.
  absl::Status Encode(const models::TableDelta& delta, const Table& table,
                      const Pause& pause, std::vector<std::byte>& buffer) const;

  const models::LoadedModel& model_;
  absl::btree_map<std::string, models::DeltaTable> tables_;
  absl::flat_hash_map<std::string, std::unique_ptr<Table>> changes_;
  absl::flat_hash_map<std::string, const runtime::cpu::RowOverlay*> overlays_;

  // Number of deltas applied.
  std::atomic<uint64_t> newest_{0};
  mutable std::array<State, kStates> states_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_TABLE_STORE_H_

// A delta is applied in three steps: everything that may fail is done aside,
// rows are written where no reader looks yet, and one store makes the state
// visible. A pin counts itself in its state's slot and then looks whether the
// state is still the newest; the writer makes a state the newest and then looks
// at the slots. All threads see these accesses in one order (seq_cst): either
// the reader takes the newer state, or the writer sees its pin.

#include "cpu_node/embedding/table_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "models/graph/op_traits.h"
#include "models/operators/operator.h"
#include "models/tables/decode_row.h"
#include "models/tables/table_memory.h"
#include "runtime/compile/node_args.h"
#include "runtime/cpu/look_ups/encode_rows.h"

namespace refract::cpu_node {
namespace {

using models::DeltaTable;
using models::TableDelta;

constexpr size_t kRowsBetweenPauses = 1024;

// Whether `node` looks up rows of `table` and reads the table in no other way:
// a second operand of the same node would see the rows as they were imported.
bool LooksUpIn(const models::Node& node, models::ValueId table) {
  absl::string_view argument = models::EmbeddingArgsOf(node.op).weight;
  if (models::LoweringOf(node.op) == models::Lowering::kIndexSelect) {
    argument = "self";
  }
  if (argument.empty()) return false;
  const std::vector<models::ValueId> operands = models::InputsOf(node);
  const auto uses = std::count(operands.begin(), operands.end(), table);
  const runtime::NodeArgs args(node);
  const int at = args.OperandOf(argument);
  return uses == 1 && at != runtime::kNoOperand && operands[at] == table;
}

// Rows of these types are encoded and checked as rows of a format.
std::optional<models::RowElement> ElementOf(base::DType dtype) {
  switch (dtype) {
    case base::DType::kFloat32:
      return models::RowElement::kFloat32;
    case base::DType::kFloat16:
      return models::RowElement::kFloat16;
    case base::DType::kBFloat16:
      return models::RowElement::kBFloat16;
    default:
      return std::nullopt;
  }
}

std::string WhyNotRows(const models::WeightView& view) {
  if (view.rows) return "";
  if (view.sizes.size() != 2) {
    return absl::StrCat("it has ", view.sizes.size(), " dimensions, not 2");
  }
  if (!ElementOf(view.dtype)) {
    return absl::StrCat("it is of ", base::Name(view.dtype));
  }
  if (!view.is_contiguous()) return "its rows do not lie one after the other";
  return "";
}

}  // namespace

absl::flat_hash_map<std::string, const models::TableShards*> DividedTables(
    const models::LoadedModel& model, std::optional<size_t> shard) {
  absl::flat_hash_map<std::string, const models::TableShards*> divided;
  // ShardedModel refuses a plan for a group of another size.
  if (shard.has_value() && model.plan.has_value() &&
      *shard < model.plan->num_shards) {
    for (const models::TableShards& shards : model.plan->shards) {
      divided[shards.table] = &shards;
    }
  }
  return divided;
}

absl::StatusOr<IdIndexes> IndexIds(const models::LoadedModel& model,
                                   std::optional<size_t> shard) {
  const auto divided = DividedTables(model, shard);
  IdIndexes indexes;
  for (const std::string& table : models::TablesOf(
           model.graph, model.plan ? &*model.plan : nullptr, /*whole=*/true)) {
    const auto shards = divided.find(table);
    const bool is_divided = shards != divided.end();
    REFRACT_ASSIGN_OR_RETURN(
        auto index,
        models::IdIndex::Of(*model.weights, table,
                            is_divided ? shards->second : nullptr,
                            shard.value_or(0)));
    if (is_divided && shards->second->by_ids != (index != nullptr)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "table '", table, "': the plan divides it by ",
          shards->second->by_ids ? "ids, and it has none"
                                 : "row numbers, and ids name its rows",
          "; run refract partition --shards again"));
    }
    if (index == nullptr) continue;
    LOG(INFO) << "model '" << model.name << "' version " << model.version
              << ": ids of table '" << table << "' take "
              << index->memory_bytes() << " bytes";
    indexes[table] = std::move(index);
  }
  return indexes;
}

size_t TableStore::Table::CountOwn(absl::Span<const int64_t> ids) const {
  return static_cast<size_t>(std::count_if(
      ids.begin(), ids.end(), [&](int64_t id) { return Owns(id); }));
}

TableStore::Table::Table(const models::WeightView& view, int64_t rows,
                         size_t row_bytes,
                         std::shared_ptr<const models::IdIndex> ids,
                         int64_t new_ids)
    // Numbers of new ids: twice as many as there may be ids, because a delta
    // may replace all while requests still read the replaced ids.
    : overlay(rows, row_bytes, ids == nullptr ? 0 : rows + 2 * new_ids),
      row_bytes(row_bytes),
      index(std::move(ids)) {
  if (index != nullptr && new_ids > 0) {
    this->new_ids = std::make_unique<models::NewIds>(rows, new_ids);
  }
  if (index != nullptr) overlay.SetIds(index.get(), this->new_ids.get());
  if (view.rows) {
    layout = *view.rows;
    return;
  }
  layout.format.element = *ElementOf(view.dtype);
  layout.dim = view.sizes[1];
  layout.stride = static_cast<int64_t>(row_bytes);
}

TableStore::TableStore(const models::LoadedModel& model,
                       const IdIndexes& id_indexes, std::optional<size_t> shard,
                       int64_t new_ids)
    : model_(model) {
  const models::Graph& graph = model.graph;
  const auto divided = DividedTables(model, shard);
  for (const models::Node& node : graph.nodes) {
    for (const models::ValueId id : models::InputsOf(node)) {
      const models::Value& value = graph.value(id);
      if (!value.is_weight() || !LooksUpIn(node, id)) continue;
      const auto view = model.weights->GetAsStored(value.weight);
      if (!view.ok() || tables_.contains(value.weight)) continue;
      DeltaTable& table = tables_[value.weight];
      table.why_not = WhyNotRows(*view);
      if (!table.why_not.empty()) continue;
      const auto shards = divided.find(value.weight);
      const bool is_divided = shards != divided.end();
      // A package has the own rows alone.
      table.rows = is_divided ? shards->second->ends.back() : view->sizes[0];
      const bool by_ids = is_divided && shards->second->by_ids;
      int64_t own_rows = view->sizes[0];
      if (is_divided && !by_ids) own_rows = shards->second->rows(*shard);
      table.dim = view->sizes[1];
      table.dtype = view->dtype;
      table.layout = view->rows;
      const int64_t row_bytes =
          view->rows
              ? view->rows->stride
              : table.dim * static_cast<int64_t>(base::SizeOf(view->dtype));
      if (table.rows == 0 || row_bytes == 0) {
        table.why_not = "it is empty";
        continue;
      }
      if (by_ids) {
        const auto ids = models::IdsOf(*model.weights, value.weight);
        const bool any = ids.ok() && *ids && !(*ids)->empty();
        table.own_ids.emplace(*shards->second, *shard,
                              any ? (*ids)->front() : 0);
      }
      const auto index = id_indexes.find(value.weight);
      if (index != id_indexes.end()) {
        table.index = index->second;
        table.takes_new_ids = new_ids > 0;
      }
      auto& changes = changes_[value.weight];
      changes = std::make_unique<Table>(*view, own_rows,
                                        static_cast<size_t>(row_bytes),
                                        table.index, new_ids);
      if (is_divided) {
        changes->shards = shards->second;
        changes->shard = *shard;
        changes->own_ids = table.own_ids;
      }
      overlays_[value.weight] = &changes->overlay;
    }
  }
}

void TableStore::SetSources(
    const absl::flat_hash_map<std::string, runtime::cpu::TableSource>&
        sources) {
  for (const auto& [name, source] : sources) {
    const auto table = changes_.find(name);
    if (table != changes_.end()) table->second->overlay.SetSource(source);
  }
}

void TableStore::CheckReaders(
    absl::Span<const std::vector<const runtime::Program*>> ways) {
  const models::Graph& graph = model_.graph;
  // Nodes that run as native look-ups, whichever way the model is executed.
  std::vector<size_t> ways_of(graph.nodes.size(), 0);
  for (const auto& way : ways) {
    absl::flat_hash_set<models::NodeId> nodes;
    for (const runtime::Program* const program : way) {
      for (const runtime::StepInfo& step : program->steps()) {
        if (step.look_up) nodes.insert(step.nodes.begin(), step.nodes.end());
      }
    }
    for (const models::NodeId node : nodes) ++ways_of[node];
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const models::Node& node = graph.nodes[n];
    for (const models::ValueId id : models::InputsOf(node)) {
      const models::Value& value = graph.value(id);
      const auto table = tables_.find(value.weight);
      if (!value.is_weight() || table == tables_.end()) continue;
      if (!LooksUpIn(node, id)) {
        table->second.why_not = absl::StrCat("node '", node.name, "' (",
                                             node.op, ") reads it whole");
      } else if (ways_of[n] != ways.size()) {
        table->second.why_not = absl::StrCat(
            "node '", node.name, "' (", node.op,
            ") looks it up on the GPU node, in LibTorch or at load");
      }
    }
  }
  // Two names of the same rows would differ after a change of one of them. In
  // order of their addresses, tables overlap if one begins before the end of an
  // earlier table.
  const std::byte* end = nullptr;
  const std::string* last = nullptr;
  std::vector<std::pair<const std::byte*, const std::string*>> places;
  for (const auto& [name, table] : tables_) {
    const auto view = model_.weights->GetAsStored(name);
    if (view.ok() && view->bytes() > 0) places.emplace_back(view->data, &name);
  }
  std::sort(places.begin(), places.end());
  for (const auto& [begin, name] : places) {
    if (last != nullptr && begin < end) {
      tables_[*name].why_not =
          absl::StrCat("it shares rows with '", *last, "'");
      tables_[*last].why_not =
          absl::StrCat("it shares rows with '", *name, "'");
    }
    const std::byte* const this_end =
        begin + model_.weights->GetAsStored(*name)->bytes();
    if (last == nullptr || this_end > end) {
      end = this_end;
      last = name;
    }
  }
}

TableStore::Pin TableStore::PinNewest() const {
  Pin pin;
  for (;;) {
    const uint64_t state = newest_.load(std::memory_order_seq_cst);
    State& slot = this->slot(state);
    slot.readers.fetch_add(1, std::memory_order_seq_cst);
    if (newest_.load(std::memory_order_seq_cst) == state) {
      pin.readers_ = &slot.readers;
      pin.state_ = state;
      pin.sequence_ = slot.sequence;
      return pin;
    }
    // A newer state came meanwhile, so the writer may not have seen this pin.
    slot.readers.fetch_sub(1, std::memory_order_release);
  }
}

// States before the oldest pinned state have no reader, and get none: requests
// pin the newest state. Rows that only they see can be given back.
uint64_t TableStore::Oldest() const {
  const uint64_t newest = newest_.load(std::memory_order_relaxed);
  const uint64_t first = newest < kStates ? 0 : newest - kStates + 1;
  for (uint64_t state = first; state < newest; ++state) {
    if (slot(state).readers.load(std::memory_order_seq_cst) != 0) return state;
  }
  return newest;
}

absl::Status TableStore::Encode(const TableDelta& delta, const Table& table,
                                const Pause& pause,
                                std::vector<std::byte>& buffer) const {
  const auto dim = static_cast<size_t>(table.layout.dim);
  const auto error = [&](size_t row, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", delta.table, "': row of id ", delta.ids[row], ": ", what));
  };
  if (!delta.encoded) buffer.resize(delta.ids.size() * table.row_bytes);
  std::vector<float> values(dim);
  for (size_t i = 0; i < delta.ids.size(); ++i) {
    if (i % kRowsBetweenPauses == 0 && pause != nullptr) pause();
    const std::byte* const row = delta.rows + i * delta.row_bytes;
    if (delta.encoded) {
      models::DecodeRow(table.layout, row, absl::MakeSpan(values));
    } else {
      std::memcpy(values.data(), row, dim * sizeof(float));
      const absl::Status encoded = runtime::cpu::EncodeRow(
          values, table.layout, buffer.data() + i * table.row_bytes);
      if (!encoded.ok()) return error(i, encoded.message());
    }
    // The decoded value counts: a scale or a bias of a row format may be NaN.
    for (size_t d = 0; d < dim; ++d) {
      if (std::isfinite(values[d])) continue;
      return error(i, absl::StrCat("column ", d, " is ", values[d]));
    }
  }
  return absl::OkStatus();
}

absl::Status TableStore::Check(absl::Span<const TableDelta> deltas) const {
  std::vector<std::byte> encoded;
  for (const TableDelta& delta : deltas) {
    const auto found = changes_.find(delta.table);
    if (found == changes_.end()) {
      return absl::NotFoundError(absl::StrCat("no table '", delta.table, "'"));
    }
    REFRACT_RETURN_IF_ERROR(Encode(delta, *found->second, nullptr, encoded));
  }
  return absl::OkStatus();
}

int64_t TableStore::Table::Find(int64_t id, uint64_t state) const {
  int64_t row = models::IdIndex::kNoRow;
  overlay.FindRows(absl::Span<const int64_t>(&id, 1), state, &row);
  return row;
}

void TableStore::Table::Upsert(int64_t id, uint64_t state,
                               absl::Span<const std::byte> bytes) {
  int64_t row = RowOf(id);
  if (row == models::IdIndex::kNoRow) row = new_ids->Add(id);
  overlay.Put(static_cast<uint64_t>(row), state, bytes);
}

void TableStore::Table::Delete(int64_t id, uint64_t state) {
  if (index == nullptr) {
    overlay.Put(static_cast<uint64_t>(RowOf(id)), state, {});
    return;
  }
  const int64_t row = Find(id, state);
  if (row == models::IdIndex::kNoRow) return;
  overlay.Remove(static_cast<uint64_t>(row), state);
  if (row >= overlay.rows()) new_ids->Remove(id, state);
}

absl::StatusOr<size_t> TableStore::Added(const TableDelta& delta,
                                         const Table& table, uint64_t state) {
  int64_t added = 0;
  for (const int64_t id : delta.ids) {
    if (!table.Owns(id)) continue;
    added += table.Find(id, state) == models::IdIndex::kNoRow &&
             table.index->Find(id) == models::IdIndex::kNoRow;
  }
  int64_t removed = 0;
  for (const int64_t id : delta.deleted) {
    if (!table.Owns(id)) continue;
    removed += table.Find(id, state) >= table.overlay.rows();
  }
  const int64_t ids = table.new_ids->size() + added - removed;
  if (ids > table.new_ids->most()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "table '", delta.table, "' would have ", ids,
        " new ids; --deltas-new-ids allows ", table.new_ids->most()));
  }
  return static_cast<size_t>(added);
}

absl::Status TableStore::CheckRoom(absl::Span<const TableDelta> deltas) const {
  const Pin pin = PinNewest();
  for (const TableDelta& delta : deltas) {
    const auto found = changes_.find(delta.table);
    if (found == changes_.end() || found->second->new_ids == nullptr) continue;
    REFRACT_RETURN_IF_ERROR(Added(delta, *found->second, pin.state()).status());
  }
  return absl::OkStatus();
}

absl::Status TableStore::Apply(absl::Span<const TableDelta> deltas,
                               int64_t sequence, const Pause& pause) {
  // One thread applies, so that nobody else makes a newer state. The new state
  // takes the slot of the state kStates before it, which must have no reader.
  const uint64_t state = newest_.load(std::memory_order_relaxed) + 1;
  if (slot(state).readers.load(std::memory_order_seq_cst) != 0) {
    return absl::UnavailableError(absl::StrCat(
        "a request is under way that began ", kStates, " deltas ago"));
  }
  struct Rows {
    Table* table = nullptr;
    std::vector<std::byte> encoded;
  };
  std::vector<Rows> rows(deltas.size());
  // Everything that can fail comes first and changes no row that readers see.
  REFRACT_RETURN_IF_ERROR(base::WithinMemory([&]() -> absl::Status {
    const uint64_t oldest = Oldest();
    for (size_t i = 0; i < deltas.size(); ++i) {
      const auto found = changes_.find(deltas[i].table);
      if (found == changes_.end()) {
        return absl::NotFoundError(
            absl::StrCat("no table '", deltas[i].table, "'"));
      }
      rows[i].table = found->second.get();
      REFRACT_RETURN_IF_ERROR(
          Encode(deltas[i], *rows[i].table, pause, rows[i].encoded));
    }
    for (size_t i = 0; i < deltas.size(); ++i) {
      runtime::cpu::RowOverlay& overlay = rows[i].table->overlay;
      const size_t count = rows[i].table->CountOwn(deltas[i].ids) +
                           rows[i].table->CountOwn(deltas[i].deleted);
      if (models::NewIds* const new_ids = rows[i].table->new_ids.get()) {
        REFRACT_ASSIGN_OR_RETURN(const size_t added,
                                 Added(deltas[i], *rows[i].table, state - 1));
        if (!new_ids->Reserve(added, state, oldest)) {
          return absl::UnavailableError(absl::StrCat(
              "table '", deltas[i].table,
              "': requests are under way that may see removed ids"));
        }
      }
      overlay.Collect(oldest);
      overlay.Reserve(count, state);
    }
    return absl::OkStatus();
  }));
  // Nothing fails from here on.
  for (size_t i = 0; i < deltas.size(); ++i) {
    const TableDelta& delta = deltas[i];
    Table& table = *rows[i].table;
    const std::byte* from = delta.encoded ? delta.rows : rows[i].encoded.data();
    for (size_t r = 0; r < delta.ids.size(); ++r, from += table.row_bytes) {
      if (r % kRowsBetweenPauses == 0 && pause != nullptr) pause();
      if (!table.Owns(delta.ids[r])) continue;
      table.Upsert(delta.ids[r], state, {from, table.row_bytes});
    }
    for (const int64_t id : delta.deleted) {
      if (table.Owns(id)) table.Delete(id, state);
    }
  }
  // No reader has the slot, and none takes it before the state is the newest.
  slot(state).sequence = sequence;
  newest_.store(state, std::memory_order_seq_cst);
  return absl::OkStatus();
}

size_t TableStore::changed_rows() const {
  size_t rows = 0;
  for (const auto& [name, table] : changes_) {
    rows += table->overlay.changed_rows();
  }
  return rows;
}

size_t TableStore::memory_bytes() const {
  size_t bytes = 0;
  for (const auto& [name, table] : changes_) {
    bytes += table->overlay.memory_bytes();
    if (table->new_ids != nullptr) bytes += table->new_ids->memory_bytes();
  }
  return bytes;
}

int64_t TableStore::new_ids() const {
  int64_t ids = 0;
  for (const auto& [name, table] : changes_) {
    if (table->new_ids != nullptr) ids += table->new_ids->size();
  }
  return ids;
}

}  // namespace refract::cpu_node

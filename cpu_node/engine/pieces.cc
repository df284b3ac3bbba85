// Serves requests whose message is longer than the transport carries. If the
// rows are independent, the engine cuts the request by rows, serves each piece
// as a request of its own, from CN-pre to CN-post, and answers with the rows of
// all pieces. The pieces run one after the other, so that a request of many
// pieces holds no more of the nodes' message memory than any other request.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "cpu_node/engine.h"
#include "cpu_node/engine/task.h"

namespace refract::cpu_node {
namespace {

// Share of the message limit that a piece aims at. Rows differ in their number
// of ids, and a message has headers; with this share few pieces are cut again.
constexpr double kFill = 0.9;

int64_t PiecesFor(size_t message_bytes, size_t max_message_bytes) {
  const double pieces = static_cast<double>(message_bytes) /
                        (kFill * static_cast<double>(max_message_bytes));
  return std::max<int64_t>(2, static_cast<int64_t>(std::ceil(pieces)));
}

}  // namespace

void Engine::SendInPieces(Task* task, const absl::Status& too_long) {
  const runtime::BatchLayout& layout = task->model->layout();
  const auto refuse = [&](absl::string_view why) {
    Fail(task,
         absl::InvalidArgumentError(absl::StrCat(
             too_long.message(), ", and the request cannot be cut: ", why)));
  };
  if (!layout.why_not().empty()) return refuse(layout.why_not());
  const std::optional<int64_t> rows = layout.Rows(task->bound.inputs);
  if (rows.value_or(1) < 2) return refuse("it has one row");

  // For the workers the request ends here, and its pieces follow.
  const absl::Time now = options_.clock->Now();
  task->parts.start += now - task->began;
  task->times.compute_input = task->parts.start;
  task->began = absl::InfinitePast();
  task->sent = now;
  task->node.reset();
  task->pre_context.reset();
  task->run_stats = runtime::RunStats();
  workers_.End(*task, task->parts, /*typical=*/false);
  task->started = false;

  const int64_t pieces = std::min(
      *rows,
      PiecesFor(task->message_bytes, options_.nodes.limits.max_message_bytes));
  task->gathered.emplace();
  task->gathered->rows = *rows;
  // Pieces of equal length, rounded up; the last may be shorter.
  task->gathered->rows_each = (*rows + pieces - 1) / pieces;
  task->gathered->outputs.resize(task->model->interface().outputs().size());
  StartPiece(task);
}

void Engine::StartPiece(Task* whole) {
  const ServedModel& model = *whole->model;
  const Gathered& gathered = *whole->gathered;
  const int64_t count =
      std::min(gathered.rows_each, gathered.rows - gathered.next);
  Task* const piece = tasks_.Take().release();
  piece->engine = this;
  piece->whole = whole;
  piece->model = whole->model;
  piece->arrived = options_.clock->Now();
  piece->request.deadline = whole->request.deadline;
  piece->request.cancel = whole->request.cancel;
  piece->priority = whole->priority;
  piece->request.id = whole->request.id;
  piece->bound.outputs = whole->bound.outputs;
  piece->bound.batch = count;
  {
    absl::MutexLock lock(&mu_);
    ++in_flight_;
  }
  const absl::Status status = base::WithinMemory([&] {
    REFRACT_ASSIGN_OR_RETURN(
        const absl::Span<const base::TensorView> inputs,
        model.layout().Slice(whole->bound.inputs, gathered.next, count,
                             piece->slice));
    piece->bound.inputs.assign(inputs.begin(), inputs.end());
    return workers_.Admit(*piece, model.places().queue, count,
                          piece->request.deadline);
  });
  if (!status.ok()) EndPiece(piece, status);
}

// Copies the piece's rows to their place in the outputs of the whole.
absl::Status Engine::KeepPiece(const Task& piece) {
  Gathered& gathered = *piece.whole->gathered;
  for (const size_t index : piece.bound.outputs) {
    const base::TensorView& rows = piece.outputs[index];
    base::Tensor& all = gathered.outputs[index];
    base::Dims dims = rows.dims;
    if (dims.empty() || dims[0] != piece.bound.batch) {
      return absl::InternalError(absl::StrCat(
          "output '", piece.model->interface().outputs()[index].name, "' is ",
          base::DimsToString(rows.dims), " for ", piece.bound.batch, " rows"));
    }
    dims[0] = gathered.rows;
    if (all.dims().empty()) {
      REFRACT_ASSIGN_OR_RETURN(all, base::Tensor::Allocate(rows.dtype, dims));
    }
    if (all.dims() != dims || all.dtype() != rows.dtype) {
      return absl::InternalError(absl::StrCat(
          "output '", piece.model->interface().outputs()[index].name, "' is ",
          base::DimsToString(rows.dims), " after ",
          base::DimsToString(all.dims()), " of all rows"));
    }
    const runtime::RowRange range =
        runtime::RangeOfRows(all.view(), gathered.next, piece.bound.batch);
    std::memcpy(all.data() + range.offset, rows.data, range.bytes);
  }
  return absl::OkStatus();
}

void Engine::EndPiece(Task* piece, const absl::Status& status) {
  Task* const whole = piece->whole;
  Gathered& gathered = *whole->gathered;
  whole->attempts = std::max(whole->attempts, piece->attempts);
  whole->run_stats.replaced_ids += piece->run_stats.replaced_ids;
  whole->run_stats.lost_ids += piece->run_stats.lost_ids;
  whole->shards_delta = std::min(whole->shards_delta, piece->shards_delta);
  gathered.next += piece->bound.batch;
  Leave(piece, status.ok());
  // The first piece that fails fails the request: later pieces are not started.
  if (!status.ok()) return Fail(whole, status);
  if (gathered.next < gathered.rows) return StartPiece(whole);
  whole->times.compute_infer = options_.clock->Now() - whole->sent;
  whole->outputs.clear();
  for (const base::Tensor& output : gathered.outputs) {
    whole->outputs.push_back(output.view());
  }
  Succeed(whole);
}

}  // namespace refract::cpu_node

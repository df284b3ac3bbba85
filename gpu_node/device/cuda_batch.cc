#include "gpu_node/device/cuda_batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::gpu_node {
namespace {

namespace cuda = runtime::cuda;
using runtime::cuda_plan::Precision;
using runtime::cuda_plan::Translation;

// Bytes of an item's rows in a request, whose type may differ from the
// device's.
size_t RowBytes(const cuda::Value& value) {
  return static_cast<size_t>(value.rows.per_item * value.cols *
                             cuda::SizeOf(value.host_dtype));
}

const cuda::Value& OutputOf(const Translation& translation, size_t i) {
  const auto output = static_cast<size_t>(translation.outputs[i]);
  return translation.program.value(translation.program.outputs[output]);
}

}  // namespace

absl::Status ToAbsl(const cuda::Status& status) {
  switch (status.code()) {
    case cuda::Code::kOk:
      return absl::OkStatus();
    case cuda::Code::kInvalidArgument:
      return absl::InvalidArgumentError(status.message());
    case cuda::Code::kResourceExhausted:
      return absl::ResourceExhaustedError(status.message());
    case cuda::Code::kFailedPrecondition:
      return absl::FailedPreconditionError(status.message());
    case cuda::Code::kUnimplemented:
      return absl::UnimplementedError(status.message());
    case cuda::Code::kUnavailable:
      return absl::UnavailableError(status.message());
    case cuda::Code::kInternal:
      break;
  }
  return absl::InternalError(status.message());
}

Precision PrecisionOf(models::GpuPrecision precision) {
  switch (precision) {
    case models::GpuPrecision::kTf32:
      return Precision::kTf32;
    case models::GpuPrecision::kFloat16:
      return Precision::kFloat16;
    case models::GpuPrecision::kBFloat16:
      return Precision::kBFloat16;
    case models::GpuPrecision::kFloat32:
      break;
  }
  return Precision::kFloat32;
}

double WorstError(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return 1e-3;
    case Precision::kTf32:
    case Precision::kFloat16:
      return 5e-2;
    case Precision::kBFloat16:
      break;
  }
  return 2e-1;
}

size_t CountForeign(const cuda::DeviceProgram& program) {
  return static_cast<size_t>(std::count_if(
      program.ops.begin(), program.ops.end(), [](const cuda::Op& op) {
        return std::holds_alternative<cuda::ForeignOp>(op.kind);
      }));
}

bool GoesByRows(const Translation& translation) {
  const cuda::DeviceProgram& program = translation.program;
  // A program goes by rows if rows of several requests may lie side by side in
  // its inputs, and rows of one request may be cut into pieces.
  // Offsets that are not moved count from a request's first entry.
  const auto moves = [&](cuda::ValueId offsets) {
    return std::any_of(translation.bags.begin(), translation.bags.end(),
                       [&](const runtime::cuda_plan::BagRoom& room) {
                         return program.inputs[room.offsets_input] == offsets;
                       });
  };
  for (const cuda::Op& op : program.ops) {
    const auto* const bags = std::get_if<cuda::BagsOp>(&op.kind);
    if (bags == nullptr) continue;
    for (const cuda::Bag& bag : bags->bags) {
      if (bag.offsets.value != cuda::kNone && !moves(bag.offsets.value)) {
        return false;
      }
    }
  }
  // Rows in proportion to the batch, and no others.
  const auto has_rows = [&](cuda::ValueId id) {
    const cuda::Rows& rows = program.value(id).rows;
    return rows.per_item > 0 && rows.fixed == 0;
  };
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const cuda::ValueId id = program.inputs[i];
    if (!translation.is_of_bags[i] && !has_rows(id) &&
        program.value(id).rows.per_item != 0) {
      return false;
    }
  }
  return std::all_of(program.outputs.begin(), program.outputs.end(), has_rows);
}

void MemberData::Clear() {
  if (inputs != nullptr) {
    inputs->views = {};
    inputs->decoder.reset();
  }
  specs.clear();
  rows = 0;
  first = 0;
  sizes.clear();
  results.clear();
}

void CudaDevice::HeldBatch::Clear() {
  for (MemberData& member : data) member.Clear();
  data = {};
  batch = nullptr;
  entry = nullptr;
  slot = -1;
  translation = nullptr;
}

void CudaDevice::HeldBatch::Resize(size_t members) {
  if (storage.size() < members) storage.resize(members);
  data = absl::MakeSpan(storage).first(members);
}

absl::Status ReadMember(const DeviceModel& model,
                        const runtime::cuda_plan::FreeSizes& sizes,
                        const BatchMember& member, ReadMemory& memory,
                        MemberData& data) {
  if (data.inputs == nullptr) {
    data.inputs = std::make_unique<DeviceModel::Inputs>();
  }
  REFRACT_RETURN_IF_ERROR(model.Read(*member.call, *data.inputs));
  REFRACT_RETURN_IF_ERROR(model.program().OutputSpecs(
      data.inputs->views, memory.context, memory.specs));
  for (const std::optional<base::TensorSpec>& spec : memory.specs) {
    if (!spec.has_value()) {
      return absl::InternalError(
          "the size of an output depends on data, which a GPU cannot reserve "
          "memory for");
    }
    data.specs.push_back(*spec);
  }
  // A program of a fixed batch takes the request as one row (DevicePrograms).
  data.rows = sizes.has_batch()
                  ? 1
                  : model.program().BatchOf(data.inputs->views).value_or(1);
  if (!sizes.empty()) {
    REFRACT_ASSIGN_OR_RETURN(data.sizes, sizes.Of(data.inputs->views));
  }
  return absl::OkStatus();
}

absl::Status FillSlot(const Translation& translation, cuda::Instance& instance,
                      cuda::SlotId slot,
                      absl::Span<const base::TensorView> inputs, int64_t to,
                      int64_t from, int64_t count) {
  // A slot has a buffer for each input of the program, row after row, in the
  // request's own types. Offsets of bags are moved by the entries before; all
  // other inputs are copied as they are.
  REFRACT_RETURN_IF_ERROR(runtime::cuda_plan::FillBags(
      translation.bags, instance, slot, inputs, to, from, count));
  // Rows [from, from + count) of the request go to rows [to, …) of the slot.
  const cuda::DeviceProgram& program = translation.program;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (translation.is_of_bags[i]) continue;
    const base::TensorView& input =
        inputs[static_cast<size_t>(translation.inputs[i])];
    const cuda::Value& value = program.value(program.inputs[i]);
    const bool has_rows = value.rows.per_item > 0;
    // Requests of a batch have equal merge keys, so their inputs without rows
    // were equal when they arrived; a peer may have changed its memory since.
    if (!has_rows && to > 0) {
      // The first request's, compared in memory that no peer writes to.
      if (input.bytes > 0 &&
          std::memcmp(instance.input(slot, i), input.data, input.bytes) != 0) {
        return absl::InvalidArgumentError(
            "the requests differ in an input that all rows share");
      }
      continue;
    }
    const size_t row = RowBytes(value);
    // A size besides the batch that has rows comes with a whole request only.
    const bool cut = has_rows && value.rows.fixed == 0;
    const size_t bytes = cut ? static_cast<size_t>(count) * row : input.bytes;
    if (bytes == 0) continue;
    std::memcpy(instance.input(slot, i) + (cut ? to * row : 0),
                input.data + (cut ? from * row : 0), bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> PiecesOf(
    const Translation& translation, absl::Span<const base::TensorView> inputs,
    int64_t rows, int64_t max_rows, bool by_rows, const std::string& device) {
  if (rows > max_rows && !by_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request of ", rows, " rows; model ",
                     translation.program.name, " takes up to ", max_rows,
                     " on ", device, " and cannot be run in pieces"));
  }
  std::vector<int64_t> ends;
  std::vector<int64_t> none_taken;
  if (runtime::cuda_plan::HasRoom(translation.bags, inputs, none_taken)) {
    // Pieces of equal length: each takes the smallest bucket that holds it.
    const int64_t pieces = (rows + max_rows - 1) / max_rows;
    for (int64_t piece = 1; piece <= pieces; ++piece) {
      ends.push_back(rows * piece / pieces);
    }
    return ends;
  }
  // The memory for ids of bags is short: each piece takes as many rows as its
  // ids allow.
  for (int64_t first = 0; first < rows;) {
    REFRACT_ASSIGN_OR_RETURN(
        const int64_t count,
        runtime::cuda_plan::RowsWithRoom(translation.bags, inputs, first,
                                         std::min(max_rows, rows - first)));
    first += count;
    if (first < rows && !by_rows) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the bags of ", count, " of its ", rows,
          " rows fill the memory that ", device, " has for them, and model ",
          translation.program.name, " cannot be run in pieces"));
    }
    ends.push_back(first);
  }
  return ends;
}

bool AnyIsZero(const runtime::cuda_plan::SizeValues& sizes) {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

void CopyResults(const Translation& translation, const cuda::Instance& instance,
                 cuda::SlotId slot, int64_t first, int64_t count,
                 MemberData& data) {
  // Piece by piece, a request's results are put together in its own memory.
  for (size_t i = 0; i < data.results.size(); ++i) {
    base::Tensor& result = data.results[i];
    const cuda::Value& value = OutputOf(translation, i);
    const bool cut = value.rows.per_item > 0 && value.rows.fixed == 0;
    const size_t row = RowBytes(value);
    const size_t bytes =
        cut ? static_cast<size_t>(count) * row : result.bytes();
    if (bytes == 0) continue;
    std::memcpy(
        result.data() + (cut ? first * row : 0),
        instance.output(slot, static_cast<size_t>(translation.outputs[i])),
        bytes);
  }
}

absl::Status RunOnCpu(const DeviceModel& model, MemberData& data) {
  const runtime::Program& program = model.program();
  runtime::RunContext context(program);
  std::vector<base::TensorView> outputs;
  const std::vector<std::byte*> nowhere(program.part().outputs.size(), nullptr);
  REFRACT_RETURN_IF_ERROR(
      program.Run(data.inputs->views, nowhere, context, outputs));
  // Copies: the outputs are memory of `context`, which ends with this call.
  data.results.clear();
  for (const base::TensorView& output : outputs) {
    REFRACT_ASSIGN_OR_RETURN(base::Tensor copy, base::Tensor::CopyOf(output));
    data.results.push_back(std::move(copy));
  }
  return absl::OkStatus();
}

// The slot has the rows of all members; those of a member begin at data.first.
// Results of a member that ran alone are in its own memory instead.
std::vector<base::TensorView> ResultsOf(const Translation* translation,
                                        const cuda::Instance& instance,
                                        cuda::SlotId slot,
                                        const MemberData& data,
                                        std::vector<base::TensorView> views) {
  views.clear();
  for (size_t i = 0; i < data.specs.size(); ++i) {
    if (!data.results.empty()) {
      views.push_back(data.results[i].view());
      continue;
    }
    const cuda::Value& value = OutputOf(*translation, i);
    const bool cut = value.rows.per_item > 0 && value.rows.fixed == 0;
    base::TensorView view;
    view.dtype = data.specs[i].dtype;
    view.dims = data.specs[i].dims;
    view.bytes = *base::ByteSize(view.dtype, view.dims);
    if (view.bytes > 0) {
      view.data =
          instance.output(slot, static_cast<size_t>(translation->outputs[i])) +
          (cut ? data.first * RowBytes(value) : 0);
    }
    views.push_back(view);
  }
  return views;
}

absl::StatusOr<double> ErrorOf(const runtime::Program& program,
                               const Translation& translation,
                               const cuda::Instance& instance,
                               cuda::SlotId slot,
                               absl::Span<const base::TensorView> inputs,
                               runtime::RunContext& context) {
  std::vector<base::TensorView> wanted;
  const std::vector<std::byte*> nowhere(program.part().outputs.size(), nullptr);
  REFRACT_RETURN_IF_ERROR(program.Run(inputs, nowhere, context, wanted));
  // Relative to the largest value of all outputs, which is how an output near 0
  // is compared with its neighbours. The least scale avoids a division by 0.
  double largest = 0;
  double scale = 1e-6;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].dtype != base::DType::kFloat32) continue;
    const std::byte* got =
        instance.output(slot, static_cast<size_t>(translation.outputs[i]));
    for (int64_t e = 0; e < wanted[i].num_elements(); ++e) {
      float a;
      std::memcpy(&a, got + 4 * e, sizeof(a));
      const float b = wanted[i].as<float>()[e];
      // Equal infinities are equal results, too.
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      if (!std::isfinite(a) || !std::isfinite(b)) {
        return std::numeric_limits<double>::infinity();
      }
      largest = std::max<double>(largest, std::abs(a - b));
      scale = std::max<double>(scale, std::abs(b));
    }
  }
  return largest / scale;
}

}  // namespace refract::gpu_node

#include "cpu_node/recording/recorder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/process/idle_thread.h"
#include "base/process/within_memory.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "cpu_node/served_model.h"
#include "glog/logging.h"
#include "metrics/exposition.h"
#include "nlohmann/json.hpp"
#include "runtime/compile/signature.h"
#include "runtime/tensor_elements.h"

namespace refract::cpu_node {
namespace {

std::string Sha256(absl::string_view text) {
  return absl::HexStringToBytes(base::Sha256Hex(
      {reinterpret_cast<const std::byte*>(text.data()), text.size()}));
}

// RFC 2104 with SHA-256, whose blocks have 64 bytes.
class Hmac {
 public:
  explicit Hmac(absl::string_view key)
      : block_(key.size() > 64 ? Sha256(key) : std::string(key)) {
    block_.resize(64);
  }
  std::string Of(absl::string_view text) const {
    return Sha256(
        absl::StrCat(Pad(0x5c), Sha256(absl::StrCat(Pad(0x36), text))));
  }

 private:
  std::string Pad(char with) const {
    std::string padded = block_;
    for (char& byte : padded) byte = static_cast<char>(byte ^ with);
    return padded;
  }

  std::string block_;
};

// Replaces each number by change(index, number). Flags stay.
template <typename F>
void ChangeNumbers(base::Tensor& tensor, const F& change) {
  if (tensor.dtype() == base::DType::kBool) return;
  runtime::VisitElements(tensor, [&](auto elements) {
    for (size_t i = 0; i < elements.size(); ++i) {
      runtime::SetNumber(change(i, runtime::NumberOf(elements[i])),
                         elements[i]);
    }
  });
}

template <typename T>
std::string TextOf(T id) {
  if constexpr (std::is_floating_point_v<T>) {
    // Exact, also where the number is no id.
    return absl::StrFormat("%.17g", id);
  } else {
    return absl::StrCat(static_cast<int64_t>(id));
  }
}

// Whether the sizes of the inputs fit each other. ModelInterface has checked
// each input by itself; the workers refuse the others later.
bool SizesFit(const models::Graph& graph, absl::Span<const base::Tensor> inputs,
              int64_t items) {
  // Smaller batches get rows before they are checked.
  if (items < graph.min_batch) return true;
  std::vector<base::TensorView> views;
  for (const base::Tensor& input : inputs) views.push_back(input.view());
  runtime::SymbolValues symbols;
  return runtime::Signature(graph, graph.inputs, {}).Bind(views, symbols).ok();
}

// Meaning of an input's integers. `rows`: the rows of the table of each
// feature; 0: not known; empty: no ids. Features are the columns of a matrix,
// or its rows if `feature_major`.
struct Integers {
  bool offsets = false;
  bool feature_major = false;
  std::vector<int64_t> rows;
};

Integers IntegersOf(const std::vector<models::IdInput>& uses,
                    models::ValueId input, const base::Dims& dims) {
  Integers result;
  for (const models::IdInput& use : uses) {
    result.feature_major |=
        use.input == input && use.row >= 0 && dims.size() == 2;
  }
  const int64_t features = dims.size() < 2        ? 1
                           : result.feature_major ? dims.front()
                                                  : dims.back();
  for (const models::IdInput& use : uses) {
    if (use.input != input) continue;
    result.offsets = result.offsets || use.is_offsets;
    if (use.is_offsets) continue;
    result.rows.resize(static_cast<size_t>(features), 0);
    for (int64_t feature = 0; feature < features; ++feature) {
      const int64_t only = std::max(use.column, use.row);
      if (only >= 0 && only != feature) continue;
      int64_t& rows = result.rows[static_cast<size_t>(feature)];
      rows = rows == 0 ? use.rows : std::min(rows, use.rows);
    }
  }
  return result;
}

}  // namespace

void RedactIds(const models::Graph& graph,
               const std::vector<models::IdInput>& id_inputs,
               absl::string_view key, absl::Span<base::Tensor> inputs) {
  const Hmac hmac(key);
  for (size_t i = 0; i < inputs.size(); ++i) {
    base::Tensor& tensor = inputs[i];
    const size_t columns =
        tensor.dims().size() < 2
            ? 1
            : std::max<size_t>(static_cast<size_t>(tensor.dims().back()), 1);
    // Offsets say where bags begin and reveal no id. An id becomes an id of its
    // table, always the same for one key, input and feature, so that repeated
    // ids stay repeated. Integers without a known table become 0. Floats
    // without one are features.
    const Integers integers =
        IntegersOf(id_inputs, graph.inputs[i], tensor.dims());
    if (integers.offsets) continue;
    const std::string& name = graph.value(graph.inputs[i]).name;
    ChangeNumbers(tensor, [&]<typename T>(size_t element, T id) -> T {
      const size_t feature =
          integers.feature_major ? element / columns : element % columns;
      const int64_t rows = integers.rows.empty() ? 0 : integers.rows[feature];
      if (rows < 1) return std::is_floating_point_v<T> ? id : T{0};
      const std::string hash =
          hmac.Of(absl::StrCat(name, "/", feature, "/", TextOf(id)));
      uint64_t number = 0;
      std::memcpy(&number, hash.data(), sizeof(number));
      return static_cast<T>(number % static_cast<uint64_t>(rows));
    });
  }
}

absl::StatusOr<std::unique_ptr<Recorder>> Recorder::Create(
    const RecorderOptions& options) {
  std::ofstream file(options.path, std::ios::binary | std::ios::trunc);
  nlohmann::ordered_json head = {
      {"refract_trace", 1},
      {"rate", options.rate},
      {"ids", options.key.empty() ? "as sent" : "redacted"},
      {"began", absl::FormatTime(absl::Now(), absl::UTCTimeZone())}};
  const std::string line = base::FormatJson(head) + "\n";
  file << line << std::flush;
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat("--record: ", options.path, ": cannot be written"));
  }
  // Requests may tell of persons: only the owner of the file may read them.
  std::error_code ignored;
  std::filesystem::permissions(
      options.path,
      std::filesystem::perms::owner_read | std::filesystem::perms::owner_write,
      ignored);
  return std::unique_ptr<Recorder>(
      new Recorder(options, std::move(file), line.size()));
}

Recorder::Recorder(const RecorderOptions& options, std::ofstream file,
                   uint64_t bytes)
    : options_(options),
      step_(static_cast<uint64_t>(options.rate * 0x1p32)),
      began_(options.clock->Now()),
      memory_(options.max_waiting, "--record"),
      file_(std::move(file)),
      bytes_(bytes),
      thread_([this] { Run(); }) {}

Recorder::~Recorder() {
  waiting_.Close();
  thread_.join();
}

void Recorder::Offer(const ServedModel& model, const InferRequest& request,
                     int64_t items, absl::Time arrived) {
  // Whether the sum of the rates has passed a multiple of 1.
  const uint64_t before = drawn_.fetch_add(step_, std::memory_order_relaxed);
  if (((before + step_) >> 32) == (before >> 32)) return;
  if (full_.load(std::memory_order_relaxed)) return;
  // The bytes are counted before the copy, so that threads that copy at once
  // keep to the bound together.
  absl::StatusOr<base::ByteBudget::Hold> memory = memory_.Take(BytesOf(request));
  if (!memory.ok()) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Entry entry{.memory = *std::move(memory),
              .model = model.shared_model(),
              .id_inputs = model.id_inputs(),
              .items = items,
              .arrived = arrived};
  const absl::Status copied = base::WithinMemory([&]() -> absl::Status {
    for (const TensorInfo& wanted : model.interface().inputs()) {
      for (const InputTensor& input : request.inputs) {
        if (input.name != wanted.name) continue;
        REFRACT_ASSIGN_OR_RETURN(base::Tensor copy,
                                 base::Tensor::CopyOf(input.tensor.view()));
        entry.inputs.push_back(std::move(copy));
      }
    }
    waiting_.Push(std::move(entry));
    return absl::OkStatus();
  });
  if (!copied.ok()) dropped_.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::Run() {
  base::TakeIdleTimeOnly();
  while (std::optional<Entry> entry = waiting_.Next()) Write(*entry);
}

std::string Recorder::LineOf(Entry& entry) {
  if (!options_.key.empty()) {
    RedactIds(entry.model->graph, *entry.id_inputs, options_.key,
              absl::MakeSpan(entry.inputs));
  }
  // Requests of several threads may come in another order than they arrived.
  last_s_ = std::max(last_s_, absl::ToDoubleSeconds(entry.arrived - began_));
  nlohmann::ordered_json line = {{"at_s", last_s_},
                                 {"model", entry.model->name},
                                 {"version", entry.model->version},
                                 {"items", entry.items}};
  const models::Graph& graph = entry.model->graph;
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const base::Tensor& tensor = entry.inputs[i];
    line["inputs"].push_back(
        {{"name", graph.value(graph.inputs[i]).name},
         {"datatype", std::string(base::KServeName(tensor.dtype()))},
         {"shape",
          std::vector<int64_t>(tensor.dims().begin(), tensor.dims().end())},
         {"data",
          absl::Base64Escape(absl::string_view(
              reinterpret_cast<const char*>(tensor.data()), tensor.bytes()))}});
  }
  return base::FormatJson(line) + "\n";
}

void Recorder::Write(Entry& entry) {
  if (full_.load(std::memory_order_relaxed)) return;
  if (!SizesFit(entry.model->graph, entry.inputs, entry.items)) return;
  const std::string line = LineOf(entry);
  // Recording ends for good: a shorter later request would make the file a
  // biased sample.
  if (bytes_ + line.size() > options_.max_bytes) {
    full_.store(true, std::memory_order_relaxed);
    LOG(WARNING) << "--record: " << options_.path
                 << " has reached --record-size; recording ends";
    return;
  }
  // Flushed per line, so that a crash of the node loses no recorded request.
  file_ << line << std::flush;
  if (!file_) {
    full_.store(true, std::memory_order_relaxed);
    LOG(ERROR) << "--record: " << options_.path
               << " cannot be written: " << std::strerror(errno)
               << "; recording ends";
    // A replay refuses a file with a part of a line. Closed first: a close
    // later would write the rest of the line.
    file_.close();
    std::error_code ignored;
    std::filesystem::resize_file(options_.path, bytes_, ignored);
    return;
  }
  bytes_ += line.size();
  written_.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::Collect(metrics::Exposition& out) const {
  out.AddCounter("refract_recorded_requests_total",
                 "Requests that --record has written", {},
                 static_cast<double>(written_.load(std::memory_order_relaxed)));
  out.AddCounter("refract_recording_dropped_total",
                 "Requests of the sample of --record for which there was no "
                 "memory",
                 {},
                 static_cast<double>(dropped_.load(std::memory_order_relaxed)));
}

}  // namespace refract::cpu_node

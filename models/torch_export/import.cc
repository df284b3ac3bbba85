#include "models/torch_export/import.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "models/passes/complex_numbers.h"
#include "models/passes/functionalize.h"
#include "models/repository/files/zip.h"
#include "models/torch_export/arguments.h"
#include "models/torch_export/json.h"
#include "models/torch_export/program.h"

namespace refract::models {
namespace {

using torch_export::Array;
using torch_export::Int;
using torch_export::Json;
using torch_export::Member;
using torch_export::String;

// Where an archive keeps its one model: ROOT/models/NAME.json.
struct Layout {
  std::string root;  // "dlrm/", may be empty
  std::string name;  // "model"
};

absl::StatusOr<Layout> FindModel(const ZipArchive& archive) {
  std::optional<Layout> layout;
  for (const ZipEntry& entry : archive.entries()) {
    absl::string_view name = entry.name;
    if (!absl::ConsumeSuffix(&name, ".json")) continue;
    const size_t slash = name.rfind('/');
    if (slash == absl::string_view::npos) continue;
    absl::string_view folder = name.substr(0, slash + 1);
    if (!absl::ConsumeSuffix(&folder, "models/")) continue;
    if (!folder.empty() && folder.back() != '/') continue;
    // Which of several models to serve would be a guess.
    if (layout) {
      return absl::UnimplementedError("the archive holds more than one model");
    }
    layout = Layout{std::string(folder), std::string(name.substr(slash + 1))};
  }
  if (!layout) {
    return absl::InvalidArgumentError(
        "no models/*.json in it: not written by torch.export.save");
  }
  return *layout;
}

absl::Status CheckByteOrder(const ZipArchive& archive, const Layout& layout) {
  const ZipEntry* entry = archive.Find(absl::StrCat(layout.root, "byteorder"));
  if (entry == nullptr) return absl::OkStatus();
  REFRACT_ASSIGN_OR_RETURN(const absl::string_view order,
                           archive.CheckedText(*entry));
  if (order != "little") {
    return absl::UnimplementedError(
        absl::StrCat(archive.file()->path(), ": byte order \"", order, "\""));
  }
  return absl::OkStatus();
}

// Payloads of one kind: data/weights/ or data/constants/.
class Payloads {
 public:
  // An absent configuration means that there are none.
  static absl::StatusOr<Payloads> Read(const ZipArchive& archive,
                                       const Layout& layout,
                                       absl::string_view kind) {
    Payloads payloads;
    payloads.folder_ = absl::StrCat(layout.root, "data/", kind, "/");
    payloads.config_name_ =
        absl::StrCat(payloads.folder_, layout.name, "_", kind, "_config.json");
    const ZipEntry* entry = archive.Find(payloads.config_name_);
    if (entry == nullptr) return payloads;
    REFRACT_ASSIGN_OR_RETURN(const absl::string_view text,
                             archive.CheckedText(*entry));
    payloads.json_ = Json::Parse(text).value_or(Json());
    const Json* config = Member(payloads.json_, "config");
    if (config == nullptr || !config->is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(payloads.config_name_, " is malformed"));
    }
    return payloads;
  }

  bool Contains(absl::string_view weight) const {
    const Json* config = Member(json_, "config");
    return config != nullptr && Member(*config, weight) != nullptr;
  }

  // Adds the names of all but `read`.
  void AddOthers(const absl::flat_hash_set<absl::string_view>& read,
                 absl::flat_hash_set<std::string>& names) const {
    const Json* config = Member(json_, "config");
    if (config == nullptr) return;
    for (const auto& [name, meta] : config->entries()) {
      if (!read.contains(name)) names.insert(name);
    }
  }

  // Where `weight` lies. `path`: of the archive.
  absl::StatusOr<WeightEntry> Locate(const ZipArchive& archive,
                                     absl::string_view path,
                                     const std::string& weight) const {
    const Json& meta = *Member(*Member(json_, "config"), weight);
    const std::string* file = String(Member(meta, "path_name"));
    if (file == nullptr) {
      return absl::InvalidArgumentError("has no path_name");
    }
    if (torch_export::Bool(Member(meta, "use_pickle")).value_or(false)) {
      return absl::UnimplementedError(
          "is stored as a Python pickle, as PyTorch stores tensor subclasses; "
          "export the model with plain tensors");
    }
    const Json* tensor = Member(meta, "tensor_meta");
    const Json* dtype = tensor ? Member(*tensor, "dtype") : nullptr;
    const Json* offset = tensor ? Member(*tensor, "storage_offset") : nullptr;
    if (dtype == nullptr || offset == nullptr) {
      return absl::InvalidArgumentError("has no tensor_meta");
    }
    WeightEntry entry;
    entry.name = weight;
    entry.file = std::string(path);
    REFRACT_ASSIGN_OR_RETURN(entry.dtype, torch_export::ParseDType(*dtype));
    REFRACT_ASSIGN_OR_RETURN(entry.storage_offset, Constant(*offset));
    REFRACT_ASSIGN_OR_RETURN(entry.sizes, Constants(*tensor, "sizes"));
    REFRACT_ASSIGN_OR_RETURN(entry.strides, Constants(*tensor, "strides"));
    const ZipEntry* payload = archive.Find(absl::StrCat(folder_, *file));
    if (payload == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("its entry ", folder_, *file, " is missing"));
    }
    // Bytes() refuses compressed entries, which cannot be mapped.
    REFRACT_RETURN_IF_ERROR(archive.Bytes(*payload).status());
    // Sizes and strides count complex numbers up to here, floats from here on.
    MakePairs(entry);
    entry.offset = payload->offset;
    entry.bytes = payload->bytes;
    return entry;
  }

 private:
  static absl::StatusOr<int64_t> Constant(const Json& json) {
    REFRACT_ASSIGN_OR_RETURN(const SymExpr size, torch_export::ParseSize(json));
    if (!size.constant()) {
      return absl::InvalidArgumentError(
          "one of its sizes or strides is symbolic, but weights have fixed "
          "sizes");
    }
    return *size.constant();
  }

  static absl::StatusOr<std::vector<int64_t>> Constants(
      const Json& tensor, absl::string_view member) {
    const Json* list = Array(Member(tensor, member));
    if (list == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("has no ", member));
    }
    std::vector<int64_t> values;
    for (const Json& json : *list) {
      REFRACT_ASSIGN_OR_RETURN(const int64_t value, Constant(json));
      values.push_back(value);
    }
    return values;
  }

  std::string folder_;
  std::string config_name_;
  Json json_;
};

absl::Status AddWeights(const ZipArchive& archive, const Layout& layout,
                        absl::string_view path, ImportedModel& model) {
  // Parameters and persistent buffers are weights; other buffers and constants
  // that tracing lifted out of the code are constants.
  std::vector<Payloads> kinds;
  for (absl::string_view kind : {"weights", "constants"}) {
    REFRACT_ASSIGN_OR_RETURN(Payloads payloads,
                             Payloads::Read(archive, layout, kind));
    kinds.push_back(std::move(payloads));
  }
  absl::flat_hash_set<absl::string_view> seen;
  for (const Value& value : model.graph.values) {
    // Several values may read one weight.
    if (!value.is_weight() || !seen.insert(value.weight).second) continue;
    const auto annotate = [&value](const absl::Status& status) {
      return base::Annotate(status, absl::StrCat("weight ", value.weight));
    };
    const Payloads* found = nullptr;
    for (const Payloads& payloads : kinds) {
      if (found == nullptr && payloads.Contains(value.weight)) {
        found = &payloads;
      }
    }
    if (found == nullptr) {
      return annotate(absl::InvalidArgumentError(
          "the archive lacks its values, which the graph's signature names; "
          "save the model again with torch.export.save()"));
    }
    auto entry = found->Locate(archive, path, value.weight);
    if (!entry.ok()) return annotate(entry.status());
    model.weights.entries.push_back(*std::move(entry));
  }
  for (const Payloads& payloads : kinds) payloads.AddOthers(seen, model.unread);
  model.weights.files.push_back(
      {std::string(path), archive.file()->bytes().size(), base::Digest{}});
  return absl::OkStatus();
}

absl::StatusOr<ImportedModel> Import(const ZipArchive& archive,
                                     absl::string_view path) {
  REFRACT_ASSIGN_OR_RETURN(const Layout layout, FindModel(archive));
  REFRACT_RETURN_IF_ERROR(CheckByteOrder(archive, layout));
  const std::string json_name =
      absl::StrCat(layout.root, "models/", layout.name, ".json");
  REFRACT_ASSIGN_OR_RETURN(const absl::string_view json,
                           archive.CheckedText(*archive.Find(json_name)));
  auto program = torch_export::ParseProgram(json);
  if (!program.ok()) return base::Annotate(program.status(), json_name);
  ImportedModel model;
  model.graph = std::move(program->graph);
  model.notes = std::move(program->notes);
  model.buffers = std::move(program->buffers);
  model.source_path = std::string(path);
  // Passes index without checks, so the file's graph is validated before the
  // first of them, and their result after the last.
  REFRACT_RETURN_IF_ERROR(ValidateGraph(model.graph));
  REFRACT_RETURN_IF_ERROR(Functionalize(model.graph));
  REFRACT_RETURN_IF_ERROR(ComplexToPairs(model.graph));
  REFRACT_RETURN_IF_ERROR(ValidateGraph(model.graph));
  REFRACT_RETURN_IF_ERROR(AddWeights(archive, layout, path, model));
  // Open() checks the bounds of every weight before the first read.
  REFRACT_RETURN_IF_ERROR(
      WeightStore::Open(/*folder=*/"", model.weights).status());
  return model;
}

}  // namespace

absl::StatusOr<ImportedModel> ImportTorchExport(absl::string_view path) {
  REFRACT_ASSIGN_OR_RETURN(const ZipArchive archive, ZipArchive::Open(path));
  auto model = Import(archive, path);
  if (!model.ok() && !absl::StartsWith(model.status().message(), path)) {
    return base::Annotate(model.status(), path);
  }
  return model;
}

}  // namespace refract::models

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "models/repository/files/copy_file.h"
#include "models/repository/files/temporary_folder.h"
#include "models/repository/repository.h"
#include "nlohmann/json.hpp"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/import/import_model.h"
#include "tools/import/non_finite.h"
#include "tools/json_output.h"
#include "tools/progress.h"

namespace refract::tools {
namespace {

struct ImportOptions {
  ImportRequest request;
  std::string repository;
  std::string name;
  bool link = false;
  std::vector<std::string> keys;
  bool no_golden = false;
  JsonOutput json;
};

// "features=user,item": keys of the argument "features".
absl::Status ReadKeys(const std::vector<std::string>& texts,
                      ImportRequest& request) {
  for (const std::string& text : texts) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(text, absl::MaxSplits('=', 1));
    std::vector<std::string> keys = absl::StrSplit(parts.second, ',');
    const bool has_gap = std::find(keys.begin(), keys.end(), "") != keys.end();
    if (parts.first.empty() || has_gap) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--keys ", text, ": wanted ARGUMENT=KEY,KEY,... without gaps"));
    }
    if (!request.keys.emplace(parts.first, std::move(keys)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--keys ", text, ": ", parts.first, " is given twice"));
    }
  }
  return absl::OkStatus();
}

// A warning if `repository` is a folder for other files, such as the models/ of
// a checkout; empty: the folder has a model, or is empty or missing.
std::string ForeignFolder(const std::string& repository,
                          const std::string& name) {
  namespace fs = std::filesystem;
  std::string first;
  size_t others = 0;
  std::error_code error;
  for (fs::directory_iterator entry(repository, error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string base = entry->path().filename().string();
    std::error_code ignored;
    if (base[0] == '.') continue;
    if (fs::exists(entry->path() / "config.pbtxt", ignored)) {
      return "";
    }
    others += first.empty() ? 0 : 1;
    if (first.empty() || base < first) first = base;
  }
  if (first.empty()) return "";
  return absl::StrCat(
      "--repo ", repository, " holds ", first,
      others == 0 ? std::string()
                  : absl::StrCat(" and ", others, " other entries"),
      " and no model: the repository should be a folder of its own, since "
      "model ",
      name, " goes into ", repository, "/", name);
}

// Shows the progress of the copy of a file, ten times a second, and passes what
// was read to `weights`.
class CopyProgress {
 public:
  CopyProgress(Progress& progress, NonFiniteWeights& weights)
      : shown_([this, &progress, &weights](const std::string& from,
                                           uint64_t done, uint64_t bytes,
                                           absl::Span<const std::byte> read) {
          weights.Add(from, done, read);
          const absl::Time now = absl::Now();
          if (now < next_) return true;
          next_ = now + absl::Milliseconds(100);
          progress.Show(absl::StrFormat("copying %s: %.1f of %.1f GiB", from,
                                        static_cast<double>(done) / 0x1p30,
                                        static_cast<double>(bytes) / 0x1p30));
          return true;
        }) {}

 private:
  absl::Time next_ = absl::InfinitePast();
  models::ScopedCopyProgress shown_;
};

absl::Status Import(ImportOptions& options, Context& context) {
  REFRACT_RETURN_IF_ERROR(ReadKeys(options.keys, options.request));
  REFRACT_RETURN_IF_ERROR(LoadOpLibraries(options.request.op_libraries));
  options.request.record_golden = !options.no_golden;
  for (const models::AbandonedFolder& folder :
       models::RemoveAbandoned(options.repository)) {
    context.out << "note: removed " << folder.path << ", "
                << absl::StreamFormat(
                       "%.1f", static_cast<double>(folder.bytes) / 0x1p20)
                << " MiB that an interrupted import left\n";
  }
  if (const std::string foreign =
          ForeignFolder(options.repository, options.name);
      !foreign.empty()) {
    context.err << "warning: " << foreign << "\n";
  }
  Progress progress(context.err);
  options.request.progress = [&progress](const std::string& text) {
    progress.Show(text);
  };
  std::string& scratch = options.request.scratch;
  scratch = (std::filesystem::temp_directory_path() / "refract_import_XXXXXX")
                .string();
  if (mkdtemp(scratch.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat(scratch, ": a folder for temporary files cannot be made: ",
                     std::strerror(errno), "; TMPDIR names another place"));
  }
  const absl::Cleanup remove_scratch = [&scratch] {
    std::error_code error;
    std::filesystem::remove_all(scratch, error);
  };
  REFRACT_ASSIGN_OR_RETURN(models::ImportedModel model,
                           PrepareModel(options.request));
  const models::Repository repository(options.repository);
  int64_t version = 0;
  NonFiniteWeights non_finite(model);
  {
    const CopyProgress copies(progress, non_finite);
    REFRACT_ASSIGN_OR_RETURN(
        version,
        repository.AddVersion(options.name, model, {.link = options.link}));
  }
  progress.Show("");
  for (std::string& note : non_finite.Notes()) {
    model.notes.push_back(std::move(note));
  }
  const std::string path = absl::StrCat(options.repository, "/", options.name);
  int tables = 0;
  for (const models::Node& node : model.graph.nodes) {
    const bool look_up =
        models::ClassOf(model.graph, node) == models::OpClass::kEmbedding;
    tables += look_up ? 1 : 0;
  }
  context.out << "imported " << path << " version " << version << ": "
              << model.graph.nodes.size() << " operators, " << tables
              << " of them look-ups, " << model.weights.entries.size()
              << " weights\n";
  for (const std::string& note : model.notes) {
    context.out << "note: " << note << "\n";
  }
  context.out << "next: refract partition " << path << "\n";
  if (options.json.empty()) return absl::OkStatus();
  return options.json.Write({{"model", path},
                             {"version", version},
                             {"operators", model.graph.nodes.size()},
                             {"look_ups", tables},
                             {"weights", model.weights.entries.size()},
                             {"notes", model.notes}});
}

}  // namespace

void AddImportCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* command = app.add_subcommand(
      "import", "Checks a PyTorch model and adds it as the next version");
  command
      ->add_option("model", options->request.model_file,
                   "file of torch.export.save (.pt2) or of torch.jit.save "
                   "after freezing (.pt)")
      ->type_name("MODEL.(pt2|pt)")
      ->required();
  command
      ->add_option("--repo", options->repository,
                   "model repository; made if missing")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("--name", options->name,
                   "the model's name in the repository")
      ->type_name("NAME")
      ->required();
  command
      ->add_option("--tables", options->request.tables_dir,
                   "folder of *.safetensors with values for parameters that "
                   "the model file has as stand-ins")
      ->type_name("DIR");
  command
      ->add_option("--sample", options->request.sample_file,
                   "one example of each input, at least 2 rows; needed for "
                   "TorchScript unless sample.safetensors lies beside it")
      ->type_name("INPUTS.safetensors");
  command
      ->add_option("--keys", options->keys,
                   "keys of an argument that is a KeyedJaggedTensor, in the "
                   "order of its lengths; TorchScript only; may be repeated")
      ->type_name("ARGUMENT=KEY,KEY,...")
      ->allow_extra_args(false);
  command->add_flag("--link", options->link,
                    "make hard links instead of copies; the files must not be "
                    "written to afterwards");
  command
      ->add_option("--expect", options->request.expected,
                   "a request and the answer that the original model gives to "
                   "it: inputs and outputs by name; verified before the "
                   "version is added; may be repeated, best for two batch "
                   "sizes")
      ->type_name("FILE.safetensors")
      ->allow_extra_args(false);
  command->add_flag("--no-golden", options->no_golden,
                    "do not record PyTorch's answers to the sample, with which "
                    "nodes are checked before they serve the version");
  options->json.AddTo(*command, context,
                      "the version, its sizes and the notes");
  AddOpLibraryOption(*command, options->request.op_libraries);
  SetAction(*command, context,
            [&context, options] { return Import(*options, context); });
}

}  // namespace refract::tools

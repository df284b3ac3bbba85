#include <stdlib.h>

#include <algorithm>
#include <cerrno>
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
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "models/repository/repository.h"
#include "nlohmann/json.hpp"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/import/import_model.h"
#include "tools/json_output.h"

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

absl::Status Import(ImportOptions& options, Context& context) {
  REFRACT_RETURN_IF_ERROR(ReadKeys(options.keys, options.request));
  REFRACT_RETURN_IF_ERROR(LoadOpLibraries(options.request.op_libraries));
  options.request.record_golden = !options.no_golden;
  std::string& scratch = options.request.scratch;
  scratch = (std::filesystem::temp_directory_path() / "refract_import_XXXXXX")
                .string();
  if (mkdtemp(scratch.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat(scratch, ": ", std::strerror(errno)));
  }
  const absl::Cleanup remove_scratch = [&scratch] {
    std::error_code error;
    std::filesystem::remove_all(scratch, error);
  };
  REFRACT_ASSIGN_OR_RETURN(const models::ImportedModel model,
                           PrepareModel(options.request));
  const models::Repository repository(options.repository);
  REFRACT_ASSIGN_OR_RETURN(
      const int64_t version,
      repository.AddVersion(options.name, model, {.link = options.link}));
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
  command->add_option("--name", options->name, "the model's name there")
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
                    "hard links instead of copies; the files must not be "
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
                    "do not start PyTorch for its answers to the sample, with "
                    "which nodes are checked before they serve the version");
  options->json.AddTo(*command, context,
                      "the version, its sizes and the notes");
  AddOpLibraryOption(*command, options->request.op_libraries);
  command->callback([&context, options] {
    context.action = [&context, options] { return Import(*options, context); };
  });
}

}  // namespace refract::tools

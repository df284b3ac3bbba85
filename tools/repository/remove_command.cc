#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/repository/repository.h"
#include "tools/command.h"

namespace refract::tools {
namespace {

absl::Status Remove(const std::string& path, std::ostream& out) {
  REFRACT_ASSIGN_OR_RETURN(const models::ModelPath model,
                           models::ParseModelPath(path));
  if (model.version == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": name the version to remove, as DIR/NAME/VERSION"));
  }
  REFRACT_RETURN_IF_ERROR(models::Repository(model.repository)
                              .RemoveVersion(model.name, model.version));
  out << "removed " << model.repository << "/" << model.name << " version "
      << model.version
      << "; nodes that serve it keep its files until they unload it\n";
  return absl::OkStatus();
}

}  // namespace

void AddRemoveCommand(CLI::App& app, Context& context) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "remove",
      "Removes a version from its repository, and the model with its last "
      "version");
  command->add_option("version", *path, "the version")
      ->type_name("DIR/NAME/VERSION")
      ->required();
  SetAction(*command, context,
            [&context, path] { return Remove(*path, context.out); });
}

}  // namespace refract::tools

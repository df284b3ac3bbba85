#include "tools/json_output.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/process/files.h"
#include "nlohmann/json.hpp"
#include "tools/command.h"

namespace refract::tools {
namespace {

constexpr char kStdout[] = "-";

}  // namespace

CLI::Option* AddOutputFile(CLI::App& command, const std::string& name,
                           std::string& path, const std::string& what) {
  return command.add_option(name, path, what)
      ->type_name("FILE")
      ->check(base::CheckOutputFile);
}

void JsonOutput::AddTo(CLI::App& command, Context& context,
                       const std::string& what) {
  stdout_ = &context.json;
  command
      .add_option("--json", path_,
                  absl::StrCat("also write ", what,
                               " to this file as JSON; - writes the JSON to "
                               "stdout and the text to stderr"))
      ->type_name("FILE|-")
      ->check(CLI::Validator(
          [](const std::string& path) {
            return path == kStdout ? "" : base::CheckOutputFile(path);
          },
          ""))
      ->each([&context](const std::string& path) {
        if (path == kStdout) context.out.rdbuf(context.err.rdbuf());
      });
}

absl::Status JsonOutput::WriteText(absl::string_view text) const {
  if (path_ != kStdout) return base::WriteText(path_, text);
  *stdout_ << text << std::flush;
  if (!*stdout_) {
    return absl::InvalidArgumentError("--json -: stdout cannot be written");
  }
  return absl::OkStatus();
}

absl::Status JsonOutput::Write(const nlohmann::ordered_json& json) const {
  return WriteText(base::FormatJson(json, 2) + "\n");
}

}  // namespace refract::tools

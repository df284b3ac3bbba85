#ifndef REFRACT_TOOLS_JSON_OUTPUT_H_
#define REFRACT_TOOLS_JSON_OUTPUT_H_

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace refract::tools {

struct Context;

// The option NAME FILE of a subcommand, for a file that it writes. A file that
// cannot be written is refused when the command line is parsed. `path` must
// stay where it is until then.
CLI::Option* AddOutputFile(CLI::App& command, const std::string& name,
                           std::string& path, const std::string& what);

// The option --json FILE of a subcommand. With FILE "-" the JSON is all that
// stdout gets: Context::out, the text for people, goes to stderr.
class JsonOutput {
 public:
  // Adds the option to `command`. `what` is written: "the list". This object
  // must stay where it is until the command line is parsed, and `context` until
  // Write().
  void AddTo(CLI::App& command, Context& context, const std::string& what);

  // The command line has no --json.
  bool empty() const { return path_.empty(); }
  // InvalidArgument names the file that cannot be written.
  absl::Status WriteText(absl::string_view text) const;
  // Indented; bytes that are no UTF-8 are replaced.
  absl::Status Write(const nlohmann::ordered_json& json) const;

 private:
  std::string path_;
  std::ostream* stdout_ = nullptr;  // Context::json
};

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_JSON_OUTPUT_H_

#ifndef REFRACT_TOOLS_COMMON_OPTIONS_H_
#define REFRACT_TOOLS_COMMON_OPTIONS_H_

// Options that several subcommands share.

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/tensor.h"
#include "models/repository/repository.h"
#include "partitioner/verify/node_pair.h"

namespace CLI {
class App;
}  // namespace CLI

namespace refract::tools {

// "DIR/NAME" or "DIR/NAME/VERSION" → the loaded version.
absl::StatusOr<std::shared_ptr<const models::LoadedModel>> LoadModel(
    absl::string_view path, const models::LoadOptions& options = {});

// --op-library FILE, repeated; and torch.ops.load_library of each.
void AddOpLibraryOption(CLI::App& command, std::vector<std::string>& libraries);
absl::Status LoadOpLibraries(const std::vector<std::string>& libraries);

// --by-ids, of commands that read requests from files.
void AddByIdsOption(CLI::App& command, bool& by_ids);
// The request in a file, with row numbers where the model has tables with ids.
// InvalidArgument names `path` and what is wrong.
absl::StatusOr<std::vector<base::Tensor>> ReadRequest(
    const std::string& path, const models::LoadedModel& model, bool by_ids);

// --size NAME=N, repeated.
void AddSizeOption(CLI::App& command, std::vector<std::string>& sizes);
// Sizes by symbol; a text may name the symbol or an input that has it.
// InvalidArgument names a text that is not NAME=N, N ≥ 0, or whose NAME is
// neither a symbol nor an input of `graph` with one symbol besides the batch.
absl::StatusOr<absl::flat_hash_map<std::string, int64_t>> ParseSizes(
    const std::vector<std::string>& sizes, const models::Graph& graph);
// InvalidArgument if the model does not run at these sizes: names the symbol,
// its range and the operator that limits it.
absl::Status CheckGivenSizes(
    const models::Graph& graph,
    const absl::flat_hash_map<std::string, int64_t>& sizes);

// --transport and --node-programs, of the nodes that the command starts.
void AddNodeOptions(CLI::App& command, partitioner::NodeOptions& options);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_COMMON_OPTIONS_H_

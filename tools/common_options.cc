#include "tools/common_options.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "models/repository/requests/request_files.h"
#include "models/table_ids.h"
#include "partitioner/costs/work.h"
#include "runtime/torch/op_library.h"

namespace refract::tools {

absl::StatusOr<std::shared_ptr<const models::LoadedModel>> LoadModel(
    absl::string_view path, const models::LoadOptions& options) {
  REFRACT_ASSIGN_OR_RETURN(const models::ModelPath model,
                           models::ParseModelPath(path));
  return models::Repository(model.repository)
      .Load(model.name, model.version, options);
}

void AddOpLibraryOption(CLI::App& command,
                        std::vector<std::string>& libraries) {
  command
      .add_option("--op-library", libraries,
                  "shared library of operators to load first; may be repeated")
      ->type_name("FILE.so")
      ->default_str("")
      ->allow_extra_args(false);
}

absl::Status LoadOpLibraries(const std::vector<std::string>& libraries) {
  for (const std::string& library : libraries) {
    REFRACT_RETURN_IF_ERROR(runtime::aten::LoadOpLibrary(library));
  }
  return absl::OkStatus();
}

void AddByIdsOption(CLI::App& command, bool& by_ids) {
  command.add_flag("--by-ids", by_ids,
                   "requests name rows by ids of 64 bits, as clients do, and "
                   "not by row numbers, in tables whose rows have ids");
}

absl::StatusOr<std::vector<base::Tensor>> ReadRequest(
    const std::string& path, const models::LoadedModel& model, bool by_ids) {
  REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> inputs,
                           models::ReadInputs(path, model.graph));
  if (by_ids) {
    REFRACT_RETURN_IF_ERROR(base::Annotate(
        models::IdsToRowNumbers(model, absl::MakeSpan(inputs)), path));
  }
  return inputs;
}

void AddSizeOption(CLI::App& command, std::vector<std::string>& sizes) {
  command
      .add_option("--size", sizes,
                  "sizes per item: NAME is a size, or an input that has "
                  "one besides the batch (refract inspect shows both); N per "
                  "item for a size that counts rows (look-ups), N for others "
                  "(steps of a sequence), N/request for N in every request; "
                  "may be repeated; default: those of the request that the "
                  "model was imported with (--sample), else 1 each")
      ->type_name("NAME=N")
      ->default_str("")
      ->allow_extra_args(false);
}

absl::StatusOr<absl::flat_hash_map<std::string, int64_t>> ParseSizes(
    const std::vector<std::string>& sizes, const models::Graph& graph) {
  const auto add = [&graph](models::ValueId input,
                            std::vector<std::string>& symbols) {
    for (const models::SymExpr& extent : graph.value(input).shape) {
      for (const std::string& symbol : extent.Symbols()) {
        if (symbol == graph.batch_symbol ||
            std::count(symbols.begin(), symbols.end(), symbol) > 0) {
          continue;
        }
        symbols.push_back(symbol);
      }
    }
  };
  std::vector<std::string> symbols;
  for (const models::ValueId id : graph.inputs) add(id, symbols);
  absl::flat_hash_map<std::string, int64_t> result;
  for (const std::string& text : sizes) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(text, absl::MaxSplits('=', 1));
    absl::string_view number = parts.second;
    const bool per_request = absl::ConsumeSuffix(&number, "/request");
    int64_t size = 0;
    if (!absl::SimpleAtoi(number, &size) || size < (per_request ? 1 : 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--size ", text,
                       ": wants NAME=N with N >= 0, or NAME=N/request with "
                       "N >= 1"));
    }
    // Negative: per request (partitioner::SizesForBatch).
    if (per_request) size = -size;
    std::string symbol = parts.first;
    // Not a symbol: the name of an input stands for its only size besides the
    // batch.
    if (std::count(symbols.begin(), symbols.end(), symbol) == 0) {
      std::vector<std::string> of_input;
      for (const models::ValueId id : graph.inputs) {
        if (graph.value(id).name == parts.first) add(id, of_input);
      }
      if (of_input.size() > 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--size ", text, ": input ", parts.first,
            " has several sizes; name one of ", absl::StrJoin(of_input, ", ")));
      }
      if (of_input.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--size ", text, ": no input has a size ", parts.first,
            " besides the batch; sizes are ",
            symbols.empty() ? "none" : absl::StrJoin(symbols, ", ")));
      }
      symbol = of_input[0];
    }
    result[symbol] = size;
  }
  return result;
}

absl::Status CheckGivenSizes(
    const models::Graph& graph,
    const absl::flat_hash_map<std::string, int64_t>& sizes) {
  const auto check = [&graph](const auto& given) {
    return partitioner::CheckSizes(graph,
                                   partitioner::SizesForBatch(graph, 1, given));
  };
  const std::map<std::string, int64_t> of_rows = partitioner::RowSymbols(graph);
  for (const auto& [symbol, given] : sizes) {
    const int64_t size = std::abs(given);
    // Sizes that count rows are given per item, but the model's limits are per
    // request.
    const bool counts_rows = of_rows.contains(symbol);
    for (const models::SymbolRange& range : graph.symbols) {
      if ((counts_rows && given >= 0) || range.symbol != symbol ||
          range.min > range.max || (size >= range.min && size <= range.max)) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "--size ", symbol, "=", size, ": the model takes ", range.min,
          range.max == INT64_MAX ? " and more"
                                 : absl::StrCat(" to ", range.max)));
    }
  }
  // Sizes may be within their ranges and still not fit together: an operator
  // computes a tensor of negative size then.
  const absl::Status status = check(sizes);
  if (status.ok()) return status;
  // Finds the size that is too small, and the least size that the model takes.
  constexpr int64_t kReach = 4096;
  // One size is raised at a time, so the hint is right if a single size is too
  // small.
  for (const auto& [symbol, size] : sizes) {
    if (size < 0) continue;
    absl::flat_hash_map<std::string, int64_t> others = sizes;
    for (int64_t enough = size + 1; enough <= size + kReach; ++enough) {
      others[symbol] = enough;
      if (!check(others).ok()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--size ", symbol, "=", size, ": the model takes ",
                       enough, " and more: ", status.message()));
    }
  }
  return status;
}

void AddNodeOptions(CLI::App& command, partitioner::NodeOptions& options) {
  command
      .add_option("--transport", options.transport,
                  "data path between the started CN and HN: auto (the best "
                  "available), shm, tcp or verbs")
      ->type_name("auto|shm|tcp|verbs");
  command
      .add_option("--node-programs", options.programs,
                  "folder of refract-cpu-node and refract-gpu-node; default: "
                  "where refract itself is")
      ->type_name("DIR");
}

}  // namespace refract::tools

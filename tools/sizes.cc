#include "tools/sizes.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "partitioner/costs/work.h"
#include "partitioner/measure/sample_requests.h"
#include "tools/common_options.h"

namespace refract::tools {
namespace {

absl::string_view SourceText(SizeSource source) {
  switch (source) {
    case SizeSource::kGiven:
      return "--size";
    case SizeSource::kProfile:
      return "the profile";
    case SizeSource::kSample:
      return "the import's sample";
    case SizeSource::kGuessed:
      return "guessed";
  }
  return "";
}

// Symbols of the inputs except the batch, without sizes, and whether each of
// them grows with the items of the request.
std::vector<std::pair<AssumedSize, bool>> SymbolsOf(
    const models::Graph& graph) {
  std::vector<std::pair<AssumedSize, bool>> symbols;
  const std::map<std::string, int64_t> of_rows = partitioner::RowSymbols(graph);
  for (const models::ValueId id : graph.inputs) {
    const models::Value& input = graph.value(id);
    for (const models::SymExpr& extent : input.shape) {
      for (const std::string& symbol : extent.Symbols()) {
        if (symbol == graph.batch_symbol) continue;
        auto found = std::find_if(
            symbols.begin(), symbols.end(),
            [&](const auto& known) { return known.first.symbol == symbol; });
        if (found == symbols.end()) {
          symbols.push_back({{.symbol = symbol}, of_rows.contains(symbol)});
          found = symbols.end() - 1;
        }
        std::vector<std::string>& inputs = found->first.inputs;
        if (inputs.empty() || inputs.back() != input.name) {
          inputs.push_back(input.name);
        }
      }
    }
  }
  return symbols;
}

// Sizes of the request that import was given; empty without such a request.
absl::StatusOr<models::SymbolBindings> KeptSizes(
    const models::LoadedModel& model) {
  const std::string path = absl::StrCat(model.folder, "/", models::kSampleFile);
  if (std::error_code error; !std::filesystem::exists(path, error)) {
    return models::SymbolBindings();
  }
  REFRACT_ASSIGN_OR_RETURN(const partitioner::SampleRequests sample,
                           partitioner::ReadSamples({path}, model.graph));
  return partitioner::CommonSizes(model.graph, sample);
}

}  // namespace

std::string AssumedSizes::Text() const {
  // A model of hundreds of tables may have a size for each.
  constexpr size_t kShown = 50;
  std::string text;
  for (const AssumedSize& size :
       absl::MakeConstSpan(all).first(std::min(kShown, all.size()))) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", size.symbol, " ",
                    std::abs(size.size), size.size < 0 ? " per request" : "",
                    " (", SourceText(size.source), ")");
  }
  if (all.size() > kShown) {
    const auto [least, most] =
        std::minmax_element(all.begin() + kShown, all.end(),
                            [](const AssumedSize& a, const AssumedSize& b) {
                              return std::abs(a.size) < std::abs(b.size);
                            });
    absl::StrAppend(&text, ", and ", all.size() - kShown, " more, ",
                    std::abs(least->size), " to ", std::abs(most->size));
  }
  return text;
}

absl::StatusOr<AssumedSizes> AssumeSizes(
    const std::vector<std::string>& given, const models::LoadedModel& model,
    const partitioner::CostProfiles* profiles) {
  const models::Graph& graph = model.graph;
  REFRACT_ASSIGN_OR_RETURN(const auto from_options, ParseSizes(given, graph));
  absl::flat_hash_map<std::string, int64_t> profiled;
  if (profiles != nullptr) partitioner::AddProfiledSizes(*profiles, profiled);
  REFRACT_ASSIGN_OR_RETURN(const models::SymbolBindings kept, KeptSizes(model));
  const auto batch = kept.find(graph.batch_symbol);

  AssumedSizes result;
  for (auto& [size, counts_rows] : SymbolsOf(graph)) {
    const auto take = [&size = size](const auto& from, SizeSource source) {
      const auto found = from.find(size.symbol);
      if (found == from.end() || size.source != SizeSource::kGuessed) return;
      size.size = found->second;
      size.source = source;
    };
    // The first source that knows the symbol wins.
    take(from_options, SizeSource::kGiven);
    take(profiled, SizeSource::kProfile);
    take(kept, SizeSource::kSample);
    if (size.source == SizeSource::kSample && counts_rows &&
        batch != kept.end() && batch->second > 0) {
      // A size is an average over all items. It is rounded to a whole number
      // per item above 0, because ids that never appear would cost nothing.
      size.size =
          std::max<int64_t>(1, (size.size + batch->second / 2) / batch->second);
    }
    if (size.source != SizeSource::kGuessed) {
      result.per_item[size.symbol] = size.size;
    }
    result.all.push_back(size);
  }
  // A guess is what the model accepts at least, given the sizes that are known.
  // Guesses stay out of `per_item`, so that they can follow the batch.
  const models::SymbolBindings one =
      partitioner::SizesForBatch(graph, 1, result.per_item);
  for (AssumedSize& size : result.all) {
    if (size.source == SizeSource::kGuessed) size.size = one.at(size.symbol);
  }
  return result;
}

void PrintSizes(const AssumedSizes& sizes, std::ostream& out,
                std::ostream& err) {
  if (sizes.all.empty()) return;
  out << "sizes per item: " << sizes.Text() << "\n";
  // A model of hundreds of tables may have a size for each.
  constexpr int kShown = 3;
  int guessed = 0;
  for (const AssumedSize& size : sizes.all) {
    if (size.source != SizeSource::kGuessed || ++guessed > kShown) continue;
    err << "warning: " << size.symbol << " is guessed as " << size.size
        << " per item (size of " << absl::StrJoin(size.inputs, ", ")
        << "); give --size " << size.symbol
        << "=N, or import the model with --sample\n";
  }
  if (guessed > kShown) {
    err << "warning: " << guessed - kShown << " more sizes are guessed\n";
  }
}

}  // namespace refract::tools

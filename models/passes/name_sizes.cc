#include "models/passes/name_sizes.h"

#include <cstddef>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace refract::models {
namespace {

// "s23"
bool IsOfPyTorch(absl::string_view symbol) {
  return symbol.size() > 1 && symbol[0] == 's' &&
         absl::c_all_of(symbol.substr(1), absl::ascii_isdigit);
}

// `text` as a name of a symbol; empty if SymExpr would not read it as one.
std::string AsSymbol(absl::string_view text) {
  std::string name(text);
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  const auto parsed = SymExpr::Parse(name);
  return parsed.ok() && parsed->symbol() == name ? name : "";
}

}  // namespace

SymExpr Renamed(const SymExpr& size,
                const absl::flat_hash_map<std::string, std::string>& names) {
  if (size.is_unknown() || size.constant()) return size;
  // Symbols are whole words of the text.
  const std::string text = size.ToString();
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const auto in_word = [&text](size_t at) {
      return at < text.size() &&
             (absl::ascii_isalnum(static_cast<unsigned char>(text[at])) ||
              text[at] == '_');
    };
    size_t end = i;
    while (in_word(end)) ++end;
    if (end == i) {
      result += text[i++];
      continue;
    }
    const std::string word = text.substr(i, end - i);
    const auto found = names.find(word);
    result += found == names.end() ? word : found->second;
    i = end;
  }
  return SymExpr::Parse(result).value_or(size);
}

void RenameSizes(const absl::flat_hash_map<std::string, std::string>& names,
                 Graph& graph) {
  for (Value& value : graph.values) {
    for (SymExpr& size : value.shape) size = Renamed(size, names);
    value.sym_value = Renamed(value.sym_value, names);
  }
}

void NameSizes(Graph& graph) {
  // A new name must not meet a symbol that is there already: both would become
  // one size.
  absl::flat_hash_set<std::string> taken;
  const auto take = [&taken](const SymExpr& size) {
    for (std::string& symbol : size.Symbols()) taken.insert(std::move(symbol));
  };
  for (const Value& value : graph.values) {
    for (const SymExpr& size : value.shape) take(size);
    take(value.sym_value);
  }
  absl::flat_hash_map<std::string, std::string> names;
  const auto name = [&](const std::string& symbol, absl::string_view wanted) {
    if (!IsOfPyTorch(symbol) || names.contains(symbol)) return;
    std::string chosen = AsSymbol(wanted);
    if (chosen.empty() || !taken.insert(chosen).second) return;
    names[symbol] = std::move(chosen);
  };
  // The batch first, since an input may be called "batch", too.
  name(graph.batch_symbol, "batch");
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    for (size_t d = 0; d < input.shape.size(); ++d) {
      const auto symbol = input.shape[d].symbol();
      if (!symbol || *symbol == graph.batch_symbol) continue;
      name(*symbol, d == 0 ? input.name : absl::StrCat(input.name, "_", d));
    }
  }
  if (names.empty()) return;
  RenameSizes(names, graph);
  const auto rename = [&names](std::string& symbol) {
    const auto found = names.find(symbol);
    if (found != names.end()) symbol = found->second;
  };
  for (SymbolRange& range : graph.symbols) rename(range.symbol);
  rename(graph.batch_symbol);
}

}  // namespace refract::models

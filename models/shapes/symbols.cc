#include "models/shapes/symbols.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/script_region.h"

namespace refract::models {
namespace {

// With more classes of sizes than this, combinations are not all tried.
constexpr size_t kMaxClasses = 4;

enum class Effect : uint8_t {
  kFails,
  kNothing,  // runs, and no size but the input's own changes
  kChanges,
};

class Finder {
 public:
  Finder(const Graph& graph, const Prober& prober)
      : graph_(graph), prober_(prober) {}

  absl::StatusOr<FoundSymbols> Find() {
    found_.base = prober_.maker().sample_dims();
    const absl::Status status = prober_.Run(found_.base, base_run_);
    if (!status.ok()) return base::Annotate(status, "the example does not run");
    LeaveOneRow();
    FindFreePlaces();
    FindClasses(leading_);
    FindClasses(trailing_);
    JoinClasses();
    TakeIdleInputs();
    TakeUnseenRows();
    Name();
    return std::move(found_);
  }

 private:
  using Member = SizeSymbol::Member;

  int64_t SizeOf(Place place) const {
    return found_.base[place.input][place.dim];
  }

  // Bag offsets count one more than there are bags.
  int64_t OffsetOf(Place place) const {
    const auto& ragged = prober_.maker().ragged(place.input);
    const bool last = place.dim + 1 == found_.base[place.input].size();
    return last && ragged && ragged->include_last_offset ? 1 : 0;
  }

  InputDims Moved(const std::vector<Member>& members) const {
    InputDims dims = found_.base;
    for (const Member& member : members) {
      dims[member.place.input][member.place.dim] += member.factor;
    }
    return dims;
  }

  Effect Try(const std::vector<Member>& members) const {
    InterpreterRun run;
    if (!prober_.Run(Moved(members), run).ok()) return Effect::kFails;
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      if (graph_.values[id].producer != kNoNode &&
          (run.values[id].spec.dims != base_run_.values[id].spec.dims ||
           run.values[id].number != base_run_.values[id].number)) {
        return Effect::kChanges;
      }
    }
    return Effect::kNothing;
  }

  std::vector<Place> Places() const {
    std::vector<Place> places;
    for (size_t i = 0; i < found_.base.size(); ++i) {
      for (size_t d = 0; d < found_.base[i].size(); ++d) {
        places.push_back({i, d});
      }
    }
    return places;
  }

  // Goes on from two rows when the example has one, if the model takes two.
  void LeaveOneRow() {
    std::vector<Member> ones;
    size_t leading = 0;
    for (const Place& place : Places()) {
      if (place.dim != 0) continue;
      ++leading;
      if (SizeOf(place) - OffsetOf(place) == 1) ones.push_back({place});
    }
    if (ones.empty() || 2 * ones.size() < leading) return;
    InputDims two = Moved(ones);
    InterpreterRun run;
    if (prober_.Run(two, run).ok()) {
      found_.base = std::move(two);
      base_run_ = std::move(run);
    }
  }

  // Numbers of one item: a server should not take more or fewer of them, even
  // where the arithmetic would.
  bool IsFeatureWidth(Place place) const {
    return place.dim > 0 && place.dim + 1 == found_.base[place.input].size() &&
           base::IsFloatingPoint(prober_.maker().sample()[place.input].dtype);
  }

  // Sizes that may change alone are symbols of their own: lengths of ragged
  // inputs. The others are kept for FindClasses().
  void FindFreePlaces() {
    std::vector<bool> read(graph_.values.size(), false);
    for (const Node& node : graph_.nodes) {
      for (ValueId id : InputsOf(node)) read[id] = true;
    }
    for (const Place& place : Places()) {
      const Effect effect = Try({{place}});
      // The ids of bags change no other size, and yet are read. A matrix whose
      // further rows or columns change nothing is one that the model picks
      // from.
      const bool is_vector = found_.base[place.input].size() == 1;
      if (effect == Effect::kFails) {
        (place.dim == 0 ? leading_ : trailing_).push_back(place);
      } else if (!read[graph_.inputs[place.input]]) {
        if (place.dim == 0) idle_.push_back(place);
      } else if ((effect == Effect::kChanges || is_vector) &&
                 !IsFeatureWidth(place)) {
        AddSymbol({{place, 1, OffsetOf(place)}});
      } else if (place.dim == 0) {
        picked_.push_back(place);
      }
    }
  }

  void AddSymbol(std::vector<Member> members) {
    SizeSymbol symbol;
    const Member& first = members.front();
    symbol.base = (SizeOf(first.place) - first.offset) / first.factor;
    symbol.members = std::move(members);
    found_.symbols.push_back(std::move(symbol));
  }

  std::vector<Member> MembersOf(const std::vector<Place>& places) const {
    std::vector<Member> members;
    for (const Place& place : places) {
      members.push_back({place, 1, OffsetOf(place)});
    }
    return members;
  }

  // Equal sizes that may change when they change together.
  void FindClasses(std::vector<Place>& places) {
    std::map<int64_t, std::vector<Place>> classes;
    for (const Place& place : places) {
      classes[SizeOf(place) - OffsetOf(place)].push_back(place);
    }
    places.clear();
    for (auto& [size, members] : classes) {
      TakeWeightedIds(members);
      if (members.empty()) continue;
      const bool may_vary =
          !std::all_of(members.begin(), members.end(),
                       [this](Place place) { return IsFeatureWidth(place); });
      if (!may_vary ||
          (!AddIfRuns(MembersOf(members)) && !JoinFree(size, members))) {
        places.insert(places.end(), members.begin(), members.end());
      }
    }
  }

  bool IsVectorOf(Place place, bool floats) const {
    return found_.base[place.input].size() == 1 &&
           base::IsFloatingPoint(prober_.maker().sample()[place.input].dtype) ==
               floats;
  }

  // Ids of bags and their weights change together, whatever else has the same
  // size in this example.
  void TakeWeightedIds(std::vector<Place>& places) {
    if (places.size() < 3) return;
    for (size_t w = 0; w < places.size(); ++w) {
      if (!IsVectorOf(places[w], /*floats=*/true)) continue;
      for (size_t i = 0; i < places.size(); ++i) {
        if (!IsVectorOf(places[i], /*floats=*/false)) continue;
        if (Try({{places[i]}, {places[w]}}) == Effect::kFails) continue;
        AddSymbol(MembersOf({places[i], places[w]}));
        places.erase(places.begin() + std::max(i, w));
        places.erase(places.begin() + std::min(i, w));
        --w;
        break;
      }
    }
  }

  bool AddIfRuns(std::vector<Member> members) {
    // One alone has been tried.
    if (members.size() < 2 || Try(members) == Effect::kFails) return false;
    AddSymbol(std::move(members));
    return true;
  }

  // A size that seemed free may only be free to grow: rows that nothing picks
  // do no harm. It belongs to a class that cannot change without it.
  bool JoinFree(int64_t size, const std::vector<Place>& places) {
    std::vector<Member> members = MembersOf(places);
    const auto is_free = [size](const SizeSymbol& symbol) {
      return symbol.base == size && symbol.members.size() == 1 &&
             symbol.members[0].place.dim == 0;
    };
    for (const SizeSymbol& symbol : found_.symbols) {
      if (is_free(symbol)) members.push_back(symbol.members[0]);
    }
    for (const Place& place : picked_) {
      if (SizeOf(place) == size) members.push_back({place});
    }
    if (members.size() == places.size() || Try(members) == Effect::kFails) {
      return false;
    }
    std::erase_if(found_.symbols, is_free);
    AddSymbol(std::move(members));
    return true;
  }

  // Sizes that must change together without being equal: lengths of F features
  // per row are F·B, their offsets F·B + 1.
  void JoinClasses() {
    std::map<int64_t, std::vector<Place>> by_size;
    for (const Place& place : leading_) {
      by_size[SizeOf(place) - OffsetOf(place)].push_back(place);
    }
    // Offsets of all tables in one matrix have the rows in the second
    // dimension.
    for (const Place& place : trailing_) {
      const auto it = by_size.find(SizeOf(place) - OffsetOf(place));
      if (!IsFeatureWidth(place) && it != by_size.end()) {
        it->second.push_back(place);
      }
    }
    std::vector<std::pair<int64_t, std::vector<Place>>> classes(by_size.begin(),
                                                                by_size.end());
    std::stable_sort(classes.begin(), classes.end(),
                     [](const auto& a, const auto& b) {
                       return a.second.size() > b.second.size();
                     });
    if (!classes.empty()) {
      found_.attempt = Moved(MembersOf(classes[0].second));
      found_.base_rows = classes[0].first;
    }
    for (const auto& [rows, main] : classes) {
      if (rows < 1) continue;
      std::vector<Choices> others;
      for (const auto& [size, places] : classes) {
        if (size != rows) others.push_back(ChoicesFor(size, rows, places));
      }
      std::vector<Member> members = MembersOf(main);
      if (TryChoices(others, 0, members)) {
        AddSymbol(std::move(members));
        return;
      }
    }
  }

  // How the places of one class may follow the main one.
  struct Choices {
    const std::vector<Place>* places;
    std::vector<std::pair<int64_t, int64_t>> options;  // factor, offset
  };

  static Choices ChoicesFor(int64_t size, int64_t rows,
                            const std::vector<Place>& places) {
    Choices choices{&places, {}};
    if (size >= rows && size % rows == 0) {
      choices.options.push_back({size / rows, 0});
    }
    if (size > rows && (size - 1) % rows == 0) {
      choices.options.push_back({(size - 1) / rows, 1});
    }
    return choices;
  }

  bool TryChoices(const std::vector<Choices>& others, size_t next,
                  std::vector<Member>& members) const {
    if (next == others.size()) return Try(members) != Effect::kFails;
    const size_t length = members.size();
    for (const auto& [factor, offset] : others[next].options) {
      for (const Place& place : *others[next].places) {
        members.push_back({place, factor, offset + OffsetOf(place)});
      }
      if (TryChoices(others, next + 1, members)) return true;
      members.resize(length);
      if (next >= kMaxClasses) break;
    }
    return TryChoices(others, next + 1, members);
  }

  // Inputs that nothing reads follow the size that they have in the example.
  void TakeIdleInputs() {
    for (const Place& place : idle_) {
      for (SizeSymbol& symbol : found_.symbols) {
        if (symbol.base == SizeOf(place) - OffsetOf(place) &&
            symbol.members[0].place.dim == 0) {
          symbol.members.push_back({place, 1, OffsetOf(place)});
          break;
        }
      }
    }
  }

  // Rows that a branch reads which this data does not take, or that become a
  // number: of as many as the items are, they are the items'.
  void TakeUnseenRows() {
    if (std::none_of(graph_.nodes.begin(), graph_.nodes.end(), IsRegion)) {
      return;
    }
    for (SizeSymbol& symbol : found_.symbols) {
      if (!CountsRows(symbol)) continue;
      for (const Place& place : picked_) {
        const bool taken =
            std::any_of(symbol.members.begin(), symbol.members.end(),
                        [place](const Member& member) {
                          return member.place.input == place.input;
                        });
        if (taken || SizeOf(place) != symbol.base) continue;
        std::vector<Member> members = symbol.members;
        members.push_back({place, 1, OffsetOf(place)});
        if (Try(members) != Effect::kFails) symbol.members = members;
      }
      return;
    }
  }

  // The rows of the first output are the batch.
  bool CountsRows(const SizeSymbol& symbol) const {
    if (graph_.outputs.empty()) return false;
    const auto& before = base_run_.values[graph_.outputs[0]].spec.dims;
    if (before.empty() || before[0] != symbol.base) return false;
    InterpreterRun run;
    if (!prober_.Run(Moved(symbol.members), run).ok()) return false;
    const auto& after = run.values[graph_.outputs[0]].spec.dims;
    return !after.empty() && after[0] == symbol.base + 1;
  }

  void Name() {
    bool has_batch = false;
    int ragged = 0;
    int other = 0;
    for (SizeSymbol& symbol : found_.symbols) {
      if (!has_batch && CountsRows(symbol)) {
        symbol.name = std::string(kBatchSymbol);
        has_batch = true;
      } else if (symbol.members[0].place.dim == 0) {
        symbol.name = absl::StrCat("N", ragged++);
      } else {
        symbol.name = absl::StrCat("T", other++);
      }
    }
  }

  const Graph& graph_;
  const Prober& prober_;
  FoundSymbols found_;
  InterpreterRun base_run_;
  std::vector<Place> leading_;   // cannot change alone
  std::vector<Place> trailing_;  // cannot change alone
  std::vector<Place> idle_;      // of inputs that nothing reads
  std::vector<Place> picked_;    // of matrices that some rows are picked from
};

}  // namespace

InputDims DimsAt(const FoundSymbols& found,
                 const std::vector<int64_t>& values) {
  InputDims dims = found.base;
  for (size_t s = 0; s < found.symbols.size(); ++s) {
    for (const SizeSymbol::Member& member : found.symbols[s].members) {
      dims[member.place.input][member.place.dim] =
          member.factor * values[s] + member.offset;
    }
  }
  return dims;
}

std::vector<int64_t> BaseValues(const FoundSymbols& found) {
  std::vector<int64_t> values;
  for (const SizeSymbol& symbol : found.symbols) values.push_back(symbol.base);
  return values;
}

absl::StatusOr<FoundSymbols> FindSymbols(const Graph& graph,
                                         const Prober& prober) {
  return Finder(graph, prober).Find();
}

}  // namespace refract::models

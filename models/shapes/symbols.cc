#include "models/shapes/symbols.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/script_region.h"

namespace refract::models {
namespace {

// With more classes of sizes than this, only some combinations are tried.
constexpr size_t kMaxClasses = 4;
// Most runs of one search for dimensions to tie. Every run is a run of the
// model with the sample's sizes.
constexpr int kMaxAttempts = 200;
// Growth that shows a size to be free. Offsets computed from another input's
// size fit one more row, whose bag is then empty, but not two.
constexpr int64_t kGrowth = 2;

enum class Effect : uint8_t {
  kFails,
  kNothing,  // runs, and no other size changes
  kChanges,
};

class Finder {
 public:
  Finder(const Graph& graph, const Prober& prober)
      : graph_(graph), prober_(prober) {}

  absl::StatusOr<FoundSymbols> Find() {
    found_.base = prober_.maker().sample_dims();
    const absl::Status status = prober_.Run(found_.base, base_run_);
    if (!status.ok())
      return base::Annotate(
          status, "the model fails on the example request (--sample)");
    LeaveOneRow();
    // First free places, since a class of sizes that must change together
    // consists of places that cannot change alone; then equal sizes; last sizes
    // that are multiples of each other.
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

  // Bag offsets are one more than the bags.
  int64_t OffsetOf(Place place) const {
    const auto& ragged = prober_.maker().ragged(place.input);
    const bool last = place.dim + 1 == found_.base[place.input].size();
    return last && ragged && ragged->include_last_offset ? 1 : 0;
  }

  // `steps`: change of the size that the members are multiples of.
  InputDims Moved(const std::vector<Member>& members, int64_t steps = 1) const {
    InputDims dims = found_.base;
    for (const Member& member : members) {
      dims[member.place.input][member.place.dim] += member.factor * steps;
    }
    return dims;
  }

  bool Runs(const std::vector<Member>& members, int64_t steps) const {
    InterpreterRun run;
    return prober_.Run(Moved(members, steps), run).ok();
  }

  Effect Try(const std::vector<Member>& members) const {
    InterpreterRun run;
    const bool rows =
        std::any_of(members.begin(), members.end(),
                    [](const Member& member) { return member.place.dim == 0; });
    // Further steps of a sequence repeat its first steps. Where these are
    // padding, a table of positions fails only at a later step.
    if (!prober_.Run(Moved(members), run).ok() || !Runs(members, kGrowth) ||
        (!rows && !Runs(members, kMaxGrowth))) {
      return Effect::kFails;
    }
    // Rows of a result that squeeze() drops where there is one.
    if (!SameRanks(run)) return Effect::kFails;
    // Only computed values count: an input's own size has changed in any case.
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

  // Continues from two rows or more if the example has one and the model takes
  // more. Rows may also be counted in another dimension than the first.
  void LeaveOneRow() {
    std::vector<Member> ones;
    std::vector<Member> further;
    size_t leading = 0;
    for (const Place& place : Places()) {
      leading += place.dim == 0 ? 1 : 0;
      if (SizeOf(place) - OffsetOf(place) != 1 || IsFeatureWidth(place)) {
        continue;
      }
      (place.dim == 0 ? ones : further).push_back({place});
    }
    if (ones.empty() || 2 * ones.size() < leading) return;
    if (!further.empty() && Try(ones) == Effect::kFails) {
      further.insert(further.end(), ones.begin(), ones.end());
      if (Try(further) != Effect::kFails) ones = std::move(further);
    }
    // Two items of one user in the example are no two rows.
    int64_t steps = 1;
    const auto taken = [&](const Place& place) {
      return place.dim == 0 && SizeOf(place) - OffsetOf(place) == 1 + steps;
    };
    const std::vector<Place> places = Places();
    while (std::any_of(places.begin(), places.end(), taken)) ++steps;
    // The larger sizes become the base only if the model runs with them, and
    // not where squeeze() drops the one user of the items that the output has.
    InputDims more = Moved(ones, steps);
    InterpreterRun run;
    if (!prober_.Run(more, run).ok() || (HasItems() && !SameRanks(run))) return;
    found_.base = std::move(more);
    base_run_ = std::move(run);
  }

  // Whether the first output has rows of an input with two or more.
  bool HasItems() const {
    if (graph_.outputs.empty()) return false;
    const auto& output = base_run_.values[graph_.outputs[0]].spec.dims;
    return !output.empty() && output[0] > 1 &&
           std::any_of(found_.base.begin(), found_.base.end(),
                       [&output](const base::Dims& dims) {
                         return !dims.empty() && dims[0] == output[0];
                       });
  }

  bool SameRanks(const InterpreterRun& run) const {
    return std::all_of(graph_.outputs.begin(), graph_.outputs.end(),
                       [&](ValueId id) {
                         return run.values[id].spec.dims.size() ==
                                base_run_.values[id].spec.dims.size();
                       });
  }

  // Float features of an item: a server should not accept more or fewer, even
  // if the model's arithmetic would.
  bool IsFeatureWidth(Place place) const {
    return place.dim > 0 && place.dim + 1 == found_.base[place.input].size() &&
           base::IsFloatingPoint(prober_.maker().sample()[place.input].dtype);
  }

  // Sizes that may change alone become symbols: lengths of ragged inputs. The
  // others are kept for FindClasses().
  void FindFreePlaces() {
    std::vector<bool> read(graph_.values.size(), false);
    for (const Node& node : graph_.nodes) {
      for (ValueId id : InputsOf(node)) read[id] = true;
    }
    for (const Place& place : Places()) {
      const Effect effect = Try({{place}});
      // A vector that changes no other size, and yet is read, holds ids of
      // bags. Of a matrix that does so the model picks rows or columns.
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

  // Ids of bags and their weights change together, even if other inputs have
  // the same size in this example.
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
    // A symbol of one member was tried before.
    if (members.size() < 2 || Try(members) == Effect::kFails) return false;
    AddSymbol(std::move(members));
    return true;
  }

  // A size that seemed free may only be free to grow: surplus rows that are not
  // picked do no harm, nor do ids behind the last bag. Such a size belongs to a
  // class that cannot change without it, in any dimension.
  bool JoinFree(int64_t size, const std::vector<Place>& places) {
    std::vector<Member> candidates;
    for (const SizeSymbol& symbol : found_.symbols) {
      if (symbol.base == size && symbol.members.size() == 1) {
        candidates.push_back(symbol.members[0]);
      }
    }
    for (const Place& place : picked_) {
      if (SizeOf(place) == size) candidates.push_back({place});
    }
    if (candidates.empty()) return false;
    std::vector<Member> members;
    // Fewer members if the size cannot fall with all of them: the number of
    // tables, which only happens to equal the batch, must stay.
    const auto holds = [&](const std::vector<Member>& chosen, bool falls) {
      members = MembersOf(places);
      members.insert(members.end(), chosen.begin(), chosen.end());
      return Try(members) != Effect::kFails && (!falls || Runs(members, -1));
    };
    if (!Choose(candidates,
                [&](const auto& chosen) {
                  return holds(chosen, /*falls=*/true);
                }) &&
        !Choose(candidates, [&](const auto& chosen) {
          return holds(chosen, /*falls=*/false);
        })) {
      return false;
    }
    const auto joined = [&members](const SizeSymbol& symbol) {
      return symbol.members.size() == 1 &&
             Contains(members, symbol.members[0].place);
    };
    // A place belongs to one symbol.
    std::erase_if(found_.symbols, joined);
    AddSymbol(std::move(members));
    return true;
  }

  static bool Contains(const std::vector<Member>& members, Place place) {
    return std::any_of(members.begin(), members.end(),
                       [place](const Member& member) {
                         return member.place.input == place.input &&
                                member.place.dim == place.dim;
                       });
  }

  // Calls `accepts` for all of `candidates`, then for all but one, all but two.
  // True at the first accepted subset; at most kMaxAttempts calls, and never
  // for the empty subset.
  template <typename Accepts>
  static bool Choose(const std::vector<Member>& candidates,
                     const Accepts& accepts) {
    const size_t count = candidates.size();
    int attempts = 0;
    const auto without = [&](size_t i, size_t k) {
      std::vector<Member> chosen;
      for (size_t at = 0; at < count; ++at) {
        if (at != i && at != k) chosen.push_back(candidates[at]);
      }
      ++attempts;
      return !chosen.empty() && accepts(chosen);
    };
    if (without(count, count)) return true;
    for (size_t i = 0; i < count && attempts < kMaxAttempts; ++i) {
      if (without(i, i)) return true;
    }
    for (size_t i = 0; i < count; ++i) {
      for (size_t k = i + 1; k < count && attempts < kMaxAttempts; ++k) {
        if (without(i, k)) return true;
      }
    }
    return false;
  }

  // Sizes that must change together without being equal: lengths of F features
  // per row are F·B, their offsets F·B + 1. Rows may also be counted in the
  // second dimension: offsets or ids of all tables in one matrix.
  void JoinClasses() {
    std::map<int64_t, std::vector<Place>> by_size;
    for (const Place& place : leading_) {
      by_size[SizeOf(place) - OffsetOf(place)].push_back(place);
    }
    // Only leading sizes may be the batch; classes of them come first below.
    const std::set<int64_t> leads = [&by_size] {
      std::set<int64_t> sizes;
      for (const auto& each : by_size) sizes.insert(each.first);
      return sizes;
    }();
    for (const Place& place : trailing_) {
      if (!IsFeatureWidth(place)) {
        by_size[SizeOf(place) - OffsetOf(place)].push_back(place);
      }
    }
    std::vector<std::pair<int64_t, std::vector<Place>>> classes(by_size.begin(),
                                                                by_size.end());
    std::stable_sort(
        classes.begin(), classes.end(), [&leads](const auto& a, const auto& b) {
          return std::pair(leads.contains(a.first), a.second.size()) >
                 std::pair(leads.contains(b.first), b.second.size());
        });
    if (!classes.empty() && leads.contains(classes[0].first)) {
      found_.attempt = Moved(MembersOf(classes[0].second));
      found_.base_rows = classes[0].first;
    }
    attempts_left_ = kMaxAttempts;
    for (const auto& [rows, main] : classes) {
      if (rows < 1 || !leads.contains(rows)) continue;
      std::vector<Choices> others;
      for (const auto& [size, places] : classes) {
        if (size != rows) others.push_back(ChoicesFor(size, rows, places));
      }
      // Sizes that seemed free are tied last, and only if needed.
      for (const SizeSymbol& symbol : found_.symbols) {
        if (symbol.members.size() != 1 || symbol.base == rows) continue;
        others.push_back(
            ChoicesFor(symbol.base, rows, {symbol.members[0].place}));
        others.back().is_free = true;
      }
      std::erase_if(others,
                    [](const Choices& each) { return each.options.empty(); });
      std::vector<Member> members;
      const bool found =
          Choose(MembersOf(main), [&](const std::vector<Member>& chosen) {
            // Dimensions that merely equal the batch in the sample may be
            // fixed.
            if (!StartsWithRows(chosen)) return false;
            members = chosen;
            return TryChoices(others, 0, members);
          });
      if (!found) continue;
      std::erase_if(found_.symbols, [&members](const SizeSymbol& symbol) {
        return symbol.members.size() == 1 &&
               Contains(members, symbol.members[0].place);
      });
      AddSymbol(std::move(members));
      return;
    }
  }

  // A leading dimension first: its role names the symbol.
  static bool StartsWithRows(const std::vector<Member>& members) {
    return members[0].place.dim == 0;
  }

  // How the places of a class may follow the main place.
  struct Choices {
    std::vector<Place> places;
    std::vector<std::pair<int64_t, int64_t>> options;  // factor, offset
    bool is_free = false;  // may change alone, as far as is known
  };

  static Choices ChoicesFor(int64_t size, int64_t rows,
                            const std::vector<Place>& places) {
    Choices choices{.places = places};
    if (size >= rows && size % rows == 0) {
      choices.options.push_back({size / rows, 0});
    }
    if (size > rows && (size - 1) % rows == 0) {
      choices.options.push_back({(size - 1) / rows, 1});
    }
    return choices;
  }

  bool TryChoices(const std::vector<Choices>& others, size_t next,
                  std::vector<Member>& members) {
    if (next == others.size()) {
      return attempts_left_-- > 0 && Try(members) != Effect::kFails;
    }
    const size_t length = members.size();
    const Choices& each = others[next];
    if (each.is_free && TryChoices(others, next + 1, members)) return true;
    members.resize(length);
    for (const auto& [factor, offset] : each.options) {
      for (const Place& place : each.places) {
        members.push_back({place, factor, offset + OffsetOf(place)});
      }
      if (TryChoices(others, next + 1, members)) return true;
      members.resize(length);
      // Beyond these classes only the first option is tried: the number of
      // combinations is the product of all options.
      if (next >= kMaxClasses || attempts_left_ <= 0) break;
    }
    return !each.is_free && TryChoices(others, next + 1, members);
  }

  // Unread inputs follow the size that they have in the example.
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

  // Rows that only an untaken branch reads, or that become a number: if there
  // are as many as items, they count as the items' rows.
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
  int attempts_left_ = 0;        // of TryChoices()
  std::vector<Place> leading_;   // cannot change alone
  std::vector<Place> trailing_;  // cannot change alone
  std::vector<Place> idle_;      // of unread inputs
  std::vector<Place> picked_;    // of matrices from which the model picks rows
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

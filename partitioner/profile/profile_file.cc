// The stored form of profiles.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "models/repository/files/text_proto.h"
#include "partitioner/profile/profile.h"
#include "proto/profile.pb.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::NodeId;

constexpr uint32_t kProfileFormatVersion = 1;
// Batches and numbers per item beyond this would overflow sizes.
constexpr int64_t kMaxCount = int64_t{1} << 40;

void Store(const Timing& timing, proto::Timing& stored) {
  stored.set_fixed_seconds(timing.line.fixed_s);
  stored.set_item_seconds(timing.line.item_s);
  for (const Timing::Sample& sample : timing.samples) {
    proto::Sample& entry = *stored.add_samples();
    entry.set_batch(sample.batch);
    entry.set_least_seconds(sample.seconds.least);
    entry.set_q1_seconds(sample.seconds.q1);
    entry.set_median_seconds(sample.seconds.median);
    entry.set_q3_seconds(sample.seconds.q3);
    // For people: ReadTiming() does not need it.
    entry.set_residual(timing.Residual(sample));
  }
}

// Turns the stored form into a Profile and checks the invariants on which later
// code relies: nodes of this graph, each in one operator at most; ascending
// batches; one sample per batch in every timing; finite figures of at least 0.
// Errors name the file and the place.
class ProfileReader {
 public:
  ProfileReader(absl::string_view file, const Graph& graph)
      : file_(file), graph_(graph) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      nodes_.emplace(graph.nodes[n].name, static_cast<NodeId>(n));
    }
    seen_.assign(graph.nodes.size(), false);
  }

  absl::StatusOr<Profile> Read(const proto::Profile& stored,
                               const base::Digest& model) {
    Profile profile;
    // The head comes first: it has the batches by which timings are checked.
    REFRACT_RETURN_IF_ERROR(ReadHead(stored, model, profile));
    for (int i = 0; i < stored.operators_size(); ++i) {
      const proto::Profile::Operator& entry = stored.operators(i);
      Profile::Operator op;
      if (entry.nodes().empty()) {
        return Wrong(absl::StrCat("operator ", i + 1), "names no node");
      }
      const std::string name = absl::StrCat("operator ", entry.nodes(0));
      for (const std::string& node : entry.nodes()) {
        REFRACT_ASSIGN_OR_RETURN(const NodeId id, ReadNode(node));
        op.nodes.push_back(id);
      }
      op.kernel = entry.kernel();
      REFRACT_ASSIGN_OR_RETURN(
          op.timing, ReadTiming(name, entry.has_timing(), entry.timing(),
                                profile.batches));
      REFRACT_RETURN_IF_ERROR(ReadPieces(name, entry, profile.batches, op));
      profile.operators.push_back(std::move(op));
    }
    for (const std::string& node : stored.free_nodes()) {
      REFRACT_ASSIGN_OR_RETURN(const NodeId id, ReadNode(node));
      profile.free_nodes.push_back(id);
    }
    REFRACT_ASSIGN_OR_RETURN(
        profile.run,
        ReadTiming("run", stored.has_run(), stored.run(), profile.batches));
    REFRACT_ASSIGN_OR_RETURN(
        profile.whole, ReadTiming("whole", stored.has_whole(), stored.whole(),
                                  profile.batches));
    for (const proto::WireRate& rate : stored.wire()) {
      const absl::Status added = AddWireRate(
          rate.form(),
          {rate.encode_bytes_per_second(), rate.decode_bytes_per_second()},
          profile.wire);
      if (!added.ok()) return base::Annotate(added, file_);
    }
    return profile;
  }

 private:
  absl::Status Wrong(absl::string_view where, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_, ": ", where, ": ", what));
  }

  absl::Status CheckFigure(absl::string_view where, absl::string_view name,
                           double value) const {
    if (!std::isfinite(value)) {
      return Wrong(where, absl::StrCat(name, " is no finite number"));
    }
    if (value < 0) {
      return Wrong(where, absl::StrCat(name, " ", value, " is negative"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadHead(const proto::Profile& stored, const base::Digest& model,
                        Profile& profile) const {
    if (stored.format_version() != kProfileFormatVersion) {
      return Wrong("format_version", absl::StrCat(stored.format_version(),
                                                  "; this program reads ",
                                                  kProfileFormatVersion));
    }
    // Costs of another graph would be wrong without any error.
    profile.model = {stored.model().low(), stored.model().high()};
    if (!(profile.model == model)) {
      return Wrong(
          "model",
          absl::StrCat("the profile is of model ", profile.model.ToHex(), " (",
                       stored.model_name(), "), but this model is ",
                       model.ToHex()));
    }
    profile.model_name = stored.model_name();
    profile.device = stored.device();
    profile.cpu = stored.machine().cpu();
    profile.cpus = stored.machine().cpus();
    profile.memory_bytes = stored.machine().memory_bytes();
    profile.kernel = stored.machine().kernel();
    profile.revision = stored.revision();
    profile.time = stored.time();
    profile.inputs = stored.inputs();
    profile.repetitions = stored.repetitions();
    if (profile.cpus == 0 || profile.memory_bytes == 0) {
      return Wrong("machine", "cpus or memory_bytes is missing or 0");
    }
    REFRACT_RETURN_IF_ERROR(
        CheckFigure("head", "clock_seconds", stored.clock_seconds()));
    profile.clock_s = stored.clock_seconds();
    for (const proto::Profile::Size& size : stored.sizes()) {
      if (size.per_item() < -kMaxCount || size.per_item() > kMaxCount) {
        return Wrong(absl::StrCat("size ", size.symbol()),
                     absl::StrCat(size.per_item(), " is out of range"));
      }
      if (!profile.sizes.emplace(size.symbol(), size.per_item()).second) {
        return Wrong(absl::StrCat("size ", size.symbol()), "is listed twice");
      }
    }
    int64_t last = 0;
    for (const int64_t batch : stored.batches()) {
      if (batch <= last || batch > kMaxCount) {
        return Wrong("batches", absl::StrCat(batch, " after ", last,
                                             ": must ascend from 1"));
      }
      profile.batches.push_back(last = batch);
    }
    // A line needs two points.
    if (profile.batches.size() < 2) {
      return Wrong("batches", "a profile needs two or more batch sizes");
    }
    return absl::OkStatus();
  }

  // The node of an operator or of the free nodes; each node may be in one of
  // these lists, once.
  absl::StatusOr<NodeId> ReadNode(const std::string& name) {
    const auto found = nodes_.find(name);
    if (found == nodes_.end()) {
      return Wrong(absl::StrCat("operator ", name),
                   "the model has no such operator");
    }
    if (seen_[found->second]) {
      return Wrong(absl::StrCat("operator ", name), "is listed twice");
    }
    seen_[found->second] = true;
    return found->second;
  }

  // Pieces divide the nodes of `op`, which were read before: together they must
  // list exactly these nodes, each once (MeasuredSeconds shares times by them).
  absl::Status ReadPieces(const std::string& name,
                          const proto::Profile::Operator& entry,
                          const std::vector<int64_t>& batches,
                          Profile::Operator& op) const {
    std::vector<NodeId> nodes;
    for (const proto::Profile::Operator::Piece& stored : entry.pieces()) {
      Profile::Operator::Piece piece;
      for (const std::string& node : stored.nodes()) {
        const auto found = nodes_.find(node);
        if (found == nodes_.end()) {
          return Wrong(name, absl::StrCat("a piece lists the node ", node,
                                          ", which the model does not have"));
        }
        piece.nodes.push_back(found->second);
        nodes.push_back(found->second);
      }
      REFRACT_ASSIGN_OR_RETURN(
          piece.timing,
          ReadTiming(absl::StrCat(name, ": piece"), stored.has_timing(),
                     stored.timing(), batches));
      op.pieces.push_back(std::move(piece));
    }
    std::sort(nodes.begin(), nodes.end());
    std::vector<NodeId> all = op.nodes;
    std::sort(all.begin(), all.end());
    if (!op.pieces.empty() && nodes != all) {
      return Wrong(name,
                   "its pieces do not list each of its nodes exactly once");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Timing> ReadTiming(absl::string_view name, bool has,
                                    const proto::Timing& stored,
                                    const std::vector<int64_t>& batches) const {
    if (!has) return Wrong(name, "has no timing");
    if (static_cast<size_t>(stored.samples_size()) != batches.size()) {
      return Wrong(name,
                   absl::StrCat("has ", stored.samples_size(), " samples for ",
                                batches.size(), " batches"));
    }
    Timing timing;
    timing.line = {stored.fixed_seconds(), stored.item_seconds()};
    REFRACT_RETURN_IF_ERROR(
        CheckFigure(name, "fixed_seconds", stored.fixed_seconds()));
    REFRACT_RETURN_IF_ERROR(
        CheckFigure(name, "item_seconds", stored.item_seconds()));
    for (size_t i = 0; i < batches.size(); ++i) {
      const proto::Sample& entry = stored.samples(static_cast<int>(i));
      if (entry.batch() != batches[i]) {
        return Wrong(name, absl::StrCat("has a sample of batch ", entry.batch(),
                                        ", expected was batch ", batches[i],
                                        "; run refract profile again"));
      }
      const base::Quartiles seconds = {
          entry.least_seconds(), entry.q1_seconds(), entry.median_seconds(),
          entry.q3_seconds()};
      REFRACT_RETURN_IF_ERROR(
          CheckFigure(name, "least_seconds", seconds.least));
      REFRACT_RETURN_IF_ERROR(CheckFigure(name, "q1_seconds", seconds.q1));
      REFRACT_RETURN_IF_ERROR(
          CheckFigure(name, "median_seconds", seconds.median));
      REFRACT_RETURN_IF_ERROR(CheckFigure(name, "q3_seconds", seconds.q3));
      if (seconds.least > seconds.q1 || seconds.q1 > seconds.median ||
          seconds.median > seconds.q3) {
        return Wrong(name, absl::StrCat("least, quartiles and median of batch ",
                                        batches[i], " are out of order"));
      }
      timing.samples.push_back({batches[i], seconds});
    }
    return timing;
  }

  const absl::string_view file_;
  const Graph& graph_;
  absl::flat_hash_map<absl::string_view, NodeId> nodes_;
  std::vector<bool> seen_;
};

}  // namespace

std::string ProfileToText(const Graph& graph, const Profile& profile) {
  proto::Profile stored;
  stored.set_format_version(kProfileFormatVersion);
  stored.mutable_model()->set_low(profile.model.low);
  stored.mutable_model()->set_high(profile.model.high);
  stored.set_model_name(profile.model_name);
  stored.set_device(profile.device);
  stored.mutable_machine()->set_cpu(profile.cpu);
  stored.mutable_machine()->set_cpus(profile.cpus);
  stored.mutable_machine()->set_memory_bytes(profile.memory_bytes);
  stored.mutable_machine()->set_kernel(profile.kernel);
  stored.set_revision(profile.revision);
  stored.set_time(profile.time);
  stored.set_inputs(profile.inputs);
  for (const auto& [symbol, per_item] : profile.sizes) {
    proto::Profile::Size& size = *stored.add_sizes();
    size.set_symbol(symbol);
    size.set_per_item(per_item);
  }
  for (const int64_t batch : profile.batches) stored.add_batches(batch);
  stored.set_repetitions(profile.repetitions);
  stored.set_clock_seconds(profile.clock_s);
  for (const Profile::Operator& op : profile.operators) {
    proto::Profile::Operator& entry = *stored.add_operators();
    for (const NodeId node : op.nodes) {
      entry.add_nodes(graph.nodes[node].name);
    }
    entry.set_op(graph.nodes[op.nodes.front()].op);
    entry.set_kernel(op.kernel);
    Store(op.timing, *entry.mutable_timing());
    for (const Profile::Operator::Piece& piece : op.pieces) {
      proto::Profile::Operator::Piece& one = *entry.add_pieces();
      for (const NodeId node : piece.nodes) {
        one.add_nodes(graph.nodes[node].name);
      }
      Store(piece.timing, *one.mutable_timing());
    }
  }
  for (const NodeId node : profile.free_nodes) {
    stored.add_free_nodes(graph.nodes[node].name);
  }
  Store(profile.run, *stored.mutable_run());
  Store(profile.whole, *stored.mutable_whole());
  for (const auto& [form, rate] : profile.wire) {
    proto::WireRate& one = *stored.add_wire();
    one.set_form(std::string(form));
    one.set_encode_bytes_per_second(rate.encode_bytes_per_s);
    one.set_decode_bytes_per_second(rate.decode_bytes_per_s);
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(stored, &text);
  return text;
}

absl::StatusOr<Profile> ParseProfile(absl::string_view text,
                                     absl::string_view file, const Graph& graph,
                                     const base::Digest& model) {
  proto::Profile stored;
  REFRACT_RETURN_IF_ERROR(models::ParseText(text, file, stored));
  return ProfileReader(file, graph).Read(stored, model);
}

absl::StatusOr<Profile> LoadProfile(absl::string_view path, const Graph& graph,
                                    const base::Digest& model) {
  REFRACT_ASSIGN_OR_RETURN(const std::string text, base::ReadText(path));
  return ParseProfile(text, path, graph, model);
}

}  // namespace refract::partitioner

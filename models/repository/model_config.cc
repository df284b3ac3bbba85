#include "models/repository/model_config.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/json_util.h"
#include "models/repository/check_settings.h"
#include "models/repository/files/text_proto.h"
#include "models/repository/requests/request_parameters.h"
#include "proto/inference/model_config.pb.h"

namespace refract::models {
namespace {

constexpr absl::string_view kPlatform = "refract";
constexpr absl::string_view kPolicyKey = "out_of_range_ids";
constexpr absl::string_view kShareKey = "share";
constexpr absl::string_view kLostShardKey = "lost_shard";
constexpr absl::string_view kDenseWeightsKey = "dense_weights";
constexpr absl::string_view kGpuPrecisionKey = "gpu_precision";
// Wide enough for any sensible share, narrow enough to catch a typing error.
constexpr double kLeastShare = 0.001;
constexpr double kMostShare = 1000;
constexpr int kMostInstances = 1024;
// A CPU node looks at each level for each request.
constexpr uint64_t kMostPriorityLevels = 16;

// Fields of Triton's that Refract lacks, with what to do instead.
struct Alternative {
  absl::string_view message;  // without package
  absl::string_view field;
  absl::string_view instead;
};
constexpr Alternative kAlternatives[] = {
    {"ModelConfig", "runtime", "remove it: there is one runtime"},
    {"ModelConfig", "batch_input",
     "remove it: bags are two inputs of the model, ids and offsets"},
    {"ModelConfig", "batch_output",
     "remove it: outputs have one entry per row where the model gives one"},
    {"ModelConfig", "optimization",
     "remove it; gpu_precision and dense_weights, among the parameters, choose "
     "precision"},
    {"ModelConfig", "sequence_batching",
     "remove it: nothing is kept from one request to the next; "
     "dynamic_batching "
     "merges requests"},
    {"ModelConfig", "ensemble_scheduling",
     "remove it, and export what comes before and after as a part of the "
     "model"},
    {"ModelConfig", "default_model_filename",
     "remove it: refract import names the files of a version"},
    {"ModelConfig", "cc_model_filenames",
     "remove it: refract import names the files of a version"},
    {"ModelConfig", "metric_tags",
     "remove it: metrics have the labels model and version"},
    {"ModelConfig", "model_operations",
     "remove it; --op-library of the nodes loads libraries of operators"},
    {"ModelConfig", "model_transaction_policy",
     "remove it: each request has one answer"},
    {"ModelConfig", "model_repository_agents",
     "remove it; refract verify-repository checks files"},
    {"ModelConfig", "response_cache", "remove it: answers are not cached"},
    {"ModelConfig", "model_metrics",
     "remove it: the buckets of histograms are fixed"},
    {"ModelInstanceGroup", "gpus",
     "remove it: a GPU node serves one device; start one refract-gpu-node for "
     "each GPU with --device cuda:N"},
    {"ModelInstanceGroup", "rate_limiter",
     "remove it; the parameter share divides a GPU node's time between "
     "models"},
    {"ModelInstanceGroup", "secondary_devices",
     "remove it: a GPU node serves one device"},
    {"ModelInstanceGroup", "profile", "remove it: there are no profiles"},
    {"ModelInstanceGroup", "passive",
     "remove it; version_policy says which versions are served"},
    {"ModelInstanceGroup", "host_policy",
     "remove it; --topology of the nodes binds them to CPUs and memory"},
    {"ModelDynamicBatching", "preserve_ordering",
     "remove it: each call gets its own answer, and requests are executed by "
     "deadline"},
    {"ModelDynamicBatching", "priority_queue_policy",
     "remove it: where a CPU node's queue is full, requests of lower levels "
     "make room; default_queue_policy limits the GPU nodes' queue"},
    {"ModelQueuePolicy", "timeout_action",
     "remove it: requests whose deadline has passed are refused"},
    {"ModelQueuePolicy", "default_timeout_microseconds",
     "remove it; --default-deadline-ms of the CPU node is the deadline of "
     "requests that bring none"},
    {"ModelQueuePolicy", "allow_timeout_override",
     "remove it: a request's own timeout always holds"},
    {"ModelInput", "format", "remove it: dims say what an input is"},
    {"ModelInput", "reshape",
     "remove it, and export the model with the shape that clients send"},
    {"ModelInput", "is_shape_tensor", "remove it"},
    {"ModelInput", "is_non_linear_format_io", "remove it"},
    {"ModelInput", "allow_ragged_batch",
     "remove it: bags are two inputs of the model, ids and offsets"},
    {"ModelInput", "optional",
     "remove it: a request has all inputs of the model"},
    {"ModelOutput", "reshape",
     "remove it, and export the model with the shape that clients read"},
    {"ModelOutput", "label_filename", "remove it: answers have no labels"},
    {"ModelOutput", "is_shape_tensor", "remove it"},
    {"ModelOutput", "is_non_linear_format_io", "remove it"},
};

// Name of the message in config.pbtxt; empty: the file itself.
absl::string_view NameOfMessage(absl::string_view message) {
  const std::pair<absl::string_view, absl::string_view> names[] = {
      {"ModelInput", "input"},
      {"ModelOutput", "output"},
      {"ModelParameter", "parameters"},
      {"ModelInstanceGroup", "instance_group"},
      {"ModelQueuePolicy", "queue policy"},
      {"ModelDynamicBatching", "dynamic_batching"},
      {"ModelVersionPolicy", "version_policy"},
      {"ModelWarmup", "model_warmup"},
      {"ModelWarmup.Input", "model_warmup inputs"},
  };
  for (const auto& [type, name] : names) {
    if (type == message) return name;
  }
  return "";
}

// The error of a field that the message lacks. For a field of Triton's the
// error says what to write instead.
std::string TextOf(const UnknownField& unknown) {
  absl::string_view message = unknown.message;
  absl::ConsumePrefix(&message, "inference.");
  const absl::string_view parent = NameOfMessage(message);
  const std::string text =
      absl::StrCat("line ", unknown.line, ", column ", unknown.column, ": ",
                   parent, parent.empty() ? "" : " has ", unknown.field);
  for (const Alternative& known : kAlternatives) {
    if (known.message != message || known.field != unknown.field) continue;
    return absl::StrCat(
        text,
        ", a field of Triton's that Refract does not have: ", known.instead);
  }
  return absl::StrCat(text, ", which is no field of ",
                      parent.empty() ? "a model configuration" : "it");
}

// Triton's names are KServe's with a prefix.
inference::DataType ToDataType(base::DType dtype) {
  inference::DataType type = inference::TYPE_INVALID;
  inference::DataType_Parse(absl::StrCat("TYPE_", base::KServeName(dtype)),
                            &type);
  return type;
}

// Constant sizes unchanged, others -1.
std::vector<int64_t> DimsOf(const Value& value) {
  std::vector<int64_t> dims;
  for (const SymExpr& size : value.shape) {
    dims.push_back(size.constant().value_or(-1));
  }
  return dims;
}

// Reads `text` into `setting`. InvalidArgument lists `texts`.
template <typename Setting>
absl::Status ReadSetting(const Texts<Setting>& texts, absl::string_view text,
                         Setting& setting) {
  std::string known;
  for (const auto& [each, value] : texts) {
    if (each == text) {
      setting = value;
      return absl::OkStatus();
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", each);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is none of ", known));
}

// Compares tensors of the file with those of the model, by name. An empty list
// leaves them to the model, as in Triton.
template <typename Tensors>
absl::Status CheckTensors(const Tensors& listed, absl::string_view field,
                          const std::vector<std::string>& names,
                          const std::vector<ValueId>& ids, const Graph& graph) {
  if (listed.empty()) return absl::OkStatus();
  if (static_cast<size_t>(listed.size()) != names.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", listed.size(), " are listed, the model has ",
                     names.size()));
  }
  // The order in the file is free, as in Triton: each tensor is found by its
  // name.
  for (size_t i = 0; i < names.size(); ++i) {
    const auto it = std::find_if(
        listed.begin(), listed.end(),
        [&](const auto& tensor) { return tensor.name() == names[i]; });
    if (it == listed.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": the model's ", names[i], " is not listed"));
    }
    const Value& value = graph.value(ids[i]);
    // Properties that the graph does not know are not compared.
    if (value.dtype != base::DType::kUnknown &&
        it->data_type() != ToDataType(value.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, " ", names[i], ": data_type is ",
          inference::DataType_Name(it->data_type()), ", the model's is ",
          inference::DataType_Name(ToDataType(value.dtype))));
    }
    if (!value.has_shape) continue;
    const std::vector<int64_t> dims = DimsOf(value);
    if (!std::equal(it->dims().begin(), it->dims().end(), dims.begin(),
                    dims.end())) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, " ", names[i], ": dims are [", absl::StrJoin(it->dims(), ", "),
          "], the model's are [", absl::StrJoin(dims, ", "), "]"));
    }
  }
  return absl::OkStatus();
}

bool IsWeight(const Graph& graph, absl::string_view name) {
  return std::any_of(graph.values.begin(), graph.values.end(),
                     [name](const Value& v) { return v.weight == name; });
}

absl::Status CheckParameter(const std::string& key, const std::string& text,
                            const Graph& graph, ModelConfig& result) {
  absl::string_view table = key;
  // "out_of_range_ids" sets the default, "out_of_range_ids.TABLE" the policy of
  // one table. Table names have dots of their own, so only the first dot
  // separates.
  if (absl::ConsumePrefix(&table, kPolicyKey) &&
      (table.empty() || table[0] == '.')) {
    if (table.empty()) {
      return ReadSetting(kIdPolicyTexts, text, result.default_id_policy);
    }
    table.remove_prefix(1);
    if (!IsWeight(graph, table)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has no table ", table));
    }
    return ReadSetting(kIdPolicyTexts, text,
                       result.id_policies[std::string(table)]);
  }
  if (key == kShareKey) {
    double share = 0;
    // The range is written so that NaN is refused, too.
    if (!absl::SimpleAtod(text, &share) ||
        !(share >= kLeastShare && share <= kMostShare)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" is no number from ", kLeastShare, " to ",
                       kMostShare));
    }
    result.serving.share = share;
    return absl::OkStatus();
  }
  // check_settings.h
  if (key == kToleranceKey || key == kTrafficKey) return absl::OkStatus();
  if (key == kLostShardKey) {
    return ReadSetting(kLostShardTexts, text, result.lost_shard);
  }
  if (key == kDenseWeightsKey) {
    return ReadSetting(kDenseWeightsTexts, text, result.dense_weights);
  }
  if (key == kGpuPrecisionKey) {
    return ReadSetting(kGpuPrecisionTexts, text, result.serving.gpu_precision);
  }
  if (IsRequestParameter(key)) return CheckRequestParameter(key, graph);
  return absl::InvalidArgumentError("unknown parameter");
}

absl::Status ReadServing(const inference::ModelConfig& config,
                         ServingConfig& serving) {
  const auto invalid = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (config.instance_group_size() > 1) {
    return invalid("instance_group: ", config.instance_group_size(),
                   " are listed; all instances of a node are alike");
  }
  for (const inference::ModelInstanceGroup& group : config.instance_group()) {
    if (group.count() < 0 || group.count() > kMostInstances) {
      return invalid("instance_group: count is ", group.count(),
                     ", wanted 0 (all) to ", kMostInstances);
    }
    serving.max_instances = group.count();
  }
  if (!config.has_dynamic_batching()) return absl::OkStatus();
  const inference::ModelDynamicBatching& batching = config.dynamic_batching();
  serving.dynamic_batching = true;
  if (batching.max_queue_delay_microseconds() > 60'000'000) {
    return invalid("dynamic_batching: max_queue_delay_microseconds is ",
                   batching.max_queue_delay_microseconds(),
                   ", more than a minute");
  }
  serving.max_queue_delay = absl::Microseconds(
      static_cast<int64_t>(batching.max_queue_delay_microseconds()));
  for (const int32_t size : batching.preferred_batch_size()) {
    if (size < 1) {
      return invalid("dynamic_batching: preferred_batch_size is ", size,
                     ", wanted ≥ 1");
    }
    serving.preferred_batch_sizes.push_back(size);
  }
  std::sort(serving.preferred_batch_sizes.begin(),
            serving.preferred_batch_sizes.end());
  serving.max_queue = batching.default_queue_policy().max_queue_size();
  const uint64_t levels = batching.priority_levels();
  const uint64_t level = batching.default_priority_level();
  if (levels > kMostPriorityLevels) {
    return invalid("dynamic_batching: priority_levels is ", levels,
                   ", wanted at most ", kMostPriorityLevels);
  }
  // Triton's rule, too: the default is required where there are levels.
  if (levels > 0 ? level < 1 || level > levels : level > 0) {
    return invalid("dynamic_batching: default_priority_level is ", level,
                   ", wanted ", levels > 0 ? "1 to " : "none without ",
                   levels > 0 ? absl::StrCat(levels) : "priority_levels");
  }
  if (levels > 0) {
    serving.priority_levels = levels;
    serving.default_priority = level;
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<DenseWeights> ParseDenseWeights(absl::string_view text) {
  DenseWeights form;
  return ReadSetting(kDenseWeightsTexts, text, form).ok() ? std::optional(form)
                                                          : std::nullopt;
}

inference::ModelConfig MakeConfig(absl::string_view name, const Graph& graph) {
  inference::ModelConfig config;
  config.set_name(std::string(name));
  config.set_platform(std::string(kPlatform));
  // 0 in Triton's terms: dims include the batch, and clients send it.
  config.set_max_batch_size(0);
  for (ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    inference::ModelInput& input = *config.add_input();
    input.set_name(value.name);
    input.set_data_type(ToDataType(value.dtype));
    for (int64_t dim : DimsOf(value)) input.add_dims(dim);
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const Value& value = graph.value(graph.outputs[i]);
    inference::ModelOutput& output = *config.add_output();
    output.set_name(graph.output_names[i]);
    output.set_data_type(ToDataType(value.dtype));
    for (int64_t dim : DimsOf(value)) output.add_dims(dim);
  }
  auto& parameters = *config.mutable_parameters();
  parameters[std::string(kPolicyKey)].set_string_value("error");
  for (const auto& [key, text] : RequestParameters(graph)) {
    parameters[key].set_string_value(text);
  }
  return config;
}

std::string ConfigToText(const inference::ModelConfig& config) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  printer.PrintToString(config, &text);
  return text;
}

absl::StatusOr<inference::ModelConfig> ParseConfigText(absl::string_view text,
                                                       absl::string_view path) {
  inference::ModelConfig config;
  std::vector<UnknownField> unknown;
  REFRACT_RETURN_IF_ERROR(ParseText(text, path, config, unknown));
  if (!unknown.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", TextOf(unknown.front())));
  }
  return config;
}

absl::StatusOr<inference::ModelConfig> ParseVersionOverride(
    absl::string_view json, absl::string_view name) {
  // A valid request is a few numbers.
  constexpr size_t kMostBytes = 64 << 10;
  if (json.size() > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("config: ", json.size(), " bytes, at most ", kMostBytes));
  }
  inference::ModelConfig config;
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(std::string(json), &config);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config: not a model configuration in JSON: ",
                     std::string(parsed.message())));
  }
  if (!config.name().empty() && config.name() != name) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config: name is '", config.name(), "', the model is '", name, "'"));
  }
  inference::ModelConfig rest = config;
  // Whatever is left after the fields that may be overridden is refused. Fields
  // with their default value are not listed.
  rest.clear_name();
  rest.clear_version_policy();
  rest.mutable_parameters()->erase(kTrafficKey);
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  rest.GetReflection()->ListFields(rest, &fields);
  if (!fields.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config: ", fields[0]->name(),
        " cannot be overridden; only version_policy and the parameter traffic "
        "can, change config.pbtxt"));
  }
  return config;
}

absl::StatusOr<std::vector<int64_t>> ServedVersions(
    const inference::ModelConfig& config, std::vector<int64_t> versions,
    absl::string_view path) {
  const inference::ModelVersionPolicy& policy = config.version_policy();
  // Versions of `specific` stay in the list even where the repository lacks
  // them, so that loading reports the missing version. `all` and no policy keep
  // every version.
  if (policy.has_specific()) {
    versions.assign(policy.specific().versions().begin(),
                    policy.specific().versions().end());
    std::sort(versions.begin(), versions.end());
    versions.erase(std::unique(versions.begin(), versions.end()),
                   versions.end());
    if (versions.empty() || versions.front() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(path,
                       ": version_policy: specific needs versions of 1 "
                       "and more"));
    }
  } else if (policy.has_latest()) {
    const size_t count = std::max<size_t>(1, policy.latest().num_versions());
    if (versions.size() > count) {
      versions.erase(versions.begin(),
                     versions.end() - static_cast<ptrdiff_t>(count));
    }
  }
  return versions;
}

absl::StatusOr<ModelConfig> CheckConfig(const inference::ModelConfig& config,
                                        absl::string_view name,
                                        const Graph& graph,
                                        absl::string_view path) {
  auto invalid = [path](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", parts...));
  };
  if (config.name() != name) {
    return invalid("name is \"", config.name(), "\", its folder is ", name);
  }
  if (!config.platform().empty() && config.platform() != kPlatform) {
    return invalid("platform is \"", config.platform(), "\", not \"refract\"");
  }
  if (!config.backend().empty() && config.backend() != kPlatform) {
    return invalid("backend is \"", config.backend(), "\", not \"refract\"");
  }
  if (config.max_batch_size() != 0) {
    return invalid("max_batch_size is ", config.max_batch_size(),
                   "; write 0, and let dims begin with the batch, as refract "
                   "import writes them. --max-batch of the GPU nodes limits "
                   "the rows of an execution");
  }
  std::vector<std::string> input_names;
  for (ValueId id : graph.inputs) input_names.push_back(graph.value(id).name);
  absl::Status status =
      CheckTensors(config.input(), "input", input_names, graph.inputs, graph);
  if (!status.ok()) return base::Annotate(status, path);
  status = CheckTensors(config.output(), "output", graph.output_names,
                        graph.outputs, graph);
  if (!status.ok()) return base::Annotate(status, path);

  ModelConfig result;
  result.name = std::string(name);
  status = ReadServing(config, result.serving);
  if (status.ok()) status = ReadCheckSettings(config, graph).status();
  if (!status.ok()) return base::Annotate(status, path);
  for (const auto& [key, value] : config.parameters()) {
    status = CheckParameter(key, value.string_value(), graph, result);
    if (!status.ok()) {
      return base::Annotate(status, absl::StrCat(path, ": parameter ", key));
    }
  }
  return result;
}

}  // namespace refract::models

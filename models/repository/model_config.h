#ifndef REFRACT_MODELS_REPOSITORY_MODEL_CONFIG_H_
#define REFRACT_MODELS_REPOSITORY_MODEL_CONFIG_H_

// config.pbtxt: Triton's text format (proto/inference/model_config.proto).
//
// Parameters, all of them text:
//   out_of_range_ids           "error" (default), "zero" or "default": result
//                              of a look-up of an id outside its table
//   out_of_range_ids.<table>   the same for one weight
//   lost_shard                 "fail" (default) or "zero": result of a look-up
//                              in rows of a lost shard
//   share                      share of a GPU node's time while other models
//                              have requests too, relative to theirs; default
//                              "1"
//   dense_weights              "fp32" (default), "bf16" or "int8": form of the
//                              weights of dense layers on CPUs
//   gpu_precision              "fp32" (default), "tf32", "fp16" or "bf16":
//                              precision of a GPU
//   traffic, golden_tolerance  check_settings.h
//
// Import also writes parameters for clients that draw requests
// (requests/request_parameters.h).

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"
#include "models/repository/repository.h"

namespace inference {
class ModelConfig;
}  // namespace inference

namespace refract::models {

// The texts of settings.
template <typename Setting>
using Texts = std::initializer_list<std::pair<absl::string_view, Setting>>;
inline constexpr Texts<IdPolicy> kIdPolicyTexts = {
    {"error", IdPolicy::kError},
    {"zero", IdPolicy::kZeroRow},
    {"default", IdPolicy::kDefaultRow}};
inline constexpr Texts<LostShard> kLostShardTexts = {
    {"fail", LostShard::kFail}, {"zero", LostShard::kZeroRows}};
inline constexpr Texts<DenseWeights> kDenseWeightsTexts = {
    {"fp32", DenseWeights::kFloat32},
    {"bf16", DenseWeights::kBFloat16},
    {"int8", DenseWeights::kInt8}};
inline constexpr Texts<GpuPrecision> kGpuPrecisionTexts = {
    {"fp32", GpuPrecision::kFloat32},
    {"tf32", GpuPrecision::kTf32},
    {"fp16", GpuPrecision::kFloat16},
    {"bf16", GpuPrecision::kBFloat16}};

// "fp32", "bf16" or "int8"; nullopt for anything else.
std::optional<DenseWeights> ParseDenseWeights(absl::string_view text);

// The configuration that import writes for a new model.
inference::ModelConfig MakeConfig(absl::string_view name, const Graph& graph);
std::string ConfigToText(const inference::ModelConfig& config);

// `path` appears in errors. InvalidArgument gives line and field of a text that
// does not parse or has a field unknown to Refract.
absl::StatusOr<inference::ModelConfig> ParseConfigText(absl::string_view text,
                                                       absl::string_view path);

// The versions of `versions` (ascending) that nodes load by
// `config.version_policy`, ascending. `specific` returns its list even if a
// version is not among `versions`. InvalidArgument names `path` and the field.
absl::StatusOr<std::vector<int64_t>> ServedVersions(
    const inference::ModelConfig& config, std::vector<int64_t> versions,
    absl::string_view path);

// A JSON configuration that chooses versions of model `name`: it may contain
// the name, version_policy and the parameter traffic. InvalidArgument names any
// other field.
absl::StatusOr<inference::ModelConfig> ParseVersionOverride(
    absl::string_view json, absl::string_view name);

// Checks `config` against the model and its folder's name: listed inputs and
// outputs agree with the graph; parameters are known and name existing tables
// and inputs; settings that would change how the model is served and that
// Refract does not support are refused. InvalidArgument names `path` and the
// field.
absl::StatusOr<ModelConfig> CheckConfig(const inference::ModelConfig& config,
                                        absl::string_view name,
                                        const Graph& graph,
                                        absl::string_view path);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_MODEL_CONFIG_H_

#ifndef REFRACT_CPU_NODE_REQUEST_H_
#define REFRACT_CPU_NODE_REQUEST_H_

// A request and its answer in plain C++: what a front end decodes into and
// encodes from.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process/byte_budget.h"
#include "base/tensor.h"
#include "tracing/trace.h"

namespace refract::cpu_node {

struct InputTensor {
  std::string name;
  base::Tensor tensor;
};

struct InferRequest {
  // Of `id`; a UUID has 36. Front ends cut longer ones.
  static constexpr size_t kMaxIdBytes = 64;

  std::string model_name;
  std::string model_version;  // decimal; empty: the newest that is served
  // What the client calls it, for logs of this node and of GPU nodes; empty:
  // nothing. At most kMaxIdBytes.
  std::string id;
  std::vector<InputTensor> inputs;   // in any order
  std::vector<std::string> outputs;  // wanted, in this order; empty: all
  // On the engine's clock.
  absl::Time deadline = absl::InfiniteFuture();
  // When its bytes were there, on the engine's clock; for the time of decoding.
  // InfinitePast: it was not decoded.
  absl::Time received = absl::InfinitePast();
  // Says, from any thread and at any time, that nobody waits for the answer:
  // the request then ends with Cancelled soon, and the GPU node is told if it
  // has it. Empty: it never will.
  std::stop_token cancel;
  // Tracer::Begin()'s, if Engine::traces().
  tracing::RequestContext trace;
  // The bytes of `inputs` in the node's budget, given back with them.
  base::ByteBudget::Hold memory;
};

// Valid during the callback that brings it.
struct InferResponse {
  struct Output {
    absl::string_view name;
    base::TensorView tensor;
  };
  absl::string_view model_name;
  int64_t model_version = 0;
  // Of the delta whose state of the tables it is computed with; 0: none.
  int64_t delta_sequence = 0;
  // In which ways it is not what a healthy node gives: further attempts at GPU
  // nodes; a split model that ran as a whole on this node; ids that the id
  // policy replaced; and the version that should have answered where an older
  // one did, as that is not ready (0: the right one did).
  int retries = 0;
  bool ran_locally = false;
  uint64_t replaced_ids = 0;
  int64_t newest_version = 0;
  std::vector<Output> outputs;
};

// Calls `add(name, value)` for each parameter of an answer, in both front ends:
// what is 0 or false has none. `value`: int64_t or bool.
template <typename Add>
void ForEachParameter(const InferResponse& response, const Add& add) {
  if (response.delta_sequence > 0) {
    add("delta_sequence", response.delta_sequence);
  }
  if (response.retries > 0) add("retries", int64_t{response.retries});
  if (response.ran_locally) add("ran_locally", true);
  if (response.replaced_ids > 0) {
    add("replaced_ids", static_cast<int64_t>(response.replaced_ids));
  }
  if (response.newest_version > 0) {
    add("newest_version", response.newest_version);
  }
}

// Of their tensors.
inline size_t BytesOf(const InferRequest& request) {
  size_t bytes = 0;
  for (const InputTensor& input : request.inputs) {
    bytes += input.tensor.bytes();
  }
  return bytes;
}
inline size_t BytesOf(const InferResponse& response) {
  size_t bytes = 0;
  for (const InferResponse::Output& output : response.outputs) {
    bytes += output.tensor.bytes;
  }
  return bytes;
}

// Runs exactly once, on a thread of the engine's, and must not block.
using InferCallback =
    std::function<void(const absl::StatusOr<InferResponse>& response)>;

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_REQUEST_H_

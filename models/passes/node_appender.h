#ifndef REFRACT_MODELS_PASSES_NODE_APPENDER_H_
#define REFRACT_MODELS_PASSES_NODE_APPENDER_H_

// For passes that write the nodes of a graph anew, in order, with nodes of their
// own among them.

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"

namespace refract::models {

// Appends nodes to a graph, which must outlive it.
class NodeAppender {
 public:
  // Names of `graph`'s values and nodes are taken.
  explicit NodeAppender(Graph& graph);

  // Appends `node`, which becomes the producer of its results.
  void Append(Node node);

  // A name that was not taken: `wanted`, or `wanted` with a number. Takes it.
  std::string Unique(const std::string& wanted);

  // Appends a node of one result, which is described as `like`; returns the id
  // of the result. Node and result have the unique name for `name`.
  ValueId Emit(const std::string& name, absl::string_view op,
               std::vector<NamedArgument> args, Value like);

 private:
  Graph& graph_;
  absl::flat_hash_set<std::string> names_;
};

}  // namespace refract::models

#endif  // REFRACT_MODELS_PASSES_NODE_APPENDER_H_

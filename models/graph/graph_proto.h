#ifndef REFRACT_MODELS_GRAPH_GRAPH_PROTO_H_
#define REFRACT_MODELS_GRAPH_GRAPH_PROTO_H_

// Graph and WeightTable ↔ proto/graph.proto. Callers include proto/graph.pb.h
// themselves.

#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"

namespace refract::proto {
class Graph;
class RowDependence;
class WeightTable;
}  // namespace refract::proto

namespace refract::models {

proto::Graph ToProto(const Graph& graph);
proto::RowDependence ToProto(const RowDependence& rows);
proto::WeightTable ToProto(const WeightTable& weights);
// InvalidArgument for contents that Refract never writes: unknown enum values,
// ids out of range, expressions that do not parse. Calls ValidateGraph.
absl::StatusOr<Graph> FromProto(const proto::Graph& graph);
absl::StatusOr<RowDependence> FromProto(const proto::RowDependence& rows);
absl::StatusOr<WeightTable> FromProto(const proto::WeightTable& weights);

}  // namespace refract::models

#endif  // REFRACT_MODELS_GRAPH_GRAPH_PROTO_H_

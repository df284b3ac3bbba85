#ifndef REFRACT_PARTITIONER_REPORT_GRAPH_TEXT_H_
#define REFRACT_PARTITIONER_REPORT_GRAPH_TEXT_H_

// Types, shapes, names and rows of a graph, times and bytes, as text for
// people.

#include <string>
#include <vector>

#include "models/graph/graph.h"

namespace refract::partitioner {

// "0", "12.5 us", "3.2 ms", "1.5 s": four digits.
std::string SecondsText(double seconds);
// "1.5 KiB": four digits; whole bytes below 1 KiB.
std::string BytesText(double bytes);
// "float32"; "int64 size" for a size that travels as a number.
std::string TypeText(const models::Value& value);
// "[s0, 13]"; "?" where the shape is unknown.
std::string ShapeText(const models::Value& value);
std::vector<std::string> NamesOf(const models::Graph& graph,
                                 const std::vector<models::ValueId>& ids);
// Whether requests may be split and merged by rows; otherwise the reason.
std::string RowsText(const models::RowDependence& rows);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_REPORT_GRAPH_TEXT_H_

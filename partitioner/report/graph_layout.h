#ifndef REFRACT_PARTITIONER_REPORT_GRAPH_LAYOUT_H_
#define REFRACT_PARTITIONER_REPORT_GRAPH_LAYOUT_H_

// Positions of the nodes of a drawn graph: layers from left to right
// (Sugiyama's scheme), without a stretch for every long edge. Pure and
// deterministic; thousands of nodes take milliseconds.

#include <cstddef>
#include <vector>

namespace refract::partitioner {

struct DrawnNode {
  // Bands follow each other from left to right; every column belongs to one
  // band.
  int band = 0;
  // Its predecessors: nodes of earlier bands, and earlier nodes of its own
  // band.
  std::vector<int> after;
};

struct Place {
  int column = 0;
  double row = 0;  // ≥ 0; nodes of a column are at least 1 apart
};

// Every node is right of its predecessors; no column has more than
// ColumnRoom(nodes.size()) nodes. Nodes of the first band lie as far right as
// possible, near their readers; nodes of other bands as far left as possible.
std::vector<Place> LayOut(const std::vector<DrawnNode>& nodes);

// Keeps the drawing of a wide graph about as wide as high.
int ColumnRoom(size_t num_nodes);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_REPORT_GRAPH_LAYOUT_H_

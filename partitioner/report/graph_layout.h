#ifndef REFRACT_PARTITIONER_REPORT_GRAPH_LAYOUT_H_
#define REFRACT_PARTITIONER_REPORT_GRAPH_LAYOUT_H_

// Where the nodes of a drawn graph go: layers from left to right (Sugiyama's
// scheme), without a stretch for every long edge. Pure and deterministic;
// thousands of nodes take milliseconds.

#include <cstddef>
#include <vector>

namespace refract::partitioner {

struct DrawnNode {
  // Bands follow each other from left to right; every column belongs to one.
  int band = 0;
  // Nodes of earlier bands, and such of its own that come before it in the
  // list.
  std::vector<int> after;
};

struct Place {
  int column = 0;
  double row = 0;  // ≥ 0; nodes of a column are at least 1 apart
};

// Every node is right of those it is after; no column has more than
// ColumnRoom(nodes.size()) nodes. The first band leans to the right, towards
// what reads it, the others to the left.
std::vector<Place> LayOut(const std::vector<DrawnNode>& nodes);

// Keeps the drawing of a wide graph about as wide as high.
int ColumnRoom(size_t num_nodes);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_REPORT_GRAPH_LAYOUT_H_

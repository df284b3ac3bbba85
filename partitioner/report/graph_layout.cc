#include "partitioner/report/graph_layout.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace refract::partitioner {
namespace {

// Enough for orders to settle; each costs two passes over the edges.
constexpr int kSweeps = 12;

struct Neighbours {
  std::vector<std::vector<int>> left;
  std::vector<std::vector<int>> right;
};

Neighbours NeighboursOf(const std::vector<DrawnNode>& nodes) {
  Neighbours result;
  result.left.resize(nodes.size());
  result.right.resize(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (const int before : nodes[n].after) {
      result.left[n].push_back(before);
      result.right[before].push_back(static_cast<int>(n));
    }
  }
  return result;
}

// Columns of the nodes of `band`. In `members`, the nodes of `nearer[n]` come
// before n. Each node is as near to column 0 as its neighbours and the room
// allow. Returns the number of columns.
int FillColumns(const std::vector<int>& members,
                const std::vector<std::vector<int>>& nearer,
                const std::vector<DrawnNode>& nodes, int band, int room,
                std::vector<int>& column) {
  std::vector<int> filled;
  for (const int n : members) {
    int at = 0;
    // Right of its neighbours in the band, then right of full columns.
    for (const int other : nearer[n]) {
      if (nodes[other].band == band) at = std::max(at, column[other] + 1);
    }
    while (at < static_cast<int>(filled.size()) && filled[at] == room) ++at;
    if (at >= static_cast<int>(filled.size())) filled.resize(at + 1, 0);
    ++filled[at];
    column[n] = at;
  }
  return static_cast<int>(filled.size());
}

// Rows as near as possible (least squares) to `wanted`, at least 1 apart, in
// order: isotonic regression by pooling neighbours that are out of order.
std::vector<double> Separate(const std::vector<double>& wanted) {
  struct Pool {
    double sum;
    int count;
    double mean() const { return sum / count; }
  };
  std::vector<Pool> pools;
  for (size_t i = 0; i < wanted.size(); ++i) {
    // Subtracting i turns "at least 1 apart" into "not falling".
    pools.push_back({wanted[i] - static_cast<double>(i), 1});
    while (pools.size() > 1 &&
           pools[pools.size() - 2].mean() >= pools.back().mean()) {
      pools[pools.size() - 2].sum += pools.back().sum;
      pools[pools.size() - 2].count += pools.back().count;
      pools.pop_back();
    }
  }
  std::vector<double> rows;
  for (const Pool& pool : pools) {
    for (int i = 0; i < pool.count; ++i) {
      rows.push_back(pool.mean() + static_cast<double>(rows.size()));
    }
  }
  return rows;
}

// The rows of all nodes, settled column by column.
class Rows {
 public:
  Rows(const std::vector<std::vector<int>>& columns, size_t num_nodes)
      : columns_(columns), row_(num_nodes), wanted_(num_nodes) {
    for (std::vector<int>& column : columns_) {
      // Around the same middle, in the order of the graph.
      const double top = -0.5 * static_cast<double>(column.size());
      for (size_t i = 0; i < column.size(); ++i) {
        row_[column[i]] = top + static_cast<double>(i);
      }
    }
  }

  // Moves the nodes of a column to the middle of their neighbours.
  void Settle(size_t c, const std::vector<std::vector<int>>& neighbours,
              bool reorder) {
    std::vector<int>& column = columns_[c];
    const auto wanted_by = [&](int n) {
      double sum = 0;
      for (const int other : neighbours[n]) sum += row_[other];
      return neighbours[n].empty()
                 ? row_[n]
                 : sum / static_cast<double>(neighbours[n].size());
    };
    for (const int n : column) wanted_[n] = wanted_by(n);
    if (reorder) {
      std::stable_sort(column.begin(), column.end(),
                       [&](int a, int b) { return wanted_[a] < wanted_[b]; });
    }
    std::vector<double> in_order;
    for (const int n : column) in_order.push_back(wanted_[n]);
    const std::vector<double> rows = Separate(in_order);
    for (size_t i = 0; i < column.size(); ++i) row_[column[i]] = rows[i];
  }

  size_t num_columns() const { return columns_.size(); }
  double operator[](size_t n) const { return row_[n]; }

 private:
  std::vector<std::vector<int>> columns_;
  std::vector<double> row_;
  std::vector<double> wanted_;  // of the column that is being settled
};

}  // namespace

int ColumnRoom(size_t num_nodes) {
  // A column is several times wider than a row is high.
  return std::max(
      32, static_cast<int>(1.5 * std::sqrt(static_cast<double>(num_nodes))));
}

std::vector<Place> LayOut(const std::vector<DrawnNode>& nodes) {
  if (nodes.empty()) return {};
  const Neighbours neighbours = NeighboursOf(nodes);
  const int room = ColumnRoom(nodes.size());
  int last_band = 0;
  for (const DrawnNode& node : nodes) {
    last_band = std::max(last_band, node.band);
  }
  std::vector<int> column(nodes.size(), 0);
  int first_column = 0;
  for (int band = 0; band <= last_band; ++band) {
    std::vector<int> members;
    for (size_t n = 0; n < nodes.size(); ++n) {
      if (nodes[n].band == band) members.push_back(static_cast<int>(n));
    }
    // The first band is filled from its right border, in reverse order and by
    // readers, then mirrored: inputs stand next to the operators that use them.
    const bool to_the_right = band == 0;
    if (to_the_right) std::reverse(members.begin(), members.end());
    const int used =
        FillColumns(members, to_the_right ? neighbours.right : neighbours.left,
                    nodes, band, room, column);
    for (const int n : members) {
      if (to_the_right) column[n] = used - 1 - column[n];
      column[n] += first_column;
    }
    first_column += used;
  }

  std::vector<std::vector<int>> columns(first_column);
  for (size_t n = 0; n < nodes.size(); ++n) {
    columns[column[n]].push_back(static_cast<int>(n));
  }
  // Sweeps to the right settle nodes by their predecessors, sweeps to the left
  // by their readers, as in Sugiyama's scheme.
  Rows rows(columns, nodes.size());
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t c = 1; c < rows.num_columns(); ++c) {
      rows.Settle(c, neighbours.left, /*reorder=*/true);
    }
    for (size_t c = rows.num_columns() - 1; c-- > 0;) {
      rows.Settle(c, neighbours.right, /*reorder=*/true);
    }
  }
  // Straightens edges without changing the order within columns.
  std::vector<std::vector<int>> both = neighbours.left;
  for (size_t n = 0; n < nodes.size(); ++n) {
    both[n].insert(both[n].end(), neighbours.right[n].begin(),
                   neighbours.right[n].end());
  }
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t c = 0; c < rows.num_columns(); ++c) {
      rows.Settle(c, both, /*reorder=*/false);
    }
  }

  double top = std::numeric_limits<double>::infinity();
  for (size_t n = 0; n < nodes.size(); ++n) top = std::min(top, rows[n]);
  std::vector<Place> places(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    places[n] = {column[n], rows[n] - top};
  }
  return places;
}

}  // namespace refract::partitioner

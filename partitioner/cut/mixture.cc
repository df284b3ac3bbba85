#include "partitioner/cut/mixture.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

namespace refract::partitioner::cut {
namespace {

// Values below kTiny are rounding noise, because rows are scaled to about 1.
constexpr double kTiny = 1e-11;
constexpr double kNoise = 1e-12;  // of a sum
// Far above the pivots of programs with ten rows. Stops numerical cycles; the
// multipliers at that point are still usable.
constexpr int kMaxPivots = 2000;

using Vector = std::vector<double>;

struct MixtureColumn {
  Vector rows;
  double cost = 0;
};

// Gaussian elimination with partial pivoting. nullopt: singular.
std::optional<Vector> Solve(std::vector<Vector> matrix, Vector right) {
  const size_t size = right.size();
  for (size_t i = 0; i < size; ++i) {
    size_t pivot = i;
    for (size_t r = i + 1; r < size; ++r) {
      if (std::abs(matrix[r][i]) > std::abs(matrix[pivot][i])) pivot = r;
    }
    if (std::abs(matrix[pivot][i]) < 1e-14) return std::nullopt;
    std::swap(matrix[i], matrix[pivot]);
    std::swap(right[i], right[pivot]);
    for (size_t r = i + 1; r < size; ++r) {
      const double factor = matrix[r][i] / matrix[i][i];
      if (factor == 0) continue;
      for (size_t c = i; c < size; ++c) matrix[r][c] -= factor * matrix[i][c];
      right[r] -= factor * right[i];
    }
  }
  for (size_t i = size; i-- > 0;) {
    for (size_t c = i + 1; c < size; ++c) right[i] -= matrix[i][c] * right[c];
    right[i] /= matrix[i][i];
  }
  return right;
}

// The simplex method for few rows: minimises cost over columns ≥ 0 that add up
// to `right`, from a feasible basis. Each pivot solves two systems from scratch
// instead of updating an inverse, which is cheap at this size and does not
// accumulate errors. Bland's rule avoids cycles among ties.
class Simplex {
 public:
  Simplex(std::vector<MixtureColumn> columns, Vector right,
          std::vector<size_t> basis)
      : columns_(std::move(columns)),
        right_(std::move(right)),
        basis_(std::move(basis)) {}

  void Run() {
    for (int pivot = 0; pivot < kMaxPivots; ++pivot) {
      // Duals from the transposed basis; a column with negative reduced cost
      // enters.
      const std::optional<Vector> duals = Solve(Basis(true), BasisCosts());
      if (!duals) return;
      duals_ = *duals;
      const std::optional<Vector> values = Solve(Basis(false), right_);
      if (!values) return;
      values_ = *values;
      const std::optional<size_t> entering = Entering();
      if (!entering) return;
      const std::optional<Vector> step =
          Solve(Basis(false), columns_[*entering].rows);
      if (!step) return;
      // Ratio test: the first basic variable that falls to 0 leaves.
      std::optional<size_t> leaving;
      double least = 0;
      for (size_t r = 0; r < basis_.size(); ++r) {
        if ((*step)[r] <= kTiny) continue;
        const double ratio = std::max(0.0, values_[r]) / (*step)[r];
        if (!leaving || ratio < least - kTiny ||
            (ratio <= least + kTiny && basis_[r] < basis_[*leaving])) {
          leaving = r;
          least = ratio;
        }
      }
      if (!leaving) return;
      basis_[*leaving] = *entering;
    }
  }

  const Vector& duals() const { return duals_; }
  double Cost() const {
    double cost = 0;
    for (size_t r = 0; r < basis_.size(); ++r) {
      cost += columns_[basis_[r]].cost * values_[r];
    }
    return cost;
  }
  double ValueOf(size_t column) const {
    for (size_t r = 0; r < basis_.size(); ++r) {
      if (basis_[r] == column) return std::max(0.0, values_[r]);
    }
    return 0;
  }

 private:
  std::vector<Vector> Basis(bool transposed) const {
    const size_t size = basis_.size();
    std::vector<Vector> matrix(size, Vector(size));
    for (size_t r = 0; r < size; ++r) {
      for (size_t c = 0; c < size; ++c) {
        (transposed ? matrix[c][r] : matrix[r][c]) =
            columns_[basis_[c]].rows[r];
      }
    }
    return matrix;
  }
  Vector BasisCosts() const {
    Vector costs;
    for (const size_t column : basis_) costs.push_back(columns_[column].cost);
    return costs;
  }
  std::optional<size_t> Entering() const {
    for (size_t c = 0; c < columns_.size(); ++c) {
      double reduced = columns_[c].cost;
      for (size_t r = 0; r < duals_.size(); ++r) {
        reduced -= duals_[r] * columns_[c].rows[r];
      }
      if (reduced < -kTiny &&
          std::find(basis_.begin(), basis_.end(), c) == basis_.end()) {
        return c;
      }
    }
    return std::nullopt;
  }

  const std::vector<MixtureColumn> columns_;
  const Vector right_;
  std::vector<size_t> basis_;
  Vector duals_;
  Vector values_;
};

double LargestOf(const std::vector<Point>& points) {
  double largest = 0;
  for (const Point& point : points) {
    for (const double value : point.objectives) {
      largest = std::max(largest, std::abs(value));
    }
  }
  return largest > 0 ? largest : 1;
}

}  // namespace

Mixture BestMixture(const std::vector<Point>& points, const Vector& limits,
                    const Vector& penalties) {
  const size_t num_points = points.size();
  const size_t num_objectives = points.front().objectives.size();
  const size_t num_limits = limits.size();
  const size_t num_rows = num_objectives + num_limits + 1;
  const size_t last = num_rows - 1;

  // Scales objectives by the largest objective and each limit's row by the
  // largest usage, so that kTiny means the same in every row.
  const double scale = LargestOf(points);
  Vector limit_scales(num_limits, 1);
  for (size_t j = 0; j < num_limits; ++j) {
    limit_scales[j] = std::max(1.0, std::abs(limits[j]));
    for (const Point& point : points) {
      limit_scales[j] = std::max(limit_scales[j], std::abs(point.usages[j]));
    }
  }

  // Columns in the order shares, t, surplus per objective, excess per limit,
  // slack per limit.
  std::vector<MixtureColumn> columns;
  for (const Point& point : points) {
    MixtureColumn column{Vector(num_rows, 0.0)};
    for (size_t i = 0; i < num_objectives; ++i) {
      column.rows[i] = -point.objectives[i] / scale;
    }
    for (size_t j = 0; j < num_limits; ++j) {
      column.rows[num_objectives + j] =
          (point.usages[j] - limits[j]) / limit_scales[j];
    }
    column.rows[last] = 1;
    columns.push_back(std::move(column));
  }
  const auto add_unit = [&](size_t row, double entry, double cost) {
    MixtureColumn column{Vector(num_rows, 0.0), cost};
    column.rows[row] = entry;
    columns.push_back(std::move(column));
    return columns.size() - 1;
  };
  const size_t t = columns.size();
  columns.push_back({Vector(num_rows, 0.0), 1});
  for (size_t i = 0; i < num_objectives; ++i) columns[t].rows[i] = 1;
  for (size_t i = 0; i < num_objectives; ++i) add_unit(i, -1, 0);
  for (size_t j = 0; j < num_limits; ++j) {
    add_unit(num_objectives + j, -1, penalties[j] * limit_scales[j] / scale);
  }
  for (size_t j = 0; j < num_limits; ++j) add_unit(num_objectives + j, 1, 0);

  // The first point alone is feasible. Its largest objective determines t; the
  // other objectives have a surplus, and each limit has an excess or a slack.
  const MixtureColumn& first = columns[0];
  std::vector<size_t> basis;
  size_t tight = 0;
  for (size_t i = 0; i < num_objectives; ++i) {
    if (first.rows[i] < first.rows[tight]) tight = i;
  }
  for (size_t i = 0; i < num_objectives; ++i) {
    basis.push_back(i == tight ? t : t + 1 + i);
  }
  for (size_t j = 0; j < num_limits; ++j) {
    const bool exceeded = first.rows[num_objectives + j] > 0;
    basis.push_back(t + 1 + num_objectives + (exceeded ? 0 : num_limits) + j);
  }
  basis.push_back(0);
  Vector right(num_rows, 0.0);
  right[last] = 1;

  Simplex simplex(columns, right, basis);
  simplex.Run();
  Mixture mixture;
  // Back to the units of the measures.
  mixture.value = simplex.Cost() * scale;
  for (size_t k = 0; k < num_points; ++k) {
    mixture.shares.push_back(simplex.ValueOf(k));
  }
  for (size_t j = 0; j < num_limits; ++j) {
    double usage = 0;
    for (size_t k = 0; k < num_points; ++k) {
      usage += mixture.shares[k] * points[k].usages[j];
    }
    if (usage > limits[j] + kNoise * limit_scales[j]) mixture.exceeds = true;
  }
  double sum = 0;
  for (size_t i = 0; i < num_objectives; ++i) {
    const double multiplier = std::max(0.0, simplex.duals()[i]);
    // Rounding may leave the duals slightly outside their range: clip and
    // normalise, since any multipliers give a valid bound.
    mixture.multipliers.objectives.push_back(multiplier);
    sum += multiplier;
  }
  for (double& multiplier : mixture.multipliers.objectives) {
    multiplier =
        sum > 0 ? multiplier / sum : 1.0 / static_cast<double>(num_objectives);
  }
  for (size_t j = 0; j < num_limits; ++j) {
    const double multiplier = -simplex.duals()[num_objectives + j];
    mixture.multipliers.limits.push_back(
        std::clamp(multiplier * scale / limit_scales[j], 0.0, penalties[j]));
  }
  return mixture;
}

}  // namespace refract::partitioner::cut

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace tessera {

// The solution of a x = b, for a positive definite a; by elimination with pivots.
inline std::vector<double> solve(std::vector<std::vector<double>> a, std::vector<double> b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t pivot = i;
    for (std::size_t row = i + 1; row < n; ++row) {
      pivot = std::abs(a[row][i]) > std::abs(a[pivot][i]) ? row : pivot;
    }
    std::swap(a[i], a[pivot]);
    std::swap(b[i], b[pivot]);
    for (std::size_t row = i + 1; row < n; ++row) {
      const double factor = a[row][i] / a[i][i];
      for (std::size_t column = i; column < n; ++column) {
        a[row][column] -= factor * a[i][column];
      }
      b[row] -= factor * b[i];
    }
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t column = i + 1; column < n; ++column) {
      b[i] -= a[i][column] * b[column];
    }
    b[i] /= a[i][i];
  }
  return b;
}

// What moves residuals r with derivatives jacobian[i][j] = dr_i / dx_j to where the sum of
// weights_i r_i^2 + prior (x - x0)^2 is least, were they linear; `away` is x - x0.
inline std::vector<double> gauss_newton_step(const std::vector<std::vector<double>>& jacobian,
                                             const std::vector<double>& residuals,
                                             const std::vector<double>& weights,
                                             const std::vector<double>& away,
                                             double prior) {
  const std::size_t n = away.size();
  std::vector<std::vector<double>> normal(n, std::vector<double>(n, 0.0));
  std::vector<double> slope(n, 0.0);
  for (std::size_t i = 0; i < residuals.size(); ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      const double weighted = weights[i] * jacobian[i][j];
      slope[j] -= weighted * residuals[i];
      for (std::size_t k = 0; k < n; ++k) {
        normal[j][k] += weighted * jacobian[i][k];
      }
    }
  }
  for (std::size_t j = 0; j < n; ++j) {
    normal[j][j] += prior;
    slope[j] -= prior * away[j];
  }
  return solve(std::move(normal), std::move(slope));
}

}  // namespace tessera

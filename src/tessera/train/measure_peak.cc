#include "tessera/train/measure_peak.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tessera/ops/matmul/matmul.h"
#include "tessera/runtime/op_runs.h"

namespace tessera {

double measure_peak(Backend& backend, DType dtype) {
  constexpr std::int64_t kSize = 512;
  constexpr double kSeconds = 0.05;
  const TensorType matrix = {
      .dtype = dtype, .dims = {{.name = "m", .bound = kSize}, {.name = "k", .bound = kSize}}};
  OpRuns product(
      backend, make_op(MatmulAttrs{.transpose_b = true, .dtype = dtype}), {matrix, matrix});
  double best = std::numeric_limits<double>::infinity();
  for (double spent = 0.0; spent < kSeconds;) {
    const double seconds = product.run();
    best = std::min(best, seconds);
    spent += seconds;
  }
  return 2.0 * double{kSize} * double{kSize} * double{kSize} / best;
}

}  // namespace tessera

#include "tessera/train/measure_peak.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "tessera/ir/op.h"
#include "tessera/ops/matmul/matmul.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::int64_t kSize = 512;
constexpr Seconds kBudget(0.05);

}  // namespace

double measure_peak(Backend& backend, DType dtype) {
  const OpRef product = make_op(MatmulAttrs{.transpose_b = true, .dtype = dtype});
  std::vector<std::unique_ptr<Arena>> memory;
  const auto allocate = [&](std::int64_t bytes) {
    memory.push_back(backend.allocate(std::max<std::int64_t>(bytes, 1)));
    return memory.back()->data();
  };
  const auto matrix = [&]() -> View {
    return {.data = allocate(kSize * kSize * static_cast<std::int64_t>(size_bytes(dtype))),
            .dtype = dtype,
            .num_dims = 2,
            .sizes = {kSize, kSize},
            .strides = {kSize, 1}};
  };
  const std::array<View, 2> in = {matrix(), matrix()};
  const std::array<View, 1> out = {matrix()};
  const std::int64_t bytes = backend.workspace_bytes(*product, in, out);
  const Views views{
      .in = in, .out = out, .workspace = {allocate(bytes), static_cast<std::size_t>(bytes)}};

  Seconds best(std::numeric_limits<double>::infinity());
  for (Seconds spent(0.0); spent < kBudget;) {
    const Clock::time_point start = Clock::now();
    backend.run(*product, views, StreamId{0});
    backend.synchronize();
    const Seconds seconds = Clock::now() - start;
    best = std::min(best, seconds);
    spent += seconds;
  }
  return 2.0 * double{kSize} * double{kSize} * double{kSize} / best.count();
}

}  // namespace tessera

#include "tessera/state/sum_of_squares.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/ir/dtype.h"
#include "tessera/program/program.h"

namespace tessera {
namespace {

// Of elements of type T, whose value `real` gives. Several sums do not wait for each other.
template <class T, class Real>
double sum_of(std::span<const std::byte> bytes, const Real& real) {
  std::array<double, 8> sums = {};
  const std::size_t count = bytes.size() / sizeof(T);
  for (std::size_t i = 0; i < count; ++i) {
    T element{};
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof element);
    const auto value = static_cast<double>(real(element));
    sums[i % sums.size()] += value * value;
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

double sum_of_squares(Executor& executor) {
  double sum = 0;
  for (const StateBinding& state : executor.program().states) {
    if (state.state.role != StateRole::kParameter) {
      continue;
    }
    const std::span<const std::byte> bytes =
        executor.state_to_host(state, 0, state.tensor.type.num_elements());
    if (state.tensor.type.dtype == DType::kF32) {
      sum += sum_of<float>(bytes, [](float value) { return value; });
    } else {
      TESSERA_CHECK(state.tensor.type.dtype == DType::kBF16,
                    "parameter {} is of type {}",
                    state.name,
                    name(state.tensor.type.dtype));
      sum += sum_of<BFloat16>(bytes, [](BFloat16 value) { return to_float(value); });
    }
    executor.to_file(state, bytes);  // out of the page cache
  }
  return sum;
}

}  // namespace tessera

#include "tessera/state/sum_of_squares.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tessera/base/half.h"
#include "tessera/ir/dtype.h"
#include "tessera/program/program.h"

namespace tessera {
namespace {

// Of elements of type T, whose value `real` gives.
template <class T, class Real>
double sum_of(std::span<const std::byte> bytes, const Real& real) {
  double sum = 0;
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T element{};
    std::memcpy(&element, bytes.data() + at, sizeof element);
    const auto value = static_cast<double>(real(element));
    sum += value * value;
  }
  return sum;
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
    } else if (state.tensor.type.dtype == DType::kBF16) {
      sum += sum_of<BFloat16>(bytes, [](BFloat16 value) { return to_float(value); });
    }
  }
  return sum;
}

}  // namespace tessera

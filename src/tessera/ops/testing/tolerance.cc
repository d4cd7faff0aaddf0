#include "tessera/ops/testing/tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::conformance {
namespace {

std::vector<double> numbers(const HostTensor& tensor) {
  HostTensor copy = widened(tensor);
  switch (copy.type().dtype) {
    case DType::kF64:
      return {copy.f64().begin(), copy.f64().end()};
    case DType::kI32:
      return {copy.i32().begin(), copy.i32().end()};
    case DType::kI64: {
      std::vector<double> result;
      for (const std::int64_t element : copy.i64()) {
        result.push_back(static_cast<double>(element));
      }
      return result;
    }
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kU8:
      break;
  }
  fail(ErrorCode::kInternal, "no comparison of {}", to_string(tensor.type()));
}

// By how many times its limit an element is off; 0 where it is equal.
// `absolute` is what any element may be off.
double excess(double found, double expected, const Tolerance& limit, double absolute) {
  if (found == expected || (std::isnan(found) && std::isnan(expected))) {
    return 0;
  }
  if (!std::isfinite(found) || !std::isfinite(expected)) {
    return HUGE_VAL;
  }
  const double allowed = limit.relative * std::abs(expected) + absolute;
  return allowed == 0 ? HUGE_VAL : std::abs(found - expected) / allowed;
}

// The largest magnitude of a finite one.
double largest_of(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) {
    largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
  }
  return largest;
}

std::size_t last_dim(const HostTensor& tensor) {
  const std::vector<Dim>& dims = tensor.type().dims;
  return dims.empty() ? 1 : static_cast<std::size_t>(dims.back().bound);
}

// What is wrong with the tensor as a vector.
std::optional<std::string> norm_difference(std::span<const double> found,
                                           std::span<const double> expected,
                                           const Tolerance& limit) {
  double off = 0;
  double all = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isfinite(expected[i])) {
      off += (found[i] - expected[i]) * (found[i] - expected[i]);
      all += expected[i] * expected[i];
    }
  }
  if (limit.of_norm == 0 || std::sqrt(off) <= limit.of_norm * std::sqrt(all)) {
    return std::nullopt;
  }
  return format("all of it is off by {:.3g} of its norm, expected at most {}",
                std::sqrt(off / all),
                limit.of_norm);
}

}  // namespace

Tolerance tolerance(OpClass op_class, DType dtype) {
  const bool is_half = dtype == DType::kBF16;
  if (is_float8(dtype) && op_class != OpClass::kExact) {
    TESSERA_CHECK(op_class == OpClass::kElementwise, "no tolerance of {}", name(dtype));
    return {.relative = dtype == DType::kF8E4M3 ? 0.0626 : 0.1251, .of_rms = 1e-4};
  }
  switch (op_class) {
    case OpClass::kExact:
      return {};
    case OpClass::kElementwise:
      return is_half ? Tolerance{.relative = 0.00392, .of_rms = 1e-6}
                     : Tolerance{.relative = 2e-6, .of_rms = 1e-6};
    case OpClass::kReduction:
      return is_half ? Tolerance{.relative = 0.00392, .of_rms = 1e-5}
                     : Tolerance{.relative = 5e-6, .of_rms = 5e-6};
    case OpClass::kUnequalTerms:
      return is_half ? Tolerance{.relative = 0.00392, .of_rms = 1e-5, .of_largest = 5e-6}
                     : Tolerance{.relative = 5e-6, .of_rms = 5e-6, .of_largest = 5e-6};
    case OpClass::kRounded:
      return {.relative = 0.008, .of_rms = 0.008};
    case OpClass::kRoundedTerms:
      return {.relative = 0.008, .of_rms = 0.008, .of_largest = 0.004};
    case OpClass::kRoundedRows:
      return {.relative = 0.008, .of_rms = 0.008, .of_row = 0.004};
    case OpClass::kNextCodes:
      return {.relative = 0.008, .of_rms = 0.008, .of_largest = 0.125, .of_norm = 0.03};
  }
  fail(ErrorCode::kInternal, "an op class outside the table");
}

void Squares::add(const HostTensor& tensor) {
  for (const double value : numbers(tensor)) {
    if (std::isfinite(value)) {
      sum += value * value;
      count += 1;
    }
  }
}

double Squares::root_mean() const {
  return count == 0 ? 0 : std::sqrt(sum / count);
}

std::optional<std::string> difference(const HostTensor& found,
                                      const HostTensor& expected,
                                      const Tolerance& limit,
                                      std::optional<double> rms) {
  const std::vector<double> a = numbers(found);
  const std::vector<double> b = numbers(expected);
  if (a.size() != b.size()) {
    return format("{} elements, expected {}", a.size(), b.size());
  }
  if (!rms) {
    Squares squares;
    squares.add(expected);
    rms = squares.root_mean();
  }
  const double of_all = limit.of_rms * *rms + limit.of_largest * largest_of(b);
  const std::size_t row_size = last_dim(expected);
  double of_row = 0;
  std::size_t worst = 0;
  double worst_excess = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (i % row_size == 0) {
      of_row = limit.of_row * largest_of(std::span(b).subspan(i, row_size));
    }
    const double here = excess(a[i], b[i], limit, of_all + of_row);
    if (here > worst_excess) {
      worst = i;
      worst_excess = here;
    }
  }
  if (worst_excess <= 1) {
    return norm_difference(a, b, limit);
  }
  return format("element {} of {} is {}, expected {}: {:.3g} times the tolerance",
                worst,
                to_string(found.type()),
                a[worst],
                b[worst],
                worst_excess);
}

}  // namespace tessera::conformance

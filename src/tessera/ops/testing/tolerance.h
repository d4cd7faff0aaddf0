#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/ops/testing/host_tensor.h"

namespace tessera::conformance {

// How a kernel's rounding errors arise, and with the result's dtype how large they may be.
enum class OpClass : std::uint8_t {
  kExact,         // moves or copies: bitwise
  kElementwise,   // some twenty f32 operations an element, then one rounding to the result's dtype
  kReduction,     // f32 sums over up to some thousand terms, then one rounding
  kUnequalTerms,  // the same of terms that are far larger for some elements
  kRounded,       // bf16 in between (bf16 samples of fused ops), whatever the result's dtype
  kRoundedTerms,  // the same where terms that are rounded are far larger for some elements
  kRoundedRows,   // the same where they are far larger for some rows, along the last dim
  kNextCodes,     // sums over 8-bit codes, a few of which may be the next one
};

// |found - expected| <= relative * |expected| + of_rms * rms(expected tensor) +
//                       of_largest * max |expected tensor| + of_row * max |expected row|
// for each element, and |found - expected| <= of_norm * |expected| for the tensors as vectors,
// where of_norm > 0.
struct Tolerance {
  double relative = 0;
  double of_rms = 0;
  double of_largest = 0;
  double of_row = 0;
  double of_norm = 0;
};

// The one table of tolerances. One rounding to bf16 is at most 2^-8 relative, to f8e4m3 2^-4 and to
// f8e5m2 2^-3 (below their smallest normal numbers, a small part of a scaled tensor's rms);
// kRounded allows two, and sums over rounded terms: about 0.0013 of the sum's rms, six times that
// for the worst of thousands. Of unequal terms the largest are some of the largest result: a sum of
// them may be off by a rounding of that, to bf16 or by what f32 loses where two of them cancel.
// They are those of attention's gradients, in which queries that see few keys have several times
// the rms, of the loss's, in which labels have (the rows of the head's gradient that are labels are
// so much larger than the others that these would not be held by the largest), and of layer norms
// of sums, which lose their mean.
// Tensor cores add products of codes in fewer bits than f32: a code that is made of such a sum may
// be the next one, of f8e5m2 up to a quarter off, and with it a row and a column of products; few
// are, so that the tensor as a whole is hardly off.
Tolerance tolerance(OpClass op_class, DType dtype);

// Finite differences in f64 against f64 gradients.
inline constexpr Tolerance kFiniteDifference = {.relative = 2e-6, .of_rms = 2e-6};

// The finite elements' sum of squares, and their number.
struct Squares {
  double sum = 0;
  double count = 0;

  void add(const HostTensor& tensor);  // floating elements in f64
  double root_mean() const;
};

// Nullopt if every element of `found` (any dtype) is as near to `expected` (floating elements in
// f64) as `limit` allows; equal infinities and equal NaNs agree. Else a sentence about the worst
// element. `rms` is that of tensors like the expected one; by default its own.
std::optional<std::string> difference(const HostTensor& found,
                                      const HostTensor& expected,
                                      const Tolerance& limit,
                                      std::optional<double> rms = std::nullopt);

}  // namespace tessera::conformance

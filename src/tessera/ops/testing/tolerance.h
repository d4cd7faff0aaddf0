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
  kRounded,       // bf16 in between (bf16 samples of fused ops), whatever the result's dtype
  kRoundedTerms,  // the same where terms that are rounded are far larger for some elements
};

// |found - expected| <= relative * |expected| + of_rms * rms(expected tensor)
struct Tolerance {
  double relative = 0;
  double of_rms = 0;
};

// The one table of tolerances. One rounding to bf16 is at most 2^-8 relative, to f8e4m3 2^-4 and to
// f8e5m2 2^-3 (below their smallest normal numbers, a small part of a scaled tensor's rms);
// kRounded allows two, and sums over rounded terms: about 0.0013 of the sum's rms, six times that
// for the worst of thousands. kRoundedTerms is for attention's gradients, in which queries that see
// few keys have several times the rms, and for layer norms of sums, which lose their mean.
Tolerance tolerance(OpClass op_class, DType dtype);

// Finite differences in f64 against f64 gradients.
inline constexpr Tolerance kFiniteDifference = {.relative = 2e-6, .of_rms = 2e-6};

// Nullopt if every element of `found` (any dtype) is as near to `expected` (floating elements in
// f64) as `limit` allows; equal infinities and equal NaNs agree. Else a sentence about the worst
// element.
std::optional<std::string> difference(const HostTensor& found,
                                      const HostTensor& expected,
                                      const Tolerance& limit);

}  // namespace tessera::conformance

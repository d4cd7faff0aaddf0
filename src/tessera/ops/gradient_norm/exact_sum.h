#pragma once

#include <cstdint>
#include <span>

#include "tessera/ops/gradient_norm/gradient_norm.h"

namespace tessera {

// An exact sum of f64 values as integers: no rounding, hence the same words whatever the order, and
// the sum of two such accumulators is the sum of their words.
//
//   words [0, 67)   sum_i words[i] * 2^(32 i - 1074): each addition puts 32 bits or fewer on a word
//   word  67        number of NaNs added
//   word  68, 69    number of +infinities, of -infinities
//   words [70, 72)  0
//
// A word overflows after 2^31 additions at the earliest; all ranks' additions count. With blocks of
// 256 elements that is 5.5e11 elements.
// Source: Kulisch & Miranker 1981, "Computer Arithmetic in Theory and Practice" (the long
// accumulator).
using ExactSumWords = std::span<std::int64_t, kExactSumWords>;
using ConstExactSumWords = std::span<const std::int64_t, kExactSumWords>;

// words += value, exactly.
void exact_add(ExactSumWords words, double value);

// words += other: the sum of everything added to either.
void exact_merge(ExactSumWords words, ConstExactSumWords other);

// The sum, rounded once to the nearest f64 (ties to even; infinity past the largest). NaN where a
// NaN or infinities of both signs were added.
double exact_value(ConstExactSumWords words);

}  // namespace tessera

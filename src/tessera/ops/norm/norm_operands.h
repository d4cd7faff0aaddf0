#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/ir/view.h"
#include "tessera/ops/norm/norm.h"

namespace tessera {

// The operands and results of a norm by name. Those that its form lacks have no data. C is one dim,
// however many the norm goes over.
struct NormOperands {
  View dy;             // (.., C): the gradient that arrives
  View x;              // (.., C)
  View residual;       // (.., C): added to x before it is normalized, or to dx
  View residual_bias;  // (C): added to the residual
  View gain;           // (C)
  View bias;           // (C)
  View out;            // (.., C): y, or dx
  View mean;           // (..) f32: a result of forward, later an operand
  View rstd;           // (..) f32: as mean
  View hidden;         // (.., C): what was normalized
  View gain_gradient;  // (C) f32
  View bias_gradient;  // (C) f32
};

// Of what a norm has one number: of each element of its rows, of each column, or of each row.
enum class NormExtent : std::uint8_t { kRows, kColumns, kStatistic };

// One of them.
using NormPlace = View NormOperands::*;

struct NormTensor {
  NormPlace place;
  NormExtent extent;
  std::string_view name = {};  // for errors, of columns
};

using NormTensors = std::vector<NormTensor>;

// The operands of a form, and its results except those in 8-bit floats, which are the last: the
// only place that knows their order.
NormTensors norm_operands(const NormForm& norm);
NormTensors norm_results(const NormForm& norm);

// The index of an operand that the form has.
std::size_t norm_operand(const NormForm& norm, NormPlace place);

NormOperands by_name(const NormForm& norm, const Views& views);

// How many dims a norm goes over: those of its gain, which rstd lacks.
std::size_t norm_dims(const NormForm& norm, Types in);
std::size_t norm_dims(const NormForm& norm, std::span<const View> in);

}  // namespace tessera

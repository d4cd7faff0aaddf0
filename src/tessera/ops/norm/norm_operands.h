#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

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
  NormPlace place = nullptr;
  NormExtent extent = NormExtent::kRows;
  std::string_view name = {};  // for errors, of columns
};

// Several, in order; kernels ask for them at each run, so that they are no allocation.
class NormTensors {
 public:
  // Those of the list that are present.
  NormTensors(std::initializer_list<std::pair<bool, NormTensor>> tensors);

  std::size_t size() const { return size_; }

  const NormTensor* begin() const { return tensors_.data(); }

  const NormTensor* end() const { return begin() + size_; }

  const NormTensor& operator[](std::size_t i) const { return tensors_[i]; }

 private:
  std::array<NormTensor, 9> tensors_ = {};
  std::size_t size_ = 0;
};

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

#pragma once

#include <cstdint>

#include "tessera/ir/dtype.h"
#include "tessera/ir/graph.h"

namespace tessera {

// Products in 8-bit floats (ops/float8/float8.h): which, and how their factors are quantized.
struct Float8Options {
  bool rowwise = false;  // a power of two for each row and column in place of one scale a tensor
  DType gradients = DType::kF8E5M2;  // of what backward reads; all else is f8e4m3
  std::int64_t skip_first = 0;       // layers that stay as they are
  std::int64_t skip_last = 0;
  bool head = false;               // the products of cross_entropy, too
  bool fast_accumulation = false;  // of forward in the layers (ScaledMatmulAttrs)
  bool keep_weight_codes = false;  // from forward to backward, where one scale serves both
};

// When those of a layer's weights are made. Once a step, in its start, is for parameters that lie
// whole on a rank while microbatches do not change them.
enum class WeightCodes : std::uint8_t { kEachMicrobatch, kOnceAStep };

// Makes the matrix products of the layers, those of backward too, products of 8-bit floats with
// scales of the values at hand:
//   y = matmul(x, w)  ->  a = amax(x); c, s = quantize_float8(x, a); ..; y = scaled_matmul(c, d, s,
//   t)
// Parameters and gradients keep their dtypes. Adapters, and what stands outside of layers (the
// head, unless it is chosen), stay as they are. It works on global shapes: a scale does not depend
// on how its tensor is cut, but on the microbatch, of all data ranks. Errors: kInvalidArgument
// where no product is left.
Graph quantize_products(const Graph& graph,
                        const Float8Options& options,
                        WeightCodes weights = WeightCodes::kEachMicrobatch);

}  // namespace tessera

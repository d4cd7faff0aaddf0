#pragma once

#include <functional>
#include <map>
#include <string>

#include "tessera/ir/tensor_type.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/context_order.h"
#include "tessera/mesh/layout.h"
#include "tessera/mesh/mesh.h"

namespace tessera {

// How a plan cuts the dims of one name.
struct DimCut {
  AxisSizes axes = {};
  // Further axes, which cut the parts that those make: only results, and only where nothing else
  // uses these axes: no other dim of the value, no other factor of the node that makes or reads it.
  // Sequence parallelism is such a cut.
  AxisSizes weak = {};
  // Whether a bound that does not divide is padded with zeros at its end; else it is refused.
  bool pads = false;
};

// What a plan says about layouts: how it cuts dims, by their names.
using DimAxes = std::map<std::string, DimCut, std::less<>>;

// The cuts of a mesh: batches over the data axes; seq over the context axes; dims named "expert"
// over the axes that are marked so; heads, kv_heads, mlp and vocab over the tensor axes, of which
// the last two are padded; with sequence parallelism also seq, weakly, and padded where no context
// axis cuts it; heads and kv_heads weakly over the context axes where `context` exchanges them.
DimAxes dim_axes(const Mesh& mesh,
                 bool sequence_parallel,
                 ContextKind context = ContextKind::kGather);

// The axes that cut a dim wherever it is named.
const AxisSizes& axes_of_dim(const Dim& dim, const DimAxes& dims);

// How a value of this global type lies by the names of its dims alone, as states and inputs do;
// an axis that several dims name cuts the first of them.
// Errors: kInvalidConfig, with the numbers and what would work, for a bound that neither divides
// nor is padded.
Layout layout_of(const TensorType& type, const DimAxes& dims);

// The axes that cut it, each once.
AxisSizes axes_of(const TensorType& type, const DimAxes& dims);

// One rank's part of such a value. Errors: as layout_of().
TensorType local_type(const TensorType& type, const DimAxes& dims);

}  // namespace tessera

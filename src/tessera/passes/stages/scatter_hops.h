#pragma once

#include "tessera/mesh/axes.h"
#include "tessera/passes/ranks/laid_out_graph.h"
#include "tessera/passes/stages/cut_stages.h"

namespace tessera {

// Of a value that goes to another pipeline rank and lies whole on all ranks along `tensor`, each of
// these sends its part alone, and those that receive gather the parts: 1/n of the bytes go over the
// boundary. A part is cut from the first dim that nothing cuts and that n divides; what has no such
// dim, or is partial, goes as it is. What backward reads of it is gathered again. Values stay the
// same bit by bit. With tensor=2:
//   y [batch, seq, embed]; z = stage1(y)  ->  c [batch, seq: tensor=2, embed] = cast(y);
//                                             z = stage1(c)
// Source: scatter and gather of Narayanan et al., SC '21, section 4.1.
LaidOutGraph scatter_hops(LaidOutGraph laid_out, const PipelineCut& cut, const AxisSizes& tensor);

}  // namespace tessera

#pragma once

#include "tessera/ops/attention/attention_operands.h"
#include "tessera/ops/scale_mask_softmax/scale_mask_softmax.h"

namespace tessera {

// The only places that know the order of operands and results.
struct ScaleMaskSoftmaxOperands {
  const View& x;     // (b, h, t, s)
  AttentionIds ids;  // without data where all keys are seen
  const View& p;     // (b, h, t, s)
};

struct ScaleMaskSoftmaxBackwardOperands {
  const View& dp;
  const View& p;
  const View& dx;
};

struct MaskScoresOperands {
  const View& x;
  AttentionIds ids;
  const View& y;
};

ScaleMaskSoftmaxOperands by_name(const ScaleMaskSoftmaxAttrs& attrs, const Views& views);
ScaleMaskSoftmaxBackwardOperands by_name(const ScaleMaskSoftmaxBackwardAttrs& attrs,
                                         const Views& views);
MaskScoresOperands by_name(const MaskScoresAttrs& attrs, const Views& views);

}  // namespace tessera

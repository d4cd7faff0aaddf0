#pragma once

#include <type_traits>
#include <utility>
#include <variant>

#include "tessera/ops/adamw/adamw.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/attention_part.h"
#include "tessera/ops/batched_product/batched_product.h"
#include "tessera/ops/bias/bias.h"
#include "tessera/ops/collective/collective.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/custom/custom.h"
#include "tessera/ops/dropout/dropout.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/fence/fence.h"
#include "tessera/ops/fill/fill.h"
#include "tessera/ops/float8/float8.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/gradient_norm/gradient_norm.h"
#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/ops/offload/offload.h"
#include "tessera/ops/point_to_point/point_to_point.h"
#include "tessera/ops/rope/rope.h"
#include "tessera/ops/scale_mask_softmax/scale_mask_softmax.h"
#include "tessera/ops/softcap/softcap.h"
#include "tessera/ops/squared_relu/squared_relu.h"
#include "tessera/ops/swiglu/swiglu.h"
#include "tessera/ops/take/take.h"
#include "tessera/ops/view/view_ops.h"
#include "tessera/ops/write_rows/write_rows.h"

namespace tessera {

// The closed list of ops. To add one: its folder, an include above, a line below.
using OpVariant = std::variant<AddAttrs,
                               AddBiasAttrs,
                               AdamwAttrs,
                               AllGatherAttrs,
                               AllReduceAttrs,
                               AllReduceSlicesAttrs,
                               AllToAllAttrs,
                               AmaxAttrs,
                               AttentionAttrs,
                               AttentionBackwardAttrs,
                               AttentionPartAttrs,
                               AttentionPartBackwardAttrs,
                               BatchedProductAttrs,
                               BiasGradientAttrs,
                               CastAttrs,
                               ClipScaleAttrs,
                               ConcatAttrs,
                               CrossEntropyAttrs,
                               DropoutAttrs,
                               EmbeddingAttrs,
                               EmbeddingBackwardAttrs,
                               FenceAttrs,
                               FetchAttrs,
                               FillAttrs,
                               GatherSlicesAttrs,
                               GeluAttrs,
                               GeluBackwardAttrs,
                               LayerNormAttrs,
                               LayerNormBackwardAttrs,
                               LayerNormWeightGradientAttrs,
                               LocalSliceAttrs,
                               MaskScoresAttrs,
                               MatmulAttrs,
                               MulAttrs,
                               MultiplyAttrs,
                               QuantizeFloat8Attrs,
                               ReceiveAttrs,
                               ReduceScatterAttrs,
                               ReduceSlicesAttrs,
                               RingShiftAttrs,
                               RmsNormAttrs,
                               RmsNormBackwardAttrs,
                               RmsNormWeightGradientAttrs,
                               RopeAttrs,
                               RopeTableAttrs,
                               ScaleAttrs,
                               ScaleMaskSoftmaxAttrs,
                               ScaleMaskSoftmaxBackwardAttrs,
                               ScaledMatmulAttrs,
                               SendAttrs,
                               SliceAttrs,
                               SoftcapAttrs,
                               SoftcapBackwardAttrs,
                               SquaredReluAttrs,
                               SquaredReluBackwardAttrs,
                               StoreAttrs,
                               SumSquaresAttrs,
                               SwigluAttrs,
                               SwigluBackwardAttrs,
                               TakeAttrs,
                               TransposeCodesAttrs,
                               WriteRowsAttrs,
                               CustomOp>;

template <class Variant>
struct EveryOpHasItsFacets;

template <class... As>
struct EveryOpHasItsFacets<std::variant<As...>> {
  static_assert((OpAttrs<As> && ...), "an op of the list lacks a facet: see ops/op.h");
  static constexpr bool kValue = true;
};

static_assert(EveryOpHasItsFacets<OpVariant>::kValue);

// One op with its attributes.
class Op {
 public:
  explicit Op(OpVariant attrs) : attrs_(std::move(attrs)) {}

  const OpVariant& attrs() const { return attrs_; }

  template <class A>
  const A* get_if() const {
    return std::get_if<A>(&attrs_);
  }

 private:
  OpVariant attrs_;
};

}  // namespace tessera

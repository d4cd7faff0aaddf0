#pragma once

#include <span>
#include <type_traits>
#include <vector>

#include "tessera/ops/all_ops.h"
#include "tessera/ops/testing/sample.h"

// The samples and the reference of every op of the list; definitions are in <op>/<op>_samples.cc.
// A new op adds two lines, and its gradient's op two.
//   samples:   a few cases that cover sizes, dtypes and attributes
//   reference: results of whole contiguous operands, floating elements in f64, straight from the
//              op's formula and without any of its kernel's code; results never lie over operands
namespace tessera {

template <class Attrs>
using SamplesOf = std::type_identity<Attrs>;
using SampleList = std::vector<conformance::Sample>;

SampleList samples(SamplesOf<AddAttrs>);
SampleList samples(SamplesOf<AddBiasAttrs>);
SampleList samples(SamplesOf<AdamwAttrs>);
SampleList samples(SamplesOf<AllGatherAttrs>);
SampleList samples(SamplesOf<AllReduceAttrs>);
SampleList samples(SamplesOf<AllReduceSlicesAttrs>);
SampleList samples(SamplesOf<AllToAllAttrs>);
SampleList samples(SamplesOf<AmaxAttrs>);
SampleList samples(SamplesOf<AttentionAttrs>);
SampleList samples(SamplesOf<AttentionBackwardAttrs>);
SampleList samples(SamplesOf<AttentionPartAttrs>);
SampleList samples(SamplesOf<AttentionPartBackwardAttrs>);
SampleList samples(SamplesOf<BatchedProductAttrs>);
SampleList samples(SamplesOf<BiasGradientAttrs>);
SampleList samples(SamplesOf<CastAttrs>);
SampleList samples(SamplesOf<ClipScaleAttrs>);
SampleList samples(SamplesOf<ConcatAttrs>);
SampleList samples(SamplesOf<CrossEntropyAttrs>);
SampleList samples(SamplesOf<DropoutAttrs>);
SampleList samples(SamplesOf<EmbeddingAttrs>);
SampleList samples(SamplesOf<EmbeddingBackwardAttrs>);
SampleList samples(SamplesOf<FenceAttrs>);
SampleList samples(SamplesOf<FetchAttrs>);
SampleList samples(SamplesOf<FillAttrs>);
SampleList samples(SamplesOf<GatherSlicesAttrs>);
SampleList samples(SamplesOf<GeluAttrs>);
SampleList samples(SamplesOf<GeluBackwardAttrs>);
SampleList samples(SamplesOf<LayerNormAttrs>);
SampleList samples(SamplesOf<LayerNormBackwardAttrs>);
SampleList samples(SamplesOf<LayerNormWeightGradientAttrs>);
SampleList samples(SamplesOf<LocalSliceAttrs>);
SampleList samples(SamplesOf<MaskScoresAttrs>);
SampleList samples(SamplesOf<MatmulAttrs>);
SampleList samples(SamplesOf<MulAttrs>);
SampleList samples(SamplesOf<MultiplyAttrs>);
SampleList samples(SamplesOf<QuantizeFloat8Attrs>);
SampleList samples(SamplesOf<ReceiveAttrs>);
SampleList samples(SamplesOf<ReduceScatterAttrs>);
SampleList samples(SamplesOf<ReduceSlicesAttrs>);
SampleList samples(SamplesOf<RingShiftAttrs>);
SampleList samples(SamplesOf<RmsNormAttrs>);
SampleList samples(SamplesOf<RmsNormBackwardAttrs>);
SampleList samples(SamplesOf<RmsNormWeightGradientAttrs>);
SampleList samples(SamplesOf<RopeAttrs>);
SampleList samples(SamplesOf<RopeTableAttrs>);
SampleList samples(SamplesOf<ScaleAttrs>);
SampleList samples(SamplesOf<ScaleMaskSoftmaxAttrs>);
SampleList samples(SamplesOf<ScaleMaskSoftmaxBackwardAttrs>);
SampleList samples(SamplesOf<ScaledMatmulAttrs>);
SampleList samples(SamplesOf<SendAttrs>);
SampleList samples(SamplesOf<SliceAttrs>);
SampleList samples(SamplesOf<SoftcapAttrs>);
SampleList samples(SamplesOf<SoftcapBackwardAttrs>);
SampleList samples(SamplesOf<SquaredReluAttrs>);
SampleList samples(SamplesOf<SquaredReluBackwardAttrs>);
SampleList samples(SamplesOf<StoreAttrs>);
SampleList samples(SamplesOf<SumSquaresAttrs>);
SampleList samples(SamplesOf<SwigluAttrs>);
SampleList samples(SamplesOf<SwigluBackwardAttrs>);
SampleList samples(SamplesOf<TakeAttrs>);
SampleList samples(SamplesOf<TransposeCodesAttrs>);
SampleList samples(SamplesOf<WriteRowsAttrs>);
SampleList samples(SamplesOf<CustomOp>);

void reference(const AddAttrs& attrs, const Views& views);
void reference(const AddBiasAttrs& attrs, const Views& views);
void reference(const AdamwAttrs& attrs, const Views& views);
void reference(const AllGatherAttrs& attrs, const Views& views);
void reference(const AllReduceAttrs& attrs, const Views& views);
void reference(const AllReduceSlicesAttrs& attrs, const Views& views);
void reference(const AllToAllAttrs& attrs, const Views& views);
void reference(const AmaxAttrs& attrs, const Views& views);
void reference(const AttentionAttrs& attrs, const Views& views);
void reference(const AttentionBackwardAttrs& attrs, const Views& views);
void reference(const AttentionPartAttrs& attrs, const Views& views);
void reference(const AttentionPartBackwardAttrs& attrs, const Views& views);
void reference(const BatchedProductAttrs& attrs, const Views& views);
void reference(const BiasGradientAttrs& attrs, const Views& views);
void reference(const CastAttrs& attrs, const Views& views);
void reference(const ClipScaleAttrs& attrs, const Views& views);
void reference(const ConcatAttrs& attrs, const Views& views);
void reference(const CrossEntropyAttrs& attrs, const Views& views);
void reference(const DropoutAttrs& attrs, const Views& views);
void reference(const EmbeddingAttrs& attrs, const Views& views);
void reference(const EmbeddingBackwardAttrs& attrs, const Views& views);
void reference(const FenceAttrs& attrs, const Views& views);
void reference(const FetchAttrs& attrs, const Views& views);
void reference(const FillAttrs& attrs, const Views& views);
void reference(const GatherSlicesAttrs& attrs, const Views& views);
void reference(const GeluAttrs& attrs, const Views& views);
void reference(const GeluBackwardAttrs& attrs, const Views& views);
void reference(const LocalSliceAttrs& attrs, const Views& views);
void reference(const MaskScoresAttrs& attrs, const Views& views);
void reference(const MatmulAttrs& attrs, const Views& views);
void reference(const MulAttrs& attrs, const Views& views);
void reference(const MultiplyAttrs& attrs, const Views& views);
void reference(const NormForm& norm, const Views& views);
void reference(const QuantizeFloat8Attrs& attrs, const Views& views);
void reference(const ReceiveAttrs& attrs, const Views& views);
void reference(const ReduceScatterAttrs& attrs, const Views& views);
void reference(const ReduceSlicesAttrs& attrs, const Views& views);
void reference(const RingShiftAttrs& attrs, const Views& views);
void reference(const RopeAttrs& attrs, const Views& views);
void reference(const RopeTableAttrs& attrs, const Views& views);
void reference(const ScaleAttrs& attrs, const Views& views);
void reference(const ScaleMaskSoftmaxAttrs& attrs, const Views& views);
void reference(const ScaleMaskSoftmaxBackwardAttrs& attrs, const Views& views);
void reference(const ScaledMatmulAttrs& attrs, const Views& views);
void reference(const SendAttrs& attrs, const Views& views);
void reference(const SliceAttrs& attrs, const Views& views);
void reference(const SoftcapAttrs& attrs, const Views& views);
void reference(const SoftcapBackwardAttrs& attrs, const Views& views);
void reference(const SquaredReluAttrs& attrs, const Views& views);
void reference(const SquaredReluBackwardAttrs& attrs, const Views& views);
void reference(const StoreAttrs& attrs, const Views& views);
void reference(const SumSquaresAttrs& attrs, const Views& views);
void reference(const SwigluAttrs& attrs, const Views& views);
void reference(const SwigluBackwardAttrs& attrs, const Views& views);
void reference(const TakeAttrs& attrs, const Views& views);
void reference(const TransposeCodesAttrs& attrs, const Views& views);
void reference(const WriteRowsAttrs& attrs, const Views& views);

template <NormAttrs A>
void reference(const A& attrs, const Views& views) {
  reference(norm_form(attrs), views);
}

namespace conformance {

// The samples of every alternative of OpVariant, in its order.
std::vector<Sample> all_samples();

// Runs the reference of any op. Errors: kInternal for a custom op that none of `custom` knows.
void run_reference(const Op& op, const Views& views, std::span<const CustomReference> custom);

// The op's results by its reference: of the types that it infers from `operand_types`, with f64 for
// floating dtypes, as in `operands`.
std::vector<HostTensor> reference_results(const Op& op,
                                          Types operand_types,
                                          std::span<const HostTensor> operands,
                                          std::span<const CustomReference> custom);

}  // namespace conformance
}  // namespace tessera

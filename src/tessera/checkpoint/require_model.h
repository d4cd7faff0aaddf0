#pragma once

#include <span>
#include <string_view>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera {

// Which tensors are looked at: all, or parameters and buffers alone, since weights that were
// imported have nothing else.
enum class ModelScope { kAll, kWeights };

// That what the parts of all ranks make up has just these tensors, of these types. Errors:
// kInvalidData naming the first one that differs, found and expected.
void require_tensors(const Manifest& manifest, std::span<const CheckpointTensor> expected);

// That `checkpoint` is one of `model` (JSON text) with just these tensors, whose `slice` and `data`
// are not looked at. An f32 parameter may have an f32 master beside it, which only some layouts
// have. Errors: kInvalidData naming the first tensor (or else the first key of the model) that
// differs, found and expected, or train.dtype where a parameter has another one and
// optimizer.moments where a moment has.
void require_model(const CheckpointReader& checkpoint,
                   std::string_view model,
                   std::span<const CheckpointTensor> expected,
                   ModelScope scope = ModelScope::kAll);

}  // namespace tessera

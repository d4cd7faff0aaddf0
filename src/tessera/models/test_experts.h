#pragma once

#include <cstdint>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/models/model.h"
#include "tessera/ops/all_ops.h"

namespace tessera {

// For tests: `model` and, after its layers, what a mesh with experts cuts: a weight "experts" of
// dims (expert, embed), read twice, so that its gradient is a sum, and an f32 buffer "bias"
// (expert); and what nothing cuts, an f32 buffer "mean" (embed).
//   y = hidden + (hidden experts^T + bias) experts + mean
inline ModelDescription with_experts(ModelDescription model, std::int64_t experts) {
  model.json = format("{{\"experts\": {}, \"of\": {}}}", experts, model.json);
  model.model = [inner = std::move(model.model), experts](GraphBuilder& builder,
                                                          const ModelInputs& inputs) {
    ModelOutputs outputs = inner(builder, inputs);
    const Dim embed = outputs.hidden.type().dims.back();
    const Dim expert = {.name = "expert", .bound = experts};
    const DType dtype = builder.compute_dtype();
    const Value weight =
        builder.parameter("experts", {.dtype = dtype, .dims = {expert, embed}}, {.std = 0.05});
    const auto buffer = [&](const char* name, const Dim& dim) {
      const Value value = builder.buffer(name, {.dtype = DType::kF32, .dims = {dim}}, {.std = 0.5});
      return dtype == DType::kF32 ? value : cast(value, dtype);
    };
    builder.set_layer(-1);
    const Value inside = matmul(outputs.hidden, weight, {.transpose_b = true, .dtype = dtype});
    const Value made = matmul(add_bias(inside, buffer("bias", expert)), weight, {.dtype = dtype});
    outputs.hidden = add(outputs.hidden, add_bias(made, buffer("mean", embed)));
    return outputs;
  };
  return model;
}

}  // namespace tessera

#include "tests/distributed/draw_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/models/family.h"

namespace tessera {

ModelDescription draw_model(Draw& draw, std::int64_t tensor, std::int64_t vocab) {
  const std::string name = draw.one_of<std::string>(
      {"llama3", "gpt2", "neox", "qwen2", "qwen3", "mistral", "phi3", "olmo2", "gemma2", "gemma3"});
  const bool is_llama = name != "gpt2" && name != "neox";
  const bool is_gemma = name == "gemma2" || name == "gemma3";
  const bool may_have_biases = is_gemma || name == "llama3" || name == "qwen3" || name == "olmo2";
  const bool has_window = is_gemma || ((name == "mistral" || name == "phi3") && draw.one_in(2));
  const std::int64_t kv_heads = tensor * draw.between(1, 2);
  const std::int64_t heads = is_llama ? kv_heads * draw.between(1, 3) : kv_heads;
  const std::int64_t half_width = draw.between(1, 9);  // of a head
  const ModelFamily& family = model_family(name);
  return family.describe(family.resolve(
      {.name = name,
       .dim = heads * 2 * half_width,
       .layers = draw.between(1, 3),
       .heads = heads,
       .kv_heads = is_llama ? std::optional(kv_heads) : std::nullopt,
       .head_dim =
           is_llama && draw.one_in(3) ? std::optional(2 * draw.between(1, 9)) : std::nullopt,
       .ffn = draw.between(tensor, 70),
       .vocab = vocab,
       .window = has_window ? std::optional(draw.between(1, 30)) : std::nullopt,
       .global_every = is_gemma ? std::optional(draw.between(1, 3)) : std::nullopt,
       .query_pre_attn_scalar = is_gemma && draw.one_in(2) ? std::optional(7.0) : std::nullopt,
       .attention_softcap = name == "gemma2" && draw.one_in(2) ? std::optional(0.5) : std::nullopt,
       .logits_softcap = is_gemma && draw.one_in(2) ? std::optional(2.0) : std::nullopt,
       .attention_bias = may_have_biases && draw.one_in(3) ? std::optional(true) : std::nullopt,
       .exact_gelu = name == "neox" ? std::optional(draw.one_in(2)) : std::nullopt,
       .parallel_residual = name == "neox" ? std::optional(draw.one_in(2)) : std::nullopt,
       .rope_linear_factor =
           is_llama && name != "phi3" && draw.one_in(4) ? std::optional(4.0) : std::nullopt,
       .rotary_fraction =
           name == "neox" ? std::optional(half_width % 2 == 0 ? 0.5 : 1.0) : std::nullopt}));
}

Placement draw_placement(Draw& draw, const Mesh& mesh, std::optional<std::int64_t> grad) {
  const std::vector<std::int64_t> degrees = data_degrees(mesh);
  Placement placement;
  placement.grad = grad ? *grad : draw.one_of(degrees);
  const auto up_to = [&](std::int64_t most) {
    std::vector<std::int64_t> some = degrees;
    std::erase_if(some, [&](std::int64_t degree) { return most % degree != 0; });
    return draw.one_of(some);
  };
  placement.param = up_to(placement.grad);
  placement.secondary = up_to(placement.param);
  std::vector<std::int64_t> wider = degrees;
  std::erase_if(wider, [&](std::int64_t degree) { return degree % placement.grad != 0; });
  placement.optimizer = draw.one_of(wider);
  return placement;
}

RankRun draw_run(Draw& draw) {
  const std::int64_t ranks = draw.one_of<std::int64_t>({1, 2, 2, 4, 4, 6});
  std::vector<std::int64_t> tensors = {1};
  for (const std::int64_t degree : {2, 4}) {
    if (ranks % degree == 0) {
      tensors.push_back(degree);
    }
  }
  const std::int64_t tensor = draw.one_of(tensors);
  RankRun run;
  run.mesh = ranks == 1 ? Mesh{} : virtual_mesh(ranks, tensor);
  run.other = draw_model(draw, tensor, draw.between(tensor, 90));
  if (draw.one_in(4)) {
    run.other.adapters = {
        .rank = draw.between(1, 4), .alpha = 4.0, .targets = {"wq", "wk", "w1", "w2"}};
  }
  run.microbatches = draw.between(1, 3);
  run.global_batch = run.microbatches * (ranks / tensor) * draw.between(1, 3);
  run.sequence_length = draw.between(2, 40);
  run.steps = 3;
  run.dtype = draw.one_in(3) ? DType::kBF16 : DType::kF32;
  run.moments = draw.one_in(5) ? DType::kBF16 : DType::kF32;
  run.sequence_parallel = tensor > 1 && draw.one_in(2);
  if (draw.one_in(6)) {
    run.float8 = {.rowwise = draw.one_in(2), .head = draw.one_in(2)};
  }
  run.placement = draw_placement(draw, run.mesh);
  return run;
}

std::string text(const RankRun& run) {
  return format(
      "{} on {} ranks, microbatches {}, batch {}, length {}, {}, placement {} {} {} {}{}{}",
      run.other.json,
      run.mesh.num_ranks(),
      run.microbatches,
      run.global_batch,
      run.sequence_length,
      name(run.dtype),
      run.placement.param,
      run.placement.secondary,
      run.placement.grad,
      run.placement.optimizer,
      run.sequence_parallel ? ", sequence parallel" : "",
      run.float8 ? ", float8" : "");
}

}  // namespace tessera

#include "tests/distributed/draw_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/mesh/cluster.h"
#include "tessera/models/family.h"
#include "tessera/plan/run_layout.h"

namespace tessera {

namespace {

bool is_llama(std::string_view family) {
  return family != "gpt2" && family != "neox";
}

bool is_gemma(std::string_view family) {
  return family == "gemma2" || family == "gemma3";
}

ModelSection draw_sizes(Draw& draw, const std::string& family, std::int64_t tensor) {
  const std::int64_t kv_heads = tensor * draw.between(1, 2);
  const std::int64_t heads = is_llama(family) ? kv_heads * draw.between(1, 3) : kv_heads;
  const std::int64_t half_width = draw.between(1, 9);  // of a head
  ModelSection model = {
      .name = family, .dim = heads * 2 * half_width, .layers = draw.between(1, 3), .heads = heads};
  if (is_llama(family)) {
    model.kv_heads = kv_heads;
    model.head_dim = draw.one_in(3) ? std::optional(2 * draw.between(1, 9)) : std::nullopt;
  }
  model.ffn = draw.between(tensor, 70);
  return model;
}

void draw_gemma(Draw& draw, ModelSection& model) {
  model.global_every = draw.between(1, 3);
  model.query_pre_attn_scalar = draw.one_in(2) ? std::optional(7.0) : std::nullopt;
  if (model.name == "gemma2" && draw.one_in(2)) {
    model.attention_softcap = 0.5;
  }
  model.logits_softcap = draw.one_in(2) ? std::optional(2.0) : std::nullopt;
}

void draw_gpt2(Draw& draw, ModelSection& model) {
  model.bias = draw.one_in(2);
  model.alibi = draw.one_in(3);
  model.squared_relu = draw.one_in(3);
}

void draw_neox(Draw& draw, ModelSection& model) {
  model.bias = draw.one_in(2);
  model.squared_relu = draw.one_in(3);
  model.exact_gelu = draw.one_in(2);
  model.parallel_residual = draw.one_in(2);
  const bool halves_are_even = *model.dim / *model.heads % 4 == 0;
  model.rotary_fraction = halves_are_even ? 0.5 : 1.0;
}

}  // namespace

std::uint64_t num_drawn(const char* variable, std::uint64_t usual) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

ModelDescription draw_model(Draw& draw, std::int64_t tensor, std::int64_t vocab) {
  const std::string name = draw.one_of<std::string>(
      {"llama3", "gpt2", "neox", "qwen2", "qwen3", "mistral", "phi3", "olmo2", "gemma2", "gemma3"});
  const bool may_have_biases =
      is_gemma(name) || name == "llama3" || name == "qwen3" || name == "olmo2";
  const bool has_window =
      is_gemma(name) || ((name == "mistral" || name == "phi3") && draw.one_in(2));
  ModelSection model = draw_sizes(draw, name, tensor);
  model.vocab = vocab;
  model.window = has_window ? std::optional(draw.between(1, 30)) : std::nullopt;
  if (is_gemma(name)) {
    draw_gemma(draw, model);
  }
  if (may_have_biases && draw.one_in(3)) {
    model.attention_bias = true;
  }
  if (name == "gpt2") {
    draw_gpt2(draw, model);
  }
  if (name == "neox") {
    draw_neox(draw, model);
  }
  // The other families have no choice, or are tied by default.
  if (name == "llama3" || name == "qwen2" || name == "qwen3" || name == "olmo2") {
    model.tied = draw.one_in(2);
  }
  if (is_llama(name) && name != "phi3" && draw.one_in(4)) {
    model.rope_linear_factor = 4.0;
  }
  const ModelFamily& family = model_family(name);
  return family.describe(family.resolve(model));
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

// Some of the data ranks share sequences.
void draw_context(Draw& draw, std::int64_t data, std::int64_t tensor, RankRun& run) {
  std::vector<std::int64_t> degrees;
  for (const std::int64_t degree : {2, 3, 4, 6}) {
    if (data % degree == 0) {
      degrees.push_back(degree);
    }
  }
  const std::int64_t context = draw.one_of(degrees);
  run.mesh = make_mesh(load_cluster(virtual_cluster(data * tensor)),
                       {.data = data / context, .tensor = tensor, .context = context});
  run.context.kind = draw.one_of<ContextKind>({ContextKind::kGather, ContextKind::kRing});
  run.context.balance =
      draw.one_of<ContextBalance>({ContextBalance::kZigzag, ContextBalance::kNone});
  run.document_length = draw.between(0, 20);
  const std::int64_t unit = 2 * context * (run.sequence_parallel ? tensor : 1);
  run.sequence_length = unit * draw.between(1, 3);
  run.placement = draw_placement(draw, run.mesh);
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
  if (const std::int64_t data = ranks / tensor; data > 1 && draw.one_in(3)) {
    draw_context(draw, data, tensor, run);
  }
  return run;
}

RecomputeRules draw_rules(Draw& draw, const RankRun& run) {
  RecomputeRules rules;
  for (std::int64_t layer = 0; layer < num_layers(run); ++layer) {
    if (draw.one_in(4)) {
      continue;
    }
    RecomputeRule rule = {.first = layer, .end = layer + 1};
    rule.kept = draw.one_of(std::vector(kRecomputeKept.begin(), kRecomputeKept.end()));
    if (!run.float8) {
      for (const char* const op : {"matmul.0", "matmul.1", "matmul.2", "matmul.3"}) {
        const std::int64_t place = draw.between(0, 2);
        if (place < 2) {
          (place == 0 ? rule.keep : rule.again).emplace_back(op);
        }
      }
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

std::string text(const RankRun& run) {
  return format(
      "{} on {} ranks ({} of context, {}, {}), microbatches {}, batch {}, length {}, {}, placement "
      "{} {} {} {}{}{}",
      run.other.json,
      run.mesh.num_ranks(),
      num_ranks(context_axes(run.mesh)),
      to_string(run.context.kind),
      to_string(run.context.balance),
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

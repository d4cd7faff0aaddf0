#include "tessera/models/model_keys.h"

#include <algorithm>
#include <array>

#include "tessera/base/error.h"

namespace tessera {

namespace {

using S = ModelSection;

constexpr std::array<ModelKey, 34> kKeys = {
    {{.name = "dim",
      .member = &S::dim,
      .range = SizeRange::kSize,
      .doc = "Width of the residual stream. Left out: the flavor's."},
     {.name = "layers",
      .member = &S::layers,
      .range = SizeRange::kLayers,
      .doc = "Transformer blocks. Left out: the flavor's."},
     {.name = "heads",
      .member = &S::heads,
      .range = SizeRange::kSize,
      .doc = "Query heads; where head_dim is left out, dim / heads is a head's width, an even "
             "number. Left out: the flavor's."},
     {.name = "kv_heads",
      .member = &S::kv_heads,
      .range = SizeRange::kSize,
      .doc = "Key and value heads (not gpt2, neox); divides heads. Left out: the flavor's, else "
             "heads."},
     {.name = "head_dim",
      .member = &S::head_dim,
      .range = SizeRange::kSize,
      .doc = "Width of a head (not gpt2, neox), an even number. Left out: the flavor's, else dim "
             "/ heads."},
     {.name = "ffn",
      .member = &S::ffn,
      .range = SizeRange::kSize,
      .doc = "Hidden width of the feed-forward network. Left out: the flavor's."},
     {.name = "vocab",
      .member = &S::vocab,
      .range = SizeRange::kSize,
      .doc = "Ids that the model predicts: the entries of the tokenizer, or more. Left out: the "
             "flavor's."},
     {.name = "padded_vocab",
      .member = &S::padded_vocab,
      .range = SizeRange::kSize,
      .doc =
          "Rows of the embedding (gpt2, neox). Those behind vocab take no part in the loss. Left "
          "out: the flavor's, else vocab."},
     {.name = "positions",
      .member = &S::positions,
      .range = SizeRange::kSize,
      .doc = "Learned positions (gpt2): the longest sequence. Left out: the flavor's, else 1024."},
     {.name = "window",
      .member = &S::window,
      .range = SizeRange::kSize,
      .doc = "Sliding window of attention (mistral, phi3, gemma2, gemma3): how many tokens a token "
             "sees, "
             "itself and those before it. Left out: the flavor's, else all (gemma2: 4096, gemma3: "
             "1024)."},
     {.name = "global_every",
      .member = &S::global_every,
      .range = SizeRange::kSize,
      .doc = "The last layer of each so many sees all tokens, whatever the window (gemma2, "
             "gemma3). Left "
             "out: the flavor's, else 2 (gemma2) or 6."},
     {.name = "query_pre_attn_scalar",
      .member = &S::query_pre_attn_scalar,
      .range = SizeRange::kPositive,
      .doc =
          "Attention's scale is its -1/2 power (gemma2, gemma3). Left out: the flavor's, else the "
          "width of a head."},
     {.name = "attention_softcap",
      .member = &S::attention_softcap,
      .range = SizeRange::kFromZero,
      .doc = "Cap c of attention's scores s, which become c tanh(s / c) (gemma2). 0: none. Left "
             "out: 50."},
     {.name = "logits_softcap",
      .member = &S::logits_softcap,
      .range = SizeRange::kFromZero,
      .doc = "The same of the logits (gemma2, gemma3). 0: none. Left out: 30 (gemma2) or 0."},
     {.name = "tied",
      .member = &S::tied,
      .range = SizeRange::kFlag,
      .doc = "Embedding and output head share one weight (gpt2's always do, neox's never). Left "
             "out: the flavor's, else false (gemma2, gemma3: true)."},
     {.name = "attention_bias",
      .member = &S::attention_bias,
      .range = SizeRange::kFlag,
      .doc =
          "Biases of queries, keys, values and attention's output (llama3, qwen3, olmo2, gemma2, "
          "gemma3; qwen2 has the first three always). Left out: false."},
     {.name = "bias",
      .member = &S::bias,
      .range = SizeRange::kFlag,
      .doc = "Biases of products and norms (gpt2, neox; MPT has none). Left out: true."},
     {.name = "alibi",
      .member = &S::alibi,
      .range = SizeRange::kFlag,
      .doc = "Scores get a slope over distance, in place of learned positions (gpt2; MPT, BLOOM). "
             "Left out: false."},
     {.name = "squared_relu",
      .member = &S::squared_relu,
      .range = SizeRange::kFlag,
      .doc = "The square of ReLU in place of GELU (gpt2, neox; Nemotron). Left out: false."},
     {.name = "exact_gelu",
      .member = &S::exact_gelu,
      .range = SizeRange::kFlag,
      .doc = "GELU by the error function, not its tanh form (neox; Pythia's is). Left out: false."},
     {.name = "parallel_residual",
      .member = &S::parallel_residual,
      .range = SizeRange::kFlag,
      .doc = "Attention and feed-forward layer side by side, not one after the other (neox). Left "
             "out: true."},
     {.name = "rope_scaling",
      .member = &S::rope_scaling,
      .range = SizeRange::kFlag,
      .doc = "Llama 3.1 scaling of rotary frequencies (llama3). Left out: the flavor's, else "
             "false."},
     {.name = "rope_factor",
      .member = &S::rope_factor,
      .range = SizeRange::kPositive,
      .doc = "By how much rope_scaling stretches long wavelengths. Left out: 8."},
     {.name = "rope_linear_factor",
      .member = &S::rope_linear_factor,
      .range = SizeRange::kPositive,
      .doc = "What positions are divided by, for texts longer than those of training (not gpt2, "
             "neox). Left out: 1."},
     {.name = "rope_dynamic_factor",
      .member = &S::rope_dynamic_factor,
      .range = SizeRange::kPositive,
      .doc = "Dynamic NTK scaling: raises the base of the frequencies where sequences are longer "
             "than rope_original_length (not gpt2, neox). Left out: 1."},
     {.name = "rope_yarn_factor",
      .member = &S::rope_yarn_factor,
      .range = SizeRange::kPositive,
      .doc = "YaRN's scaling, by how much texts are longer than rope_original_length (not gpt2, "
             "neox). Left out: 1."},
     {.name = "rope_short_factors",
      .member = &S::rope_short_factors,
      .range = SizeRange::kList,
      .doc =
          "LongRoPE's scaling: what each frequency is divided by, one for each pair of a head, in "
          "programs whose sequences are no longer than rope_original_length (not gpt2, neox). "
          "Left out: none."},
     {.name = "rope_long_factors",
      .member = &S::rope_long_factors,
      .range = SizeRange::kList,
      .doc = "The same in programs whose sequences are longer."},
     {.name = "rope_original_length",
      .member = &S::rope_original_length,
      .range = SizeRange::kSize,
      .doc = "Tokens of the texts of training, which the dynamic factor, YaRN and LongRoPE start "
             "from. Left out: none."},
     {.name = "rope_scaled_length",
      .member = &S::rope_scaled_length,
      .range = SizeRange::kSize,
      .doc = "Tokens of the longest texts that LongRoPE is for. Left out: none."},
     {.name = "rope_theta",
      .member = &S::rope_theta,
      .range = SizeRange::kPositive,
      .doc = "Base of the rotary frequencies. Left out: the flavor's, else 500000 (llama3, "
             "olmo2), 10000 (neox, phi3, gemma2) or 1000000."},
     {.name = "rope_local_theta",
      .member = &S::rope_local_theta,
      .range = SizeRange::kPositive,
      .doc = "Base of the rotary frequencies in layers with a window, which no factor scales "
             "(gemma3). Left out: 10000."},
     {.name = "rotary_fraction",
      .member = &S::rotary_fraction,
      .range = SizeRange::kRatio,
      .doc = "Part of each head that is turned (neox). Left out: 0.25."},
     {.name = "norm_eps",
      .member = &S::norm_eps,
      .range = SizeRange::kPositive,
      .doc = "Added to the mean square or the variance in norms. Left out: the flavor's, else "
             "1e-6 (qwen2, qwen3, olmo2, gemma2, gemma3) or 1e-5."}}};

}  // namespace

std::span<const ModelKey> model_keys() {
  return kKeys;
}

const ModelKey& model_key(std::string_view name) {
  const auto keys = model_keys();
  const auto found = std::ranges::find(keys, name, &ModelKey::name);
  TESSERA_CHECK(found != keys.end(), "no size of a model is called {}", name);
  return *found;
}

bool is_set(const ModelSection& section, const ModelKey& key) {
  return std::visit([&](const auto member) { return (section.*member).has_value(); }, key.member);
}

}  // namespace tessera

#include "tessera/models/hugging_face_keys.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr auto kHarmless = std::to_array<std::string_view>({
    // Where the file came from, and what loads it.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_commit_hash",
    "_experts_implementation",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "_sliding_window_pattern",
    "architectures",
    "attn_implementation",
    "auto_map",  // code of its own, which transformers do not load for a model that they know
    "finetuning_task",
    "is_llama_config",
    "tokenizer_class",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_flash_attn",
    // How it is computed, not what.
    "cache_implementation",
    "chunk_size_feed_forward",
    "gradient_checkpointing",
    "is_decoder",
    "max_sequence_length",
    "max_window_layers",  // of windows that are refused
    "n_ctx",              // of GPT-2's mask
    "output_attentions",
    "output_hidden_states",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "return_dict",
    "tf_legacy_loss",
    "torchscript",
    "use_bfloat16",
    "use_cache",
    // Training from the start, and dropout, which is none here.
    "attention_dropout",
    "attn_pdrop",
    "classifier_dropout",
    "embd_pdrop",
    "hidden_dropout",
    "initializer_range",
    "neftune_noise_alpha",
    "resid_pdrop",
    // Other heads, and other tokens.
    "decoder_start_token_id",
    "id2label",
    "label2id",
    "num_labels",
    "pad_token_id",
    "prefix",
    "problem_type",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "unk_token_id",
    // Generation.
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
});

constexpr auto kChanging = std::to_array<std::string_view>({
    // Positions.
    "alibi",
    "no_rope_layer_interval",
    "no_rope_layers",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "position_embedding_type",
    "rope_interleaved",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_pct",
    "rope_ratio",
    "rope_scaling",
    "rope_theta",
    "rotary_dim",
    "rotary_emb_base",
    "rotary_emb_fraction",
    "rotary_emb_interleaved",
    "rotary_pct",
    "scale_base",
    "use_alibi",
    // Which tokens see which.
    "attention_chunk_size",
    "attention_types",
    "global_attn_every_n_layers",
    "layer_types",
    "local_attention",
    "sliding_window",
    "sliding_window_pattern",
    "use_bidirectional_attention",
    "use_sliding_window",
    "window_size",
    // Scales and caps.
    "attention_multiplier",
    "attn_logit_softcapping",
    "clip_qkv",
    "dim_model_base",
    "embedding_multiplier",
    "embedding_scale",
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "logits_soft_cap",
    "multiplier",
    "mup_attn_multiplier",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "scale_attn_by_inverse_layer_idx",
    "scale_depth",
    "scale_emb",
    "scale_embedding",
    "width_scale",
    // Norms, biases and activations.
    "activation_function",
    "add_bias_linear",
    "add_qkv_bias",
    "attention_bias",
    "attn_bias",
    "bias",
    "hidden_act",
    "hidden_activation",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "lm_head_bias",
    "mlp_bias",
    "mlp_hidden_act",
    "no_bias",
    "norm_eps",
    "norm_epsilon",
    "norm_type",
    "qk_layernorm",
    "qk_norm",
    "qkv_bias",
    "rms_norm_eps",
    "use_bias",
    "use_qk_norm",
    "use_qkv_bias",
    // Other blocks and shapes.
    "add_cross_attention",
    "block_configs",
    "cross_attention_hidden_size",
    "embedding_size",
    "ffn_dim",
    "first_k_dense_replace",
    "head_dim",
    "is_encoder_decoder",
    "kv_channels",
    "kv_lora_rank",
    "moe_intermediate_size",
    "moe_layer_freq",
    "multi_query",
    "multi_query_attention",
    "n_head_kv",
    "n_inner",
    "n_routed_experts",
    "n_shared_experts",
    "new_decoder_architecture",
    "num_experts",
    "num_experts_per_tok",
    "num_key_value_heads",
    "num_kv_heads",
    "num_kv_shared_layers",
    "num_local_experts",
    "num_nextn_predict_layers",
    "parallel_attn",
    "parallel_residual",
    "pruned_heads",
    "q_lora_rank",
    "text_config",
    "tie_word_embeddings",
    "use_parallel_residual",
    "vision_config",
    "word_embed_proj_dim",
    // Weights that stand for others.
    "compression_config",
    "quantization",
    "quantization_config",
    "sparsity_config",
});

// Parts that all models here have unless the key is false. A family that knows its key reads it.
constexpr auto kOnUnlessFalse = std::to_array<std::string_view>({
    "add_final_layer_norm",
    "causal",
    "causal_attention",
    "final_layernorm",
    "final_norm",
    "is_causal",
    "layer_norm_elementwise_affine",
    "layernorm_elementwise_affine",
    "scale_attention",
    "scale_attn",
    "scale_attn_weights",
    "use_causal_mask",
    "use_final_layernorm",
    "use_final_norm",
    "use_residual",
});

// Parts of most models here, and those that families say that they lack.
constexpr auto kRotaryKeys = std::to_array<std::string_view>({
    "rope",
    "rotary",
    "use_rope",
    "use_rotary",
    "use_rotary_emb",
    "use_rotary_embeddings",
    "use_rotary_position_embeddings",
});
constexpr auto kRmsNormKeys = std::to_array<std::string_view>({"use_rms_norm", "use_rmsnorm"});
constexpr auto kGateKeys = std::to_array<std::string_view>({
    "mlp_gated",
    "use_gated_mlp",
    "use_glu",
    "use_swiglu",
});
constexpr auto kNormBeforeKeys = std::to_array<std::string_view>({
    "do_layer_norm_before",
    "norm_before",
    "normalize_before",
    "pre_norm",
    "prenorm",
    "use_pre_norm",
});

bool contains(std::span<const std::string_view> keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

}  // namespace

bool is_harmless_key(std::string_view key) {
  return std::ranges::find(kHarmless, key) != kHarmless.end();
}

std::span<const std::string_view> keys_of(ModelPart part) {
  switch (part) {
    case ModelPart::kRotary:
      return kRotaryKeys;
    case ModelPart::kRmsNorm:
      return kRmsNormKeys;
    case ModelPart::kGate:
      return kGateKeys;
    case ModelPart::kNormBefore:
      return kNormBeforeKeys;
  }
  fail(ErrorCode::kInternal, "a part of a model without a name");
}

bool is_on_unless_false(std::string_view key) {
  using enum ModelPart;
  return contains(kOnUnlessFalse, key) ||
         std::ranges::any_of(std::array{kRotary, kRmsNorm, kGate, kNormBefore},
                             [&](ModelPart part) { return contains(keys_of(part), key); });
}

bool changes_result(std::string_view key) {
  return contains(kChanging, key);
}

}  // namespace tessera

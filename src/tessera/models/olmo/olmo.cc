#include "tessera/models/olmo/olmo.h"

#include <cstdint>
#include <string>

#include "tessera/models/decoder/decoder_blocks.h"
#include "tessera/models/decoder/decoder_family.h"
#include "tessera/ops/elementwise/elementwise.h"

namespace tessera {

ModelOutputs olmo2(GraphBuilder& builder, const DecoderConfig& config, const ModelInputs& inputs) {
  DecoderBlocks m(builder, config, inputs);
  const bool bias = config.attention_bias;
  return m.write([&](const Value& x, const std::string& layer) {
    const Value q = m.query_norm(m.queries(x, layer, bias), layer + "attention.q_norm");
    const Value k = m.key_norm(m.keys(x, layer, bias), layer + "attention.k_norm");
    const Value v = m.values(x, layer, bias);
    const Value a = m.attend(m.turned(q), m.turned(k), v, layer, bias);
    const Value h = add(x, m.norm(a, layer + "attention_norm"));

    return add(h, m.norm(m.feed_forward(h, layer), layer + "ffn_norm"));
  });
}

namespace {

constexpr DecoderConfig kDefaults = {.rope_theta = 500000.0, .norm_eps = 1e-6};

DecoderConfig olmo(DecoderConfig sizes) {
  sizes.rope_theta = kDefaults.rope_theta;
  sizes.norm_eps = kDefaults.norm_eps;
  return sizes;
}

void read_file(const HuggingFaceConfig& file, DecoderConfig& config) {
  take_rope(file, config);
  file.require_lacks(ModelPart::kNormBefore);
}

// Source: transformers' Olmo2Config.
void write_file(HuggingFaceConfigText& text, const DecoderConfig& config) {
  text.add("pad_token_id", "null");  // else 1, whose row would not be trained
  text.add("rope_scaling", rope_scaling_json(config));
}

const DecoderForm& olmo2_form() {
  constexpr std::int64_t kVocab = 100352;
  static const DecoderForm kForm = {
      .sizes = {"olmo2",
                "olmo2",
                decoder_sizes({attention_bias_size()}, {.norm_eps = 1e-5}),
                {{"1B", olmo(decoder_of(2048, 16, 16, 16, 8192, kVocab))},
                 {"7B", olmo(decoder_of(4096, 32, 32, 32, 11008, kVocab))},
                 {"13B", olmo(decoder_of(5120, 40, 40, 40, 13824, kVocab))}},
                kDefaults},
      .write = olmo2,
      .model_type = "olmo2",
      .architecture = "Olmo2ForCausalLM",
      .head_norms = HeadNorms::kAll,
      .block_norms = BlockNorms::kAfter,
      .read = read_file,
      .write_config = write_file};
  return kForm;
}

}  // namespace

ModelFamily olmo2_family() {
  return decoder_family<olmo2_form>();
}

}  // namespace tessera

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/family_sizes.h"
#include "tessera/models/hugging_face_rope.h"
#include "tessera/models/model.h"

namespace tessera {

// Norms of queries and keys: of each head, with one gain, or of all heads together.
enum class HeadNorms : std::uint8_t { kNone, kEach, kAll };

// Where norms stand: before attention and feed-forward layer, after them, or both.
enum class BlockNorms : std::uint8_t { kBefore, kAfter, kBoth };

// How a family of decoders differs from the others, beside the page that writes its graph.
struct DecoderForm {
  FamilySizes<DecoderConfig> sizes;
  ModelOutputs (*write)(GraphBuilder& builder,
                        const DecoderConfig& config,
                        const ModelInputs& inputs);
  std::string_view model_type;    // of config.json
  std::string_view architecture;  // likewise

  bool query_biases = false;  // always; else by DecoderConfig::attention_bias
  HeadNorms head_norms = HeadNorms::kNone;
  BlockNorms block_norms = BlockNorms::kBefore;
  bool fused_files = false;  // q, k, v are one matrix of a file, gate and up another

  // Of config.json: what opens the gate of a feed-forward layer.
  std::string_view activation_key = "hidden_act";
  std::string_view activation = "silu";

  // Of config.json, where the keys are absent; 0: as many as heads, and dim / heads.
  std::int64_t file_kv_heads = 0;
  std::int64_t file_head_dim = 0;

  // Sizes that follow from the others where nobody says them. Null: none.
  void (*complete)(DecoderConfig& config) = nullptr;

  // What sizes must agree on. Errors: kInvalidConfig naming the key. Null: nothing more.
  void (*check)(const DecoderConfig& config) = nullptr;

  // What config.json has beside the table's sizes; `read` gets these already read, with head_dim
  // and kv_heads. Errors of `read`: kInvalidData naming file and key for what the family has no
  // form of.
  void (*read)(const HuggingFaceConfig& file, DecoderConfig& config);
  void (*write_config)(HuggingFaceConfigText& text, const DecoderConfig& config);
};

// What config.json means where keys are absent.
struct DecoderFileDefaults {
  double norm_eps = 1e-6;
  bool tied = false;
};

// The rows of the sizes that all decoders have, with those of a family's own between `tied` and
// the rest, which is the order of their descriptions.
std::vector<FamilySize<DecoderConfig>> decoder_sizes(
    std::vector<FamilySize<DecoderConfig>> own = {}, const DecoderFileDefaults& absent = {});

// The window of attention: "sliding_window" of config.json, which take_window() reads, `absent`
// where the key is, and write_window() writes.
FamilySize<DecoderConfig> window_size();
void take_window(const HuggingFaceConfig& file, DecoderConfig& config, std::int64_t absent = 0);
void write_window(HuggingFaceConfigText& text, const DecoderConfig& config);

// Attention's biases: a flag of config.json and of [model].
FamilySize<DecoderConfig> attention_bias_size();

// A published model: dim, layers, heads, kv_heads, ffn, vocab.
DecoderConfig decoder_of(std::int64_t dim,
                         std::int64_t layers,
                         std::int64_t heads,
                         std::int64_t kv_heads,
                         std::int64_t ffn,
                         std::int64_t vocab);

// What [model] says of it, a flavor's sizes replaced by those that are given. Errors: as
// validate().
DecoderConfig decoder_config(const DecoderForm& form, const ModelSection& section);

// The model as the trainer takes it.
ModelDescription describe_decoder(const DecoderForm& form, const DecoderConfig& config);

// What a family's files may say of them.
struct DecoderRope {
  HuggingFaceRopeKeys keys = {};
  bool llama3 = false;  // frequencies scaled as Llama 3.1's
};

// Rotary positions of all of each head, however their frequencies are scaled: linear, dynamic,
// YaRN, LongRoPE, or as `forms` has it.
void take_rope(const HuggingFaceConfig& file, DecoderConfig& config, const DecoderRope& forms = {});

// "rope_scaling" of config.json, as JSON: null where frequencies are not scaled.
std::string rope_scaling_json(const DecoderConfig& config);

// config.json as sizes, and back; all weights in the order in which transformers list them, a tied
// head left out.
DecoderConfig decoder_from_hugging_face(const DecoderForm& form, const HuggingFaceConfig& file);
std::string decoder_config_text(const DecoderForm& form,
                                const DecoderConfig& config,
                                const HuggingFaceFacts& facts);
std::vector<HuggingFaceWeight> decoder_weights(const DecoderForm& form,
                                               const DecoderConfig& config);

// `section` with all sizes written out.
ModelSection decoder_section(const DecoderForm& form,
                             const ModelSection& section,
                             const DecoderConfig& config);

// The family of a form that lives as long as the program.
template <const DecoderForm& (*kForm)()>
ModelFamily decoder_family() {
  return {.name = kForm().sizes.name(),
          .described = kForm().sizes.described(),
          .flavors = kForm().sizes.flavor_names(),
          .resolve =
              [](const ModelSection& section) {
                return decoder_section(kForm(), section, decoder_config(kForm(), section));
              },
          .describe =
              [](const ModelSection& section) {
                return describe_decoder(kForm(), decoder_config(kForm(), section));
              },
          .model_types = {kForm().model_type},
          .weight_prefix = "model.",
          .from_hugging_face =
              [](const HuggingFaceConfig& file) {
                return decoder_section(kForm(),
                                       {.name = std::string(kForm().sizes.name())},
                                       decoder_from_hugging_face(kForm(), file));
              },
          .hugging_face_config =
              [](const ModelSection& section, const HuggingFaceFacts& facts) {
                return decoder_config_text(kForm(), decoder_config(kForm(), section), facts);
              },
          .hugging_face_weights =
              [](const ModelSection& section) {
                return decoder_weights(kForm(), decoder_config(kForm(), section));
              },
          .is_extra =
              [](const ModelSection& section, std::string_view name) {
                return name.ends_with(".rotary_emb.inv_freq") ||
                       (section.tied.value_or(false) && name == "lm_head.weight");
              }};
}

}  // namespace tessera

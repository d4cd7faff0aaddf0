#include "tessera/models/family.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/models/gemma/gemma.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama/llama.h"
#include "tessera/models/mistral/mistral.h"
#include "tessera/models/model_keys.h"
#include "tessera/models/neox/neox.h"
#include "tessera/models/olmo/olmo.h"
#include "tessera/models/phi/phi.h"
#include "tessera/models/qwen/qwen.h"

namespace tessera {

std::span<const ModelFamily> model_families() {
  static const auto kFamilies = std::to_array<ModelFamily>({llama_family(),
                                                            gpt2_family(),
                                                            neox_family(),
                                                            qwen2_family(),
                                                            qwen3_family(),
                                                            mistral_family(),
                                                            phi3_family(),
                                                            olmo2_family(),
                                                            gemma2_family(),
                                                            gemma3_family()});
  return kFamilies;
}

const ModelFamily& model_family(std::string_view name) {
  const auto families = model_families();
  const auto found = std::ranges::find(families, name, &ModelFamily::name);
  if (found == families.end()) {
    std::string known;
    for (const ModelFamily& family : families) {
      known += format("{}\"{}\"", known.empty() ? "" : ", ", family.name);
    }
    fail(ErrorCode::kInvalidConfig, "model.name: found \"{}\", expected one of {}", name, known);
  }
  return *found;
}

const ModelFamily& hugging_face_family(const HuggingFaceConfig& config) {
  const std::string type = config.text("model_type", "");
  std::string known;
  for (const ModelFamily& family : model_families()) {
    for (const std::string_view own : family.model_types) {
      if (own == type) {
        return family;
      }
      known += format("{}\"{}\"", known.empty() ? "" : ", ", own);
    }
  }
  config.require(false, "model_type", format("one of {}", known));
  fail(ErrorCode::kInternal, "require(false) let it pass");
}

HuggingFaceModel hugging_face_model(const HuggingFaceConfig& config) {
  const ModelFamily& family = hugging_face_family(config);
  constexpr const char* kQuantized = "quantization_config.quant_method";
  config.require(!config.has(kQuantized), kQuantized, "weights that are not quantized");
  const std::string dtype = config.text("torch_dtype", config.text("dtype", "float32"));
  const char* length_key = config.has("n_positions") ? "n_positions" : "max_position_embeddings";
  HuggingFaceModel model{.section = family.from_hugging_face(config),
                         .facts = {.dtype = dtype == "bfloat16"  ? DType::kBF16
                                            : dtype == "float16" ? DType::kF16
                                                                 : DType::kF32,
                                   .sequence_length = config.size(length_key, 2048),
                                   .bos = config.tokens("bos_token_id"),
                                   .eos = config.tokens("eos_token_id")}};
  model.unknown_keys = config.check_unread();
  return model;
}

bool is_vocab_table(std::string_view parameter) {
  return parameter == "tok_embeddings.weight" || parameter == "output.weight";
}

ModelSection completed(ModelSection section, const ModelSection& defaults) {
  for (const ModelKey& key : model_keys()) {
    std::visit(
        [&](const auto member) {
          if (!(section.*member)) {
            section.*member = defaults.*member;
          }
        },
        key.member);
  }
  return section;
}

void require_dims(const ModelSection& section) {
  for (const auto& [name, size] : {std::pair{"dim", section.dim},
                                   {"layers", section.layers},
                                   {"heads", section.heads},
                                   {"ffn", section.ffn},
                                   {"vocab", section.vocab}}) {
    TESSERA_REQUIRE(size.value_or(0) > 0,
                    ErrorCode::kInvalidConfig,
                    "model.{} is {}, expected a positive number (set it, or a model.flavor)",
                    name,
                    size.value_or(0));
  }
  TESSERA_REQUIRE(section.dim.value_or(0) % section.heads.value_or(1) == 0,
                  ErrorCode::kInvalidConfig,
                  "model.heads = {} does not divide model.dim = {}",
                  section.heads.value_or(0),
                  section.dim.value_or(0));
}

void refuse_key(bool is_set, std::string_view family, std::string_view key) {
  TESSERA_REQUIRE(!is_set,
                  ErrorCode::kInvalidConfig,
                  "model.{} is set, expected nothing: model.name = \"{}\" has no use for it",
                  key,
                  family);
}

void require_rows(std::int64_t rows, std::int64_t vocab) {
  TESSERA_REQUIRE(rows >= vocab,
                  ErrorCode::kInvalidConfig,
                  "model.padded_vocab = {} is less than model.vocab = {}",
                  rows,
                  vocab);
}

}  // namespace tessera

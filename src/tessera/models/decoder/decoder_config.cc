#include "tessera/models/decoder/decoder_config.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera {

void validate(const DecoderConfig& config) {
  for (const auto& [name, size] : {std::pair{"dim", config.dim},
                                   {"layers", config.layers},
                                   {"heads", config.heads},
                                   {"kv_heads", config.kv_heads},
                                   {"ffn", config.ffn},
                                   {"vocab", config.vocab}}) {
    TESSERA_REQUIRE(size > 0,
                    ErrorCode::kInvalidConfig,
                    "model.{} is {}, expected a positive number (set it, or a model.flavor)",
                    name,
                    size);
  }
  TESSERA_REQUIRE(config.head_dim > 0 || config.dim % config.heads == 0,
                  ErrorCode::kInvalidConfig,
                  "model.heads = {} does not divide model.dim = {} (set model.head_dim)",
                  config.heads,
                  config.dim);
  TESSERA_REQUIRE(config.heads % config.kv_heads == 0,
                  ErrorCode::kInvalidConfig,
                  "model.kv_heads = {} does not divide model.heads = {}",
                  config.kv_heads,
                  config.heads);
  TESSERA_REQUIRE(config.head() % 2 == 0,
                  ErrorCode::kInvalidConfig,
                  "a head of {} = {} is odd; rotary positions turn pairs",
                  config.head_dim > 0 ? "model.head_dim" : "model.dim / model.heads",
                  config.head());
}

RopeTableAttrs rope_attrs(const DecoderConfig& config) {
  RopeTableAttrs attrs{.head_dim = config.head(), .theta = config.rope_theta};
  if (config.rope_scaling) {
    attrs.scaling_factor = config.rope_factor;
  }
  return attrs;
}

}  // namespace tessera

#include "tessera/models/decoder/decoder_config.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/attention/attention.h"

namespace tessera {
namespace {

constexpr std::int64_t kMostRows = std::int64_t{1} << 31U;  // the product of two fits in 64 bits

void validate_long_rope(const DecoderConfig& config) {
  if (!config.has_long_rope() && config.rope_long_factors.empty()) {
    TESSERA_REQUIRE(config.rope_scaled_length == 0,
                    ErrorCode::kInvalidConfig,
                    "model.rope_scaled_length = {} has no use without model.rope_long_factors",
                    config.rope_scaled_length);
    return;
  }
  for (const auto& [name, factors] :
       {std::pair{"short", &config.rope_short_factors}, {"long", &config.rope_long_factors}}) {
    TESSERA_REQUIRE(std::ssize(*factors) == config.head() / 2,
                    ErrorCode::kInvalidConfig,
                    "model.rope_{}_factors has {} numbers, expected {}: one for each pair of a "
                    "head of {}",
                    name,
                    factors->size(),
                    config.head() / 2,
                    config.head());
  }
  TESSERA_REQUIRE(
      config.rope_original_length > 1 && config.rope_scaled_length >= config.rope_original_length,
      ErrorCode::kInvalidConfig,
      "model.rope_long_factors with model.rope_original_length = {} and "
      "model.rope_scaled_length = {}, expected lengths from 2, the second no less than "
      "the first",
      config.rope_original_length,
      config.rope_scaled_length);
}

void validate_rope(const DecoderConfig& config) {
  std::string ways;
  int count = 0;
  const auto add = [&](bool is_set, const std::string& way) {
    ways += is_set ? format("{}{}", count > 0 ? " and " : "", way) : "";
    count += is_set ? 1 : 0;
  };
  const bool is_dynamic = config.rope_dynamic_factor != 1.0;
  const bool is_yarn = config.rope_yarn_factor != 1.0;
  add(config.rope_scaling, "model.rope_scaling = true");
  add(config.rope_linear_factor != 1.0,
      format("model.rope_linear_factor = {}", config.rope_linear_factor));
  add(is_dynamic, format("model.rope_dynamic_factor = {}", config.rope_dynamic_factor));
  add(is_yarn, format("model.rope_yarn_factor = {}", config.rope_yarn_factor));
  add(config.has_long_rope() || !config.rope_long_factors.empty(), "model.rope_long_factors");
  TESSERA_REQUIRE(count <= 1,
                  ErrorCode::kInvalidConfig,
                  "{} scale positions in {} ways, expected one at most",
                  ways,
                  count);
  validate_long_rope(config);
  const bool has_original = is_dynamic || is_yarn || config.has_long_rope();
  TESSERA_REQUIRE(!has_original || config.rope_original_length > 0,
                  ErrorCode::kInvalidConfig,
                  "{} without model.rope_original_length, the tokens of a text in training",
                  ways);
  TESSERA_REQUIRE(has_original || config.rope_original_length == 0,
                  ErrorCode::kInvalidConfig,
                  "model.rope_original_length = {} has no use without model.rope_dynamic_factor, "
                  "model.rope_yarn_factor or model.rope_long_factors",
                  config.rope_original_length);
  TESSERA_REQUIRE(!is_dynamic || config.head() > 2,
                  ErrorCode::kInvalidConfig,
                  "model.rope_dynamic_factor = {} of heads of {}, expected more than 2",
                  config.rope_dynamic_factor,
                  config.head());
  TESSERA_REQUIRE(!is_yarn || config.rope_theta > 1.0,
                  ErrorCode::kInvalidConfig,
                  "model.rope_theta = {} with model.rope_yarn_factor, expected more than 1",
                  config.rope_theta);
}

}  // namespace

double yarn_magnitude(double factor) {
  return factor > 1.0 ? 0.1 * std::log(factor) + 1.0 : 1.0;
}

namespace {

// Far from where f32 has no such number, or no inverse of it.
void validate_caps(const DecoderConfig& config) {
  constexpr double kLeast = 1e-6;
  constexpr double kMost = 1e6;
  for (const auto& [name, cap] :
       {std::pair{"attention", config.attention_softcap}, {"logits", config.logits_softcap}}) {
    TESSERA_REQUIRE(cap == 0.0 || (cap >= kLeast && cap <= kMost),
                    ErrorCode::kInvalidConfig,
                    "model.{}_softcap = {}, expected a number from {} to {}, or 0 for none",
                    name,
                    cap,
                    kLeast,
                    kMost);
  }
}

}  // namespace

double long_rope_magnitude(std::int64_t original_length, std::int64_t scaled_length) {
  const auto original = static_cast<double>(original_length);
  const double growth = static_cast<double>(scaled_length) / original;
  return growth > 1.0 ? std::sqrt(1.0 + std::log(growth) / std::log(original)) : 1.0;
}

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
  TESSERA_REQUIRE(config.head() <= kMostRows / config.heads,
                  ErrorCode::kInvalidConfig,
                  "model.heads = {} of {} elements are more than {}",
                  config.heads,
                  config.head(),
                  kMostRows);
  TESSERA_REQUIRE(config.window <= kMaxWindow,
                  ErrorCode::kInvalidConfig,
                  "model.window = {}, expected at most {}",
                  config.window,
                  kMaxWindow);
  TESSERA_REQUIRE(config.global_every == 0 || config.window > 0,
                  ErrorCode::kInvalidConfig,
                  "model.global_every = {} without model.window, which the other layers have",
                  config.global_every);
  validate_caps(config);
  validate_rope(config);
}

namespace {

// High frequencies, which turn often in an original length, stay; low ones are divided by the
// factor; those between, by something between.
void set_yarn(const DecoderConfig& config, RopeTableAttrs& attrs) {
  constexpr double kFast = 32.0;  // turns
  constexpr double kSlow = 1.0;
  const double factor = config.rope_yarn_factor;
  const auto size = static_cast<double>(config.head());
  const auto length = static_cast<double>(config.rope_original_length);
  const auto dim_that_turns = [&](double turns) {
    return size * std::log(length / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.rope_theta));
  };
  const double low = std::max(std::floor(dim_that_turns(kFast)), 0.0);
  double high = std::min(std::ceil(dim_that_turns(kSlow)), size - 1.0);
  high += low == high ? 0.001 : 0.0;
  for (std::int64_t i = 0; i < config.head() / 2; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    attrs.divisors.of.push_back(1.0 / (ramp / factor + 1.0 - ramp));
  }
  attrs.magnitude = yarn_magnitude(factor);
}

}  // namespace

RopeTableAttrs rope_attrs(const DecoderConfig& config, std::int64_t length) {
  RopeTableAttrs attrs{.head_dim = config.head(), .theta = config.rope_theta};
  const auto pairs = static_cast<std::size_t>(config.head() / 2);
  if (config.rope_scaling) {
    attrs.scaling_factor = config.rope_factor;
  } else if (config.rope_linear_factor != 1.0) {
    attrs.divisors.of.assign(pairs, config.rope_linear_factor);
  } else if (config.rope_dynamic_factor != 1.0 && length > config.rope_original_length) {
    const double factor = config.rope_dynamic_factor;
    const auto size = static_cast<double>(config.head());
    const double growth =
        static_cast<double>(length) / static_cast<double>(config.rope_original_length);
    attrs.theta *= std::pow(factor * growth - (factor - 1.0), size / (size - 2.0));
  } else if (config.rope_yarn_factor != 1.0) {
    set_yarn(config, attrs);
  } else if (config.has_long_rope()) {
    attrs.divisors.of =
        length > config.rope_original_length ? config.rope_long_factors : config.rope_short_factors;
    attrs.magnitude = long_rope_magnitude(config.rope_original_length, config.rope_scaled_length);
  }
  return attrs;
}

}  // namespace tessera

#include "tessera/config/validate_context.h"

#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/units.h"
#include "tessera/config/config.h"

namespace tessera {

std::int64_t context_unit(const RunConfig& config) {
  const ParallelSection& parallel = config.parallel;
  return sequence_unit(parallel.context,
                       config.context.layout().balance,
                       parallel.sequence_parallel ? parallel.tensor : 1);
}

// The heads that tensor ranks leave are exchanged for tokens.
void validate_exchanged_heads(const RunConfig& config) {
  const std::int64_t context = config.parallel.context;
  const std::optional<std::int64_t> heads =
      config.model.kv_heads ? config.model.kv_heads : config.model.heads;
  if (context == 1 || config.context.kind != ContextKind::kUlysses || !heads) {
    return;
  }
  const std::int64_t left = *heads / config.parallel.tensor;
  TESSERA_REQUIRE(left % context == 0,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, expected with context.kind = \"ulysses\" a divisor of the {} that "
                  "parallel.tensor = {} leaves of {} = {}: context.kind = \"ring\" "
                  "and \"gather\" take any number",
                  placed(config, "parallel.context"),
                  context,
                  format_plural(left, "head"),
                  config.parallel.tensor,
                  config.model.kv_heads ? "model.kv_heads" : "model.heads",
                  *heads);
}

namespace {

// Context ranks must be able to share sequences.
void require_context_length(const RunConfig& config) {
  const std::int64_t length = config.data.sequence_length;
  const std::int64_t context = config.parallel.context;
  const std::int64_t of_order = context_unit(context, config.context.layout().balance);
  const std::int64_t unit = context_unit(config);
  std::string factors = of_order > context ? "2 * parallel.context" : "parallel.context";
  factors += unit > of_order ? ", parallel.tensor * parallel.context" : "";
  const std::int64_t below = length / unit * unit;
  TESSERA_REQUIRE(length % unit == 0,
                  ErrorCode::kInvalidConfig,
                  "{} = {} is not a multiple of {} ({}); {}{} {}",
                  placed(config, "data.sequence_length"),
                  length,
                  unit,
                  factors,
                  below > 0 ? format("{} or ", below) : "",
                  below + unit,
                  below > 0 ? "are" : "is");
}

}  // namespace

void validate_context(const RunConfig& config) {
  const std::int64_t context = config.parallel.context;
  if (context == 1) {
    const ContextSection usual;
    TESSERA_REQUIRE(config.context == usual,
                    ErrorCode::kInvalidConfig,
                    "{}: has no effect with parallel.context = 1: set that to 2 or more, or leave "
                    "[context] out",
                    placed(config,
                           config.context.kind != usual.kind     ? "context.kind"
                           : config.context.inner != usual.inner ? "context.inner"
                                                                 : "context.balance"));
    return;
  }
  require_context_length(config);
  TESSERA_REQUIRE(config.context.kind != ContextKind::kUlysses ||
                      config.context.balance != ContextBalance::kZigzag,
                  ErrorCode::kInvalidConfig,
                  "{}: found \"zigzag\", expected \"none\" with context.kind = \"ulysses\": in its "
                  "attention each rank has all tokens",
                  placed(config, "context.balance"));
  const bool is_one_op =
      config.passes.attention == AttentionOps::kFlash && !config.model.alibi.value_or(false);
  TESSERA_REQUIRE(config.context.kind == ContextKind::kGather || is_one_op,
                  ErrorCode::kInvalidConfig,
                  "{}: found \"{}\", expected \"gather\" where attention is several ops "
                  "(passes.attention, model.alibi)",
                  placed(config, "context.kind"),
                  to_string(config.context.kind));
  TESSERA_REQUIRE(config.context.inner.empty() || config.context.kind == ContextKind::kRing,
                  ErrorCode::kInvalidConfig,
                  "{}: found \"{}\", expected none with context.kind = \"{}\": \"ring\" has an "
                  "inner ring",
                  placed(config, "context.inner"),
                  config.context.inner,
                  to_string(config.context.kind));
  TESSERA_REQUIRE(config.pipeline.slices == 1,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, expected 1 with parallel.context = {}, whose ranks have tokens "
                  "from all over a sequence",
                  placed(config, "pipeline.slices"),
                  config.pipeline.slices,
                  context);
  TESSERA_REQUIRE(config.train.dropout == 0.0,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, expected 0 with parallel.context = {}: what is dropped depends on "
                  "a token's place in its sequence, which a context rank does not know",
                  placed(config, "train.dropout"),
                  config.train.dropout,
                  context);
}

}  // namespace tessera

#include "tessera/config/run_config.h"

#include <charconv>
#include <string>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/base/text.h"

namespace tessera {

std::vector<DataSource> data_sources(const DataSection& data) {
  std::vector<DataSource> sources = data.sources;
  if (sources.empty()) {
    sources.push_back({.files = data.files});
  }
  for (DataSource& source : sources) {
    source.format = source.format.value_or(data.format);
    source.field = source.field.value_or(data.field);
    source.token_type = source.token_type.value_or(data.token_type);
    source.document_separator = source.document_separator.value_or(data.document_separator);
  }
  return sources;
}

std::string_view to_string(DataFormat format) {
  switch (format) {
    case DataFormat::kAuto:
      return "auto";
    case DataFormat::kText:
      return "text";
    case DataFormat::kJsonl:
      return "jsonl";
    case DataFormat::kTokens:
      return "tokens";
    case DataFormat::kMegatron:
      return "megatron";
    case DataFormat::kChat:
      return "chat";
  }
  return "?";
}

std::string_view to_string(ChatTemplateName name) {
  switch (name) {
    case ChatTemplateName::kAuto:
      return "auto";
    case ChatTemplateName::kLlama3:
      return "llama3";
    case ChatTemplateName::kChatml:
      return "chatml";
  }
  return "?";
}

std::string_view to_string(RawTokens type) {
  switch (type) {
    case RawTokens::kU16:
      return "u16";
    case RawTokens::kU32:
      return "u32";
  }
  return "?";
}

std::string_view to_string(OptimizerName name) {
  switch (name) {
    case OptimizerName::kAdamW:
      return "adamw";
  }
  return "?";
}

std::string_view to_string(DecayedWeights decay) {
  switch (decay) {
    case DecayedWeights::kAll:
      return "all";
    case DecayedWeights::kMatrices:
      return "matrices";
  }
  return "?";
}

std::string_view to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::kAuto:
      return "auto";
    case Recompute::kNone:
      return "none";
    case Recompute::kFull:
      return "full";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFullButLastStage:
      return "full_but_last_stage";
    case Recompute::kAttention:
      return "attention";
    case Recompute::kEverySecondProduct:
      return "every_second_product";
  }
  return "?";
}

std::string_view to_string(Offload offload) {
  switch (offload) {
    case Offload::kOff:
      return "off";
    case Offload::kAuto:
      return "auto";
    case Offload::kAll:
      return "all";
  }
  return "?";
}

std::string_view to_string(OffloadTo to) {
  switch (to) {
    case OffloadTo::kAuto:
      return "auto";
    case OffloadTo::kHost:
      return "host";
    case OffloadTo::kFile:
      return "file";
  }
  return "?";
}

std::string to_string(const RecomputedLayers& layers) {
  return layers.is_all()       ? "all"
         : layers.of_stage > 0 ? format("{}", layers.of_stage)
                               : format("{}-{}", layers.first, layers.end - 1);
}

std::optional<RecomputedLayers> parse_recomputed_layers(std::string_view text) {
  if (text == "all") {
    return RecomputedLayers();
  }
  const auto number = [](const std::string& digits) -> std::optional<std::int64_t> {
    std::int64_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, value);
    const bool is_count = error == std::errc{} && rest == end && value >= 0 && value < INT32_MAX;
    return is_count ? std::optional(value) : std::nullopt;
  };
  const std::size_t dash = text.find('-');
  const std::optional<std::int64_t> first = number(std::string(text.substr(0, dash)));
  if (dash == std::string_view::npos) {
    return first && *first > 0 ? std::optional(RecomputedLayers{.of_stage = *first}) : std::nullopt;
  }
  const std::optional<std::int64_t> last = number(std::string(text.substr(dash + 1)));
  if (!first || !last || *last < *first) {
    return std::nullopt;
  }
  return RecomputedLayers{.first = *first, .end = *last + 1};
}

std::string_view to_string(AttentionOps ops) {
  switch (ops) {
    case AttentionOps::kFlash:
      return "flash";
    case AttentionOps::kFusedSoftmax:
      return "fused_softmax";
    case AttentionOps::kUnfused:
      return "unfused";
  }
  return "?";
}

std::string_view to_string(Reduction reduction) {
  switch (reduction) {
    case Reduction::kOrdered:
      return "ordered";
    case Reduction::kNative:
      return "native";
  }
  return "?";
}

std::string_view to_string(Float8Recipe recipe) {
  switch (recipe) {
    case Float8Recipe::kOff:
      return "off";
    case Float8Recipe::kTensorwise:
      return "tensorwise";
    case Float8Recipe::kRowwise:
      return "rowwise";
  }
  return "?";
}

ContextLayout ContextSection::layout() const {
  const auto usual =
      kind == ContextKind::kUlysses ? ContextBalance::kNone : ContextBalance::kZigzag;
  return {.kind = kind, .balance = balance.value_or(usual)};
}

bool is_table(const PipelineSection& pipeline) {
  return without_capitals(pipeline.schedule).ends_with(".csv");
}

std::string placed(const RunConfig& config, std::string_view key) {
  const auto found = config.origins.places.find(key);
  const std::string& place =
      found == config.origins.places.end() ? config.origins.file : found->second;
  return place.empty() ? std::string(key) : format("{}: {}", place, key);
}

}  // namespace tessera

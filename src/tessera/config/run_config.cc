#include "tessera/config/run_config.h"

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
    case Recompute::kNone:
      return "none";
    case Recompute::kFull:
      return "full";
    case Recompute::kFullButLastStage:
      return "full_but_last_stage";
    case Recompute::kAttention:
      return "attention";
    case Recompute::kEverySecondProduct:
      return "every_second_product";
  }
  return "?";
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
  const auto usual = kind == ContextKind::kGather ? ContextBalance::kZigzag : ContextBalance::kNone;
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

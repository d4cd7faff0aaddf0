#include "tessera/tokenizer/gpt2_files.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/json.h"
#include "tessera/tokenizer/json_node.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/tokenizer/vocabulary.h"

namespace tessera {

TokenizerSpec parse_gpt2_files(std::string_view encoder,
                               std::string_view merges,
                               const SideFiles& beside) {
  constexpr const char* kEndOfText = "<|endoftext|>";
  const nlohmann::json ids = parse_json(encoder, {.unique_keys = false});
  nlohmann::json added =
      beside.added.empty() ? nlohmann::json::array() : parse_json(beside.added, {});
  const bool is_named = std::ranges::any_of(
      added, [&](const nlohmann::json& token) { return token["content"] == kEndOfText; });
  const JsonNode vocab(ids, "", encoder);
  if (const auto end_of_text = vocab.find(kEndOfText); end_of_text && !is_named) {
    added.push_back({{"id", end_of_text->json()},
                     {"content", kEndOfText},
                     {"special", true},
                     {"normalized", false}});
  }
  Vocabulary vocabulary(vocab, JsonNode(added, "the added tokens"), Alphabet::kBytes);
  for (std::size_t number = 1; !merges.empty(); ++number) {
    const std::size_t end = std::min(merges.find('\n'), merges.size());
    std::string line(merges.substr(0, end));
    merges.remove_prefix(std::min(end + 1, merges.size()));
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    const bool is_version = number == 1 && line.starts_with("#version");
    if (!line.empty() && !is_version) {
      vocabulary.add_merge(line, [&] { return format("line {} of the merges", number); });
    }
  }
  TokenizerSpec spec;
  vocabulary.give(spec);
  const bool is_qwen = beside.tokenizer_class.starts_with("Qwen2Tokenizer");
  spec.splits.push_back({.pattern = std::string(is_qwen ? kQwenPattern : kGpt2Pattern)});
  if (is_qwen) {
    spec.normalizer = {{.kind = NormalizerStep::Kind::kNfc, .from = "", .to = ""}};
  }
  check_spec(spec, ErrorCode::kInvalidData);
  return spec;
}

}  // namespace tessera

#include "tessera/tokenizer/tiktoken_families.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/tokenizer/tokenizer_json.h"

namespace tessera {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

// r50k_base is GPT-2's. cl100k_base and Llama 3 cut alike.
constexpr std::array<TiktokenFamily, 8> kFamilies = {{
    {.name = "llama3", .pattern = kLlama3Pattern, .num_ranks = 128'000},
    {.name = "cl100k_base", .pattern = kLlama3Pattern, .num_ranks = 100'256},
    {.name = "o200k_base", .pattern = kO200kPattern, .num_ranks = 199'998},
    {.name = "o200k_harmony", .pattern = kO200kPattern, .num_ranks = 199'998},
    {.name = "p50k_base", .pattern = kGpt2Pattern, .num_ranks = 50'280},
    {.name = "p50k_edit", .pattern = kGpt2Pattern, .num_ranks = 50'280},
    {.name = "r50k_base", .pattern = kGpt2Pattern, .num_ranks = 50'256},
    {.name = "qwen", .pattern = kQwenPattern, .num_ranks = 151'643},
}};

// What file names have, without case and what is neither letter nor digit; the longer first.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kFileNames = {{
    {"o200kharmony", "o200k_harmony"},
    {"p50kedit", "p50k_edit"},
    {"cl100k", "cl100k_base"},
    {"llama3", "llama3"},
    {"o200k", "o200k_base"},
    {"p50k", "p50k_base"},
    {"r50k", "r50k_base"},
    {"gpt2", "r50k_base"},
    {"qwen", "qwen"},
}};

std::string letters_and_digits(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool is_capital = c >= 'A' && c <= 'Z';
    const char small = is_capital ? static_cast<char>(c - 'A' + 'a') : c;
    if ((small >= 'a' && small <= 'z') || (small >= '0' && small <= '9')) {
      result += small;
    }
  }
  return result;
}

// A special token, and its id less the number of ranks.
using Specials = std::vector<std::pair<std::string, std::size_t>>;

Specials llama3_specials() {
  constexpr std::size_t kCount = 256;
  Specials specials = {{"<|begin_of_text|>", 0},
                       {"<|end_of_text|>", 1},
                       {"<|start_header_id|>", 6},
                       {"<|end_header_id|>", 7},
                       {"<|eot_id|>", 9}};
  std::size_t reserved = 0;
  for (std::size_t at = 0; at < kCount; ++at) {
    const bool is_taken = std::ranges::count(specials, at, &Specials::value_type::second) > 0;
    if (!is_taken) {
      specials.emplace_back(format("<|reserved_special_token_{}|>", reserved++), at);
    }
  }
  return specials;
}

// OpenAI's for gpt-oss: names for some of the ids behind the ranks, to <|reserved_201087|>.
Specials harmony_specials(std::size_t first) {
  constexpr std::size_t kCount = 1090;
  Specials specials = {{"<|startoftext|>", 0},
                       {std::string(kEndOfText), 1},
                       {"<|return|>", 4},
                       {"<|constrain|>", 5},
                       {"<|channel|>", 7},
                       {"<|start|>", 8},
                       {"<|end|>", 9},
                       {"<|message|>", 10},
                       {"<|call|>", 14},
                       {"<|endofprompt|>", 20}};
  for (std::size_t at = 0; at < kCount; ++at) {
    const bool is_taken = std::ranges::count(specials, at, &Specials::value_type::second) > 0;
    if (!is_taken) {
      specials.emplace_back(format("<|reserved_{}|>", first + at), at);
    }
  }
  return specials;
}

Specials qwen_specials() {
  constexpr std::size_t kExtras = 205;
  Specials specials = {{std::string(kEndOfText), 0}, {"<|im_start|>", 1}, {"<|im_end|>", 2}};
  for (std::size_t i = 0; i < kExtras; ++i) {
    specials.emplace_back(format("<|extra_{}|>", i), specials.size());
  }
  return specials;
}

Specials specials_of(const TiktokenFamily& family, std::size_t num_ranks) {
  const std::string end(kEndOfText);
  Specials fim = {{"<|fim_prefix|>", 0}, {"<|fim_middle|>", 1}, {"<|fim_suffix|>", 2}};
  if (family.name == "llama3") {
    return llama3_specials();
  }
  if (family.name == "cl100k_base") {
    return {
        {end, 1}, {fim[0].first, 2}, {fim[1].first, 3}, {fim[2].first, 4}, {"<|endofprompt|>", 20}};
  }
  if (family.name == "o200k_base") {
    return {{end, 1}, {"<|endofprompt|>", 20}};
  }
  if (family.name == "o200k_harmony") {
    return harmony_specials(num_ranks);
  }
  if (family.name == "p50k_edit") {
    return fim;
  }
  if (family.name == "qwen") {
    return qwen_specials();
  }
  return {{end, 0}};
}

void add_special(const std::string& content, std::size_t id, TokenizerSpec& spec) {
  for (std::size_t hole = spec.tokens.size(); hole < id; ++hole) {
    spec.holes.push_back(static_cast<std::int32_t>(hole));
  }
  spec.tokens.resize(std::max(spec.tokens.size(), id + 1));
  spec.tokens[id] = content;
  std::erase(spec.holes, static_cast<std::int32_t>(id));
  spec.added.push_back({.id = static_cast<std::int32_t>(id),
                        .content = content,
                        .special = true,
                        .normalized = false});
}

}  // namespace

std::span<const TiktokenFamily> tiktoken_families() {
  return kFamilies;
}

std::string tiktoken_family_names() {
  std::string names;
  for (const TiktokenFamily& family : kFamilies) {
    names += format("{}{}", names.empty() ? "" : ", ", family.name);
  }
  return names;
}

const TiktokenFamily* find_tiktoken_family(std::string_view name) {
  const auto found = std::ranges::find(kFamilies, name, &TiktokenFamily::name);
  return found == kFamilies.end() ? nullptr : &*found;
}

const TiktokenFamily* tiktoken_family_of_name(std::string_view file_name) {
  const std::string letters = letters_and_digits(file_name);
  std::string_view longer;  // names that are part of it say nothing more
  const TiktokenFamily* named = nullptr;
  for (const auto& [part, family] : kFileNames) {
    const bool is_new =
        letters.find(part) != std::string::npos && longer.find(part) == std::string_view::npos;
    if (!is_new) {
      continue;
    }
    const TiktokenFamily* const found = find_tiktoken_family(family);
    TESSERA_REQUIRE(named == nullptr || named == found,
                    ErrorCode::kInvalidData,
                    "the file's name has those of two tiktoken families, {} and {}, in it: rename "
                    "it, or put a first line \"# tiktoken NAME\" in front",
                    named == nullptr ? "" : named->name,
                    found->name);
    named = found;
    longer = part;
  }
  return named;
}

const TiktokenFamily* tiktoken_family_of_ranks(std::size_t num_ranks) {
  const auto found = std::ranges::find(kFamilies, num_ranks, &TiktokenFamily::num_ranks);
  return found == kFamilies.end() ? nullptr : &*found;
}

void add_tiktoken_family(const TiktokenFamily& family, TokenizerSpec& spec) {
  spec.splits.push_back({.pattern = std::string(family.pattern)});
  std::size_t num_ranks = spec.tokens.size();
  // p50k's ranks go on behind r50k's, and leave out the id of its <|endoftext|>.
  if (family.name.starts_with("p50k") && !spec.holes.empty()) {
    add_special(std::string(kEndOfText), static_cast<std::size_t>(spec.holes.front()), spec);
  } else if (family.name == "p50k_edit") {
    add_special(std::string(kEndOfText), num_ranks++, spec);
  }
  for (const auto& [content, offset] : specials_of(family, num_ranks)) {
    const bool is_there = std::ranges::count(spec.added, content, &AddedToken::content) > 0;
    if (!is_there) {
      add_special(content, num_ranks + offset, spec);
    }
  }
  std::ranges::sort(spec.added, {}, &AddedToken::id);
  if (family.name == "llama3") {
    spec.before = {spec.added.front().id};
    spec.post_processor = bos_post_processor(spec.added.front());
  }
  if (family.name == "qwen") {
    spec.normalizer = {{.kind = NormalizerStep::Kind::kNfc, .from = "", .to = ""}};
  }
}

}  // namespace tessera

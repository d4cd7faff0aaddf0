#include "tessera/tokenizer/tiktoken.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/tokenizer/tokenizer_json.h"

namespace tessera {
namespace {

constexpr int kNumSpecial = 256;

int base64_digit(char c) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::size_t digit = kDigits.find(c);
  return digit == std::string_view::npos ? -1 : static_cast<int>(digit);
}

// Nothing if `text` is not base64 (RFC 4648) with its padding.
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) {
    return std::nullopt;
  }
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  unsigned bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int digit = i < text.size() - padding ? base64_digit(text[i]) : 0;
    if (digit < 0) {
      return std::nullopt;
    }
    bits = bits << 6U | static_cast<unsigned>(digit);
    if (i % 4 == 3) {
      bytes += static_cast<char>(bits >> 16U & 0xFFU);
      bytes += static_cast<char>(bits >> 8U & 0xFFU);
      bytes += static_cast<char>(bits & 0xFFU);
      bits = 0;
    }
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

struct Entry {
  std::string bytes;
  std::size_t rank = 0;
  std::size_t line = 0;  // from 1
};

// Nothing if `line` is not of the form.
std::optional<Entry> parse_line(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return std::nullopt;
  }
  auto bytes = decode_base64(line.substr(0, space));
  const std::string_view number = line.substr(space + 1);
  std::uint32_t rank = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
  if (!bytes || error != std::errc() || end != number.data() + number.size()) {
    return std::nullopt;
  }
  return Entry{.bytes = *std::move(bytes), .rank = rank};
}

// Takes the first line off `text`, without its end.
std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  return line;
}

std::vector<Entry> parse_lines(std::string_view text) {
  constexpr std::size_t kMaxShown = 60;
  std::vector<Entry> entries;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.empty()) {
      continue;
    }
    auto entry = parse_line(line);
    TESSERA_REQUIRE(entry.has_value(),
                    ErrorCode::kInvalidData,
                    "line {} is \"{}\", expected base64, a space and a rank",
                    number,
                    line.substr(0, kMaxShown));
    TESSERA_REQUIRE(entry->rank == entries.size(),
                    ErrorCode::kInvalidData,
                    "line {} has the rank {}, expected {}: ranks rise from 0 without holes",
                    number,
                    entry->rank,
                    entries.size());
    entry->line = number;
    entries.push_back(*std::move(entry));
  }
  return entries;
}

// tiktoken merges any neighbours whose bytes together are a token, the one of lowest rank first:
// every way to cut a token into two tokens is a rule.
void add_merges(const std::vector<std::size_t>& lines, TokenizerSpec& spec) {
  std::unordered_map<std::string_view, std::int32_t> ids;
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    const auto [entry, is_new] = ids.try_emplace(spec.tokens[i], static_cast<std::int32_t>(i));
    TESSERA_REQUIRE(is_new,
                    ErrorCode::kInvalidData,
                    "line {} has the token of line {}",
                    lines[i],
                    lines[static_cast<std::size_t>(entry->second)]);
  }
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    const std::string_view token = spec.tokens[i];
    std::vector<MergeRule> rules;
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      const auto right = ids.find(token.substr(cut));
      if (left != ids.end() && right != ids.end()) {
        rules.push_back(
            {.left = left->second, .right = right->second, .result = static_cast<std::int32_t>(i)});
      }
    }
    // The order in which Hugging Face's conversion of such a file writes them.
    std::ranges::sort(
        rules, {}, [](const MergeRule& rule) { return std::pair(rule.left, rule.right); });
    spec.merges.insert(spec.merges.end(), rules.begin(), rules.end());
  }
  spec.merges_by_result = true;
}

std::vector<std::string> special_tokens() {
  std::vector<std::string> names = {"<|begin_of_text|>",
                                    "<|end_of_text|>",
                                    "<|reserved_special_token_0|>",
                                    "<|reserved_special_token_1|>",
                                    "<|reserved_special_token_2|>",
                                    "<|reserved_special_token_3|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|reserved_special_token_4|>",
                                    "<|eot_id|>"};
  for (int i = 5; std::ssize(names) < kNumSpecial; ++i) {
    names.push_back(format("<|reserved_special_token_{}|>", i));
  }
  return names;
}

}  // namespace

bool looks_like_tiktoken(std::string_view text) {
  return parse_line(take_line(text)).has_value();
}

TokenizerSpec parse_tiktoken(std::string_view text) {
  TokenizerSpec spec;
  std::vector<std::size_t> lines;  // of each token
  for (Entry& entry : parse_lines(text)) {
    spec.tokens.push_back(std::move(entry.bytes));
    lines.push_back(entry.line);
  }
  add_merges(lines, spec);
  spec.splits.push_back({.pattern = std::string(kLlama3Pattern)});
  spec.ignore_merges = true;  // a word that is a token is taken whole
  for (const std::string& name : special_tokens()) {
    spec.added.push_back({.id = static_cast<std::int32_t>(spec.tokens.size()),
                          .content = name,
                          .special = true,
                          .normalized = false});
    spec.tokens.push_back(name);
  }
  spec.before = {spec.added.front().id};
  spec.post_processor = bos_post_processor(spec.added.front());
  with_context(
      [&] { return format("what lines 1 to {} say together", lines.empty() ? 0 : lines.back()); },
      [&] { check_spec(spec, ErrorCode::kInvalidData); });
  return spec;
}

}  // namespace tessera

#include "tessera/tokenizer/tiktoken.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/tokenizer/tiktoken_families.h"

namespace tessera {
namespace {

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

// `text` begins with line `first`.
std::vector<Entry> parse_lines(std::string_view text, std::size_t first) {
  constexpr std::size_t kMaxShown = 60;
  // Published files leave out one rank at most. A table of all is made.
  constexpr std::size_t kMaxHoles = std::size_t{1} << 16U;
  std::vector<Entry> entries;
  for (std::size_t number = first; !text.empty(); ++number) {
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
    const std::size_t lowest = entries.empty() ? 0 : entries.back().rank + 1;
    TESSERA_REQUIRE(entry->rank >= lowest && entry->rank <= entries.size() + kMaxHoles,
                    ErrorCode::kInvalidData,
                    "line {} has the rank {}, expected {}: ranks rise",
                    number,
                    entry->rank,
                    lowest);
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
    if (lines[i] == 0) {
      continue;  // no rank
    }
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

// The line in front of the ranks that names their family: "# tiktoken o200k_base".
constexpr std::string_view kHeader = "# tiktoken ";

// Takes it off; empty: there is none.
std::string_view take_header(std::string_view& text) {
  return text.starts_with(kHeader) ? take_line(text).substr(kHeader.size()) : std::string_view();
}

// Errors: kInvalidData where neither header, name nor ranks say it, or name and ranks differ.
const TiktokenFamily& family_of(std::string_view header,
                                std::string_view file_name,
                                std::size_t num_ranks) {
  if (!header.empty()) {
    const TiktokenFamily* family = find_tiktoken_family(header);
    TESSERA_REQUIRE(family != nullptr,
                    ErrorCode::kInvalidData,
                    "line 1 names the tiktoken family \"{}\", expected one of {}",
                    header,
                    tiktoken_family_names());
    return *family;
  }
  const TiktokenFamily* named = tiktoken_family_of_name(file_name);
  const TiktokenFamily* counted = tiktoken_family_of_ranks(num_ranks);
  TESSERA_REQUIRE(
      named == nullptr || counted == nullptr || named->num_ranks == counted->num_ranks,
      ErrorCode::kInvalidData,
      "the lines are {} ranks, as {} has, but the file's name says {}: rename it, or put a first "
      "line \"{}NAME\" in front",
      num_ranks,
      counted == nullptr ? "" : counted->name,
      named == nullptr ? "" : named->name,
      kHeader);
  TESSERA_REQUIRE(
      named != nullptr || counted != nullptr,
      ErrorCode::kInvalidData,
      "a tiktoken file says neither its pattern nor its special tokens, and {} ranks and this "
      "file's "
      "name do not tell them: put a first line \"{}NAME\" in front, or NAME into the file's name, "
      "which is one of {}",
      num_ranks,
      kHeader,
      tiktoken_family_names());
  return named != nullptr ? *named : *counted;
}

}  // namespace

bool looks_like_tiktoken(std::string_view text) {
  return text.starts_with(kHeader) || parse_line(take_line(text)).has_value();
}

TokenizerSpec parse_tiktoken(std::string_view text, std::string_view file_name) {
  const std::string_view header = take_header(text);
  const std::vector<Entry> entries = parse_lines(text, header.empty() ? 1 : 2);
  const TiktokenFamily& family = family_of(header, file_name, entries.size());
  TokenizerSpec spec;
  std::vector<std::size_t> lines;  // of each token
  for (const Entry& entry : entries) {
    for (std::size_t hole = spec.tokens.size(); hole < entry.rank; ++hole) {
      spec.holes.push_back(static_cast<std::int32_t>(hole));
    }
    spec.tokens.resize(entry.rank + 1);
    spec.tokens.back() = entry.bytes;
    lines.resize(entry.rank + 1);
    lines.back() = entry.line;
  }
  add_merges(lines, spec);
  spec.ignore_merges = true;  // a word that is a token is taken whole
  add_tiktoken_family(family, spec);
  with_context(
      [&] { return format("what lines 1 to {} say together", lines.empty() ? 0 : lines.back()); },
      [&] {
        const std::vector<unsigned char> missing = missing_bytes(spec);
        TESSERA_REQUIRE(missing.empty(),
                        ErrorCode::kInvalidData,
                        "no token is the single byte 0x{:02X}: a tiktoken file has all 256",
                        missing.front());
        check_spec(spec, ErrorCode::kInvalidData);
      });
  return spec;
}

std::string tiktoken_with_family(std::string_view text, std::string_view file_name) {
  std::string_view rest = text;
  if (!take_header(rest).empty()) {
    return std::string(text);
  }
  const TiktokenFamily* named = tiktoken_family_of_name(file_name);
  const bool is_told =
      named == nullptr ||
      tiktoken_family_of_ranks(static_cast<std::size_t>(std::ranges::count(text, '\n'))) == named;
  return is_told ? std::string(text) : format("{}{}\n{}", kHeader, named->name, text);
}

}  // namespace tessera

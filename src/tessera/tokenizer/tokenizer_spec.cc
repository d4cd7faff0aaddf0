#include "tessera/tokenizer/tokenizer_spec.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "tessera/base/utf8.h"

namespace tessera {
namespace {

// The bytes of token `id`, which `user` names.
std::string_view token_of(const TokenizerSpec& spec,
                          std::int32_t id,
                          std::string_view user,
                          ErrorCode code) {
  TESSERA_REQUIRE(id >= 0 && static_cast<std::size_t>(id) < spec.tokens.size(),
                  code,
                  "{} has the id {}, but there are {} tokens",
                  user,
                  id,
                  spec.tokens.size());
  TESSERA_REQUIRE(!std::ranges::binary_search(spec.holes, id),
                  code,
                  "{} has the id {}, which belongs to no token",
                  user,
                  id);
  return spec.tokens[static_cast<std::size_t>(id)];
}

void check_merge(const TokenizerSpec& spec, const MergeRule& rule, ErrorCode code) {
  const std::string_view left = token_of(spec, rule.left, "the left side of a merge", code);
  const std::string_view right = token_of(spec, rule.right, "the right side of a merge", code);
  const std::string_view result = token_of(spec, rule.result, "the result of a merge", code);
  TESSERA_REQUIRE(result.size() == left.size() + right.size() && result.starts_with(left) &&
                      result.ends_with(right),
                  code,
                  "token {} is not tokens {} and {} joined, as a merge says",
                  rule.result,
                  rule.left,
                  rule.right);
}

void check_added(const TokenizerSpec& spec, const AddedToken& token, ErrorCode code) {
  const std::string_view bytes = token_of(spec, token.id, "an added token", code);
  TESSERA_REQUIRE(
      !bytes.empty() && bytes == token.content && valid_utf8_prefix(bytes) == bytes.size(),
      code,
      "added token {} is \"{}\", expected the text of token {}, valid UTF-8 and not empty",
      token.id,
      token.content,
      token.id);
}

void check_characters(const TokenizerSpec& spec, ErrorCode code) {
  TESSERA_REQUIRE(spec.byte_fallback || spec.unk,
                  code,
                  "characters that are no token need byte_fallback or an unknown token, found "
                  "neither");
  if (spec.unk) {
    token_of(spec, *spec.unk, "the unknown token", code);
  }
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    TESSERA_REQUIRE(valid_utf8_prefix(spec.tokens[i]) == spec.tokens[i].size(),
                    code,
                    "token {} is not valid UTF-8, expected characters",
                    i);
  }
}

int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                : -1;
}

}  // namespace

std::string byte_token(unsigned char byte) {
  return format("<0x{:02X}>", byte);
}

int byte_of_token(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') {
    return -1;
  }
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::vector<bool> are_added(const TokenizerSpec& spec) {
  std::vector<bool> result(spec.tokens.size());
  for (const AddedToken& token : spec.added) {
    result[static_cast<std::size_t>(token.id)] = true;
  }
  return result;
}

std::vector<unsigned char> missing_bytes(const TokenizerSpec& spec) {
  if (spec.alphabet == Alphabet::kCharacters && !spec.byte_fallback) {
    return {};
  }
  const std::vector<bool> added = are_added(spec);
  std::array<bool, 256> has_byte{};
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    const std::string& token = spec.tokens[i];
    if (added[i]) {
      continue;
    }
    if (spec.alphabet == Alphabet::kBytes && token.size() == 1) {
      has_byte[static_cast<unsigned char>(token[0])] = true;
    }
    if (const int byte = byte_of_token(token);
        spec.alphabet == Alphabet::kCharacters && byte >= 0) {
      has_byte[static_cast<std::size_t>(byte)] = true;
    }
  }
  std::vector<unsigned char> missing;
  for (std::size_t byte = 0; byte < has_byte.size(); ++byte) {
    if (!has_byte[byte]) {
      missing.push_back(static_cast<unsigned char>(byte));
    }
  }
  return missing;
}

std::string describe_bytes(const std::vector<unsigned char>& bytes) {
  std::string list;
  for (std::size_t i = 0; i < bytes.size();) {
    std::size_t end = i + 1;
    while (end < bytes.size() && bytes[end] == bytes[end - 1] + 1) {
      ++end;
    }
    const bool is_run = end - i > 2;
    list += format("{}0x{:02X}", list.empty() ? "" : ", ", bytes[i]);
    list += is_run ? format(" to 0x{:02X}", bytes[end - 1]) : "";
    i = is_run ? end : i + 1;
  }
  return format("{} byte{} ({})", bytes.size(), bytes.size() == 1 ? "" : "s", list);
}

void check_spec(const TokenizerSpec& spec, ErrorCode code) {
  for (const MergeRule& rule : spec.merges) {
    check_merge(spec, rule, code);
  }
  for (const AddedToken& token : spec.added) {
    check_added(spec, token, code);
  }
  for (const auto* ids : {&spec.before, &spec.after}) {
    for (const std::int32_t id : *ids) {
      token_of(spec, id, "a token of the post-processor", code);
    }
  }
  if (spec.alphabet == Alphabet::kCharacters) {
    check_characters(spec, code);
  }
}

}  // namespace tessera

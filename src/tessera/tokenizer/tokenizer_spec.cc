#include "tessera/tokenizer/tokenizer_spec.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "tessera/tokenizer/utf8.h"

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

}  // namespace

void check_spec(const TokenizerSpec& spec, ErrorCode code) {
  for (const MergeRule& rule : spec.merges) {
    check_merge(spec, rule, code);
  }
  std::vector<bool> is_added(spec.tokens.size());
  for (const AddedToken& token : spec.added) {
    check_added(spec, token, code);
    is_added[static_cast<std::size_t>(token.id)] = true;
  }
  std::array<bool, 256> has_byte{};
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    if (spec.tokens[i].size() == 1 && !is_added[i]) {
      has_byte[static_cast<unsigned char>(spec.tokens[i][0])] = true;
    }
  }
  const auto missing = std::ranges::find(has_byte, false);
  TESSERA_REQUIRE(missing == has_byte.end(),
                  code,
                  "no token is the single byte 0x{:02X}; a byte-level tokenizer has all 256",
                  missing - has_byte.begin());
}

}  // namespace tessera

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {

// Tokens `left` and `right` become `result`, whose bytes are theirs joined.
struct MergeRule {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;

  bool operator==(const MergeRule&) const = default;
};

// A token that text is searched for before it is cut and merged.
struct AddedToken {
  std::int32_t id;
  std::string content;
  bool special;     // a control token: found in text only if the caller asks for it
  bool normalized;  // kept for the file; without a normalizer it changes nothing

  bool operator==(const AddedToken&) const = default;
};

// What a byte-level BPE tokenizer consists of: what files are read into and training makes.
struct TokenizerSpec {
  std::vector<std::string> tokens;  // bytes by id, those of added tokens too; each byte is a token
  std::vector<MergeRule> merges;    // those that are applied first come first
  std::vector<AddedToken> added;    // in the order of ids
  std::string pattern;              // of the pre-tokens, as tokenizer.json writes it
  bool ignore_merges = false;       // a pre-token that is a token is taken whole
  std::string post_processor = "null";  // JSON; encode() does not run it, save() keeps it

  bool operator==(const TokenizerSpec&) const = default;
};

// Errors: `code`, if ids are out of range, a merge's result is not its sides joined, an added token
// is not text or not its token, or a byte has no token.
void check_spec(const TokenizerSpec& spec, ErrorCode code);

}  // namespace tessera

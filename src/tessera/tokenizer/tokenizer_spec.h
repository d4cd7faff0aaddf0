#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/tokenizer/added_tokens.h"

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
  bool normalized;  // searched for, itself normalized, in the text that the normalizer made
  AddedTokenRule rule = {};

  bool operator==(const AddedToken&) const = default;
};

// What a word is made of before anything is merged.
enum class Alphabet {
  kBytes,       // bytes, each of which is a token: GPT-2, Llama 3, Qwen
  kCharacters,  // characters; those that are no token become byte tokens or `unk`: Llama 2, Mistral
};

// One change to text before it is cut.
struct NormalizerStep {
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kPrepend, kReplace };

  Kind kind;
  std::string from;  // kReplace: what is replaced
  std::string to;    // kPrepend, kReplace: what is put there

  bool operator==(const NormalizerStep&) const = default;
};

// What becomes of the stretches of text that a pattern matches, and of those between them.
enum class SplitBehavior {
  kIsolated,            // each is a piece
  kRemoved,             // those between the matches are pieces, the matches are gone
  kMergedWithPrevious,  // a match is joined to what is before it
  kMergedWithNext,
  kContiguous,  // matches that touch are one piece
};

// How a tokenizer.json writes them, in their order.
inline constexpr std::array<std::string_view, 5> kSplitBehaviors = {
    "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};

// One cut of text into pieces: a step of a pre-tokenizer.
struct Split {
  std::string pattern;  // a regular expression
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // what lies between the matches counts as matches, and they do not
  bool in_byte_alphabet = false;  // it sees the byte-level alphabet's character for each byte

  bool operator==(const Split&) const = default;
};

// Spaces become a visible character, and words begin with it (SentencePiece's way).
struct Metaspace {
  enum class Prepend { kNever, kFirst, kAlways };

  std::string replacement;
  Prepend
      prepend;  // before a text that does not begin with it: which stretches between added tokens
  bool split;   // whether text is cut before each replacement

  bool operator==(const Metaspace&) const = default;
};

// One change to the written tokens on the way back to text.
struct DecoderStep {
  enum class Kind {
    kReplace,       // `from` by `to` in each token
    kByteFallback,  // runs of <0xNN> by the text of their bytes, or U+FFFD each
    kFuse,          // all tokens joined to one
    kStrip,         // up to `start` and `stop` of `from` off the ends of each token
    kMetaspace,     // `from` by a space; gone in the first token where `strip_first`
  };

  Kind kind;
  std::string from;
  std::string to;
  std::size_t start = 0;
  std::size_t stop = 0;
  bool strip_first = false;

  bool operator==(const DecoderStep&) const = default;
};

// What a BPE tokenizer consists of: what files are read into and training makes.
struct TokenizerSpec {
  Alphabet alphabet = Alphabet::kBytes;
  std::vector<std::string> tokens;  // by id; bytes, or characters as the file writes them
  std::vector<std::int32_t> holes;  // ids that belong to nothing, rising; their token is empty
  std::vector<MergeRule> merges;    // those that are applied first come first
  std::vector<AddedToken> added;    // in the order of ids
  std::vector<NormalizerStep> normalizer;
  std::vector<Split> splits;           // each cuts the pieces of the one before it
  std::optional<Metaspace> metaspace;  // kCharacters only
  std::vector<DecoderStep> decoder;    // kCharacters only: bytes are just joined
  std::optional<std::int32_t> unk;     // what bytes or characters without a token become
  bool fuse_unk = false;               // neighbours of them become one `unk`
  bool byte_fallback = false;          // kCharacters only: tokens <0x00> to <0xFF> stand for bytes
  bool ignore_merges = false;          // a word that is a token is taken whole
  bool merges_by_result = false;       // rules with one result rank alike, as in tiktoken
  std::vector<std::int32_t> before;    // what the post-processor puts around a text
  std::vector<std::int32_t> after;
  std::string post_processor = "null";  // JSON, which save() keeps

  bool operator==(const TokenizerSpec&) const = default;
};

// The token of a byte where `byte_fallback` is on: "<0x0A>".
std::string byte_token(unsigned char byte);

// The byte that such a token stands for; -1 if it is none.
int byte_of_token(const std::string& token);

// Whether each id is that of an added token.
std::vector<bool> are_added(const TokenizerSpec& spec);

// The bytes that have no token, neither their own nor <0xNN>: 13 that no UTF-8 has in
// GPT-NeoX-20B's vocabulary, more in others. Empty where bytes play no part.
std::vector<unsigned char> missing_bytes(const TokenizerSpec& spec);

// "13 bytes (0xC0, 0xC1, 0xF5 to 0xFF)".
std::string describe_bytes(const std::vector<unsigned char>& bytes);

// Errors: `code`, if ids are out of range, a merge's result is not its sides joined, or an added
// token is not text or not its token.
void check_spec(const TokenizerSpec& spec, ErrorCode code);

}  // namespace tessera

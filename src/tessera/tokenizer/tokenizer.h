#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

struct EncodeOptions {
  // Whether the text of a special token ("<|end_of_text|>") becomes that token. Off, it is text
  // like any other, as it must be for text that is not trusted.
  bool parse_special = false;
};

struct DecodeOptions {
  bool skip_special = true;
};

// A byte-level BPE tokenizer. A value: immutable, cheap to copy, and safe to use from several
// threads at once.
class Tokenizer {
 public:
  // Errors: kInvalidArgument if `spec` is not what TokenizerSpec says; kUnsupported or kInvalidData
  // if its pattern cannot be used.
  explicit Tokenizer(TokenizerSpec spec);

  // Reads a Hugging Face tokenizer.json. Errors name the file and the place in it: kInvalidData if
  // it is unreadable, broken or contradicts itself, kUnsupported if it asks for something that
  // would change results and does not exist here.
  static Tokenizer load(const std::filesystem::path& path);

  // Writes a tokenizer.json that Hugging Face loads, atomically. Errors: kDeviceError.
  void save(const std::filesystem::path& path) const;

  // Number of tokens, added ones included: ids are 0 to vocab_size() - 1.
  std::int32_t vocab_size() const;

  // The tokens of `text`, any bytes; no BOS or EOS is added. Added tokens that are not special are
  // found in the text always. decode() of the result is `text`.
  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  // The same, appended to `out`.
  void encode(std::string_view text,
              std::vector<std::int32_t>& out,
              EncodeOptions options = {}) const;

  // The same in parts of bounded size, one after the other: for texts whose tokens are not to be in
  // memory together.
  void encode(std::string_view text,
              const std::function<void(std::span<const std::int32_t>)>& sink,
              EncodeOptions options = {}) const;

  // The bytes of the tokens, joined; they need not be valid UTF-8 (see Utf8Stream).
  // Errors: kInvalidArgument naming the place of an id that is no token's.
  std::string decode(std::span<const std::int32_t> ids, DecodeOptions options = {}) const;

  // The tokens that begin and end a document: special tokens, found by the names that published
  // tokenizers use (see kBosNames and kEosNames in the source file).
  std::optional<std::int32_t> bos() const;
  std::optional<std::int32_t> eos() const;

  // The bytes of one token; the view lives as long as the tokenizer. Errors: kInvalidArgument.
  std::string_view token_bytes(std::int32_t id) const;

  bool is_special(std::int32_t id) const;

  const TokenizerSpec& spec() const;

 private:
  struct State;
  // Shared by copies: it never changes.
  std::shared_ptr<const State> state_;
};

}  // namespace tessera

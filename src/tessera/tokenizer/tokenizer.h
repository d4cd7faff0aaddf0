#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer/text_marks.h"
#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

struct EncodeOptions {
  // Whether the text of a special token ("<|end_of_text|>") becomes that token. Off, it is text
  // like any other, as it must be for text that is not trusted.
  bool parse_special = false;
  // Whether what the tokenizer puts around a text is added: TextMarks' `before` (BOS, mostly) and
  // `after`.
  bool add_special = false;
  // Whether the text goes on behind a place that find_cut() gave: then it is not the beginning of
  // one, which many tokenizers put a space in front of.
  bool continues = false;
};

struct DecodeOptions {
  bool skip_special = true;
  // Whether the ids go on a text rather than begin one: a space at its front, which SentencePiece's
  // tokenizers drop there, is kept, and bytes come as they are, as Utf8Stream wants them.
  bool continues = false;
};

class TokenizerImpl;

// A tokenizer. A value: immutable, cheap to copy, and safe to use from several threads at once.
class Tokenizer {
 public:
  // Errors: kInvalidArgument if `spec` is not what TokenizerSpec says; kUnsupported or kInvalidData
  // if its pattern cannot be used.
  explicit Tokenizer(TokenizerSpec spec);

  // Reads a tokenizer of any known form (docs/formats.md), told by what is in it: a Hugging Face
  // tokenizer.json, a tiktoken or a SentencePiece .model, GPT-2's encoder.json with the vocab.bpe
  // beside it, or a directory with one of them. Its marks are those of read_text_marks(). Errors
  // name the file and the place in it:
  // kInvalidData if it is unreadable, broken or contradicts itself, kUnsupported if it asks for
  // something that would change results and does not exist here.
  static Tokenizer load(const std::filesystem::path& path);

  // The same tokenizer for a model that has rows for ids below `vocab` alone: encode() of a text
  // that has another token is kInvalidData naming it.
  Tokenizer within(std::int64_t vocab) const;

  // Ids below it are what a model takes of this tokenizer: vocab_size(), or less by within().
  std::int32_t id_limit() const { return id_limit_; }

  // Writes a tokenizer.json that Hugging Face loads, atomically. Errors: kDeviceError; kUnsupported
  // for a SentencePiece model, which is its own file.
  void save(const std::filesystem::path& path) const;

  // The largest id, added tokens included, and 1: ids are 0 to vocab_size() - 1, all but holes().
  std::int32_t vocab_size() const;

  // Ids in this range that belong to no token, rising. encode() never gives one, and asking for
  // what it stands for is an error.
  std::span<const std::int32_t> holes() const;

  // The tokens of `text`, any bytes; no BOS or EOS is added unless `options` say so. Added tokens
  // that are not special are found in the text always. decode() of the result is `text` if
  // is_lossless(); otherwise what the tokenizer's reference implementation gives, for which bytes
  // that are not UTF-8 are U+FFFD. SentencePiece's tokenizers take at most 16 MiB of a text that
  // has no place to cut (a .model 1 MiB): a run of one letter, say. Beyond, tokens may be others
  // than the reference's where it is cut all the same.
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

  // A place, not behind byte `most`, at which a long text may be cut: encode(front) and
  // encode(rest) with `continues`, joined, are encode(text). 0 where there is none, and for
  // tokenizers that do not know. It is the last place of all, or, for a unigram model, whose sums
  // over a long text are rounded as no part's are, the first one behind 256 KiB, where encode()
  // cuts as well: there the front must be what such a place gave before. Neither part is parsed for
  // special tokens.
  std::size_t find_cut(std::string_view text, std::size_t most) const;

  // The text of the tokens. That of a byte-level tokenizer is their bytes, joined, which need not
  // be valid UTF-8 (see Utf8Stream).
  // Errors: kInvalidArgument naming the place of an id that is no token's.
  std::string decode(std::span<const std::int32_t> ids, DecodeOptions options = {}) const;

  // What stands around texts. Of a tokenizer that is not loaded, what its post-processor puts
  // there, and special tokens found by the names that published tokenizers use (kBosNames,
  // kEosNames in bpe_tokenizer.cc).
  const TextMarks& marks() const { return *marks_; }

  // The marks of its file alone.
  TextMarks own_marks() const;

  // The same tokenizer with other marks. Errors: kInvalidArgument for an id that is no token's.
  Tokenizer with_marks(TextMarks marks) const;

  // What is called BOS, and the token that stands after a document.
  std::optional<std::int32_t> bos() const { return marks_->bos; }

  std::optional<std::int32_t> eos() const;

  // The token that its file writes so: a special one, if any.
  std::optional<std::int32_t> find(std::string_view spelling) const;

  // The bytes of one token inside a text; the view lives as long as the tokenizer. Errors:
  // kInvalidArgument.
  std::string_view token_bytes(std::int32_t id) const;

  bool is_special(std::int32_t id) const;

  // How its file writes a token. Errors: kInvalidArgument.
  std::string spelling(std::int32_t id) const;

  // What it is, in words: "byte-level BPE".
  std::string kind() const;

  // Whether decode(encode(text)) is `text` for every text.
  bool is_lossless() const;

  // Whether there is a spec(): a SentencePiece model has none.
  bool has_spec() const;

  // Errors: kUnsupported where there is none.
  const TokenizerSpec& spec() const;

 private:
  explicit Tokenizer(std::shared_ptr<const TokenizerImpl> impl);

  // Shared by copies: it never changes.
  std::shared_ptr<const TokenizerImpl> impl_;
  std::shared_ptr<const TextMarks> marks_;
  std::int32_t id_limit_;
};

}  // namespace tessera

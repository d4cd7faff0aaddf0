#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// Where the tokens of a text go: to the end of a vector.
struct TokenOutput {
  // Takes the ids that are in the vector and empties it.
  using Flush = std::function<void(std::vector<std::int32_t>&)>;

  // From how many ids on it is called.
  static constexpr std::size_t kPartTokens = std::size_t{1} << 16U;

  std::vector<std::int32_t>& ids;
  const Flush* flush = nullptr;  // null: all tokens stay in the vector

  void flush_if_many() const {
    if (flush != nullptr && ids.size() >= kPartTokens) [[unlikely]] {
      (*flush)(ids);
    }
  }
};

// What stands behind a Tokenizer: one kind of model. Immutable and shared by threads.
class TokenizerImpl {
 public:
  TokenizerImpl() = default;
  TokenizerImpl(const TokenizerImpl&) = delete;
  TokenizerImpl& operator=(const TokenizerImpl&) = delete;
  TokenizerImpl(TokenizerImpl&&) = delete;
  TokenizerImpl& operator=(TokenizerImpl&&) = delete;
  virtual ~TokenizerImpl() = default;

  virtual std::int32_t vocab_size() const = 0;

  // Appends the tokens of `text`, without marks; calls out.flush_if_many() now and then.
  virtual void encode(std::string_view text,
                      EncodeOptions options,
                      const TokenOutput& out) const = 0;

  // As Tokenizer::find_cut().
  virtual std::size_t find_cut(std::string_view text, std::size_t most) const = 0;

  // The text of ids that are in range and wanted.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  // The bytes of a token inside a text.
  virtual std::string_view token_bytes(std::int32_t id) const = 0;

  // How its file writes the token.
  virtual std::string spelling(std::int32_t id) const = 0;

  virtual bool is_special(std::int32_t id) const = 0;

  // What its own file says.
  virtual TextMarks marks() const = 0;

  // In words: "byte-level BPE".
  virtual std::string kind() const = 0;

  // Whether decode(encode(text)) is `text` for all bytes.
  virtual bool is_lossless() const = 0;

  // Ids in range that belong to no token, rising.
  virtual std::span<const std::int32_t> holes() const = 0;

  // Null where there is none.
  virtual const TokenizerSpec* spec() const = 0;
};

}  // namespace tessera

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// What a word is before anything is merged: the token of each byte or character.
class SymbolTable {
 public:
  explicit SymbolTable(const TokenizerSpec& spec);

  // Where the first byte of a word is that has no token, if nothing else stands for it; npos where
  // the word can be encoded.
  std::size_t find_missing(std::string_view word) const;

  // Appends the tokens of `word`, which is valid UTF-8 if it is made of characters, and has no
  // missing byte.
  void split(std::string_view word, std::vector<std::int32_t>& symbols) const;

 private:
  void add_token(const std::string& token, std::int32_t id);
  std::string_view front(std::string_view word) const;
  std::int32_t find_character(std::string_view character) const;
  bool has_bytes(std::string_view bytes) const;
  void split_bytes(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void split_characters(std::string_view word, std::vector<std::int32_t>& symbols) const;

  Alphabet alphabet_;
  bool byte_fallback_;
  bool fuse_unk_;
  std::int32_t unk_;                          // -1: none
  bool lacks_bytes_ = false;                  // some of byte_ids_ are -1
  std::array<std::int32_t, 256> byte_ids_{};  // -1: none
  std::vector<std::int32_t> character_ids_;   // by code point; -1: none
};

}  // namespace tessera

#include "tessera/tokenizer/symbol_table.h"

#include <algorithm>

#include "tessera/base/utf8.h"

namespace tessera {

SymbolTable::SymbolTable(const TokenizerSpec& spec)
    : alphabet_(spec.alphabet),
      byte_fallback_(spec.byte_fallback),
      fuse_unk_(spec.fuse_unk),
      unk_(spec.unk.value_or(-1)) {
  byte_ids_.fill(-1);
  const std::vector<bool> added = are_added(spec);
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    if (!added[i]) {
      add_token(spec.tokens[i], static_cast<std::int32_t>(i));
    }
  }
  lacks_bytes_ = std::ranges::count(byte_ids_, -1) > 0;
}

void SymbolTable::add_token(const std::string& token, std::int32_t id) {
  if (alphabet_ == Alphabet::kBytes) {
    if (token.size() == 1) {
      byte_ids_[static_cast<unsigned char>(token[0])] = id;
    }
    return;
  }
  if (const int byte = byte_of_token(token); byte_fallback_ && byte >= 0) {
    byte_ids_[static_cast<std::size_t>(byte)] = id;
  }
  if (!token.empty() && front_utf8(token).size == token.size()) {
    const auto point = static_cast<std::size_t>(code_point_of(token));
    character_ids_.resize(std::max(character_ids_.size(), point + 1), -1);
    character_ids_[point] = id;
  }
}

// What is looked up at once: a byte, or a character.
std::string_view SymbolTable::front(std::string_view word) const {
  return word.substr(0, alphabet_ == Alphabet::kBytes ? 1 : front_utf8(word).size);
}

// -1 where it is no token, or bytes are.
std::int32_t SymbolTable::find_character(std::string_view character) const {
  if (alphabet_ == Alphabet::kBytes) {
    return -1;
  }
  const auto point = static_cast<std::size_t>(code_point_of(character));
  return point < character_ids_.size() ? character_ids_[point] : -1;
}

bool SymbolTable::has_bytes(std::string_view bytes) const {
  return (alphabet_ == Alphabet::kBytes || byte_fallback_) &&
         std::ranges::all_of(
             bytes, [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)] >= 0; });
}

std::size_t SymbolTable::find_missing(std::string_view word) const {
  if (!lacks_bytes_ || unk_ >= 0) {
    return std::string_view::npos;
  }
  for (std::size_t at = 0; at < word.size();) {
    const std::string_view character = front(word.substr(at));
    for (std::size_t i = 0; i < character.size() && find_character(character) < 0; ++i) {
      if (!has_bytes(character.substr(i, 1))) {
        return at + i;
      }
    }
    at += character.size();
  }
  return std::string_view::npos;
}

void SymbolTable::split(std::string_view word, std::vector<std::int32_t>& symbols) const {
  if (alphabet_ == Alphabet::kBytes && !lacks_bytes_) {
    split_bytes(word, symbols);
  } else {
    split_characters(word, symbols);
  }
}

void SymbolTable::split_bytes(std::string_view word, std::vector<std::int32_t>& symbols) const {
  for (const char byte : word) {
    symbols.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
  }
}

void SymbolTable::split_characters(std::string_view word,
                                   std::vector<std::int32_t>& symbols) const {
  bool after_unknown = false;
  while (!word.empty()) {
    const std::string_view character = front(word);
    word.remove_prefix(character.size());
    const std::int32_t id = find_character(character);
    const bool is_unknown = id < 0 && !has_bytes(character);
    if (id >= 0) {
      symbols.push_back(id);
    } else if (!is_unknown) {
      split_bytes(character, symbols);
    } else if (!after_unknown || !fuse_unk_) {
      symbols.push_back(unk_);
    }
    after_unknown = is_unknown;
  }
}

}  // namespace tessera

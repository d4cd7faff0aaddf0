#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/tokenizer/merge_symbols.h"
#include "tessera/tokenizer/merge_table.h"
#include "tessera/tokenizer/symbol_table.h"
#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Merges the bytes or characters of one pre-token into tokens, as merge_symbols() does.
class BpeModel {
 public:
  // Keeps views of the tokens of `spec`, which must outlive it.
  explicit BpeModel(const TokenizerSpec& spec);

  // As SymbolTable::find_missing().
  std::size_t find_missing(std::string_view word) const { return symbols_.find_missing(word); }

  // Appends the tokens of `word`, which is not empty, valid UTF-8 if it is made of characters, and
  // has no missing byte.
  void encode_word(std::string_view word,
                   MergeScratch& scratch,
                   std::vector<std::int32_t>& out) const;

  // The same of a part of a word, which is merged even if a token has its bytes and ignore_merges.
  void merge_word(std::string_view word,
                  MergeScratch& scratch,
                  std::vector<std::int32_t>& out) const;

 private:
  SymbolTable symbols_;
  MergeTable merges_;
  std::unordered_map<std::string_view, std::int32_t> whole_words_;  // only with ignore_merges
};

}  // namespace tessera

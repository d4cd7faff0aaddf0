#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/tokenizer/bpe_model.h"
#include "tessera/tokenizer/merge_symbols.h"
#include "tessera/tokenizer/tokenizer_impl.h"
#include "tessera/tokenizer/tokenizer_spec.h"
#include "tessera/tokenizer/word_cache.h"

namespace tessera {

// Turns words into tokens. Remembers those of short words, which changes no result, and merges long
// words in blocks. Safe to use from several threads at once.
class WordEncoder {
 public:
  // Keeps views of `spec`, which must outlive it.
  explicit WordEncoder(const TokenizerSpec& spec);

  // The words of one text, which come in order.
  class Text {
   public:
    // Keeps views of all three.
    Text(const WordEncoder& encoder, std::string_view text, const TokenOutput& out);
    ~Text();

    Text(const Text&) = delete;
    Text& operator=(const Text&) = delete;

    // Appends the tokens of a word. Bytes up to `readable_end` may be read. Errors: kInvalidData
    // for a byte that no token stands for.
    void add(std::string_view word, const char* readable_end) {
      out_.flush_if_many();
      if (word.size() > WordCache::kMaxWordBytes) {
        add_long(word);
        return;
      }
      const WordCache::Key key = WordCache::key_of(word, readable_end);
      WordCache::Entry& place = cache_.place_of(key);
      if (place.key == key) [[likely]] {
        out_.ids.insert(out_.ids.end(), place.ids.begin(), place.ids.begin() + place.num_ids);
        return;
      }
      add_new(word, key, place);
    }

    // Appends a token that is found in the text rather than made of words.
    void add_token(std::int32_t id) { out_.ids.push_back(id); }

   private:
    void add_new(std::string_view word, const WordCache::Key& key, WordCache::Entry& place);
    void add_long(std::string_view word);
    void require_bytes(std::string_view word) const;

    const WordEncoder& encoder_;
    std::string_view text_;
    TokenOutput out_;
    WordCaches::Loan loan_;
    WordCache& cache_ = loan_.front();
    MergeScratch scratch_;
  };

 private:
  const TokenizerSpec& spec_;
  BpeModel model_;
  bool merges_in_blocks_;
  mutable WordCaches caches_;
};

}  // namespace tessera

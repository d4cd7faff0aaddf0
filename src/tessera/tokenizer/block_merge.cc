#include "tessera/tokenizer/block_merge.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/tokenizer/text_parts.h"

namespace tessera {
namespace {

// Whether it stands for one byte of a character that is no token.
bool is_byte_token(const TokenizerSpec& spec, const std::string& token) {
  return spec.alphabet == Alphabet::kCharacters && byte_of_token(token) >= 0;
}

// One long word.
class BlockMerge {
 public:
  BlockMerge(const TokenizerSpec& spec, const BpeModel& model, MergeScratch& scratch)
      : spec_(spec), model_(model), scratch_(scratch) {}

  void run(std::string_view word, const TokenOutput& out) {
    std::size_t size = block_of(word).size();
    merge_block(word.substr(0, size), block_);
    while (size < word.size()) {
      const std::size_t kept = find_block_end(word, size);
      if (kept == 0) {
        size = block_of(word, 2 * size).size();
        merge_block(word.substr(0, size), block_);
        continue;
      }
      for (const std::int32_t id : std::span(block_).first(kept)) {
        out.ids.push_back(id);
        word.remove_prefix(bytes_of(id));
      }
      out.flush_if_many();
      size = block_of(word).size();
      block_.swap(next_block_);
    }
    out.ids.insert(out.ids.end(), block_.begin(), block_.end());
  }

 private:
  // How many tokens of block_, which are those of the first `size` bytes, stay when the word goes
  // on, with next_block_ behind them; 0 where none is known to. Each token is what its own bytes
  // become whatever is beside them, and every pair of neighbours what the bytes of both do, as in
  // the tokens of the whole: were two of them merged there at any step, so they would be at the
  // same step of the merges of their bytes alone, since other tokens' merges do not touch them.
  std::size_t find_block_end(std::string_view word, std::size_t size) {
    constexpr std::size_t kUnsure = 4;  // the last tokens, which would often become others
    constexpr std::size_t kMaxTries = 64;
    const std::size_t fewest = block_.size() - std::min(block_.size(), kUnsure + kMaxTries);
    std::size_t end = size;
    for (std::size_t kept = block_.size(); kept-- > std::max<std::size_t>(fewest, 1);) {
      end -= bytes_of(block_[kept]);
      const std::size_t begin = end - bytes_of(block_[kept - 1]);
      if (kept + kUnsure > block_.size() || !ends_character(word, end) ||
          !ends_character(word, begin)) {
        continue;
      }
      merge_block(block_of(word.substr(end)), next_block_);
      const std::size_t behind = end + bytes_of(next_block_.front());
      if (!ends_character(word, behind)) {
        continue;
      }
      merge_block(word.substr(begin, behind - begin), pair_);
      if (pair_.size() == 2 && pair_.front() == block_[kept - 1] &&
          pair_.back() == next_block_.front()) {
        return kept;
      }
    }
    return 0;
  }

  // Whether no character of a word of characters is cut before byte `at`.
  bool ends_character(std::string_view word, std::size_t at) const {
    constexpr unsigned kKind = 0xC0;
    constexpr unsigned kContinuation = 0x80;
    return spec_.alphabet == Alphabet::kBytes || at >= word.size() ||
           (static_cast<unsigned char>(word[at]) & kKind) != kContinuation;
  }

  std::string_view block_of(std::string_view word, std::size_t bytes = kPartBytes) const {
    std::size_t end = std::min(bytes, word.size());
    while (!ends_character(word, end)) {
      --end;
    }
    return word.substr(0, end);
  }

  void merge_block(std::string_view bytes, std::vector<std::int32_t>& ids) {
    ids.clear();
    model_.merge_word(bytes, scratch_, ids);
  }

  // Of what a token stands for in a word.
  std::size_t bytes_of(std::int32_t id) const {
    const std::string& token = spec_.tokens[static_cast<std::size_t>(id)];
    return is_byte_token(spec_, token) ? 1 : token.size();
  }

  const TokenizerSpec& spec_;
  const BpeModel& model_;
  MergeScratch& scratch_;
  std::vector<std::int32_t> block_, next_block_, pair_;
};

}  // namespace

bool merges_in_blocks(const TokenizerSpec& spec) {
  if (spec.unk && !missing_bytes(spec).empty()) {
    return false;
  }
  const bool are_bytes_alone = std::ranges::none_of(spec.merges, [&](const MergeRule& rule) {
    return is_byte_token(spec, spec.tokens[static_cast<std::size_t>(rule.result)]);
  });
  return spec.alphabet == Alphabet::kBytes || (spec.byte_fallback && are_bytes_alone);
}

void merge_in_blocks(const TokenizerSpec& spec,
                     const BpeModel& model,
                     std::string_view word,
                     MergeScratch& scratch,
                     const TokenOutput& out) {
  BlockMerge(spec, model, scratch).run(word, out);
}

}  // namespace tessera

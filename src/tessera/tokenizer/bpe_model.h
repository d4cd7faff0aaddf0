#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// The merge rules, found by their pair: an open-addressing table.
class MergeTable {
 public:
  struct Match {
    std::uint32_t rank;  // kNone: the pair does not merge
    std::int32_t result;
  };

  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  // With `by_result`, a rule ranks with the first that makes the same token.
  MergeTable(std::span<const MergeRule> rules, bool by_result);

  Match find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      const Slot& entry = slots_[slot];
      if (entry.key == key || entry.match.rank == kNone) {
        return entry.match;
      }
    }
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    Match match{.rank = kNone, .result = 0};
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32U |
           static_cast<std::uint32_t>(right);
  }

  std::size_t slot_of(std::uint64_t key) const {
    // Fibonacci hashing: 2^64 / golden ratio.
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> shift_);
  }

  std::size_t mask_;
  unsigned shift_;
  std::vector<Slot> slots_;
};

// Merges the bytes or characters of one pre-token into tokens: while any pair of neighbours has a
// rule, the one with the first rule is merged, the leftmost of equals first.
class BpeModel {
 public:
  // Memory that one thread reuses from word to word.
  struct Scratch {
    struct Part {
      std::int32_t id;
      std::uint32_t rank;  // of the rule that merges this part with the next
      std::int32_t result;
    };

    struct Link {
      std::int32_t id;
      std::size_t previous;
      std::size_t next;
    };

    struct Candidate {
      std::uint32_t rank;
      std::int32_t left_id;
      std::int32_t right_id;
      std::int32_t result;
      std::size_t left;
    };

    std::vector<std::int32_t> symbols;
    std::vector<Part> parts;
    std::vector<Link> links;
    std::vector<Candidate> heap;
  };

  // Keeps views of the tokens of `spec`, which must outlive it.
  explicit BpeModel(const TokenizerSpec& spec);

  // Where the first byte of a word is that has no token, if nothing else stands for it; npos where
  // the word can be encoded.
  std::size_t find_missing(std::string_view word) const;

  // Appends the tokens of `word`, which is not empty, valid UTF-8 if it is made of characters, and
  // has no missing byte.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const;

  // The same of a part of a word, which is merged even if a token has its bytes and ignore_merges.
  void merge_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const;

 private:
  void add_token(const std::string& token, std::int32_t id, bool as_whole_word);
  std::string_view front(std::string_view word) const;
  std::int32_t find_character(std::string_view character) const;
  bool has_bytes(std::string_view bytes) const;
  void split_bytes(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void split(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void merge_short(Scratch& scratch, std::vector<std::int32_t>& out) const;
  void merge_long(Scratch& scratch, std::vector<std::int32_t>& out) const;
  void push_candidate(Scratch& scratch, std::size_t left) const;

  Alphabet alphabet_;
  bool byte_fallback_;
  bool fuse_unk_;
  std::int32_t unk_;  // -1: none
  MergeTable merges_;
  bool lacks_bytes_ = false;                                        // some of byte_ids_ are -1
  std::array<std::int32_t, 256> byte_ids_{};                        // -1: none
  std::vector<std::int32_t> character_ids_;                         // by code point; -1: none
  std::unordered_map<std::string_view, std::int32_t> whole_words_;  // only with ignore_merges
};

}  // namespace tessera

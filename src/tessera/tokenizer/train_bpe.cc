#include "tessera/tokenizer/train_bpe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/utf8.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/tokenizer/tokenizer_json.h"

namespace tessera {
namespace {

constexpr std::int32_t kNumBytes = 256;

// The different pre-tokens of a text, each once with its number of occurrences, as one array of
// symbols with gaps: a merge writes the new symbol to the left place and empties the right one.
class Words {
 public:
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

  struct Place {
    std::int32_t symbol;
    std::size_t previous;  // in the same word, or kNowhere
    std::size_t next;
    std::int64_t count;  // occurrences of the word
  };

  Words(std::string_view text, const std::array<std::int32_t, kNumBytes>& id_of_byte) {
    std::unordered_map<std::string_view, std::size_t> index_of;
    std::vector<std::pair<std::string_view, std::int64_t>> counts;  // in order of first occurrence
    PreTokenizer(Split{.pattern = std::string(kLlama3Pattern)})
        .split(text, [&](std::string_view word) {
          const auto [entry, is_new] = index_of.try_emplace(word, counts.size());
          if (is_new) {
            counts.emplace_back(word, 0);
          }
          ++counts[entry->second].second;
        });
    for (const auto& [word, count] : counts) {
      for (std::size_t i = 0; i < word.size(); ++i) {
        const std::size_t at = places_.size();
        places_.push_back({.symbol = id_of_byte[static_cast<unsigned char>(word[i])],
                           .previous = i == 0 ? kNowhere : at - 1,
                           .next = i + 1 == word.size() ? kNowhere : at + 1,
                           .count = count});
      }
    }
  }

  std::size_t size() const { return places_.size(); }

  const Place& operator[](std::size_t i) const { return places_[i]; }

  // Makes `symbol` of the symbols at `left` and behind it.
  void merge(std::size_t left, std::int32_t symbol) {
    const std::size_t right = places_[left].next;
    const std::size_t next = places_[right].next;
    places_[left].symbol = symbol;
    places_[left].next = next;
    places_[right].symbol = -1;
    if (next != kNowhere) {
      places_[next].previous = left;
    }
  }

 private:
  std::vector<Place> places_;
};

using Pair = std::pair<std::int32_t, std::int32_t>;

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    const std::uint64_t key = std::uint64_t{static_cast<std::uint32_t>(pair.first)} << 32U |
                              static_cast<std::uint32_t>(pair.second);
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> 16U);
  }
};

// Counts pairs and finds the most frequent one. All places of a pair are known once the later of
// its symbols has been made everywhere, and are in text order; after that its count only falls.
class PairCounts {
 public:
  explicit PairCounts(Words& words) : words_(words) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      add(i);
    }
    queue_new_pairs();
  }

  // Takes the most frequent pair; false if none is left.
  bool pop(Pair& best) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const std::int64_t count = uses_.at(top.pair).count;
      if (count == top.count) {
        best = top.pair;
        return true;
      }
      if (count > 0) {
        queue_.push({.count = count, .pair = top.pair});
      }
    }
    return false;
  }

  // Makes `symbol` of every `pair`, from left to right in each word.
  void merge(const Pair& pair, std::int32_t symbol) {
    const std::vector<std::size_t> places = std::move(uses_.at(pair).places);
    for (const std::size_t left : places) {
      if (pair_at(left) != pair) {
        continue;  // another merge took one of the two
      }
      const std::size_t previous = words_[left].previous;
      remove(previous);
      remove(left);
      remove(words_[left].next);
      words_.merge(left, symbol);
      add(previous);
      add(left);
    }
    uses_.erase(pair);
    queue_new_pairs();
  }

 private:
  struct Uses {
    std::int64_t count = 0;
    std::vector<std::size_t> places;  // of the left symbol; some may be gone
  };

  struct Candidate {
    std::int64_t count;
    Pair pair;

    // The order of the queue: what comes first is greatest.
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  static constexpr Pair kNoPair{-1, -1};

  Pair pair_at(std::size_t left) const {
    if (left == Words::kNowhere || words_[left].next == Words::kNowhere) {
      return kNoPair;
    }
    return {words_[left].symbol, words_[words_[left].next].symbol};
  }

  void remove(std::size_t left) {
    if (const Pair pair = pair_at(left); pair != kNoPair) {
      uses_.at(pair).count -= words_[left].count;
    }
  }

  void add(std::size_t left) {
    const Pair pair = pair_at(left);
    if (pair == kNoPair) {
      return;
    }
    const auto [entry, is_new] = uses_.try_emplace(pair);
    entry->second.count += words_[left].count;
    entry->second.places.push_back(left);
    if (is_new) {
      new_pairs_.push_back(pair);
    }
  }

  void queue_new_pairs() {
    for (const Pair& pair : new_pairs_) {
      if (const std::int64_t count = uses_.at(pair).count; count > 0) {
        queue_.push({.count = count, .pair = pair});
      }
    }
    new_pairs_.clear();
  }

  Words& words_;
  std::unordered_map<Pair, Uses, PairHash> uses_;
  std::vector<Pair> new_pairs_;
  std::priority_queue<Candidate> queue_;
};

void check_options(const TrainBpeOptions& options) {
  const auto num_special = static_cast<std::int32_t>(options.special_tokens.size());
  TESSERA_REQUIRE(options.vocab_size >= kNumBytes + num_special,
                  ErrorCode::kInvalidConfig,
                  "{} is {}, but the {} bytes and {} special tokens need at least {}",
                  options.vocab_size_name,
                  options.vocab_size,
                  kNumBytes,
                  num_special,
                  kNumBytes + num_special);
  std::unordered_set<std::string_view> seen;
  for (const std::string& token : options.special_tokens) {
    TESSERA_REQUIRE(!token.empty() && valid_utf8_prefix(token) == token.size(),
                    ErrorCode::kInvalidConfig,
                    "the special token \"{}\" is empty or not valid UTF-8",
                    token);
    TESSERA_REQUIRE(seen.insert(token).second,
                    ErrorCode::kInvalidConfig,
                    "the special token \"{}\" is given twice",
                    token);
  }
}

void add_special_tokens(const TrainBpeOptions& options, TokenizerSpec& spec) {
  std::unordered_set<std::string> spellings;
  for (const std::string& bytes : spec.tokens) {
    spellings.insert(to_byte_level(bytes));
  }
  // Merges treat equal stretches of text alike, so no two of them make the same token.
  TESSERA_CHECK(spellings.size() == spec.tokens.size(), "{} spellings", spellings.size());
  for (const std::string& content : options.special_tokens) {
    TESSERA_REQUIRE(!spellings.contains(content),
                    ErrorCode::kInvalidConfig,
                    "the special token \"{}\" is what an ordinary token is called; choose a name "
                    "that text does not contain",
                    content);
    spec.added.push_back({.id = static_cast<std::int32_t>(spec.tokens.size()),
                          .content = content,
                          .special = true,
                          .normalized = false});
    spec.tokens.push_back(content);
  }
}

}  // namespace

Tokenizer train_bpe(std::string_view text, const TrainBpeOptions& options) {
  check_options(options);
  TokenizerSpec spec;
  spec.splits.push_back({.pattern = std::string(kLlama3Pattern)});
  std::array<std::int32_t, kNumBytes> id_of_byte{};
  for (const std::uint8_t byte : byte_level_order()) {
    id_of_byte[byte] = static_cast<std::int32_t>(spec.tokens.size());
    spec.tokens.emplace_back(1, static_cast<char>(byte));
  }

  Words words(text, id_of_byte);
  PairCounts pairs(words);
  const auto num_special = static_cast<std::int32_t>(options.special_tokens.size());
  const std::int32_t first_special = options.vocab_size - num_special;
  for (std::int32_t id = kNumBytes; id < first_special; ++id) {
    Pair pair;
    TESSERA_REQUIRE(pairs.pop(pair),
                    ErrorCode::kInvalidConfig,
                    "{} is {}, but the text ({} bytes) allows {} merges only: use at most {}, or "
                    "more text",
                    options.vocab_size_name,
                    options.vocab_size,
                    text.size(),
                    id - kNumBytes,
                    id + num_special);
    pairs.merge(pair, id);
    spec.merges.push_back({.left = pair.first, .right = pair.second, .result = id});
    spec.tokens.push_back(spec.tokens[static_cast<std::size_t>(pair.first)] +
                          spec.tokens[static_cast<std::size_t>(pair.second)]);
  }

  add_special_tokens(options, spec);
  if (const auto bos = Tokenizer(spec).bos()) {
    spec.before = {*bos};
    spec.post_processor =
        bos_post_processor(spec.added[static_cast<std::size_t>(*bos - first_special)]);
  }
  return Tokenizer(std::move(spec));
}

}  // namespace tessera

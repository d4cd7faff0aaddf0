#include "tessera/tokenizer/train_bpe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <queue>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/units.h"
#include "tessera/base/utf8.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/tokenizer/tokenizer_json.h"

namespace tessera {
namespace {

constexpr std::int32_t kNumBytes = 256;

// The last place up to byte `at` where a character of a valid text begins.
std::size_t character_begin(std::string_view text, std::size_t at) {
  constexpr unsigned kKind = 0xC0;
  constexpr unsigned kContinuation = 0x80;
  const std::size_t limit = at - std::min<std::size_t>(at, 3);
  std::size_t begin = at;
  while (begin > limit && (static_cast<unsigned char>(text[begin]) & kKind) == kContinuation) {
    --begin;
  }
  return begin;
}

// The different pre-tokens of a text, in the order of their first occurrence.
struct CountedWord {
  std::string_view text;
  std::int64_t count;
};

std::vector<CountedWord> count_words(std::string_view text) {
  std::unordered_map<std::string_view, std::size_t> index_of;
  std::vector<CountedWord> words;
  const auto count = [&](std::string_view word) {
    const auto [entry, is_new] = index_of.try_emplace(word, words.size());
    if (is_new) {
      words.push_back({.text = word, .count = 0});
    }
    ++words[entry->second].count;
  };
  PreTokenizer(Split{.pattern = std::string(kLlama3Pattern)})
      .split(text, [&](std::string_view word) {
        while (word.size() > kMaxTrainedWordBytes) {
          const std::string_view front =
              word.substr(0, character_begin(word, kMaxTrainedWordBytes));
          count(front);
          word.remove_prefix(front.size());
        }
        count(word);
      });
  return words;
}

// Pre-tokens as one array of symbols with gaps: a merge writes the new symbol to the left place and
// empties the right one.
class Words {
 public:
  // A place in the array. The memory of training is theirs: 32 bits suffice below 4 GiB of
  // different words.
  using Index = std::uint32_t;
  static constexpr Index kNowhere = static_cast<Index>(-1);

  struct Place {
    std::int32_t symbol;
    Index previous;  // in the same word, or kNowhere
    Index next;
    Index word;
  };

  Words(std::span<const CountedWord> words, const std::array<std::int32_t, kNumBytes>& id_of_byte) {
    for (const CountedWord& word : words) {
      for (std::size_t i = 0; i < word.text.size(); ++i) {
        const auto at = static_cast<Index>(places_.size());
        places_.push_back({.symbol = id_of_byte[static_cast<unsigned char>(word.text[i])],
                           .previous = i == 0 ? kNowhere : at - 1,
                           .next = i + 1 == word.text.size() ? kNowhere : at + 1,
                           .word = static_cast<Index>(counts_.size())});
      }
      counts_.push_back(word.count);
    }
  }

  Index size() const { return static_cast<Index>(places_.size()); }

  // Occurrences of the word of a place.
  std::int64_t count(Index place) const { return counts_[places_[place].word]; }

  const Place& operator[](Index i) const { return places_[i]; }

  // Makes `symbol` of the symbols at `left` and behind it.
  void merge(Index left, std::int32_t symbol) {
    const Index right = places_[left].next;
    const Index next = places_[right].next;
    places_[left].symbol = symbol;
    places_[left].next = next;
    places_[right].symbol = -1;
    if (next != kNowhere) {
      places_[next].previous = left;
    }
  }

 private:
  std::vector<Place> places_;
  std::vector<std::int64_t> counts_;  // by word
};

using Index = Words::Index;
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
    for (Index i = 0; i < words.size(); ++i) {
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
    const std::vector<Index> places = std::move(uses_.at(pair).places);
    for (const Index left : places) {
      if (pair_at(left) != pair) {
        continue;  // another merge took one of the two
      }
      const Index previous = words_[left].previous;
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
    std::vector<Index> places;  // of the left symbol; some may be gone
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

  Pair pair_at(Index left) const {
    if (left == Words::kNowhere || words_[left].next == Words::kNowhere) {
      return kNoPair;
    }
    return {words_[left].symbol, words_[words_[left].next].symbol};
  }

  void remove(Index left) {
    if (const Pair pair = pair_at(left); pair != kNoPair) {
      uses_.at(pair).count -= words_.count(left);
    }
  }

  void add(Index left) {
    const Pair pair = pair_at(left);
    if (pair == kNoPair) {
      return;
    }
    const auto [entry, is_new] = uses_.try_emplace(pair);
    entry->second.count += words_.count(left);
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
    TESSERA_REQUIRE(token.find_first_not_of(" \t\r\n\v\f") != std::string::npos,
                    ErrorCode::kInvalidConfig,
                    "the special token \"{}\" is white space alone, which any text has: choose a "
                    "name that none has, as <|name|>",
                    token);
    TESSERA_REQUIRE(seen.insert(token).second,
                    ErrorCode::kInvalidConfig,
                    "the special token \"{}\" is given twice",
                    token);
  }
}

// What merging takes at its peak: a place, and twice its index in the list of a pair, for each
// byte.
void require_memory(std::span<const CountedWord> words, std::int64_t memory_bytes) {
  constexpr std::int64_t kBytesPerByte = sizeof(Words::Place) + 4 * sizeof(Index);
  constexpr std::int64_t kBytesPerWord = 16;
  std::int64_t bytes = 0;
  for (const CountedWord& word : words) {
    bytes += static_cast<std::int64_t>(word.text.size());
  }
  const std::int64_t needed = bytes * kBytesPerByte + std::ssize(words) * kBytesPerWord;
  TESSERA_REQUIRE(
      needed <= memory_bytes && bytes < std::int64_t{Words::kNowhere},
      ErrorCode::kOutOfMemory,
      "the text's different words are {} together; to train a tokenizer on them takes {} "
      "of memory, and {} are free: give fewer or smaller files, a sample is enough",
      format_bytes(bytes),
      format_bytes(needed),
      format_bytes(memory_bytes));
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

  std::vector<CountedWord> counted = count_words(text);
  require_memory(counted, options.memory_bytes);
  Words words(counted, id_of_byte);
  counted = {};
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
    if (options.on_progress) {
      options.on_progress(id + 1 - kNumBytes, first_special - kNumBytes);
    }
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

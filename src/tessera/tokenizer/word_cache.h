#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace tessera {

// Remembers the tokens of short pre-tokens: text repeats its words. Direct-mapped: a newcomer
// replaces what is in its place.
class WordCache {
 public:
  // Bytes of a word and number of its tokens up to which it is remembered.
  static constexpr std::size_t kMaxWordBytes = 15;
  static constexpr std::size_t kMaxIds = 11;

  // The word itself, padded with zeros, its size in the last byte: no word gives all zeros.
  using Key = std::array<std::uint64_t, 2>;

  // One cache line.
  struct alignas(64) Entry {
    Key key{};
    std::uint32_t num_ids = 0;
    std::array<std::int32_t, kMaxIds> ids{};
  };

  WordCache() : entries_(kEntries) {}

  // Requires 0 < word.size() <= kMaxWordBytes. Bytes up to `readable_end` may be read.
  static Key key_of(std::string_view word, const char* readable_end) {
    Key key{};
    if (readable_end - word.data() >= static_cast<std::ptrdiff_t>(sizeof(key))) [[likely]] {
      std::memcpy(key.data(), word.data(), sizeof(key));
      const std::size_t bits = word.size() * 8;
      key[0] &= bits >= 64 ? ~0ULL : (1ULL << bits) - 1;
      key[1] &= bits <= 64 ? 0 : (1ULL << (bits - 64)) - 1;
    } else {
      std::memcpy(key.data(), word.data(), word.size());
    }
    key[1] |= std::uint64_t{word.size()} << 56U;
    return key;
  }

  // The place of the word: it holds the word's tokens if its key is `key`.
  Entry& place_of(const Key& key) {
    const std::uint64_t mixed = (key[0] ^ std::rotl(key[1], 29)) * 0x9E3779B97F4A7C15ULL;
    return entries_[static_cast<std::size_t>(((mixed ^ (mixed >> 32U)) * 0xD6E8FEB86659FD93ULL) >>
                                             kShift)];
  }

  static void store(Entry& place, const Key& key, std::span<const std::int32_t> ids) {
    if (ids.size() > kMaxIds) {
      return;
    }
    place.key = key;
    place.num_ids = static_cast<std::uint32_t>(ids.size());
    std::ranges::copy(ids, place.ids.begin());
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << 14U;  // 1 MiB: within most L2 caches
  static constexpr int kShift = 64 - std::countr_zero(kEntries);

  std::vector<Entry> entries_;
};

// Lends a cache to each call that encodes, with what calls before it have learned: a text that
// comes in parts or lines finds its words there, and no call clears a cache. As many as there were
// calls at a time. Thread-safe.
class WordCaches {
 public:
  using Loan = std::list<WordCache>;  // one

  Loan take() {
    Loan loan;
    {
      const std::scoped_lock lock(mutex_);
      if (!free_.empty()) {
        loan.splice(loan.begin(), free_, free_.begin());
      }
    }
    if (loan.empty()) {
      loan.emplace_back();
    }
    return loan;
  }

  void give_back(Loan& loan) {
    const std::scoped_lock lock(mutex_);
    free_.splice(free_.begin(), loan);
  }

 private:
  std::mutex mutex_;
  std::list<WordCache> free_;
};

}  // namespace tessera

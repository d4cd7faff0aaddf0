#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace tessera {

// Remembers the tokens of short pre-tokens during one call: text repeats its words. Direct-mapped:
// a newcomer replaces what is in its place.
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

  // Sized for a text of `text_bytes`: a cache larger than the text would only cost its clearing.
  explicit WordCache(std::size_t text_bytes)
      : entries_(std::bit_ceil(std::clamp<std::size_t>(text_bytes / 16, 4, kMaxEntries))),
        shift_(static_cast<unsigned>(64 - std::countr_zero(entries_.size()))) {}

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
                                             shift_)];
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
  static constexpr std::size_t kMaxEntries = std::size_t{1} << 14U;  // 1 MiB: within most L2 caches

  std::vector<Entry> entries_;
  unsigned shift_;
};

}  // namespace tessera

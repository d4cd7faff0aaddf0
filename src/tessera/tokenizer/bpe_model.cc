#include "tessera/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>

#include "tessera/base/utf8.h"

namespace tessera {
namespace {

// Up to here a scan for the first rule beats a heap.
constexpr std::size_t kMaxShortWord = 64;

constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

// Orders the heap: the first rule on top, then the leftmost place.
struct Later {
  bool operator()(const BpeModel::Scratch::Candidate& a,
                  const BpeModel::Scratch::Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }
};

}  // namespace

MergeTable::MergeTable(std::span<const MergeRule> rules, bool by_result) {
  std::unordered_map<std::int32_t, std::uint32_t> first_of_result;
  const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(16, rules.size() * 2));
  mask_ = capacity - 1;
  shift_ = static_cast<unsigned>(64 - std::countr_zero(capacity));
  slots_.resize(capacity);
  for (std::size_t rank = 0; rank < rules.size(); ++rank) {
    const MergeRule& rule = rules[rank];
    const std::uint64_t key = key_of(rule.left, rule.right);
    std::size_t slot = slot_of(key);
    while (slots_[slot].match.rank != kNone) {
      slot = (slot + 1) & mask_;
    }
    auto own_rank = static_cast<std::uint32_t>(rank);
    if (by_result) {
      own_rank = first_of_result.try_emplace(rule.result, own_rank).first->second;
    }
    slots_[slot] = {.key = key, .match = {.rank = own_rank, .result = rule.result}};
  }
}

BpeModel::BpeModel(const TokenizerSpec& spec)
    : alphabet_(spec.alphabet),
      byte_fallback_(spec.byte_fallback),
      fuse_unk_(spec.fuse_unk),
      unk_(spec.unk.value_or(-1)),
      merges_(spec.merges, spec.merges_by_result) {
  byte_ids_.fill(-1);
  std::vector<bool> is_added(spec.tokens.size());
  for (const AddedToken& token : spec.added) {
    is_added[static_cast<std::size_t>(token.id)] = true;
  }
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    if (!is_added[i]) {
      add_token(spec.tokens[i], static_cast<std::int32_t>(i), spec.ignore_merges);
    }
  }
  lacks_bytes_ = std::ranges::count(byte_ids_, -1) > 0;
}

void BpeModel::add_token(const std::string& token, std::int32_t id, bool as_whole_word) {
  if (as_whole_word) {
    whole_words_.emplace(token, id);
  }
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
std::string_view BpeModel::front(std::string_view word) const {
  return word.substr(0, alphabet_ == Alphabet::kBytes ? 1 : front_utf8(word).size);
}

// -1 where it is no token, or bytes are.
std::int32_t BpeModel::find_character(std::string_view character) const {
  if (alphabet_ == Alphabet::kBytes) {
    return -1;
  }
  const auto point = static_cast<std::size_t>(code_point_of(character));
  return point < character_ids_.size() ? character_ids_[point] : -1;
}

bool BpeModel::has_bytes(std::string_view bytes) const {
  return (alphabet_ == Alphabet::kBytes || byte_fallback_) &&
         std::ranges::all_of(
             bytes, [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)] >= 0; });
}

std::size_t BpeModel::find_missing(std::string_view word) const {
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

void BpeModel::encode_word(std::string_view word,
                           Scratch& scratch,
                           std::vector<std::int32_t>& out) const {
  if (!whole_words_.empty()) {
    if (const auto found = whole_words_.find(word); found != whole_words_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  merge_word(word, scratch, out);
}

void BpeModel::merge_word(std::string_view word,
                          Scratch& scratch,
                          std::vector<std::int32_t>& out) const {
  scratch.symbols.clear();
  if (alphabet_ == Alphabet::kBytes && !lacks_bytes_) {
    split_bytes(word, scratch.symbols);
  } else {
    split(word, scratch.symbols);
  }
  if (scratch.symbols.size() <= kMaxShortWord) {
    merge_short(scratch, out);
  } else {
    merge_long(scratch, out);
  }
}

void BpeModel::split_bytes(std::string_view word, std::vector<std::int32_t>& symbols) const {
  for (const char byte : word) {
    symbols.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
  }
}

void BpeModel::split(std::string_view word, std::vector<std::int32_t>& symbols) const {
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

void BpeModel::merge_short(Scratch& scratch, std::vector<std::int32_t>& out) const {
  auto& parts = scratch.parts;
  parts.clear();
  for (const std::int32_t symbol : scratch.symbols) {
    parts.push_back({.id = symbol, .rank = MergeTable::kNone, .result = 0});
  }
  const auto update = [&](std::size_t i) {
    const MergeTable::Match match = i + 1 < parts.size()
                                        ? merges_.find(parts[i].id, parts[i + 1].id)
                                        : MergeTable::Match{.rank = MergeTable::kNone, .result = 0};
    parts[i].rank = match.rank;
    parts[i].result = match.result;
  };
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    update(i);
  }
  while (true) {
    const auto first = std::ranges::min_element(parts, {}, &Scratch::Part::rank);
    if (first->rank == MergeTable::kNone) {
      break;
    }
    const auto i = static_cast<std::size_t>(first - parts.begin());
    first->id = first->result;
    parts.erase(first + 1);
    update(i);
    if (i > 0) {
      update(i - 1);
    }
  }
  for (const Scratch::Part& part : parts) {
    out.push_back(part.id);
  }
}

void BpeModel::push_candidate(Scratch& scratch, std::size_t left) const {
  const auto& links = scratch.links;
  const std::size_t right = links[left].next;
  if (right == kNowhere) {
    return;
  }
  const MergeTable::Match match = merges_.find(links[left].id, links[right].id);
  if (match.rank != MergeTable::kNone) {
    scratch.heap.push_back({.rank = match.rank,
                            .left_id = links[left].id,
                            .right_id = links[right].id,
                            .result = match.result,
                            .left = left});
  }
}

// A linked list of parts and a heap of the pairs that merge: n log n for a word of n symbols.
void BpeModel::merge_long(Scratch& scratch, std::vector<std::int32_t>& out) const {
  const auto& symbols = scratch.symbols;
  auto& links = scratch.links;
  auto& heap = scratch.heap;
  links.clear();
  heap.clear();
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    links.push_back({.id = symbols[i],
                     .previous = i == 0 ? kNowhere : i - 1,
                     .next = i + 1 == symbols.size() ? kNowhere : i + 1});
  }
  for (std::size_t i = 0; i < links.size(); ++i) {
    push_candidate(scratch, i);
  }
  std::ranges::make_heap(heap, Later{});
  const auto push = [&](std::size_t left) {
    const std::size_t before = heap.size();
    push_candidate(scratch, left);
    if (heap.size() > before) {
      std::ranges::push_heap(heap, Later{});
    }
  };
  while (!heap.empty()) {
    const Scratch::Candidate top = heap.front();
    std::ranges::pop_heap(heap, Later{});
    heap.pop_back();
    Scratch::Link& left = links[top.left];
    // A part that was merged into its left neighbour has id -1; a pair that changed since it was
    // pushed has been pushed anew.
    if (left.id != top.left_id || left.next == kNowhere || links[left.next].id != top.right_id) {
      continue;
    }
    const std::size_t right = left.next;
    left.id = top.result;
    left.next = links[right].next;
    links[right].id = -1;
    if (left.next != kNowhere) {
      links[left.next].previous = top.left;
    }
    push(top.left);
    if (left.previous != kNowhere) {
      push(left.previous);
    }
  }
  for (std::size_t i = 0; i != kNowhere; i = links[i].next) {
    out.push_back(links[i].id);
  }
}

}  // namespace tessera

#include "tessera/tokenizer/merge_symbols.h"

#include <algorithm>

namespace tessera {
namespace {

// Up to here a scan for the first rule beats a heap.
constexpr std::size_t kMaxShortWord = 64;

constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

// Orders the heap: the first rule on top, then the leftmost place.
struct Later {
  bool operator()(const MergeScratch::Candidate& a, const MergeScratch::Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }
};

void merge_short(const MergeTable& merges, MergeScratch& scratch, std::vector<std::int32_t>& out) {
  auto& parts = scratch.parts;
  parts.clear();
  for (const std::int32_t symbol : scratch.symbols) {
    parts.push_back({.id = symbol, .rank = MergeTable::kNone, .result = 0});
  }
  const auto update = [&](std::size_t i) {
    const MergeTable::Match match = i + 1 < parts.size()
                                        ? merges.find(parts[i].id, parts[i + 1].id)
                                        : MergeTable::Match{.rank = MergeTable::kNone, .result = 0};
    parts[i].rank = match.rank;
    parts[i].result = match.result;
  };
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    update(i);
  }
  while (true) {
    const auto first = std::ranges::min_element(parts, {}, &MergeScratch::Part::rank);
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
  for (const MergeScratch::Part& part : parts) {
    out.push_back(part.id);
  }
}

void push_candidate(const MergeTable& merges, MergeScratch& scratch, std::size_t left) {
  const auto& links = scratch.links;
  const std::size_t right = links[left].next;
  if (right == kNowhere) {
    return;
  }
  const MergeTable::Match match = merges.find(links[left].id, links[right].id);
  if (match.rank != MergeTable::kNone) {
    scratch.heap.push_back({.rank = match.rank,
                            .left_id = links[left].id,
                            .right_id = links[right].id,
                            .result = match.result,
                            .left = left});
  }
}

// A linked list of parts and a heap of the pairs that merge: n log n for a word of n symbols.
void merge_long(const MergeTable& merges, MergeScratch& scratch, std::vector<std::int32_t>& out) {
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
    push_candidate(merges, scratch, i);
  }
  std::ranges::make_heap(heap, Later{});
  const auto push = [&](std::size_t left) {
    const std::size_t before = heap.size();
    push_candidate(merges, scratch, left);
    if (heap.size() > before) {
      std::ranges::push_heap(heap, Later{});
    }
  };
  while (!heap.empty()) {
    const MergeScratch::Candidate top = heap.front();
    std::ranges::pop_heap(heap, Later{});
    heap.pop_back();
    MergeScratch::Link& left = links[top.left];
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

}  // namespace

void merge_symbols(const MergeTable& merges,
                   MergeScratch& scratch,
                   std::vector<std::int32_t>& out) {
  if (scratch.symbols.size() <= kMaxShortWord) {
    merge_short(merges, scratch, out);
  } else {
    merge_long(merges, scratch, out);
  }
}

}  // namespace tessera

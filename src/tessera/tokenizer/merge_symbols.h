#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/tokenizer/merge_table.h"

namespace tessera {

// Memory that one thread reuses from word to word.
struct MergeScratch {
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

  std::vector<std::int32_t> symbols;  // the tokens of the word's bytes or characters
  std::vector<Part> parts;
  std::vector<Link> links;
  std::vector<Candidate> heap;
};

// Merges `scratch.symbols`: while any pair of neighbours has a rule, the one with the first rule is
// merged, the leftmost of equals first. Appends the tokens that remain to `out`.
void merge_symbols(const MergeTable& merges, MergeScratch& scratch, std::vector<std::int32_t>& out);

}  // namespace tessera

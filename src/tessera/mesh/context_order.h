#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera {

// How ranks that share sequences compute attention: each gathers all keys and values for its own
// queries, or ranks exchange tokens for heads, of which each then has all tokens (Ulysses: Jacobs
// et al. 2023, arXiv:2309.14509), or keys and values go round a ring of ranks, a part at a time
// (Liu et al. 2023, arXiv:2310.01889).
enum class ContextKind { kGather, kUlysses, kRing };

std::string_view to_string(ContextKind kind);

// Which tokens of a sequence a context rank has. Zigzag cuts the sequence into twice as many pieces
// as there are ranks and gives rank i of n the pieces i and 2n - 1 - i, so that under a causal mask
// all see equally many pairs; else it has run i of n.
enum class ContextBalance { kZigzag, kNone };

std::string_view to_string(ContextBalance balance);

// How context ranks share sequences.
struct ContextLayout {
  ContextKind kind = ContextKind::kGather;
  ContextBalance balance = ContextBalance::kZigzag;

  friend bool operator==(const ContextLayout&, const ContextLayout&) = default;
};

// Lengths that can be cut are multiples of it.
std::int64_t context_unit(std::int64_t ranks, ContextBalance balance);

// The same where each part is cut once more, over `tensor` ranks.
std::int64_t sequence_unit(std::int64_t ranks, ContextBalance balance, std::int64_t tensor);

// Where the ranks' parts lie one after the other: the token, by its place in the sequence, that is
// at each place. Errors: kInvalidArgument where `length` is no multiple of context_unit().
std::vector<std::int32_t> context_order(std::int64_t length,
                                        std::int64_t ranks,
                                        ContextBalance balance);

// Which tokens of each of its sequences a rank has.
struct ContextPart {
  std::int64_t ranks = 1;  // that share them
  std::int64_t place = 0;  // of this one's part in context_order()
  ContextBalance balance = ContextBalance::kZigzag;
};

}  // namespace tessera

#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// The lengths of the slices of a sequence of `tokens`, in order, such that all cost about as much,
// where each token costs more than the one before it: in all, the last one (1 + growth) times as
// much as the first, since it attends to all others. Slices begin at multiples of `unit`, which the
// tokens are one of: those by the largest power of two up to 64 that leave an even slice sixteen,
// so that products have even sizes. Source: TeraPipe (arXiv 2102.07988), whose slices are shorter
// towards the end. Errors: kInvalidArgument for fewer units than slices, or a growth that is
// negative or not finite.
std::vector<std::int64_t> split_tokens(std::int64_t tokens,
                                       std::int64_t slices,
                                       double growth,
                                       std::int64_t unit = 1);

}  // namespace tessera

#pragma once

// Which tiles attention by tensor cores looks at. What the ids of each tile lie between is found
// first: a tile none of whose pairs is seen is passed over, and where all pairs are seen none is
// asked about.

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/ops/attention/flash_tiles_cuda.h"

namespace tessera::cuda::flash {

// Those of all tiles, (b, tiles).
struct Ranges {
  Range* queries;
  Range* keys;
};

// Finds those of all tiles as the next of the stream, unless `is_done` on the device is 1 when it
// runs, and says where they will be in a workspace of ranges_workspace_bytes().
Ranges start_ranges(const Context& context,
                    const Shape& shape,
                    const Mask& mask,
                    const std::int32_t* is_done,
                    std::span<std::byte> workspace);

// What two tiles see, of queries and of keys.
struct Sight {
  bool some = false;  // some query may see some key
  bool all = false;   // each sees each, as far as they are there
};

__device__ inline Sight sight_of(const Range& queries, const Range& keys, const Mask& mask) {
  const bool causal = mask.causal;
  const bool has_window = causal && mask.window > 0;
  const bool one_document = queries.min_document == queries.max_document &&
                            keys.min_document == keys.max_document &&
                            queries.min_document == keys.min_document;
  return {.some = queries.min_document <= keys.max_document &&
                  keys.min_document <= queries.max_document &&
                  (!causal || keys.min_position <= queries.max_position) &&
                  (!has_window || keys.max_position > queries.min_position - mask.window),
          .all = one_document && (!causal || keys.max_position <= queries.min_position) &&
                 (!has_window || keys.min_position > queries.max_position - mask.window)};
}

// The tiles that a block's own, of queries or of keys, is paired with. Few and narrow: registers
// are scarce.
struct Walk {
  const Range* own;
  const Range* others;
  int count;
  int full;  // so many have all their rows, and so has the block's own

  __device__ static Walk of(const Range* own_ranges,
                            std::int64_t own_length,
                            const Range* other_ranges,
                            std::int64_t other_length,
                            const Place& place) {
    return {.own = own_ranges + tiles_of(place.batch, 1, own_length) + place.first / kTile,
            .others = other_ranges + tiles_of(place.batch, 1, other_length),
            .count = static_cast<int>(tiles_of(1, 1, other_length)),
            .full = place.first + kTile <= own_length ? static_cast<int>(other_length / kTile) : 0};
  }
};

// Calls body(tile, all_seen) for each tile that has something to see, in order, where
// sight(own, other) says what there is. A lane looks at a tile: to pass over one costs next to
// nothing. All threads of a block call it, and get the same.
template <class SightOf, class Body>
__device__ void visit_tiles(const Walk& walk, const SightOf& sight, const Body& body) {
  for (int first = 0; first < walk.count; first += kLanes) {
    const int tile = first + lane();
    const Sight found = tile < walk.count ? sight(*walk.own, walk.others[tile]) : Sight();
    std::uint32_t some = ballot(found.some);
    const std::uint32_t all = ballot(found.all && tile < walk.full);
    for (; some != 0; some &= some - 1) {
      const int bit = lowest_bit(some);
      body(first + bit, (all >> bit & 1U) != 0);
    }
  }
}

// The keys and values that a block looks at, in shared memory.
struct KeyTile {
  Ids& ids;
  std::uint16_t* k;
  std::uint16_t* v;
};

// What the forward kernel and that of dq share: a walk over the keys of a block's queries. Calls
// body(all_seen) for each tile that some query may see; where all are seen, the tile has no ids.
template <int D, class Task, class Body>
__device__ void walk_keys(const Task& task,
                          const Ranges& ranges,
                          const Place& place,
                          const KeyTile& tile,
                          const Body& body) {
  const Shape& shape = task.shape;
  const Walk walk = Walk::of(ranges.queries, shape.queries, ranges.keys, shape.keys, place);
  const auto sight = [&](const Range& queries, const Range& keys) {
    return sight_of(queries, keys, task.mask);
  };
  visit_tiles(walk, sight, [&](int number, bool all_seen) {
    const Place keys = {.batch = place.batch,
                        .head = place.head / shape.group(),
                        .first = std::int64_t{number} * kTile};
    __syncthreads();  // the tile before is done with
    if (!all_seen) {
      load_key_ids(task, keys, tile.ids);
    }
    load_tile<D>(key_rows(task.k, task, keys), tile.k);
    load_tile<D>(key_rows(task.v, task, keys), tile.v);
    __syncthreads();
    body(all_seen);
  });
}

}  // namespace tessera::cuda::flash

#include <algorithm>

#include "tessera/ops/attention/flash_ranges_cuda.h"

namespace tessera::cuda::flash {
namespace {

__device__ std::int32_t warp_min(std::int32_t value) {
  return warp_fold(value, [](std::int32_t a, std::int32_t b) { return b < a ? b : a; });
}

__device__ std::int32_t warp_max(std::int32_t value) {
  return warp_fold(value, [](std::int32_t a, std::int32_t b) { return b > a ? b : a; });
}

// The ids of the queries or the keys of a batch.
struct IdRows {
  const std::int32_t* positions;
  const std::int32_t* documents;
  std::int64_t length;  // of a sequence
};

// By a warp.
__device__ void find_range(const IdRows& ids, std::int64_t number, Range* ranges) {
  const std::int64_t tiles = tiles_of(1, 1, ids.length);
  const std::int64_t row = number / tiles * ids.length;
  const std::int64_t first = number % tiles * kTile;
  Range range = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
  for (std::int64_t i = first + lane(); i < first + kTile && i < ids.length; i += kLanes) {
    range.min_position = std::min(range.min_position, ids.positions[row + i]);
    range.max_position = std::max(range.max_position, ids.positions[row + i]);
    range.min_document = std::min(range.min_document, ids.documents[row + i]);
    range.max_document = std::max(range.max_document, ids.documents[row + i]);
  }
  range = {warp_min(range.min_position),
           warp_max(range.max_position),
           warp_min(range.min_document),
           warp_max(range.max_document)};
  if (lane() == 0) {
    ranges[number] = range;
  }
}

// Of all tiles, a warp each. Not where another kernel has done what they are for.
__global__ static void find_ranges(
    IdRows queries, IdRows keys, std::int64_t batches, const std::int32_t* is_done, Ranges ranges) {
  const std::int64_t of_queries = tiles_of(batches, 1, queries.length);
  const std::int64_t all = of_queries + tiles_of(batches, 1, keys.length);
  const std::int64_t count = is_done == nullptr || *is_done == 0 ? all : 0;
  for (std::int64_t i = first_item() / kLanes; i < count; i += num_threads() / kLanes) {
    if (i < of_queries) {
      find_range(queries, i, ranges.queries);
    } else {
      find_range(keys, i - of_queries, ranges.keys);
    }
  }
}

}  // namespace

Ranges start_ranges(const Context& context,
                    const Shape& shape,
                    const Mask& mask,
                    const std::int32_t* is_done,
                    std::span<std::byte> workspace) {
  TESSERA_CHECK(static_cast<std::int64_t>(workspace.size()) >= ranges_workspace_bytes(shape),
                "{} bytes of workspace for attention, expected {}",
                workspace.size(),
                ranges_workspace_bytes(shape));
  auto* const all = reinterpret_cast<Range*>(workspace.data());
  const std::int64_t of_queries = tiles_of(shape.batch, 1, shape.queries);
  const std::int64_t of_keys = tiles_of(shape.batch, 1, shape.keys);
  const Ranges ranges = {.queries = all, .keys = all + of_queries};
  launch(context,
         "ranges of attention",
         blocks_for(context, (of_queries + of_keys) * kLanes),
         find_ranges,
         IdRows{mask.query_positions, mask.query_documents, shape.queries},
         IdRows{mask.key_positions, mask.key_documents, shape.keys},
         shape.batch,
         is_done,
         ranges);
  return ranges;
}

}  // namespace tessera::cuda::flash

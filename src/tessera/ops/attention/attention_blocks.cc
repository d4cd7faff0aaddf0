#include "tessera/ops/attention/attention_blocks.h"

#include "tessera/base/error.h"

namespace tessera::cpu {
namespace {

// What of queries x keys may be visible, judged by bounds alone. Positions restart at each
// document, hence full visibility needs one document on both sides.
Visibility visibility(const IdBounds& queries, const IdBounds& keys, const Mask& mask) {
  const bool has_window = mask.causal && mask.window > 0;
  if (queries.max_document < keys.min_document || keys.max_document < queries.min_document ||
      (mask.causal && queries.max_position < keys.min_position) ||
      (has_window && keys.max_position <= queries.min_position - mask.window)) {
    return Visibility::kNone;
  }
  const bool one_document =
      queries.min_document == queries.max_document && keys.min_document == keys.max_document;
  const bool all_past = !mask.causal || keys.max_position <= queries.min_position;
  const bool all_near = !has_window || keys.min_position > queries.max_position - mask.window;
  return one_document && all_past && all_near ? Visibility::kFull : Visibility::kMixed;
}

IdBounds merged(std::span<const IdBounds> parts) {
  IdBounds result;
  for (const IdBounds& part : parts) {
    result.include(part);
  }
  return result;
}

std::span<const IdBounds> strips_of(const AttentionProblem& problem,
                                    std::int64_t batch,
                                    std::int64_t first,
                                    std::int64_t last) {
  const std::int64_t strips = problem.shape.strips();
  return {problem.bounds.strips + batch * strips + first,
          problem.bounds.strips + batch * strips + std::min(last, strips)};
}

IdBounds key_bounds(const Mask& mask, std::int64_t batch, std::int64_t first, std::int64_t last) {
  IdBounds bounds;
  for (std::int64_t j = first; j < last; ++j) {
    bounds.include(mask.key_positions.at(batch, j), mask.key_documents.at(batch, j));
  }
  return bounds;
}

IdBounds strip_bounds(const AttentionShape& shape,
                      const Mask& mask,
                      std::int64_t batch,
                      std::int64_t strip) {
  const std::int64_t last_lane = std::min((strip + 1) * kStripLanes, shape.lanes()) - 1;
  IdBounds bounds;
  for (std::int64_t i = strip * kStripLanes / shape.group(); i <= last_lane / shape.group(); ++i) {
    bounds.include(mask.query_positions.at(batch, i), mask.query_documents.at(batch, i));
  }
  return bounds;
}

}  // namespace

AttentionShape attention_shape(const TensorType& q, const TensorType& k) {
  return {.batch = q.dims[0].bound,
          .queries = q.dims[1].bound,
          .keys = k.dims[1].bound,
          .heads = q.dims[2].bound,
          .kv_heads = k.dims[2].bound,
          .head_dim = q.dims[3].bound};
}

AttentionShape attention_shape(const View& q, const View& k) {
  return {.batch = q.sizes[0],
          .queries = q.sizes[1],
          .keys = k.sizes[1],
          .heads = q.sizes[2],
          .kv_heads = k.sizes[2],
          .head_dim = q.sizes[3]};
}

HeadRows head_rows(const View& view) {
  TESSERA_CHECK(
      view.num_dims == 4 && (view.sizes[3] == 1 || view.strides[3] == 1),
      "{} dims, the last with stride {}; expected (batch, sequence, heads, head_dim) with "
      "a contiguous last dim",
      view.num_dims,
      view.strides[3]);
  return {.data = view.data,
          .batch_stride = view.strides[0],
          .row_stride = view.strides[1],
          .head_stride = view.strides[2]};
}

Mask attention_mask(const AttentionIds& ids, bool causal, std::int64_t window) {
  const auto ids_of = [](const View& view) {
    return Ids{.data = view.as<const std::int32_t>(),
               .batch_stride = view.strides[0],
               .stride = view.strides[1]};
  };
  return {.query_positions = ids_of(ids.query_positions),
          .key_positions = ids_of(ids.key_positions),
          .query_documents = ids_of(ids.query_documents),
          .key_documents = ids_of(ids.key_documents),
          .causal = causal,
          .window = static_cast<std::int32_t>(window)};
}

std::int64_t mask_bounds_bytes(const AttentionShape& shape) {
  const std::int64_t count = shape.batch * (shape.strips() + shape.tiles() + shape.blocks());
  return round_up(count * static_cast<std::int64_t>(sizeof(IdBounds)), kPieceAlignment);
}

MaskBounds find_mask_bounds(const AttentionShape& shape, const Mask& mask, std::byte* memory) {
  auto* const strips = reinterpret_cast<IdBounds*>(memory);
  auto* const tiles = strips + shape.batch * shape.strips();
  auto* const blocks = tiles + shape.batch * shape.tiles();
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t strip = 0; strip < shape.strips(); ++strip) {
      strips[b * shape.strips() + strip] = strip_bounds(shape, mask, b, strip);
    }
    for (std::int64_t tile = 0; tile < shape.tiles(); ++tile) {
      const std::int64_t first = tile * kTileKeys;
      tiles[b * shape.tiles() + tile] =
          key_bounds(mask, b, first, std::min(first + kTileKeys, shape.keys));
    }
    for (std::int64_t block = 0; block < shape.blocks(); ++block) {
      const std::int64_t first = block * kBlockTiles;
      const std::int64_t last = std::min(first + kBlockTiles, shape.tiles());
      const IdBounds* const row = tiles + b * shape.tiles();
      blocks[b * shape.blocks() + block] = merged({row + first, row + last});
    }
  }
  return {.strips = strips, .tiles = tiles, .blocks = blocks};
}

KeyBlock key_block(const AttentionShape& shape, const LaneRange& lanes, std::int64_t block) {
  const std::int64_t first = block * kBlockKeys;
  return {.batch = lanes.batch,
          .head = lanes.head,
          .index = block,
          .first = first,
          .last = std::min(first + kBlockKeys, shape.keys)};
}

TileIds tile_ids(const Mask& mask, const KeyBlock& keys, std::int64_t tile) {
  const std::int64_t first = keys.first + tile * kTileKeys;
  TileIds result;
  result.count = std::min(kTileKeys, keys.last - first);
  result.window = mask.causal ? mask.window : 0;
  for (std::int64_t i = 0; i < result.count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    result.positions[at] = mask.causal ? mask.key_positions.at(keys.batch, first + i) : INT32_MIN;
    result.documents[at] = mask.key_documents.at(keys.batch, first + i);
  }
  return result;
}

void fill_lane_ids(const Mask& mask,
                   const LaneRange& lanes,
                   std::int32_t* positions,
                   std::int32_t* documents) {
  for (std::int64_t i = 0; i < lanes.pairs() * kPairLanes; ++i) {
    const std::int64_t query = lanes.position(std::min(lanes.first + i, lanes.last - 1));
    positions[i] = mask.query_positions.at(lanes.batch, query);
    documents[i] = mask.query_documents.at(lanes.batch, query);
  }
}

BlockRange visible_blocks(const AttentionProblem& problem, const LaneRange& lanes) {
  const std::int64_t first_strip = lanes.first / kStripLanes;
  const IdBounds queries =
      merged(strips_of(problem, lanes.batch, first_strip, first_strip + 2 * lanes.pairs()));
  const std::int64_t blocks = problem.shape.blocks();
  const auto sees = [&](std::int64_t block) {
    const IdBounds& keys = problem.bounds.blocks[lanes.batch * blocks + block];
    return visibility(queries, keys, problem.mask) != Visibility::kNone;
  };
  BlockRange result = {.first = 0, .last = blocks};
  while (result.last > 0 && !sees(result.last - 1)) {
    --result.last;
  }
  while (result.first < result.last && !sees(result.first)) {
    ++result.first;
  }
  return result;
}

BlockVisibility block_visibility(const AttentionProblem& problem,
                                 const LaneRange& lanes,
                                 std::int64_t pair,
                                 const KeyBlock& keys) {
  const std::int64_t first_strip = lanes.first / kStripLanes + 2 * pair;
  const auto strips = strips_of(problem, lanes.batch, first_strip, first_strip + 2);
  const Visibility whole =
      visibility(merged(strips),
                 problem.bounds.blocks[keys.batch * problem.shape.blocks() + keys.index],
                 problem.mask);
  const bool partial = (keys.last - keys.first) % kTileKeys != 0;
  if (whole == Visibility::kNone) {
    return {};
  }
  if (whole == Visibility::kFull && !partial) {
    return {.full = true, .first = 0, .last = keys.tiles()};
  }
  BlockVisibility result = {.full = false, .first = keys.tiles(), .last = 0};
  const IdBounds* const tiles =
      problem.bounds.tiles + keys.batch * problem.shape.tiles() + keys.first / kTileKeys;
  for (std::int64_t tile = 0; tile < keys.tiles(); ++tile) {
    const bool cut = partial && tile + 1 == keys.tiles();
    for (std::size_t strip = 0; strip < strips.size(); ++strip) {
      const Visibility seen = visibility(strips[strip], tiles[tile], problem.mask);
      if (seen != Visibility::kNone) {
        result.first = std::min(result.first, tile);
        result.last = tile + 1;
      }
      result.tiles[static_cast<std::size_t>(tile)][strip] =
          cut && seen == Visibility::kFull ? Visibility::kMixed : seen;
    }
  }
  result.first = std::min(result.first, result.last);
  return result;
}

}  // namespace tessera::cpu

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "tessera/ir/tensor_type.h"
#include "tessera/ir/view.h"
#include "tessera/ops/attention/attention_operands.h"

namespace tessera::cpu {

// How the CPU kernels of attention cut the scores, on every instruction set alike. A lane is one
// query row of a key/value head: position lane / group, query head lane % group of the group.
// Scores are kept transposed, keys by lanes: softmax then needs no sum across lanes, and every
// product is (broadcast element) x (vector of lanes).
inline constexpr std::int64_t kStripLanes = 16;  // lanes under one decision on visibility
inline constexpr std::int64_t kPairLanes = 2 * kStripLanes;  // lanes of one register tile
inline constexpr std::int64_t kTileKeys = 8;                 // keys of one register tile
inline constexpr std::int64_t kBlockTiles = 8;
inline constexpr std::int64_t kBlockKeys = kBlockTiles * kTileKeys;

inline constexpr std::int64_t kPieceAlignment = 64;  // bytes; of every piece of workspace

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return ceil_div(a, b) * b;
}

struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t queries = 0;  // positions of queries, each with `heads` rows
  std::int64_t keys = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;

  std::int64_t group() const { return heads / kv_heads; }

  std::int64_t lanes() const { return queries * group(); }

  std::int64_t padded_dim() const { return round_up(head_dim, kStripLanes); }

  std::int64_t strips() const { return ceil_div(lanes(), kStripLanes); }

  std::int64_t tiles() const { return ceil_div(keys, kTileKeys); }

  // Lanes whose rows a thread packs at a time: few enough for the second-level cache, many to share
  // the packing of a block of keys.
  std::int64_t chunk_lanes() const {
    return kPairLanes * (padded_dim() <= 16 ? 32 : padded_dim() <= 32 ? 16 : 8);
  }

  std::int64_t blocks() const { return ceil_div(keys, kBlockKeys); }
};

// The shape from q (b, t, heads, d) and k (b, s, kv, d).
AttentionShape attention_shape(const TensorType& q, const TensorType& k);
AttentionShape attention_shape(const View& q, const View& k);

// A (batch, sequence, heads, head_dim) tensor; strides in elements, the last dim contiguous.
struct HeadRows {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  template <class T>
  T* row(std::int64_t batch, std::int64_t position, std::int64_t head) const {
    return static_cast<T*>(data) + batch * batch_stride + position * row_stride +
           head * head_stride;
  }
};

// Throws kInternal unless the last dim of `view` is contiguous.
HeadRows head_rows(const View& view);

// A (batch, sequence) tensor of i32 ids.
struct Ids {
  const std::int32_t* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t stride = 0;

  std::int32_t at(std::int64_t batch, std::int64_t position) const {
    return data[batch * batch_stride + position * stride];
  }
};

// Positions and documents of queries and keys.
struct Mask {
  Ids query_positions;
  Ids key_positions;
  Ids query_documents;
  Ids key_documents;
  bool causal = true;
  std::int32_t window = 0;  // of positions up to the query's; 0: none

  // Whether a query at `query` sees a key at `key` of its document.
  bool sees(std::int32_t query, std::int32_t key) const {
    return !causal || (key <= query && (window == 0 || key > query - window));
  }
};

Mask attention_mask(const AttentionIds& ids, bool causal, std::int64_t window);

// The range of positions and documents in a run of queries or keys.
struct IdBounds {
  std::int32_t min_position = INT32_MAX;
  std::int32_t max_position = INT32_MIN;
  std::int32_t min_document = INT32_MAX;
  std::int32_t max_document = INT32_MIN;

  void include(std::int32_t position, std::int32_t document) {
    include({.min_position = position,
             .max_position = position,
             .min_document = document,
             .max_document = document});
  }

  void include(const IdBounds& other) {
    min_position = std::min(min_position, other.min_position);
    max_position = std::max(max_position, other.max_position);
    min_document = std::min(min_document, other.min_document);
    max_document = std::max(max_document, other.max_document);
  }
};

// Bounds of all strips of lanes, tiles of keys and blocks of keys, batch row by batch row.
struct MaskBounds {
  const IdBounds* strips = nullptr;
  const IdBounds* tiles = nullptr;
  const IdBounds* blocks = nullptr;
};

std::int64_t mask_bounds_bytes(const AttentionShape& shape);

// Fills `memory`, mask_bounds_bytes() long.
MaskBounds find_mask_bounds(const AttentionShape& shape, const Mask& mask, std::byte* memory);

// What both passes know of a call.
struct AttentionProblem {
  AttentionShape shape;
  bool bf16 = false;  // q, k, v, o and their gradients; else f32
  Mask mask;
  MaskBounds bounds;
};

enum class Visibility : std::uint8_t { kNone, kMixed, kFull };

// Visibility of one pair of strips x one block of keys: [tile][strip] for tiles [first, last),
// which hold everything that is visible. Where `full`, these are all full and `tiles` is not set.
struct BlockVisibility {
  bool full = false;
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::array<std::array<Visibility, 2>, kBlockTiles> tiles = {};

  bool none() const { return first == last; }

  bool holds(std::int64_t tile) const { return first <= tile && tile < last; }
};

// Ids of the lanes of a pair.
struct LaneIds {
  const std::int32_t* positions = nullptr;
  const std::int32_t* documents = nullptr;
};

// Ids of the keys of a tile.
struct TileIds {
  std::array<std::int32_t, kTileKeys> positions = {};  // INT32_MIN where attention is not causal
  std::array<std::int32_t, kTileKeys> documents = {};
  std::int64_t count = 0;
  std::int32_t window = 0;  // of Mask
};

// Keys [first, last) of a key/value head: one block, or what is left of it at the end.
struct KeyBlock {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t index = 0;  // first == index * kBlockKeys
  std::int64_t first = 0;
  std::int64_t last = 0;

  std::int64_t tiles() const { return ceil_div(last - first, kTileKeys); }

  // The row of key first + i. Beyond the last key its row repeats.
  template <class T>
  T* row(const HeadRows& from, std::int64_t i) const {
    return from.row<T>(batch, std::min(first + i, last - 1), head);
  }

  // The rows of a whole number of tiles.
  template <class T>
  void rows(const HeadRows& from, std::array<T*, kBlockKeys>& rows) const {
    for (std::int64_t i = 0; i < tiles() * kTileKeys; ++i) {
      rows[static_cast<std::size_t>(i)] = row<T>(from, i);
    }
  }
};

// A range of blocks of keys.
struct BlockRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

// Lanes [first, last) of key/value head `head` in batch row `batch`; `first` begins a pair.
struct LaneRange {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t group = 1;
  std::int64_t first = 0;
  std::int64_t last = 0;

  std::int64_t pairs() const { return ceil_div(last - first, kPairLanes); }

  // Lanes in use of pair `pair`, counted from `first`.
  std::int64_t count(std::int64_t pair) const {
    return std::min(kPairLanes, last - first - pair * kPairLanes);
  }

  std::int64_t position(std::int64_t lane) const { return lane / group; }

  std::int64_t query_head(std::int64_t lane) const { return head * group + lane % group; }

  // The element of lane first + i in a (batch, heads, t) tensor of f32.
  float& element(const View& view, std::int64_t i) const {
    const std::int64_t lane = first + i;
    return view.as<float>()[batch * view.strides[0] + query_head(lane) * view.strides[1] +
                            position(lane) * view.strides[2]];
  }

  // The row of lane first + i. Beyond the last lane its row repeats.
  template <class T>
  T* row(const HeadRows& from, std::int64_t i) const {
    const std::int64_t lane = std::min(first + i, last - 1);
    return from.row<T>(batch, position(lane), query_head(lane));
  }

  template <class T>
  void rows(const HeadRows& from, std::int64_t pair, std::array<T*, kPairLanes>& rows) const {
    for (std::int64_t i = 0; i < kPairLanes; ++i) {
      rows[static_cast<std::size_t>(i)] = row<T>(from, pair * kPairLanes + i);
    }
  }
};

KeyBlock key_block(const AttentionShape& shape, const LaneRange& lanes, std::int64_t block);

// The ids of the keys of tile `tile` of `keys`.
TileIds tile_ids(const Mask& mask, const KeyBlock& keys, std::int64_t tile);

// Writes the ids of all lanes, in whole pairs; beyond the last lane its ids repeat.
void fill_lane_ids(const Mask& mask,
                   const LaneRange& lanes,
                   std::int32_t* positions,
                   std::int32_t* documents);

// Blocks that hold everything that `lanes` see; none for no lanes.
BlockRange visible_blocks(const AttentionProblem& problem, const LaneRange& lanes);

// A last tile with fewer than kTileKeys keys is never full.
BlockVisibility block_visibility(const AttentionProblem& problem,
                                 const LaneRange& lanes,
                                 std::int64_t pair,
                                 const KeyBlock& keys);

// Cuts a thread's scratch memory into aligned pieces. With a null base it only counts.
class ScratchCutter {
 public:
  explicit ScratchCutter(std::byte* base) : base_(base) {}

  template <class T>
  T* take(std::int64_t count) {
    std::byte* const piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(count * static_cast<std::int64_t>(sizeof(T)), kPieceAlignment);
    return reinterpret_cast<T*>(piece);
  }

  std::int64_t used_bytes() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

}  // namespace tessera::cpu

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/attention/attention_backward_simd.cc"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/simd-inl.h"
#include "tessera/base/half.h"
#include "tessera/ops/attention/attention_blocks.h"
#include "tessera/ops/attention/attention_kernel-inl.h"
#include "tessera/ops/attention/attention_tasks.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

// p = 2^(score - lse). The sum does not start from -lse: rounding would grow with its magnitude.
template <bool kCapped>
struct StoreProbabilities {
  const float* lse;  // (L), base 2
  float* p;          // (kTileKeys, G)
  const ScoreCap& cap;
  float* slopes;  // (kTileKeys, G), with a cap

  HWY_INLINE VecF32 start(std::int64_t /*row*/, std::int64_t /*lane*/) const {
    return hn::Zero(F32());
  }

  HWY_INLINE void finish(std::int64_t row, std::int64_t lane, VecF32 value) const {
    if constexpr (kCapped) {
      VecF32 slope;
      value = capped(value, cap, slope);
      hn::Store(slope, F32(), slopes + row * kGroupLanes + lane);
    }
    const VecF32 exponent = hn::Sub(value, hn::Load(F32(), lse + lane));
    hn::Store(exp2(exponent), F32(), p + row * kGroupLanes + lane);
  }
};

// ds = p (dp - delta), with a cap times the slope that is in ds.
template <bool kCapped>
struct StoreScoreGradients {
  const float* delta;  // (L)
  const float* p;      // (kTileKeys, G)
  float* ds;           // (kTileKeys, G)

  HWY_INLINE VecF32 start(std::int64_t /*row*/, std::int64_t /*lane*/) const {
    return hn::Zero(F32());
  }

  HWY_INLINE void finish(std::int64_t row, std::int64_t lane, VecF32 value) const {
    const std::int64_t at = row * kGroupLanes + lane;
    const VecF32 difference = hn::Sub(value, hn::Load(F32(), delta + lane));
    VecF32 gradient = hn::Mul(difference, hn::Load(F32(), p + at));
    if constexpr (kCapped) {
      gradient = hn::Mul(gradient, hn::Load(F32(), ds + at));
    }
    hn::Store(gradient, F32(), ds + at);
  }
};

// Chunk by chunk of the task's lanes, block by block of its keys, group by group of the chunk.
template <class T>
class BackwardRun {
 public:
  BackwardRun(const BackwardProblem& problem,
              const BackwardScratch& scratch,
              const BackwardTask& task)
      : problem_(problem),
        common_(problem.common),
        scratch_(scratch),
        task_(task),
        lanes_(task.lanes),
        head_dim_(problem.common.shape.head_dim),
        padded_dim_(problem.common.shape.padded_dim()) {}

  void run() {
    const std::int64_t num_keys = (task_.blocks.last - task_.blocks.first) * kBlockKeys;
    if (task_.dkv) {
      std::fill_n(scratch_.dk, num_keys * padded_dim_, 0.0F);
      std::fill_n(scratch_.dv, num_keys * padded_dim_, 0.0F);
    }
    const std::int64_t chunk_lanes = common_.shape.chunk_lanes();
    for (std::int64_t lane = task_.lanes.first; lane < task_.lanes.last; lane += chunk_lanes) {
      lanes_.first = lane;
      lanes_.last = std::min(lane + chunk_lanes, task_.lanes.last);
      run_chunk();
    }
    if (task_.dkv) {
      write_keys();
    }
  }

 private:
  void run_chunk() {
    const BlockRange visible = visible_blocks(common_, lanes_);
    blocks_ = {.first = std::max(visible.first, task_.blocks.first),
               .last = std::min(visible.last, task_.blocks.last)};
    pack_lanes();
    for (std::int64_t block = blocks_.first; block < blocks_.last; ++block) {
      run_block(key_block(common_.shape, lanes_, block));
    }
    if (task_.dq) {
      write_queries();
    }
  }

  void pack_lanes() {
    std::array<T*, kPairLanes> rows;
    for (std::int64_t pair = 0; pair < lanes_.pairs(); ++pair) {
      const std::int64_t at = pair * kPairLanes * padded_dim_;
      lanes_.rows(problem_.q, pair, rows);
      pack_pair(rows, 1.0F, scratch_.queries + at);
      pack_pair(rows, problem_.score_factor, scratch_.rows);
      transpose_pair(scratch_.rows, scratch_.queries_t + at);
      lanes_.rows(problem_.dout, pair, rows);
      pack_pair(rows, 1.0F, scratch_.dout + at);
      transpose_pair(scratch_.dout + at, scratch_.dout_t + at);
      lanes_.rows(problem_.o, pair, rows);
      pack_pair(rows, 1.0F, scratch_.rows);
      transpose_pair(scratch_.rows, scratch_.dq_t + at);
      find_delta(pair);
    }
    find_lse();
    fill_lane_ids(common_.mask, lanes_, scratch_.positions, scratch_.documents);
    std::fill_n(scratch_.dq_t, lanes_.pairs() * kPairLanes * padded_dim_, 0.0F);
  }

  void pack_pair(const std::array<T*, kPairLanes>& rows, float factor, float* out) const {
    pack_rows(rows.data(), kPairLanes, head_dim_, padded_dim_, factor, out);
  }

  void transpose_pair(const float* rows, float* out) const {
    transpose(rows, padded_dim_, kPairLanes, padded_dim_, out, kPairLanes);
  }

  // delta = sum_c dout o, from the pair's o (D, L) in dq_t. In the order and with the operations of
  // dp, so that a query that sees one key has dp - delta = 0 exactly.
  void find_delta(std::int64_t pair) {
    const F32 f32;
    const std::int64_t at = pair * kPairLanes * padded_dim_;
    for (std::int64_t lane = 0; lane < kPairLanes; lane += kLanes) {
      VecF32 delta = hn::Zero(f32);
      for (std::int64_t c = 0; c < head_dim_; ++c) {
        const std::int64_t element = at + c * kPairLanes + lane;
        delta = hn::MulAdd(hn::Load(f32, scratch_.dq_t + element),
                           hn::Load(f32, scratch_.dout_t + element),
                           delta);
      }
      hn::Store(delta, f32, scratch_.delta + pair * kPairLanes + lane);
    }
  }

  // Infinity where a lane saw nothing or is not in use, so that its probabilities are 0.
  void find_lse() {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::fill_n(scratch_.lse, lanes_.pairs() * kPairLanes, kInfinity);
    for (std::int64_t i = 0; i < lanes_.last - lanes_.first; ++i) {
      const float value = lanes_.element(problem_.lse, i);
      if (value != -kInfinity) {
        scratch_.lse[i] = value * std::numbers::log2e_v<float>;
      }
    }
  }

  void run_block(const KeyBlock& keys) {
    bool packed = false;
    for (std::int64_t pair = 0; pair < lanes_.pairs(); pair += kGroupPairs) {
      std::array<BlockVisibility, kGroupPairs> seen = {};
      for (std::int64_t i = 0; i < std::min(kGroupPairs, lanes_.pairs() - pair); ++i) {
        BlockVisibility& pair_seen = seen[static_cast<std::size_t>(i)];
        pair_seen = block_visibility(common_, lanes_, pair + i, keys);
        if (pair_seen.none()) {
          continue;
        }
        if (!packed) {
          pack_keys(keys);
          packed = true;
        }
        find_score_gradients(pair + i, i * kPairLanes, keys, pair_seen);
        if (task_.dq) {
          add_to_queries(pair + i, i * kPairLanes, pair_seen);
        }
      }
      if (task_.dkv) {
        add_to_keys(pair, keys, seen);
      }
    }
  }

  void pack_keys(const KeyBlock& keys) {
    std::array<T*, kBlockKeys> rows;
    const std::int64_t num_rows = keys.tiles() * kTileKeys;
    keys.rows(problem_.k, rows);
    pack_rows(rows.data(), num_rows, head_dim_, padded_dim_, 1.0F, scratch_.keys);
    transpose_tiles(scratch_.keys, keys.tiles(), padded_dim_, scratch_.keys_t);
    keys.rows(problem_.v, rows);
    pack_rows(rows.data(), num_rows, head_dim_, padded_dim_, 1.0F, scratch_.rows);
    transpose_tiles(scratch_.rows, keys.tiles(), padded_dim_, scratch_.values_t);
  }

  void find_score_gradients(std::int64_t pair,
                            std::int64_t column,
                            const KeyBlock& keys,
                            const BlockVisibility& seen) {
    if (problem_.cap.is_set()) {
      find_score_gradients<true>(pair, column, keys, seen);
    } else {
      find_score_gradients<false>(pair, column, keys, seen);
    }
  }

  // Fills columns [column, column + L) of p and ds for the tiles that hold visible keys.
  template <bool kCapped>
  void find_score_gradients(std::int64_t pair,
                            std::int64_t column,
                            const KeyBlock& keys,
                            const BlockVisibility& seen) {
    const std::int64_t lane = pair * kPairLanes;
    const LaneRows queries = {.data = scratch_.queries_t + lane * padded_dim_, .step = kPairLanes};
    const LaneRows dout = {.data = scratch_.dout_t + lane * padded_dim_, .step = kPairLanes};
    for (std::int64_t tile = seen.first; tile < seen.last; ++tile) {
      const std::int64_t panel = tile * kTileKeys * padded_dim_;
      const Broadcast<1> key_panel = {.data = scratch_.keys_t + panel, .step = kTileKeys};
      const Broadcast<1> value_panel = {.data = scratch_.values_t + panel, .step = kTileKeys};
      float* const p = scratch_.p + tile * kTileKeys * kGroupLanes + column;
      float* const ds = scratch_.ds + tile * kTileKeys * kGroupLanes + column;
      multiply<kTileKeys, kPairLanes>(
          head_dim_,
          key_panel,
          queries,
          StoreProbabilities<kCapped>{
              .lse = scratch_.lse + lane, .p = p, .cap = problem_.cap, .slopes = ds});
      if (!seen.full) {
        hide_tile(seen.tiles[static_cast<std::size_t>(tile)],
                  tile_ids(common_.mask, keys, tile),
                  {.positions = scratch_.positions + lane, .documents = scratch_.documents + lane},
                  hn::Zero(F32()),
                  p,
                  kGroupLanes);
      }
      multiply<kTileKeys, kPairLanes>(
          head_dim_,
          value_panel,
          dout,
          StoreScoreGradients<kCapped>{.delta = scratch_.delta + lane, .p = p, .ds = ds});
    }
  }

  // dq += ds k
  void add_to_queries(std::int64_t pair, std::int64_t column, const BlockVisibility& seen) {
    const std::int64_t first = seen.first * kTileKeys;
    const LaneRows ds = {.data = scratch_.ds + first * kGroupLanes + column, .step = kGroupLanes};
    float* const dq = scratch_.dq_t + pair * kPairLanes * padded_dim_;
    for (std::int64_t c = 0; c < padded_dim_; c += kTileKeys) {
      const Broadcast<1> keys = {.data = scratch_.keys + first * padded_dim_ + c,
                                 .step = padded_dim_};
      multiply<kTileKeys, kPairLanes>((seen.last - seen.first) * kTileKeys,
                                      keys,
                                      ds,
                                      AddTo{.c = dq + c * kPairLanes, .pitch = kPairLanes});
    }
  }

  // Pairs [first, last) of the group that see keys of a tile.
  struct PairRange {
    std::int64_t first = kGroupPairs;
    std::int64_t last = 0;

    friend bool operator==(const PairRange&, const PairRange&) = default;
  };

  static PairRange pairs_that_see(std::int64_t tile,
                                  const std::array<BlockVisibility, kGroupPairs>& seen) {
    static_assert(kGroupPairs == 2, "with more, pairs between two that see the tile may not");
    PairRange range;
    for (std::int64_t i = 0; i < kGroupPairs; ++i) {
      if (seen[static_cast<std::size_t>(i)].holds(tile)) {
        range.first = std::min(range.first, i);
        range.last = i + 1;
      }
    }
    return range;
  }

  // dv += p^T dout and dk += ds^T q, by two tiles where the same pairs see both.
  void add_to_keys(std::int64_t first_pair,
                   const KeyBlock& keys,
                   const std::array<BlockVisibility, kGroupPairs>& seen) {
    std::int64_t tile = 0;
    while (tile < keys.tiles()) {
      const PairRange pairs = pairs_that_see(tile, seen);
      const bool two = tile + 1 < keys.tiles() && pairs_that_see(tile + 1, seen) == pairs;
      if (pairs.first < pairs.last && two) {
        add_to_tiles<2 * kTileKeys>(first_pair, keys, tile, pairs);
      } else if (pairs.first < pairs.last) {
        add_to_tiles<kTileKeys>(first_pair, keys, tile, pairs);
      }
      tile += two ? 2 : 1;
    }
  }

  template <std::int64_t kKeys>
  void add_to_tiles(std::int64_t first_pair,
                    const KeyBlock& keys,
                    std::int64_t tile,
                    const PairRange& pairs) {
    const std::int64_t lane = (first_pair + pairs.first) * kPairLanes * padded_dim_;
    const std::int64_t depth = (pairs.last - pairs.first) * kPairLanes;
    const std::int64_t at = tile * kTileKeys * kGroupLanes + pairs.first * kPairLanes;
    const std::int64_t key =
        ((keys.index - task_.blocks.first) * kBlockKeys + tile * kTileKeys) * padded_dim_;
    add_rows<kKeys>(depth, scratch_.p + at, scratch_.dout + lane, scratch_.dv + key);
    add_rows<kKeys>(depth, scratch_.ds + at, scratch_.queries + lane, scratch_.dk + key);
  }

  // sums[key, c] += weights[key, lane] * rows[lane, c] for kKeys keys.
  template <std::int64_t kKeys>
  void add_rows(std::int64_t depth, const float* weights, const float* rows, float* sums) const {
    const Broadcast<kGroupLanes> a = {.data = weights, .step = 1};
    std::int64_t c = 0;
    for (; c + kPairLanes <= padded_dim_; c += kPairLanes) {
      multiply<kKeys, kPairLanes>(
          depth, a, {.data = rows + c, .step = padded_dim_}, AddTo{sums + c, padded_dim_});
    }
    if (c < padded_dim_) {
      multiply<kKeys, kStripLanes>(
          depth, a, {.data = rows + c, .step = padded_dim_}, AddTo{sums + c, padded_dim_});
    }
  }

  void write_queries() {
    std::array<T*, kPairLanes> rows;
    for (std::int64_t pair = 0; pair < lanes_.pairs(); ++pair) {
      const float* const dq = scratch_.dq_t + pair * kPairLanes * padded_dim_;
      transpose(dq, kPairLanes, padded_dim_, kPairLanes, scratch_.rows, padded_dim_);
      lanes_.rows(problem_.dq, pair, rows);
      unpack_rows(
          scratch_.rows, lanes_.count(pair), head_dim_, padded_dim_, problem_.scale, rows.data());
    }
  }

  void write_keys() {
    std::array<T*, kBlockKeys> rows;
    for (std::int64_t block = task_.blocks.first; block < task_.blocks.last; ++block) {
      const KeyBlock keys = key_block(common_.shape, task_.lanes, block);
      const std::int64_t count = keys.last - keys.first;
      const std::int64_t at = (block - task_.blocks.first) * kBlockKeys * padded_dim_;
      keys.rows(problem_.dk, rows);
      unpack_rows(scratch_.dk + at, count, head_dim_, padded_dim_, problem_.scale, rows.data());
      keys.rows(problem_.dv, rows);
      unpack_rows(scratch_.dv + at, count, head_dim_, padded_dim_, 1.0F, rows.data());
    }
  }

  const BackwardProblem& problem_;
  const AttentionProblem& common_;
  const BackwardScratch& scratch_;
  const BackwardTask& task_;
  LaneRange lanes_;         // the chunk at hand
  BlockRange blocks_ = {};  // what the chunk sees of the task's blocks
  std::int64_t head_dim_;
  std::int64_t padded_dim_;
};

void backward_task(const BackwardProblem& problem,
                   const BackwardScratch& scratch,
                   const BackwardTask& task) {
  if (problem.common.bf16) {
    BackwardRun<BFloat16>(problem, scratch, task).run();
  } else {
    BackwardRun<float>(problem, scratch, task).run();
  }
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera::cpu {

namespace {

HWY_EXPORT(backward_task);

}  // namespace

void attention_backward(const BackwardProblem& problem,
                        const BackwardScratch& scratch,
                        const BackwardTask& task) {
  HWY_DYNAMIC_DISPATCH(backward_task)(problem, scratch, task);
}

}  // namespace tessera::cpu

#endif  // HWY_ONCE

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

// A chunk of a task's lanes: their rows on the way in, dq on the way out.
template <class T>
class LaneChunk {
 public:
  LaneChunk(const BackwardProblem& problem, const BackwardScratch& scratch, const LaneRange& range)
      : problem_(problem),
        packed_(scratch.lanes),
        rows_(scratch.rows),
        range_(range),
        head_dim_(problem.common.shape.head_dim),
        padded_dim_(problem.common.shape.padded_dim()) {}

  // Packs all that the scores and the sums read, and sets dq to 0.
  void pack() const {
    std::array<T*, kPairLanes> rows;
    for (std::int64_t pair = 0; pair < range_.pairs(); ++pair) {
      const std::int64_t at = pair * kPairLanes * padded_dim_;
      range_.rows(problem_.q, pair, rows);
      pack_pair(rows, 1.0F, packed_.queries + at);
      pack_pair(rows, problem_.score_factor, rows_);
      transpose_pair(rows_, packed_.queries_t + at);
      range_.rows(problem_.dout, pair, rows);
      pack_pair(rows, 1.0F, packed_.dout + at);
      transpose_pair(packed_.dout + at, packed_.dout_t + at);
      range_.rows(problem_.o, pair, rows);
      pack_pair(rows, 1.0F, rows_);
      transpose_pair(rows_, packed_.dq_t + at);
      find_delta(pair);
    }
    find_lse();
    fill_lane_ids(problem_.common.mask, range_, packed_.positions, packed_.documents);
    std::fill_n(packed_.dq_t, range_.pairs() * kPairLanes * padded_dim_, 0.0F);
  }

  void write_dq() const {
    if (problem_.has_carry) {
      add_dq();
    } else if (problem_.is_part) {
      write_dq_rows<float>();
    } else {
      write_dq_rows<T>();
    }
  }

 private:
  template <class Out>
  void write_dq_rows() const {
    std::array<Out*, kPairLanes> rows;
    for (std::int64_t pair = 0; pair < range_.pairs(); ++pair) {
      transpose_dq(pair);
      range_.rows(problem_.dq, pair, rows);
      unpack_rows(rows_, range_.count(pair), head_dim_, padded_dim_, problem_.scale, rows.data());
    }
  }

  void add_dq() const {
    std::array<float*, kPairLanes> rows;
    std::array<float*, kPairLanes> onto;
    for (std::int64_t pair = 0; pair < range_.pairs(); ++pair) {
      transpose_dq(pair);
      range_.rows(problem_.dq, pair, rows);
      range_.rows(problem_.carry, pair, onto);
      for (std::int64_t r = 0; r < range_.count(pair); ++r) {
        const auto row = static_cast<std::size_t>(r);
        unpack_row_onto(onto[row], rows_ + r * padded_dim_, head_dim_, problem_.scale, rows[row]);
      }
    }
  }

  void transpose_dq(std::int64_t pair) const {
    const float* const dq = packed_.dq_t + pair * kPairLanes * padded_dim_;
    transpose(dq, kPairLanes, padded_dim_, kPairLanes, rows_, padded_dim_);
  }

  void pack_pair(const std::array<T*, kPairLanes>& rows, float factor, float* out) const {
    pack_rows(rows.data(), kPairLanes, head_dim_, padded_dim_, factor, out);
  }

  void transpose_pair(const float* rows, float* out) const {
    transpose(rows, padded_dim_, kPairLanes, padded_dim_, out, kPairLanes);
  }

  // delta = sum_c dout o, from the pair's o (D, L) in dq_t. In the order and with the operations of
  // dp, so that a query that sees one key has dp - delta = 0 exactly.
  void find_delta(std::int64_t pair) const {
    const F32 f32;
    const std::int64_t at = pair * kPairLanes * padded_dim_;
    for (std::int64_t lane = 0; lane < kPairLanes; lane += kLanes) {
      VecF32 delta = hn::Zero(f32);
      for (std::int64_t c = 0; c < head_dim_; ++c) {
        const std::int64_t element = at + c * kPairLanes + lane;
        delta = hn::MulAdd(
            hn::Load(f32, packed_.dq_t + element), hn::Load(f32, packed_.dout_t + element), delta);
      }
      hn::Store(delta, f32, packed_.delta + pair * kPairLanes + lane);
    }
  }

  // Infinity where a lane saw nothing or is not in use, so that its probabilities are 0.
  void find_lse() const {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::fill_n(packed_.lse, range_.pairs() * kPairLanes, kInfinity);
    for (std::int64_t i = 0; i < range_.last - range_.first; ++i) {
      const float value = range_.element(problem_.lse, i);
      if (value != -kInfinity) {
        packed_.lse[i] = value * std::numbers::log2e_v<float>;
      }
    }
  }

  const BackwardProblem& problem_;
  const BackwardLanes& packed_;
  float* rows_;
  const LaneRange& range_;
  std::int64_t head_dim_;
  std::int64_t padded_dim_;
};

// The scores of a group of lanes x a block of keys: probabilities, and from them gradients.
class ScoreGradients {
 public:
  ScoreGradients(const BackwardProblem& problem, const BackwardScratch& scratch)
      : problem_(problem),
        scratch_(scratch),
        head_dim_(problem.common.shape.head_dim),
        padded_dim_(problem.common.shape.padded_dim()) {}

  // Fills columns [column, column + L) of p and ds for the tiles that hold visible keys.
  void find(std::int64_t pair,
            std::int64_t column,
            const KeyBlock& keys,
            const BlockVisibility& seen) const {
    if (problem_.cap.is_set()) {
      find_all<true>(pair, column, keys, seen);
    } else {
      find_all<false>(pair, column, keys, seen);
    }
  }

  // dq += ds k
  void add_to_queries(std::int64_t pair, std::int64_t column, const BlockVisibility& seen) const {
    const std::int64_t first = seen.first * kTileKeys;
    const LaneRows ds = {.data = scratch_.scores.ds + first * kGroupLanes + column,
                         .step = kGroupLanes};
    float* const dq = scratch_.lanes.dq_t + pair * kPairLanes * padded_dim_;
    for (std::int64_t c = 0; c < padded_dim_; c += kTileKeys) {
      const Broadcast<1> keys = {.data = scratch_.keys.keys + first * padded_dim_ + c,
                                 .step = padded_dim_};
      multiply<kTileKeys, kPairLanes>((seen.last - seen.first) * kTileKeys,
                                      keys,
                                      ds,
                                      AddTo{.c = dq + c * kPairLanes, .pitch = kPairLanes});
    }
  }

 private:
  template <bool kCapped>
  void find_all(std::int64_t pair,
                std::int64_t column,
                const KeyBlock& keys,
                const BlockVisibility& seen) const {
    const std::int64_t lane = pair * kPairLanes;
    const BackwardLanes& lanes = scratch_.lanes;
    const LaneRows queries = {.data = lanes.queries_t + lane * padded_dim_, .step = kPairLanes};
    const LaneRows dout = {.data = lanes.dout_t + lane * padded_dim_, .step = kPairLanes};
    for (std::int64_t tile = seen.first; tile < seen.last; ++tile) {
      const std::int64_t panel = tile * kTileKeys * padded_dim_;
      const Broadcast<1> key_panel = {.data = scratch_.keys.keys_t + panel, .step = kTileKeys};
      const Broadcast<1> value_panel = {.data = scratch_.keys.values_t + panel, .step = kTileKeys};
      float* const p = scratch_.scores.p + tile * kTileKeys * kGroupLanes + column;
      float* const ds = scratch_.scores.ds + tile * kTileKeys * kGroupLanes + column;
      multiply<kTileKeys, kPairLanes>(
          head_dim_,
          key_panel,
          queries,
          StoreProbabilities<kCapped>{
              .lse = lanes.lse + lane, .p = p, .cap = problem_.cap, .slopes = ds});
      if (!seen.full) {
        hide_tile(seen.tiles[static_cast<std::size_t>(tile)],
                  tile_ids(problem_.common.mask, keys, tile),
                  {.positions = lanes.positions + lane, .documents = lanes.documents + lane},
                  hn::Zero(F32()),
                  p,
                  kGroupLanes);
      }
      multiply<kTileKeys, kPairLanes>(
          head_dim_,
          value_panel,
          dout,
          StoreScoreGradients<kCapped>{.delta = lanes.delta + lane, .p = p, .ds = ds});
    }
  }

  const BackwardProblem& problem_;
  const BackwardScratch& scratch_;
  std::int64_t head_dim_;
  std::int64_t padded_dim_;
};

// What each pair of a group sees of a block of keys.
using GroupVisibility = std::array<BlockVisibility, kGroupPairs>;

// Pairs [first, last) of the group that see keys of a tile.
struct PairRange {
  std::int64_t first = kGroupPairs;
  std::int64_t last = 0;

  friend bool operator==(const PairRange&, const PairRange&) = default;
};

PairRange pairs_that_see(std::int64_t tile, const GroupVisibility& seen) {
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

// dk and dv of a task's keys, which grow group by group of the lanes.
class KeySums {
 public:
  KeySums(const BackwardProblem& problem, const BackwardScratch& scratch, const BackwardTask& task)
      : problem_(problem),
        scratch_(scratch),
        task_(task),
        padded_dim_(problem.common.shape.padded_dim()) {}

  void clear() const {
    const std::int64_t num_keys = (task_.blocks.last - task_.blocks.first) * kBlockKeys;
    std::fill_n(scratch_.sums.dk, num_keys * padded_dim_, 0.0F);
    std::fill_n(scratch_.sums.dv, num_keys * padded_dim_, 0.0F);
  }

  // dv += p^T dout and dk += ds^T q, by two tiles where the same pairs see both.
  void add(std::int64_t first_pair, const KeyBlock& keys, const GroupVisibility& seen) const {
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

  template <class Out>
  void write() const {
    const std::int64_t head_dim = problem_.common.shape.head_dim;
    std::array<Out*, kBlockKeys> rows;
    for (std::int64_t block = task_.blocks.first; block < task_.blocks.last; ++block) {
      const KeyBlock keys = key_block(problem_.common.shape, task_.lanes, block);
      const std::int64_t count = keys.last - keys.first;
      const float* const dk = scratch_.sums.dk + first_of(keys);
      const float* const dv = scratch_.sums.dv + first_of(keys);
      keys.rows(problem_.dk, rows);
      unpack_rows(dk, count, head_dim, padded_dim_, problem_.scale, rows.data());
      keys.rows(problem_.dv, rows);
      unpack_rows(dv, count, head_dim, padded_dim_, 1.0F, rows.data());
    }
  }

 private:
  // Where the block's sums begin.
  std::int64_t first_of(const KeyBlock& keys) const {
    return (keys.index - task_.blocks.first) * kBlockKeys * padded_dim_;
  }

  template <std::int64_t kKeys>
  void add_to_tiles(std::int64_t first_pair,
                    const KeyBlock& keys,
                    std::int64_t tile,
                    const PairRange& pairs) const {
    const std::int64_t lane = (first_pair + pairs.first) * kPairLanes * padded_dim_;
    const std::int64_t depth = (pairs.last - pairs.first) * kPairLanes;
    const std::int64_t at = tile * kTileKeys * kGroupLanes + pairs.first * kPairLanes;
    const std::int64_t key = first_of(keys) + tile * kTileKeys * padded_dim_;
    add_rows<kKeys>(
        depth, scratch_.scores.p + at, scratch_.lanes.dout + lane, scratch_.sums.dv + key);
    add_rows<kKeys>(
        depth, scratch_.scores.ds + at, scratch_.lanes.queries + lane, scratch_.sums.dk + key);
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

  const BackwardProblem& problem_;
  const BackwardScratch& scratch_;
  const BackwardTask& task_;
  std::int64_t padded_dim_;
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
        scores_(problem, scratch),
        sums_(problem, scratch, task),
        head_dim_(problem.common.shape.head_dim),
        padded_dim_(problem.common.shape.padded_dim()) {}

  void run() {
    if (task_.dkv) {
      sums_.clear();
    }
    const std::int64_t chunk_lanes = common_.shape.chunk_lanes();
    for (std::int64_t lane = task_.lanes.first; lane < task_.lanes.last; lane += chunk_lanes) {
      lanes_.first = lane;
      lanes_.last = std::min(lane + chunk_lanes, task_.lanes.last);
      run_chunk();
    }
    if (task_.dkv && problem_.is_part) {
      sums_.template write<float>();
    } else if (task_.dkv) {
      sums_.template write<T>();
    }
  }

 private:
  void run_chunk() {
    const BlockRange visible = visible_blocks(common_, lanes_);
    const BlockRange blocks = {.first = std::max(visible.first, task_.blocks.first),
                               .last = std::min(visible.last, task_.blocks.last)};
    const LaneChunk<T> chunk(problem_, scratch_, lanes_);
    chunk.pack();
    for (std::int64_t block = blocks.first; block < blocks.last; ++block) {
      run_block(key_block(common_.shape, lanes_, block));
    }
    if (task_.dq) {
      chunk.write_dq();
    }
  }

  void run_block(const KeyBlock& keys) {
    bool packed = false;
    for (std::int64_t pair = 0; pair < lanes_.pairs(); pair += kGroupPairs) {
      GroupVisibility seen = {};
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
        scores_.find(pair + i, i * kPairLanes, keys, pair_seen);
        if (task_.dq) {
          scores_.add_to_queries(pair + i, i * kPairLanes, pair_seen);
        }
      }
      if (task_.dkv) {
        sums_.add(pair, keys, seen);
      }
    }
  }

  void pack_keys(const KeyBlock& keys) {
    std::array<T*, kBlockKeys> rows;
    const std::int64_t num_rows = keys.tiles() * kTileKeys;
    const BackwardKeys& packed = scratch_.keys;
    keys.rows(problem_.k, rows);
    pack_rows(rows.data(), num_rows, head_dim_, padded_dim_, 1.0F, packed.keys);
    transpose_tiles(packed.keys, keys.tiles(), padded_dim_, packed.keys_t);
    keys.rows(problem_.v, rows);
    pack_rows(rows.data(), num_rows, head_dim_, padded_dim_, 1.0F, scratch_.rows);
    transpose_tiles(scratch_.rows, keys.tiles(), padded_dim_, packed.values_t);
  }

  const BackwardProblem& problem_;
  const AttentionProblem& common_;
  const BackwardScratch& scratch_;
  const BackwardTask& task_;
  LaneRange lanes_;  // the chunk at hand
  ScoreGradients scores_;
  KeySums sums_;
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

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/attention/attention_forward_simd.cc"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/simd-inl.h"
#include "tessera/base/half.h"
#include "tessera/ops/attention/attention_blocks.h"
#include "tessera/ops/attention/attention_kernel-inl.h"
#include "tessera/ops/attention/attention_tasks.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

template <bool kCapped>
struct StoreScores {
  float* scores;  // (kTileKeys, L)
  const ScoreCap& cap;

  HWY_INLINE VecF32 start(std::int64_t /*row*/, std::int64_t /*lane*/) const {
    return hn::Zero(F32());
  }

  HWY_INLINE void finish(std::int64_t row, std::int64_t lane, VecF32 value) const {
    if constexpr (kCapped) {
      value = capped(value, cap);
    }
    hn::Store(value, F32(), scores + row * kPairLanes + lane);
  }
};

struct RescaleAndAddTo {
  float* outputs = nullptr;        // (rows, L)
  const float* factors = nullptr;  // (L)

  HWY_INLINE VecF32 start(std::int64_t row, std::int64_t lane) const {
    return hn::Mul(hn::Load(F32(), outputs + row * kPairLanes + lane),
                   hn::Load(F32(), factors + lane));
  }

  HWY_INLINE void finish(std::int64_t row, std::int64_t lane, VecF32 value) const {
    hn::Store(value, F32(), outputs + row * kPairLanes + lane);
  }
};

// Of one vector of lanes of scores (rows, L) and `least`. Four chains hide the latency.
HWY_INLINE VecF32 column_maximum(const float* scores, std::int64_t rows, VecF32 least) {
  static_assert(kTileKeys % 4 == 0);
  VecF32 top[4] = {least, least, least, least};
  for (std::int64_t r = 0; r < rows; r += 4) {
    HWY_UNROLL(4)
    for (std::int64_t i = 0; i < 4; ++i) {
      top[i] = hn::Max(top[i], hn::Load(F32(), scores + (r + i) * kPairLanes));
    }
  }
  return hn::Max(hn::Max(top[0], top[1]), hn::Max(top[2], top[3]));
}

constexpr std::int64_t kSoftmaxVecs = kLanes == 1 ? 1 : 2;

// Turns scores (rows, L) of kSoftmaxVecs vectors of lanes into 2^(score - maximum), after raising
// `maximum` to them. `sum` gains the results; it and all else that was relative to the old maximum
// is to be multiplied by `factors`.
HWY_INLINE void softmax(
    float* scores, std::int64_t rows, float* maximum, float* sum, float* factors) {
  const F32 f32;
  VecF32 top[kSoftmaxVecs];
  HWY_UNROLL(2)
  for (std::int64_t v = 0; v < kSoftmaxVecs; ++v) {
    top[v] = column_maximum(scores + v * kLanes, rows, hn::Load(f32, maximum + v * kLanes));
  }
  VecF32 total[kSoftmaxVecs];
  HWY_UNROLL(2)
  for (std::int64_t v = 0; v < kSoftmaxVecs; ++v) {
    const VecF32 factor = exp2(hn::Sub(hn::Load(f32, maximum + v * kLanes), top[v]));
    total[v] = hn::Mul(factor, hn::Load(f32, sum + v * kLanes));
    hn::Store(factor, f32, factors + v * kLanes);
    hn::Store(top[v], f32, maximum + v * kLanes);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    HWY_UNROLL(2)
    for (std::int64_t v = 0; v < kSoftmaxVecs; ++v) {
      float* const score = scores + r * kPairLanes + v * kLanes;
      const VecF32 p = exp2(hn::Sub(hn::Load(f32, score), top[v]));
      total[v] = hn::Add(total[v], p);
      hn::Store(p, f32, score);
    }
  }
  HWY_UNROLL(2)
  for (std::int64_t v = 0; v < kSoftmaxVecs; ++v) {
    hn::Store(total[v], f32, sum + v * kLanes);
  }
}

// One chunk of lanes of one key/value head against all keys.
template <class T>
class ForwardChunk {
 public:
  ForwardChunk(const ForwardProblem& problem, const ForwardScratch& scratch, const LaneRange& lanes)
      : problem_(problem),
        scratch_(scratch),
        lanes_(lanes),
        blocks_(visible_blocks(problem.common, lanes)),
        head_dim_(problem.common.shape.head_dim),
        padded_dim_(problem.common.shape.padded_dim()) {}

  void run() {
    start();
    for (std::int64_t block = blocks_.first; block < blocks_.last; ++block) {
      attend(key_block(problem_.common.shape, lanes_, block));
    }
    finish();
  }

 private:
  void start() {
    std::array<T*, kPairLanes> rows;
    for (std::int64_t pair = 0; pair < lanes_.pairs(); ++pair) {
      lanes_.rows(problem_.q, pair, rows);
      pack_rows(
          rows.data(), kPairLanes, head_dim_, padded_dim_, problem_.score_factor, scratch_.rows);
      transpose(scratch_.rows,
                padded_dim_,
                kPairLanes,
                padded_dim_,
                scratch_.queries + pair * kPairLanes * padded_dim_,
                kPairLanes);
    }
    fill_lane_ids(problem_.common.mask, lanes_, scratch_.positions, scratch_.documents);
    const std::int64_t lanes = lanes_.pairs() * kPairLanes;
    // Not -inf: the difference of two maxima must stay a number.
    std::fill_n(scratch_.maximum, lanes, std::numeric_limits<float>::lowest());
    std::fill_n(scratch_.sum, lanes, 0.0F);
    if (problem_.carry.is_first) {
      std::fill_n(scratch_.outputs, lanes * padded_dim_, 0.0F);
    } else {
      go_on();
    }
  }

  // From what the steps before left: outputs relative to lse, of which the sum is then 1.
  void go_on() {
    std::array<float*, kPairLanes> rows;
    for (std::int64_t pair = 0; pair < lanes_.pairs(); ++pair) {
      lanes_.rows(problem_.carry.o, pair, rows);
      pack_rows(rows.data(), kPairLanes, head_dim_, padded_dim_, 1.0F, scratch_.rows);
      transpose(scratch_.rows,
                padded_dim_,
                kPairLanes,
                padded_dim_,
                scratch_.outputs + pair * kPairLanes * padded_dim_,
                kPairLanes);
    }
    for (std::int64_t i = 0; i < lanes_.last - lanes_.first; ++i) {
      const float lse = lanes_.element(problem_.carry.lse, i);
      if (lse != -std::numeric_limits<float>::infinity()) {
        scratch_.maximum[i] = lse * std::numbers::log2e_v<float>;
        scratch_.sum[i] = 1.0F;
      }
    }
  }

  void attend(const KeyBlock& keys) {
    const KeyBlock next = key_block(problem_.common.shape, lanes_, keys.index + 1);
    bool packed = false;
    for (std::int64_t pair = 0; pair < lanes_.pairs(); ++pair) {
      if (next.index < blocks_.last) {
        prefetch_keys<T>(problem_.k, next, pair, lanes_.pairs(), head_dim_);
        prefetch_keys<T>(problem_.v, next, pair, lanes_.pairs(), head_dim_);
      }
      const BlockVisibility seen = block_visibility(problem_.common, lanes_, pair, keys);
      if (seen.none()) {
        continue;
      }
      if (!packed) {
        pack_keys(keys);
        packed = true;
      }
      score(pair, keys, seen);
      accumulate(pair, seen);
    }
  }

  void pack_keys(const KeyBlock& keys) {
    std::array<T*, kBlockKeys> rows;
    keys.rows(problem_.k, rows);
    pack_rows(rows.data(), keys.tiles() * kTileKeys, head_dim_, padded_dim_, 1.0F, scratch_.rows);
    transpose_tiles(scratch_.rows, keys.tiles(), padded_dim_, scratch_.keys);
    keys.rows(problem_.v, rows);
    pack_rows(rows.data(), keys.tiles() * kTileKeys, head_dim_, padded_dim_, 1.0F, scratch_.values);
  }

  void score(std::int64_t pair, const KeyBlock& keys, const BlockVisibility& seen) {
    const LaneRows queries = {.data = scratch_.queries + pair * kPairLanes * padded_dim_,
                              .step = kPairLanes};
    for (std::int64_t tile = seen.first; tile < seen.last; ++tile) {
      const Broadcast<1> panel = {.data = scratch_.keys + tile * kTileKeys * padded_dim_,
                                  .step = kTileKeys};
      float* const scores = scratch_.scores + tile * kTileKeys * kPairLanes;
      if (problem_.cap.is_set()) {
        multiply<kTileKeys, kPairLanes>(
            head_dim_, panel, queries, StoreScores<true>{scores, problem_.cap});
      } else {
        multiply<kTileKeys, kPairLanes>(
            head_dim_, panel, queries, StoreScores<false>{scores, problem_.cap});
      }
      if (!seen.full) {
        hide_tile(seen.tiles[static_cast<std::size_t>(tile)],
                  tile_ids(problem_.common.mask, keys, tile),
                  {.positions = scratch_.positions + pair * kPairLanes,
                   .documents = scratch_.documents + pair * kPairLanes},
                  hn::Set(F32(), -std::numeric_limits<float>::infinity()),
                  scores,
                  kPairLanes);
      }
    }
  }

  void accumulate(std::int64_t pair, const BlockVisibility& seen) {
    alignas(64) std::array<float, kPairLanes> factors;
    const std::int64_t rows = (seen.last - seen.first) * kTileKeys;
    float* const scores = scratch_.scores + seen.first * kTileKeys * kPairLanes;
    const std::int64_t first_lane = pair * kPairLanes;
    for (std::int64_t lane = 0; lane < kPairLanes; lane += kSoftmaxVecs * kLanes) {
      softmax(scores + lane,
              rows,
              scratch_.maximum + first_lane + lane,
              scratch_.sum + first_lane + lane,
              factors.data() + lane);
    }
    float* const outputs = scratch_.outputs + first_lane * padded_dim_;
    for (std::int64_t c = 0; c < padded_dim_; c += kTileKeys) {
      const Broadcast<1> values = {
          .data = scratch_.values + seen.first * kTileKeys * padded_dim_ + c, .step = padded_dim_};
      multiply<kTileKeys, kPairLanes>(rows,
                                      values,
                                      {.data = scores, .step = kPairLanes},
                                      RescaleAndAddTo{outputs + c * kPairLanes, factors.data()});
    }
  }

  void finish() {
    if (problem_.carry.is_wide) {
      write_outputs<float>();
    } else {
      write_outputs<T>();
    }
    write_lse();
  }

  template <class Out>
  void write_outputs() {
    std::array<Out*, kPairLanes> rows;
    for (std::int64_t pair = 0; pair < lanes_.pairs(); ++pair) {
      float* const outputs = scratch_.outputs + pair * kPairLanes * padded_dim_;
      divide(outputs, scratch_.sum + pair * kPairLanes);
      transpose(outputs, kPairLanes, padded_dim_, kPairLanes, scratch_.rows, padded_dim_);
      lanes_.rows(problem_.o, pair, rows);
      unpack_rows(scratch_.rows, lanes_.count(pair), head_dim_, padded_dim_, 1.0F, rows.data());
    }
  }

  // outputs (D, L) by sum (L); 0 where a lane saw nothing.
  void divide(float* outputs, const float* sum) const {
    const F32 f32;
    for (std::int64_t lane = 0; lane < kPairLanes; lane += kLanes) {
      const VecF32 total = hn::Load(f32, sum + lane);
      const auto nothing = hn::Eq(total, hn::Zero(f32));
      const VecF32 factor = hn::IfThenZeroElse(nothing, hn::Div(hn::Set(f32, 1.0F), total));
      for (std::int64_t c = 0; c < padded_dim_; ++c) {
        float* const at = outputs + c * kPairLanes + lane;
        hn::Store(hn::Mul(factor, hn::Load(f32, at)), f32, at);
      }
    }
  }

  void write_lse() const {
    for (std::int64_t i = 0; i < lanes_.last - lanes_.first; ++i) {
      lanes_.element(problem_.lse, i) =
          scratch_.maximum[i] * std::numbers::ln2_v<float> + std::log(scratch_.sum[i]);
    }
  }

  const ForwardProblem& problem_;
  const ForwardScratch& scratch_;
  const LaneRange& lanes_;
  BlockRange blocks_;
  std::int64_t head_dim_;
  std::int64_t padded_dim_;
};

void forward_chunk(const ForwardProblem& problem,
                   const ForwardScratch& scratch,
                   const LaneRange& lanes) {
  if (problem.common.bf16) {
    ForwardChunk<BFloat16>(problem, scratch, lanes).run();
  } else {
    ForwardChunk<float>(problem, scratch, lanes).run();
  }
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera::cpu {

namespace {

HWY_EXPORT(forward_chunk);

}  // namespace

void attention_forward(const ForwardProblem& problem,
                       const ForwardScratch& scratch,
                       const LaneRange& lanes) {
  HWY_DYNAMIC_DISPATCH(forward_chunk)(problem, scratch, lanes);
}

}  // namespace tessera::cpu

#endif  // HWY_ONCE

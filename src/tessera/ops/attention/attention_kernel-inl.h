// SIMD building blocks of attention, compiled once per instruction set; see attention_blocks.h for
// tiles, strips, pairs and blocks. All scratch memory is aligned to whole vectors.

#if defined(TESSERA_OPS_ATTENTION_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_OPS_ATTENTION_KERNEL_INL_H_
#undef TESSERA_OPS_ATTENTION_KERNEL_INL_H_
#else
#define TESSERA_OPS_ATTENTION_KERNEL_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "tessera/backend/cpu/simd-inl.h"
#include "tessera/ops/attention/attention_blocks.h"
#include "tessera/ops/attention/attention_tasks.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

static_assert(kStripLanes % kLanes == 0);

// Rows of a register tile two vectors wide: as many as leave registers for the operands.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
inline constexpr std::int64_t kRegisterRows = 4;
#else
inline constexpr std::int64_t kRegisterRows = 8;
#endif

// A[r, k] = data[r * kRow + k * step]: elements to broadcast. kRow is a constant so that a tile's
// rows need no address registers of their own.
template <std::int64_t kRow>
struct Broadcast {
  const float* data = nullptr;
  std::int64_t step = 0;
};

// B[k, lane] = data[k * step + lane]: vectors of lanes.
struct LaneRows {
  const float* data = nullptr;
  std::int64_t step = 0;
};

// acc[r][v] += sum over k < depth of A[r, k] * B[k, vector v], k in order.
template <std::int64_t kRow, std::int64_t kRows, std::int64_t kVecs>
HWY_INLINE void multiply_add(std::int64_t depth,
                             Broadcast<kRow> a,
                             LaneRows b,
                             VecF32 (&acc)[kRows][kVecs]) {
  const F32 f32;
  for (std::int64_t k = 0; k < depth; ++k) {
    VecF32 b_vec[kVecs];
    HWY_UNROLL(2)
    for (std::int64_t v = 0; v < kVecs; ++v) {
      b_vec[v] = hn::Load(f32, b.data + v * kLanes);
    }
    HWY_UNROLL(16)
    for (std::int64_t r = 0; r < kRows; ++r) {
      const VecF32 a_vec = hn::Set(f32, a.data[r * kRow]);
      HWY_UNROLL(2)
      for (std::int64_t v = 0; v < kVecs; ++v) {
        acc[r][v] = hn::MulAdd(a_vec, b_vec[v], acc[r][v]);
      }
    }
    a.data += a.step;
    b.data += b.step;
  }
}

// C = start + A B for kRows rows of A and kWidth lanes of B. `epilogue` has start(row, lane), which
// gives the first value of a vector of C, and finish(row, lane, vector), which takes the last.
template <std::int64_t kRows, std::int64_t kWidth, std::int64_t kRow, class Epilogue>
HWY_INLINE void multiply(std::int64_t depth,
                         Broadcast<kRow> a,
                         LaneRows b,
                         const Epilogue& epilogue) {
  constexpr std::int64_t kVecs = kWidth / kLanes < 2 ? 1 : 2;
  constexpr std::int64_t kTileRows = std::min(kRows, kRegisterRows * 2 / kVecs);
  for (std::int64_t row = 0; row < kRows; row += kTileRows) {
    for (std::int64_t lane = 0; lane < kWidth; lane += kVecs * kLanes) {
      VecF32 acc[kTileRows][kVecs];
      HWY_UNROLL(16)
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        HWY_UNROLL(2)
        for (std::int64_t v = 0; v < kVecs; ++v) {
          acc[r][v] = epilogue.start(row + r, lane + v * kLanes);
        }
      }
      multiply_add(depth,
                   Broadcast<kRow>{.data = a.data + row * kRow, .step = a.step},
                   {.data = b.data + lane, .step = b.step},
                   acc);
      HWY_UNROLL(16)
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        HWY_UNROLL(2)
        for (std::int64_t v = 0; v < kVecs; ++v) {
          epilogue.finish(row + r, lane + v * kLanes, acc[r][v]);
        }
      }
    }
  }
}

// An epilogue that adds the product to C[row, lane] = c[row * pitch + lane].
struct AddTo {
  float* c = nullptr;
  std::int64_t pitch = 0;

  HWY_INLINE VecF32 start(std::int64_t row, std::int64_t lane) const {
    return hn::Load(F32(), c + row * pitch + lane);
  }

  HWY_INLINE void finish(std::int64_t row, std::int64_t lane, VecF32 value) const {
    hn::Store(value, F32(), c + row * pitch + lane);
  }
};

// 2^x for x up to 127 with a relative error below 2e-7; 0 for x <= -127 and NaN for NaN.
// The integer part of x goes to the exponent bits, a minimax polynomial on [-0.5, 0.5] gives the
// rest. Its first coefficient is exactly 1, so that -127 comes out as 0 without a comparison.
HWY_INLINE VecF32 exp2(VecF32 x) {
  const F32 f32;
  const I32 i32;
  const VecF32 to_integer = hn::Set(f32, 12582912.0F);  // 1.5 * 2^23: rounds into the low bits
  x = at_least(x, -127.0F);
  const VecF32 shifted = hn::Add(x, to_integer);
  const VecF32 fraction = hn::Sub(x, hn::Sub(shifted, to_integer));
  VecF32 p = hn::Set(f32, 0.0013264727247F);
  p = hn::MulAdd(p, fraction, hn::Set(f32, 0.0096715126882F));
  p = hn::MulAdd(p, fraction, hn::Set(f32, 0.0555073374357F));
  p = hn::MulAdd(p, fraction, hn::Set(f32, 0.2402224208464F));
  p = hn::MulAdd(p, fraction, hn::Set(f32, 0.6931469775987F));
  p = hn::MulAdd(p, fraction, hn::Set(f32, 1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(i32, shifted));
  return hn::BitCast(f32, hn::Add(hn::BitCast(i32, p), exponent));
}

// Scores under a cap. `slope`: how much of a change of a score is left.
HWY_INLINE VecF32 capped(VecF32 score, const ScoreCap& cap) {
  return hn::Mul(hn::Set(F32(), cap.cap), tanh(hn::Mul(score, hn::Set(F32(), cap.inverse))));
}

HWY_INLINE VecF32 capped(VecF32 score, const ScoreCap& cap, VecF32& slope) {
  const VecF32 part = tanh(hn::Mul(score, hn::Set(F32(), cap.inverse)));
  slope = hn::NegMulAdd(part, part, hn::Set(F32(), 1.0F));
  return hn::Mul(hn::Set(F32(), cap.cap), part);
}

// Asks for part `part` of `parts` of a block's rows ahead of their use, into the second-level
// cache: the rows of one head are too far apart for the hardware's own prefetching. Inline, as GCC
// takes a function that only prefetches to have no effect and drops its calls.
template <class T>
HWY_INLINE void prefetch_keys(const HeadRows& from,
                              const KeyBlock& keys,
                              std::int64_t part,
                              std::int64_t parts,
                              std::int64_t d) {
  constexpr std::int64_t kLineElements = 64 / sizeof(T);
  const std::int64_t share = ceil_div(kBlockKeys, parts);
  const std::int64_t last = std::min((part + 1) * share, keys.last - keys.first);
  for (std::int64_t i = part * share; i < last; ++i) {
    const T* const row = keys.row<T>(from, i);
    for (std::int64_t c = 0; c < d; c += kLineElements) {
      __builtin_prefetch(row + c, 0, 2);
    }
  }
}

// out[r, c] = factor * rows[r][c] with pitch `padded_d`, and 0 where c >= d.
template <class T>
void pack_rows(const T* const* rows,
               std::int64_t num_rows,
               std::int64_t d,
               std::int64_t padded_d,
               float factor,
               float* out) {
  const F32 f32;
  const VecF32 factors = hn::Set(f32, factor);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    float* const to = out + r * padded_d;
    for_lanes(d, [&](auto lanes, std::int64_t c) HWY_ATTR {
      hn::Store(hn::Mul(factors, load(lanes, rows[r] + c)), f32, to + c);
    });
    for (std::int64_t c = round_up(d, kLanes); c < padded_d; c += kLanes) {
      hn::Store(hn::Zero(f32), f32, to + c);
    }
  }
}

// rows[r][c] = factor * in[r, c] with pitch `padded_d`, for c < d.
template <class T>
void unpack_rows(const float* in,
                 std::int64_t num_rows,
                 std::int64_t d,
                 std::int64_t padded_d,
                 float factor,
                 T* const* rows) {
  const VecF32 factors = hn::Set(F32(), factor);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const float* const from = in + r * padded_d;
    for_lanes(d, [&](auto lanes, std::int64_t c) HWY_ATTR {
      store(lanes, rows[r] + c, hn::Mul(factors, hn::Load(F32(), from + c)));
    });
  }
}

// to[c] = onto[c] + factor * in[c] for c < d.
inline void unpack_row_onto(
    const float* onto, const float* in, std::int64_t d, float factor, float* to) {
  const VecF32 factors = hn::Set(F32(), factor);
  for_lanes(d, [&](auto lanes, std::int64_t c) HWY_ATTR {
    const VecF32 sum = load(lanes, onto + c);
    store(lanes, to + c, hn::MulAdd(factors, hn::Load(F32(), in + c), sum));
  });
}

// out[c, r] = in[r, c] with pitches `out_pitch` and `in_pitch`; both counts are multiples of 4.
inline void transpose(const float* HWY_RESTRICT in,
                      std::int64_t in_pitch,
                      std::int64_t num_rows,
                      std::int64_t num_columns,
                      float* HWY_RESTRICT out,
                      std::int64_t out_pitch) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t r = 0; r < num_rows; ++r) {
    for (std::int64_t c = 0; c < num_columns; ++c) {
      out[c * out_pitch + r] = in[r * in_pitch + c];
    }
  }
#else
  const hn::CappedTag<float, 4> four;
  const hn::Repartition<std::uint64_t, decltype(four)> two;
  for (std::int64_t r = 0; r < num_rows; r += 4) {
    for (std::int64_t c = 0; c < num_columns; c += 4) {
      const float* const from = in + r * in_pitch + c;
      float* const to = out + c * out_pitch + r;
      const auto row0 = hn::Load(four, from);
      const auto row1 = hn::Load(four, from + in_pitch);
      const auto row2 = hn::Load(four, from + 2 * in_pitch);
      const auto row3 = hn::Load(four, from + 3 * in_pitch);
      const auto low01 = hn::BitCast(two, hn::InterleaveLower(four, row0, row1));
      const auto low23 = hn::BitCast(two, hn::InterleaveLower(four, row2, row3));
      const auto high01 = hn::BitCast(two, hn::InterleaveUpper(four, row0, row1));
      const auto high23 = hn::BitCast(two, hn::InterleaveUpper(four, row2, row3));
      hn::Store(hn::BitCast(four, hn::InterleaveLower(two, low01, low23)), four, to);
      hn::Store(hn::BitCast(four, hn::InterleaveUpper(two, low01, low23)), four, to + out_pitch);
      hn::Store(
          hn::BitCast(four, hn::InterleaveLower(two, high01, high23)), four, to + 2 * out_pitch);
      hn::Store(
          hn::BitCast(four, hn::InterleaveUpper(two, high01, high23)), four, to + 3 * out_pitch);
    }
  }
#endif
}

// out[tile, c, key] = rows[tile, key, c]: the tiles of a block, ready to be broadcast key by key.
inline void transpose_tiles(const float* rows,
                            std::int64_t num_tiles,
                            std::int64_t padded_d,
                            float* out) {
  for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
    const std::int64_t at = tile * kTileKeys * padded_d;
    transpose(rows + at, padded_d, kTileKeys, padded_d, out + at, kTileKeys);
  }
}

// Puts `hidden` over those values of one strip x one tile, out[key * pitch + lane], whose query
// does not see the key.
HWY_INLINE void hide(Visibility seen,
                     const TileIds& keys,
                     const LaneIds& lanes,
                     VecF32 hidden,
                     float* out,
                     std::int64_t pitch) {
  const F32 f32;
  const I32 i32;
  if (seen == Visibility::kFull) {
    return;
  }
  for (std::int64_t lane = 0; lane < kStripLanes; lane += kLanes) {
    const auto positions = hn::Load(i32, lanes.positions + lane);
    const auto documents = hn::Load(i32, lanes.documents + lane);
    for (std::int64_t key = 0; key < kTileKeys; ++key) {
      float* const at = out + key * pitch + lane;
      if (seen == Visibility::kNone || key >= keys.count) {
        hn::Store(hidden, f32, at);
        continue;
      }
      const auto index = static_cast<std::size_t>(key);
      const auto same_document = hn::Eq(documents, hn::Set(i32, keys.documents[index]));
      const auto position = hn::Set(i32, keys.positions[index]);
      auto seen_by = hn::And(same_document, hn::Not(hn::Lt(positions, position)));
      if (keys.window > 0) {
        const auto oldest = hn::Sub(positions, hn::Set(i32, keys.window));
        seen_by = hn::And(seen_by, hn::Gt(position, oldest));
      }
      const auto visible = hn::RebindMask(f32, seen_by);
      hn::Store(hn::IfThenElse(visible, hn::Load(f32, at), hidden), f32, at);
    }
  }
}

// hide() for both strips of a pair x one tile.
HWY_INLINE void hide_tile(const std::array<Visibility, 2>& seen,
                          const TileIds& keys,
                          const LaneIds& lanes,
                          VecF32 hidden,
                          float* out,
                          std::int64_t pitch) {
  for (std::size_t strip = 0; strip < seen.size(); ++strip) {
    const std::int64_t lane = static_cast<std::int64_t>(strip) * kStripLanes;
    hide(seen[strip],
         keys,
         {.positions = lanes.positions + lane, .documents = lanes.documents + lane},
         hidden,
         out + lane,
         pitch);
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // TESSERA_OPS_ATTENTION_KERNEL_INL_H_

#pragma once

#include <cstdint>
#include <numbers>

#include "tessera/ir/view.h"
#include "tessera/ops/attention/attention_blocks.h"

namespace tessera::cpu {

// The SIMD kernels' tasks. Shapes: L lanes of a pair, C lanes of a chunk, d head_dim, D head_dim
// padded to whole strips. Scores are kept in base 2, so that softmax needs 2^x alone.

// Of scores in base 2: a score s is cap tanh(s / cap). 0: there is none.
struct ScoreCap {
  float cap = 0.0F;
  float inverse = 0.0F;

  explicit ScoreCap(double softcap = 0.0)
      : cap(static_cast<float>(softcap * std::numbers::log2e)),
        inverse(softcap > 0.0 ? 1.0F / cap : 0.0F) {}

  bool is_set() const { return cap > 0.0F; }
};

// Of a step over one part of the keys, which goes on where another one ended.
struct AttentionCarry {
  bool is_part = false;
  bool is_wide = false;  // o is f32
  bool is_first = true;  // there is nothing to go on from
  HeadRows o;            // f32
  View lse;              // (b, heads, t)
};

struct ForwardProblem {
  AttentionProblem common;
  HeadRows q;
  HeadRows k;
  HeadRows v;
  HeadRows o;
  View lse;  // (b, heads, t)
  AttentionCarry carry;
  float score_factor = 1.0F;  // scale * log2(e)
  ScoreCap cap;
};

// What one thread needs.
struct ForwardScratch {
  float* rows = nullptr;              // (kBlockKeys, D): rows on their way
  float* queries = nullptr;           // (pairs, D, L), times score_factor
  float* outputs = nullptr;           // (pairs, D, L): sums of 2^(score - maximum) v
  float* maximum = nullptr;           // (C)
  float* sum = nullptr;               // (C): sums of 2^(score - maximum)
  std::int32_t* positions = nullptr;  // (C)
  std::int32_t* documents = nullptr;  // (C)
  float* keys = nullptr;              // (tiles of a block, D, kTileKeys)
  float* values = nullptr;            // (kBlockKeys, D)
  float* scores = nullptr;            // (kBlockKeys, L), then the probabilities
};

// What one thread needs for a key/value head of one query position.
struct DecodeScratch {
  std::int64_t keys = 0;     // S, of the cache, in whole blocks
  float* scores = nullptr;   // (group, S), then 2^(score - maximum)
  float* sums = nullptr;     // (group): sums of 2^(score - maximum)
  float* outputs = nullptr;  // (group, D): sums of 2^(score - maximum) v
};

struct BackwardProblem {
  AttentionProblem common;
  HeadRows dout;
  HeadRows q;
  HeadRows k;
  HeadRows v;
  HeadRows o;
  View lse;  // (b, heads, t)
  HeadRows dq;
  HeadRows dk;
  HeadRows dv;
  bool is_part = false;    // the gradients are f32, and
  bool has_carry = false;  // dq is added to
  HeadRows carry;          // this, f32
  float scale = 1.0F;
  float score_factor = 1.0F;  // scale * log2(e)
  ScoreCap cap;
};

// Of a chunk of lanes in the backward pass.
struct BackwardLanes {
  float* queries = nullptr;           // (C, D)
  float* queries_t = nullptr;         // (pairs, D, L), times scale * log2(e)
  float* dout = nullptr;              // (C, D)
  float* dout_t = nullptr;            // (pairs, D, L)
  float* dq_t = nullptr;              // (pairs, D, L), to be multiplied by scale
  float* lse = nullptr;               // (C), base 2
  float* delta = nullptr;             // (C): sum_c dout o
  std::int32_t* positions = nullptr;  // (C)
  std::int32_t* documents = nullptr;  // (C)
};

// Of a block of keys.
struct BackwardKeys {
  float* keys = nullptr;      // (kBlockKeys, D)
  float* keys_t = nullptr;    // (tiles of a block, D, kTileKeys)
  float* values_t = nullptr;  // (tiles of a block, D, kTileKeys)
};

// Of a block of keys by a group of lanes. G is kGroupLanes.
struct BackwardScores {
  float* p = nullptr;   // (kBlockKeys, G): probabilities
  float* ds = nullptr;  // (kBlockKeys, G): gradients of scaled scores, first a cap's slopes
};

// Of K keys, those of a task's range of blocks, in whole blocks.
struct KeyGradients {
  float* dk = nullptr;  // (K, D), to be multiplied by scale
  float* dv = nullptr;  // (K, D)
};

// What one thread needs.
struct BackwardScratch {
  float* rows = nullptr;  // (kBlockKeys, D): rows on their way
  BackwardLanes lanes;
  BackwardKeys keys;
  BackwardScores scores;
  KeyGradients sums;
};

// Lanes whose probabilities exist at one time.
inline constexpr std::int64_t kGroupPairs = 2;
inline constexpr std::int64_t kGroupLanes = kGroupPairs * kPairLanes;

// A part of the backward pass of one key/value head: all pairs of `lanes` and `blocks` of keys.
// With `dq` it computes dq of the lanes, and `blocks` must be all; with `dkv` dk and dv of the
// keys, and `lanes` must be all. Each sum has one order, whatever the parts.
struct BackwardTask {
  LaneRange lanes;
  BlockRange blocks;
  bool dq = false;
  bool dkv = false;
};

// Computes o and lse of `lanes`, at most chunk_lanes(). A lane's result does not depend on how
// lanes are grouped: ranges may run in any order on any thread.
void attention_forward(const ForwardProblem& problem,
                       const ForwardScratch& scratch,
                       const LaneRange& lanes);

// The same for all lanes of a key/value head where there is one query position: no lane shares
// keys with lanes of other positions, so that packing them into tiles does not pay.
void attention_decode(const ForwardProblem& problem,
                      const DecodeScratch& scratch,
                      const LaneRange& lanes);

void attention_backward(const BackwardProblem& problem,
                        const BackwardScratch& scratch,
                        const BackwardTask& task);

}  // namespace tessera::cpu

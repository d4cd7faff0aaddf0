#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/attention/attention_decode_simd.cc"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/simd-inl.h"
#include "tessera/base/half.h"
#include "tessera/ops/attention/attention_blocks.h"
#include "tessera/ops/attention/attention_kernel-inl.h"
#include "tessera/ops/attention/attention_tasks.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// All lanes of one key/value head, which have one position, against its keys: each key and value is
// read once, where it lies.
template <class T>
class DecodeHead {
 public:
  DecodeHead(const ForwardProblem& problem, const DecodeScratch& scratch, const LaneRange& lanes)
      : problem_(problem),
        scratch_(scratch),
        lanes_(lanes),
        blocks_(visible_blocks(problem.common, lanes)),
        first_(blocks_.first * kBlockKeys),
        count_(std::max<std::int64_t>(
            std::min(blocks_.last * kBlockKeys, problem.common.shape.keys) - first_, 0)),
        head_dim_(problem.common.shape.head_dim) {}

  void run() {
    const std::int64_t num_lanes = lanes_.last - lanes_.first;
    for (std::int64_t j = 0; j < count_; ++j) {
      const T* const key = problem_.k.row<T>(lanes_.batch, first_ + j, lanes_.head);
      prefetch_row(problem_.k, j);
      for (std::int64_t lane = 0; lane < num_lanes; ++lane) {
        scores(lane)[j] = sees(j) ? problem_.score_factor * dot(lane, key) : kHidden;
      }
    }
    for (std::int64_t lane = 0; lane < num_lanes; ++lane) {
      find_weights(lane);
    }
    std::fill_n(scratch_.outputs, num_lanes * padded_dim(), 0.0F);
    for (std::int64_t j = 0; j < count_; ++j) {
      const T* const value = problem_.v.row<T>(lanes_.batch, first_ + j, lanes_.head);
      prefetch_row(problem_.v, j);
      for (std::int64_t lane = 0; lane < num_lanes; ++lane) {
        if (sees(j) && scratch_.sums[lane] > 0.0F) {
          add_to(scratch_.outputs + lane * padded_dim(), scores(lane)[j], value);
        }
      }
    }
    for (std::int64_t lane = 0; lane < num_lanes; ++lane) {
      write(lane);
    }
  }

 private:
  std::int64_t padded_dim() const { return problem_.common.shape.padded_dim(); }

  float* scores(std::int64_t lane) const { return scratch_.scores + lane * scratch_.keys; }

  // The hardware does not foresee rows that lie far apart.
  void prefetch_row(const HeadRows& rows, std::int64_t j) const {
    constexpr std::int64_t kRowsAhead = 8;
    constexpr auto kLine = static_cast<std::int64_t>(kPieceAlignment / sizeof(T));
    const T* const row =
        rows.row<T>(lanes_.batch,
                    std::min(first_ + j + kRowsAhead, problem_.common.shape.keys - 1),
                    lanes_.head);
    for (std::int64_t c = 0; c < head_dim_; c += kLine) {
      prefetch(row + c);
    }
  }

  bool sees(std::int64_t j) const {
    const Mask& mask = problem_.common.mask;
    const std::int64_t position = lanes_.position(lanes_.first);
    return mask.query_documents.at(lanes_.batch, position) ==
               mask.key_documents.at(lanes_.batch, first_ + j) &&
           mask.sees(mask.query_positions.at(lanes_.batch, position),
                     mask.key_positions.at(lanes_.batch, first_ + j));
  }

  float dot(std::int64_t lane, const T* key) const {
    const T* const query = lanes_.row<T>(problem_.q, lane);
    return sum(head_dim_, [&](auto lanes, std::int64_t c) HWY_ATTR {
      return hn::Mul(load(lanes, query + c), load(lanes, key + c));
    });
  }

  // Of scores.
  void find_weights(std::int64_t lane) const {
    if (problem_.cap.is_set()) {
      cap(scores(lane));
    }
    const float maximum =
        count_ > 0 ? *std::max_element(scores(lane), scores(lane) + count_) : kHidden;
    const float total = maximum == kHidden ? 0.0F : exponentials(scores(lane), maximum);
    scratch_.sums[lane] = total;
    lanes_.element(problem_.lse, lane) = maximum * std::numbers::ln2_v<float> + std::log(total);
  }

  // Leaves those that are hidden.
  void cap(float* scores) const {
    for_lanes(count_, [&](auto lanes, std::int64_t j) HWY_ATTR {
      const VecF32 score = load(lanes, scores + j);
      const auto hidden = hn::Eq(score, hn::Set(F32(), kHidden));
      store(lanes, scores + j, hn::IfThenElse(hidden, score, capped(score, problem_.cap)));
    });
  }

  // Turns scores into 2^(score - maximum) and returns their sum.
  float exponentials(float* scores, float maximum) const {
    return sum(count_, [&](auto lanes, std::int64_t j) HWY_ATTR {
      const VecF32 p = exp2(hn::Sub(load(lanes, scores + j), hn::Set(F32(), maximum)));
      store(lanes, scores + j, p);
      return keep(lanes, p);
    });
  }

  void add_to(float* output, float p, const T* value) const {
    for_lanes(head_dim_, [&](auto lanes, std::int64_t c) HWY_ATTR {
      store(lanes,
            output + c,
            hn::MulAdd(hn::Set(F32(), p), load(lanes, value + c), load(lanes, output + c)));
    });
  }

  void write(std::int64_t lane) const {
    const float total = scratch_.sums[lane];
    const VecF32 factor = hn::Set(F32(), total > 0.0F ? 1.0F / total : 0.0F);
    const float* const output = scratch_.outputs + lane * padded_dim();
    T* const row = lanes_.row<T>(problem_.o, lane);
    for_lanes(head_dim_, [&](auto lanes, std::int64_t c) HWY_ATTR {
      store(lanes, row + c, hn::Mul(factor, load(lanes, output + c)));
    });
  }

  const ForwardProblem& problem_;
  const DecodeScratch& scratch_;
  const LaneRange& lanes_;
  BlockRange blocks_;
  std::int64_t first_;  // key
  std::int64_t count_;  // of keys from there on
  std::int64_t head_dim_;
};

void decode_head(const ForwardProblem& problem,
                 const DecodeScratch& scratch,
                 const LaneRange& lanes) {
  if (problem.common.bf16) {
    DecodeHead<BFloat16>(problem, scratch, lanes).run();
  } else {
    DecodeHead<float>(problem, scratch, lanes).run();
  }
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera::cpu {

namespace {

HWY_EXPORT(decode_head);

}  // namespace

void attention_decode(const ForwardProblem& problem,
                      const DecodeScratch& scratch,
                      const LaneRange& lanes) {
  HWY_DYNAMIC_DISPATCH(decode_head)(problem, scratch, lanes);
}

}  // namespace tessera::cpu

#endif  // HWY_ONCE

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tessera/base/half.h"
#include "tessera/comm/hierarchical.h"
#include "tessera/ops/scale_mask_softmax/scale_mask_softmax.h"
#include "tessera/ops/scale_mask_softmax/scale_mask_softmax_operands.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/scale_mask_softmax/scale_mask_softmax_cpu.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/simd-inl.h"

// A row is read whole before it is written: results may lie over operands.

#ifndef TESSERA_OPS_SCALE_MASK_SOFTMAX_ROW
#define TESSERA_OPS_SCALE_MASK_SOFTMAX_ROW

namespace tessera::cpu {

// The score of a key that a query does not see.
inline constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The keys of one sequence, and one query of a head.
struct MaskRow {
  const std::int32_t* key_positions;
  const std::int32_t* key_documents;
  std::int32_t position;
  std::int32_t document;
  bool causal;
  std::int64_t window;
  float slope;

  bool sees(std::int64_t key) const {
    const std::int64_t behind = std::int64_t{position} - key_positions[key];
    return key_documents[key] == document && (!causal || behind >= 0) &&
           (window == 0 || behind < window);
  }

  float bias(std::int64_t key) const {
    return slope * static_cast<float>(std::int64_t{key_positions[key]} - position);
  }
};

// Scores of a query and what becomes of them, in the kernel's dtype.
struct ScoreRow {
  const void* x;
  void* p;
  std::int64_t keys;
  float scale;
  const MaskRow* mask;  // null: all are seen
  float* scores;        // scratch
};

struct GradientRow {
  const void* dp;
  const void* p;
  void* dx;
  std::int64_t keys;
  float scale;
};

}  // namespace tessera::cpu

#endif

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

template <class T, bool kStream>
struct SoftmaxRow {
  static void run(const ScoreRow& row) {
    const auto* const x = static_cast<const T*>(row.x);
    auto* const p = static_cast<T*>(row.p);
    float* const scores = row.scores;
    for_lanes(row.keys, [&](auto lanes, std::int64_t i) HWY_ATTR {
      store(lanes, scores + i, hn::Mul(load(lanes, x + i), hn::Set(F32(), row.scale)));
    });
    if (row.mask != nullptr) {
      put_mask(row);
    }
    float top = kHidden;
    bool has_nan = false;
    for (std::int64_t i = 0; i < row.keys; ++i) {
      top = std::max(top, scores[i]);
      has_nan = has_nan || std::isnan(scores[i]);
    }
    if (top == kHidden && !has_nan) {
      std::fill_n(p, row.keys, T());
      return;
    }
    const VecF32 shift = hn::Set(F32(), top);
    for_lanes(row.keys, [&](auto lanes, std::int64_t i) HWY_ATTR {
      store(lanes, scores + i, exp_bounded_above(hn::Sub(load(lanes, scores + i), shift)));
    });
    const float total =
        sum(row.keys, [&](auto lanes, std::int64_t i) HWY_ATTR { return load(lanes, scores + i); });
    for_lanes(row.keys, [&](auto lanes, std::int64_t i) HWY_ATTR {
      store<kStream>(lanes, p + i, hn::Div(load(lanes, scores + i), hn::Set(F32(), total)));
    });
  }

  static void put_mask(const ScoreRow& row) {
    for (std::int64_t i = 0; i < row.keys; ++i) {
      row.scores[i] = row.mask->sees(i) ? row.scores[i] + row.mask->bias(i) : kHidden;
    }
  }
};

void softmax_row(const ScoreRow& row, Form form) {
  run_as<SoftmaxRow>(form, row);
}

template <class T, bool kStream>
struct SoftmaxBackwardRow {
  static void run(const GradientRow& row) {
    const auto* const dp = static_cast<const T*>(row.dp);
    const auto* const p = static_cast<const T*>(row.p);
    auto* const dx = static_cast<T*>(row.dx);
    const float dot = sum(row.keys, [&](auto lanes, std::int64_t i) HWY_ATTR {
      return hn::Mul(load(lanes, dp + i), load(lanes, p + i));
    });
    for_lanes(row.keys, [&](auto lanes, std::int64_t i) HWY_ATTR {
      const VecF32 slope = hn::Sub(load(lanes, dp + i), hn::Set(F32(), dot));
      const VecF32 scaled = hn::Mul(load(lanes, p + i), hn::Set(F32(), row.scale));
      store<kStream>(lanes, dx + i, hn::Mul(scaled, slope));
    });
  }
};

void softmax_backward_row(const GradientRow& row, Form form) {
  run_as<SoftmaxBackwardRow>(form, row);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(softmax_row);
HWY_EXPORT(softmax_backward_row);

// A query of a head.
struct RowPlace {
  std::int64_t sequence;
  std::int64_t head;
  std::int64_t query;
};

RowPlace place_of_row(const View& x, std::int64_t row) {
  return {.sequence = row / (x.sizes[1] * x.sizes[2]),
          .head = row / x.sizes[2] % x.sizes[1],
          .query = row % x.sizes[2]};
}

std::byte* row_at(const View& x, const RowPlace& at) {
  const std::int64_t element =
      at.sequence * x.strides[0] + at.head * x.strides[1] + at.query * x.strides[2];
  return x.as<std::byte>() + element * static_cast<std::int64_t>(size_bytes(x.dtype));
}

std::int64_t num_score_rows(const View& x) {
  return x.sizes[0] * x.sizes[1] * x.sizes[2];
}

// f32 of a row, whole cache lines.
std::int64_t score_scratch_bytes(std::int64_t keys) {
  constexpr std::int64_t kLine = 64;
  return (keys * static_cast<std::int64_t>(sizeof(float)) + kLine - 1) / kLine * kLine;
}

Form form_of_rows(DType dtype) {
  return {.bf16 = dtype == DType::kBF16, .stream = false};
}

// Calls body(first row, last row, member) for parts of the rows, on the threads of the team.
template <class Body>
void for_score_rows(ThreadTeam& team, const View& x, const Body& body) {
  const Work work = {.count = num_score_rows(x), .elements = 4 * x.sizes[3]};
  const std::int64_t pieces = num_pieces(team.size(), work);
  team.run(pieces, [&](std::int64_t piece, int member) {
    body(static_share(work, piece, pieces), member);
  });
}

// The mask of each row of the scores.
class RowMasks {
 public:
  RowMasks(const ScoreMask& mask, const AttentionIds& ids, const View& x, Context& context)
      : mask_(mask), ids_(ids) {
    if (mask.alibi_heads > 0 && !mask.axes.empty()) {
      first_head_ = place_along(context.levels(mask.axes, TrafficClass::kTensor)) * x.sizes[1];
    }
  }

  MaskRow operator[](const RowPlace& at) const {
    return {.key_positions = id_row(ids_.key_positions, at.sequence),
            .key_documents = id_row(ids_.key_documents, at.sequence),
            .position = id_row(ids_.query_positions, at.sequence)[at.query],
            .document = id_row(ids_.query_documents, at.sequence)[at.query],
            .causal = mask_.causal,
            .window = mask_.window,
            .slope = mask_.alibi_heads == 0 ? 0.0F
                                            : static_cast<float>(alibi_slope(first_head_ + at.head,
                                                                             mask_.alibi_heads))};
  }

 private:
  static const std::int32_t* id_row(const View& ids, std::int64_t sequence) {
    return ids.as<const std::int32_t>() + sequence * ids.strides[0];
  }

  const ScoreMask& mask_;
  const AttentionIds& ids_;
  std::int64_t first_head_ = 0;  // of all ranks' heads
};

void mask_row(const MaskRow& mask, bool of_gradient, const float* x, float* y, std::int64_t keys) {
  for (std::int64_t i = 0; i < keys; ++i) {
    const float score = of_gradient ? x[i] : x[i] + mask.bias(i);
    y[i] = mask.sees(i) ? score : of_gradient ? 0.0F : kHidden;
  }
}

void mask_row(
    const MaskRow& mask, bool of_gradient, const BFloat16* x, BFloat16* y, std::int64_t keys) {
  for (std::int64_t i = 0; i < keys; ++i) {
    const float score = of_gradient ? to_float(x[i]) : to_float(x[i]) + mask.bias(i);
    y[i] = to_bfloat16(mask.sees(i) ? score : of_gradient ? 0.0F : kHidden);
  }
}

}  // namespace

}  // namespace cpu

std::int64_t workspace_bytes(const ScaleMaskSoftmaxAttrs& /*attrs*/,
                             cpu::Context& context,
                             Types in) {
  return context.threads() * cpu::score_scratch_bytes(in[0].dims[3].bound);
}

void run(const ScaleMaskSoftmaxAttrs& attrs, cpu::Context& context, const Views& views) {
  const ScaleMaskSoftmaxOperands of = by_name(attrs, views);
  const cpu::Form form = cpu::form_of_rows(of.x.dtype);
  const std::int64_t keys = of.x.sizes[3];
  const cpu::RowMasks masks(attrs.mask, of.ids, of.x, context);
  auto* const row = HWY_DYNAMIC_DISPATCH(cpu::softmax_row);
  cpu::for_score_rows(context.team(), of.x, [&](cpu::Range rows, int member) {
    auto* const scratch =
        reinterpret_cast<float*>(views.workspace.data() + member * cpu::score_scratch_bytes(keys));
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const cpu::RowPlace at = cpu::place_of_row(of.x, i);
      const cpu::MaskRow mask = attrs.masked ? masks[at] : cpu::MaskRow();
      row({.x = cpu::row_at(of.x, at),
           .p = cpu::row_at(of.p, at),
           .keys = keys,
           .scale = static_cast<float>(attrs.scale),
           .mask = attrs.masked ? &mask : nullptr,
           .scores = scratch},
          form);
    }
  });
}

void run(const ScaleMaskSoftmaxBackwardAttrs& attrs, cpu::Context& context, const Views& views) {
  const ScaleMaskSoftmaxBackwardOperands of = by_name(attrs, views);
  const cpu::Form form = cpu::form_of_rows(of.p.dtype);
  auto* const row = HWY_DYNAMIC_DISPATCH(cpu::softmax_backward_row);
  cpu::for_score_rows(context.team(), of.p, [&](cpu::Range rows, int /*member*/) {
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const cpu::RowPlace at = cpu::place_of_row(of.p, i);
      row({.dp = cpu::row_at(of.dp, at),
           .p = cpu::row_at(of.p, at),
           .dx = cpu::row_at(of.dx, at),
           .keys = of.p.sizes[3],
           .scale = static_cast<float>(attrs.scale)},
          form);
    }
  });
}

void run(const MaskScoresAttrs& attrs, cpu::Context& context, const Views& views) {
  const MaskScoresOperands of = by_name(attrs, views);
  const cpu::RowMasks masks(attrs.mask, of.ids, of.x, context);
  const std::int64_t keys = of.x.sizes[3];
  cpu::for_score_rows(context.team(), of.x, [&](cpu::Range rows, int /*member*/) {
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const cpu::RowPlace at = cpu::place_of_row(of.x, i);
      const std::byte* const x = cpu::row_at(of.x, at);
      std::byte* const y = cpu::row_at(of.y, at);
      if (of.x.dtype == DType::kBF16) {
        cpu::mask_row(masks[at],
                      attrs.of_gradient,
                      reinterpret_cast<const BFloat16*>(x),
                      reinterpret_cast<BFloat16*>(y),
                      keys);
      } else {
        cpu::mask_row(masks[at],
                      attrs.of_gradient,
                      reinterpret_cast<const float*>(x),
                      reinterpret_cast<float*>(y),
                      keys);
      }
    }
  });
}

}  // namespace tessera

#endif  // HWY_ONCE

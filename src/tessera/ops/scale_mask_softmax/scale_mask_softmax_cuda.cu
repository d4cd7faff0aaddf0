#include <cmath>

#include "tessera/backend/cuda/kernels/row_teams.h"
#include "tessera/comm/hierarchical.h"
#include "tessera/ops/attention/attention_cuda.h"
#include "tessera/ops/scale_mask_softmax/scale_mask_softmax_operands.h"

// A team takes the keys of a query and a head. It reads a place of a row before it writes there, so
// that results may lie over operands.

namespace tessera {
namespace cuda {
namespace {

// A (b, h, t, s) tensor with contiguous s.
template <class T>
struct Scores {
  T* data;
  std::int64_t strides[3];

  explicit Scores(const View& view)
      : data(view.as<T>()), strides{view.strides[0], view.strides[1], view.strides[2]} {}

  // Whether rows can be read and written in packs.
  bool fits_packs(const std::int64_t (&sizes)[4]) const {
    bool fits = sizes[3] % kPack == 0 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
    for (int d = 0; d < 3; ++d) {
      fits = fits && (sizes[d] == 1 || strides[d] % kPack == 0);
    }
    return fits;
  }
};

// A query of a head.
struct RowPlace {
  std::int64_t sequence;
  std::int64_t head;
  std::int64_t query;

  template <class T>
  __device__ T* in(const Scores<T>& scores) const {
    return scores.data + sequence * scores.strides[0] + head * scores.strides[1] +
           query * scores.strides[2];
  }
};

struct ScoreShape {
  std::int64_t sizes[4];

  explicit ScoreShape(const View& view)
      : sizes{view.sizes[0], view.sizes[1], view.sizes[2], view.sizes[3]} {}

  constexpr std::int64_t rows() const { return sizes[0] * sizes[1] * sizes[2]; }

  constexpr std::int64_t keys() const { return sizes[3]; }

  __device__ RowPlace row(std::int64_t number) const {
    return {.sequence = number / (sizes[1] * sizes[2]),
            .head = number / sizes[2] % sizes[1],
            .query = number % sizes[2]};
  }
};

// The mask of all rows, and what ALiBi adds.
struct ScoreMasks {
  Mask mask = {};
  bool has_mask = false;         // else all keys are seen
  std::int64_t alibi_heads = 0;  // 0: nothing is added
  std::int64_t first_head = 0;   // of all ranks' heads
};

// What a query makes of its keys' scores.
struct MaskRow {
  const ScoreMasks* all;
  const std::int32_t* positions;  // of keys
  const std::int32_t* documents;
  std::int32_t position;
  std::int32_t document;
  float slope;

  __device__ static MaskRow of(const ScoreMasks& all, const ScoreShape& shape, const RowPlace& at) {
    if (!all.has_mask) {
      return {.all = &all,
              .positions = nullptr,
              .documents = nullptr,
              .position = 0,
              .document = 0,
              .slope = 0.0F};
    }
    const std::int64_t query = at.sequence * shape.sizes[2] + at.query;
    const std::int64_t keys = at.sequence * shape.keys();
    const double exponent =
        all.alibi_heads == 0 ? 0.0 : alibi_exponent(all.first_head + at.head, all.alibi_heads);
    return {.all = &all,
            .positions = all.mask.key_positions + keys,
            .documents = all.mask.key_documents + keys,
            .position = all.mask.query_positions[query],
            .document = all.mask.query_documents[query],
            .slope = all.alibi_heads == 0 ? 0.0F : exp2f(static_cast<float>(exponent))};
  }

  __device__ bool sees(std::int64_t key) const {
    return !all->has_mask ||
           (documents[key] == document && all->mask.sees(position, positions[key]));
  }

  __device__ float bias(std::int64_t key) const {
    return slope == 0.0F ? 0.0F : slope * static_cast<float>(positions[key] - position);
  }

  // Puts the mask on the keys of a pack that there are; those behind the last one are not seen.
  __device__ void put_on(Floats<kPack>& scores, std::int64_t first, std::int64_t left) const {
    for (int i = 0; i < kPack; ++i) {
      scores.at[i] = i < left && sees(first + i) ? scores.at[i] + bias(first + i) : -INFINITY;
    }
  }
};

template <class Team>
__device__ float team_max(float value) {
  if constexpr (Team::kSize == kWarp) {
    return warp_fold(value, [](float a, float b) { return fmaxf(a, b); });
  } else {
    return block_max(value);
  }
}

// body(number) for the team's rows of `rows`.
template <class Team, class Body>
__device__ void each_row(std::int64_t rows, const Body& body) {
  const std::int64_t step = std::int64_t{gridDim.x} * Team::kOfBlock;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Team::kOfBlock + team_of_block<Team>();
       row < rows;
       row += step) {
    body(row);
  }
}

template <class T>
__device__ float exp_as(float x) {
  return sizeof(T) == sizeof(float) ? expf(x) : quick_exp(x);
}

template <class T>
struct SoftmaxTask {
  ScoreShape shape;
  Scores<const T> x;
  Scores<T> p;
  ScoreMasks masks;
  float scale;
};

template <class Team, class T, bool kWhole>
__global__ void softmax_scores(SoftmaxTask<T> task) {
  const std::int64_t keys = task.shape.keys();
  each_row<Team>(task.shape.rows(), [&](std::int64_t number) {
    const RowPlace at = task.shape.row(number);
    const MaskRow mask = MaskRow::of(task.masks, task.shape, at);
    const T* const x = at.in(task.x);
    T* const p = at.in(task.p);
    const auto read = [&](std::int64_t c) {
      Floats<kPack> scores = read_pack<kWhole>(x + c, keys - c).floats();
      for (int i = 0; i < kPack; ++i) {
        scores.at[i] *= task.scale;
      }
      mask.put_on(scores, c, keys - c);
      return Words<float>::of(scores);
    };
    Held<Team, float> held = {};
    float largest = -INFINITY;
    each_column<Team>(keys, [&](int k, std::int64_t c) {
      held.take(k, [&] { return read(c); });
      const Floats<kPack> scores = held.get(k, [&] { return read(c); });
      for (int i = 0; i < kPack; ++i) {
        largest = fmaxf(largest, scores.at[i]);
      }
    });
    largest = team_max<Team>(largest);
    // Of a query that sees no key all exponentials are 0, but for that of a NaN.
    const float shift = largest == -INFINITY ? 0.0F : largest;
    float total = 0.0F;
    each_column<Team>(keys, [&](int k, std::int64_t c) {
      const Floats<kPack> scores = held.get(k, [&] { return read(c); });
      for (int i = 0; i < kPack; ++i) {
        total += exp_as<T>(scores.at[i] - shift);
      }
    });
    total = team_sum<Team>(total);
    each_column<Team>(keys, [&](int k, std::int64_t c) {
      Floats<kPack> shares = held.get(k, [&] { return read(c); });
      for (int i = 0; i < kPack; ++i) {
        shares.at[i] = total == 0.0F ? 0.0F : exp_as<T>(shares.at[i] - shift) / total;
      }
      store_pack(p + c, shares, keys - c, kWhole);
    });
  });
}

template <class T>
struct SoftmaxBackwardTask {
  ScoreShape shape;
  Scores<const T> dp;
  Scores<const T> p;
  Scores<T> dx;
  float scale;
};

template <class Team, class T, bool kWhole>
__global__ void softmax_scores_backward(SoftmaxBackwardTask<T> task) {
  const std::int64_t keys = task.shape.keys();
  each_row<Team>(task.shape.rows(), [&](std::int64_t number) {
    const RowPlace at = task.shape.row(number);
    const auto read = [&](const Scores<const T>& scores, std::int64_t c) {
      return read_pack<kWhole>(at.in(scores) + c, keys - c);
    };
    Held<Team, T> dp = {};
    Held<Team, T> p = {};
    float dot = 0.0F;
    each_column<Team>(keys, [&](int k, std::int64_t c) {
      dp.take(k, [&] { return read(task.dp, c); });
      p.take(k, [&] { return read(task.p, c); });
      const Floats<kPack> slopes = dp.get(k, [&] { return read(task.dp, c); });
      const Floats<kPack> shares = p.get(k, [&] { return read(task.p, c); });
      for (int i = 0; i < kPack; ++i) {
        dot = fmaf(slopes.at[i], shares.at[i], dot);
      }
    });
    dot = team_sum<Team>(dot);
    T* const dx = at.in(task.dx);
    each_column<Team>(keys, [&](int k, std::int64_t c) {
      Floats<kPack> slopes = dp.get(k, [&] { return read(task.dp, c); });
      const Floats<kPack> shares = p.get(k, [&] { return read(task.p, c); });
      for (int i = 0; i < kPack; ++i) {
        slopes.at[i] = shares.at[i] * task.scale * (slopes.at[i] - dot);
      }
      store_pack(dx + c, slopes, keys - c, kWhole);
    });
  });
}

template <class T>
struct MaskTask {
  ScoreShape shape;
  Scores<const T> x;
  Scores<T> y;
  ScoreMasks masks;
  bool of_gradient;
};

// A pack a thread.
template <class T>
__global__ void mask_scores(MaskTask<T> task, bool whole) {
  const std::int64_t keys = task.shape.keys();
  const std::int64_t packs = (keys + kPack - 1) / kPack;
  for (std::int64_t i = first_item(); i < task.shape.rows() * packs; i += num_threads()) {
    const RowPlace at = task.shape.row(i / packs);
    const std::int64_t c = i % packs * kPack;
    const MaskRow mask = MaskRow::of(task.masks, task.shape, at);
    Floats<kPack> scores = load_pack(at.in(task.x) + c, keys - c, whole);
    for (int k = 0; k < kPack && k < keys - c; ++k) {
      const float seen = task.of_gradient ? scores.at[k] : scores.at[k] + mask.bias(c + k);
      const float hidden = task.of_gradient ? 0.0F : -INFINITY;
      scores.at[k] = mask.sees(c + k) ? seen : hidden;
    }
    store_pack(at.in(task.y) + c, scores, keys - c, whole);
  }
}

ScoreMasks masks_of(const ScoreMask& mask,
                    const AttentionIds& ids,
                    const View& x,
                    Context& context) {
  const auto flat = [](const View& view) { return cpu::flat<const std::int32_t>(view).data(); };
  ScoreMasks masks = {.mask = {.query_positions = flat(ids.query_positions),
                               .key_positions = flat(ids.key_positions),
                               .query_documents = flat(ids.query_documents),
                               .key_documents = flat(ids.key_documents),
                               .causal = mask.causal,
                               .window = static_cast<std::int32_t>(mask.window)},
                      .has_mask = true,
                      .alibi_heads = mask.alibi_heads};
  if (mask.alibi_heads > 0 && !mask.axes.empty()) {
    masks.first_head = place_along(context.levels(mask.axes, TrafficClass::kTensor)) * x.sizes[1];
  }
  return masks;
}

// Calls body(Team<..>(), std::bool_constant<whether rows move in packs>()): fewer forms than rows
// of norms have, since nearly all that there are hold as many keys as a multiple of a pack.
template <class Body>
void with_rows(const ScoreShape& shape, bool fits, const Body& body) {
  if (!fits) {
    body(Team<kThreads, 0>(), std::false_type());
  } else if (shape.keys() <= std::int64_t{4} * kWarp * kPack) {
    body(Team<kWarp, 4>(), std::true_type());
  } else {
    body(Team<kThreads, 0>(), std::true_type());
  }
}

}  // namespace
}  // namespace cuda

void run(const ScaleMaskSoftmaxAttrs& attrs, cuda::Context& context, const Views& views) {
  const ScaleMaskSoftmaxOperands of = by_name(attrs, views);
  cuda::with_type(of.x.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::SoftmaxTask<T> task = {
        .shape = cuda::ScoreShape(of.x),
        .x = cuda::Scores<const T>(of.x),
        .p = cuda::Scores<T>(of.p),
        .masks =
            attrs.masked ? cuda::masks_of(attrs.mask, of.ids, of.x, context) : cuda::ScoreMasks(),
        .scale = static_cast<float>(attrs.scale)};
    const bool fits = task.x.fits_packs(task.shape.sizes) && task.p.fits_packs(task.shape.sizes);
    cuda::with_rows(task.shape, fits, [&](auto team, auto whole) {
      using Team = decltype(team);
      launch(context,
             "scale_mask_softmax",
             cuda::blocks_of_teams<Team>(context, task.shape.rows()),
             cuda::softmax_scores<Team, T, decltype(whole)::value>,
             task);
    });
  });
}

void run(const ScaleMaskSoftmaxBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const ScaleMaskSoftmaxBackwardOperands of = by_name(attrs, views);
  cuda::with_type(of.p.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::SoftmaxBackwardTask<T> task = {.shape = cuda::ScoreShape(of.p),
                                               .dp = cuda::Scores<const T>(of.dp),
                                               .p = cuda::Scores<const T>(of.p),
                                               .dx = cuda::Scores<T>(of.dx),
                                               .scale = static_cast<float>(attrs.scale)};
    const bool fits = task.dp.fits_packs(task.shape.sizes) && task.p.fits_packs(task.shape.sizes) &&
                      task.dx.fits_packs(task.shape.sizes);
    cuda::with_rows(task.shape, fits, [&](auto team, auto whole) {
      using Team = decltype(team);
      launch(context,
             "scale_mask_softmax_backward",
             cuda::blocks_of_teams<Team>(context, task.shape.rows()),
             cuda::softmax_scores_backward<Team, T, decltype(whole)::value>,
             task);
    });
  });
}

void run(const MaskScoresAttrs& attrs, cuda::Context& context, const Views& views) {
  const MaskScoresOperands of = by_name(attrs, views);
  cuda::with_type(of.x.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::MaskTask<T> task = {.shape = cuda::ScoreShape(of.x),
                                    .x = cuda::Scores<const T>(of.x),
                                    .y = cuda::Scores<T>(of.y),
                                    .masks = cuda::masks_of(attrs.mask, of.ids, of.x, context),
                                    .of_gradient = attrs.of_gradient};
    const bool fits = task.x.fits_packs(task.shape.sizes) && task.y.fits_packs(task.shape.sizes);
    launch(context,
           "mask_scores",
           blocks_for(context, of.x.num_elements() / cuda::kPack),
           cuda::mask_scores<T>,
           task,
           fits);
  });
}

}  // namespace tessera

#include "tessera/backend/cuda/elements.h"
#include "tessera/ops/adamw/adamw.h"
#include "tessera/ops/adamw/adamw_step.h"

// Always in place: an element is written where it was read.

namespace tessera {
namespace cuda {
namespace {

// What changes from step to step, in the device's memory.
struct Scalars {
  const float* lr;
  const float* t;
  const float* scale;
  const float* apply;
};

template <class Gradient, class Moment>
struct Update {
  AdamwAttrs attrs;
  Scalars scalars;
  Matrix<const Gradient> gradient;
  Matrix<Moment> m;
  Matrix<Moment> v;
  Matrix<float> weight;      // the master, or the parameter itself
  Matrix<BFloat16> rounded;  // of a master
};

template <int N, bool kMaster, class Gradient, class Moment>
__global__ void update(Update<Gradient, Moment> task, PackGrid grid) {
  if (*task.scalars.apply == 0.0F) {
    return;
  }
  __shared__ AdamwStep shared;
  if (threadIdx.x == 0) {
    shared = adamw_step(task.attrs, *task.scalars.lr, *task.scalars.t, *task.scalars.scale);
  }
  __syncthreads();
  const AdamwStep step = shared;
  each_pack_of<N>(grid, [&](std::int64_t row, std::int64_t column) {
    const Floats<N> gradient = load<N>(task.gradient.at(row, column));
    Floats<N> m = load<N>(task.m.at(row, column));
    Floats<N> v = load<N>(task.v.at(row, column));
    Floats<N> weight = load<N>(task.weight.at(row, column));
    for (int k = 0; k < N; ++k) {
      const float g = gradient.at[k] * step.gradient_scale;
      m.at[k] = fmaf(g, step.one_minus_beta1, m.at[k] * step.beta1);
      v.at[k] = fmaf(g * g, step.one_minus_beta2, v.at[k] * step.beta2);
      const float root = sqrtf(v.at[k]) * step.root_correction;
      const float ratio = m.at[k] / (root + step.eps);
      weight.at[k] = fmaf(-ratio, step.step, weight.at[k] * step.decay);
    }
    store(task.m.at(row, column), m);
    store(task.v.at(row, column), v);
    store(task.weight.at(row, column), weight);
    if constexpr (kMaster) {
      store(task.rounded.at(row, column), weight);
    }
  });
}

template <int N, class Gradient, class Moment>
void launch_update(const Context& context,
                   const Update<Gradient, Moment>& task,
                   const View::Rows& rows) {
  for_each_grid(rows.count, rows.width / N, [&](const PackGrid& grid) {
    launch(
        context,
        "adamw",
        blocks_for(context, grid.count),
        task.attrs.master ? update<N, true, Gradient, Moment> : update<N, false, Gradient, Moment>,
        task,
        grid);
  });
}

}  // namespace
}  // namespace cuda

void run(const AdamwAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::size_t num_states = attrs.master ? 5 : 4;
  for (std::size_t i = 0; i < views.out.size(); ++i) {
    const std::size_t operand = i == 0 ? 0 : i + 1;  // all states but the gradient
    TESSERA_CHECK(
        views.out[i].data == views.in[operand].data, "adamw updates result {} in place", i);
  }
  const auto scalar = [&](std::size_t index) {
    return views.in[num_states + index].as<const float>();
  };
  const std::array<View, 5> states = {
      views.in[0], views.in[1], views.in[2], views.in[3], views.in[attrs.master ? 4 : 0]};
  const std::int32_t inner = cpu::common_inner_dims(states);
  const View::Rows rows = states[0].rows(inner);
  const auto run_as = [&](auto element, auto moment) {
    const cuda::Update<decltype(element), decltype(moment)> task = {
        .attrs = attrs,
        .scalars = {.lr = scalar(0), .t = scalar(1), .scale = scalar(2), .apply = scalar(3)},
        .gradient = {states[1], inner},
        .m = {states[2], inner},
        .v = {states[3], inner},
        .weight = {states[4], inner},
        .rounded = {states[0], inner}};
    if (cuda::fits_packs(states, inner)) {
      cuda::launch_update<cuda::kPack>(context, task, rows);
    } else {
      cuda::launch_update<1>(context, task, rows);
    }
  };
  cuda::with_type(views.in[1].dtype, [&](auto element) {
    cuda::with_type(views.in[2].dtype, [&](auto moment) { run_as(element, moment); });
  });
}

}  // namespace tessera

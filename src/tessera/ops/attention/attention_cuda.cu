#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/attention_cuda.h"
#include "tessera/ops/attention/attention_part.h"
#include "tessera/ops/attention/attention_tasks_cuda.h"

// The plain form, of any dtype and width: a block of threads takes a query, or in the last kernel a
// key, and walks over what it pairs with in tiles of kThreads, a thread a pair; then a thread sums
// one channel over the tile. Sums have one order, and nothing of size queries x keys exists. It
// reads keys and values once a query, from the caches where they fit.

namespace tessera {
namespace cuda {
namespace {

// Whether query i of a sequence sees its key j.
__device__ bool sees(
    const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t i, std::int64_t j) {
  const std::int64_t query = batch * shape.queries + i;
  const std::int64_t key = batch * shape.keys + j;
  return mask.query_documents[query] == mask.key_documents[key] &&
         mask.sees(mask.query_positions[query], mask.key_positions[key]);
}

template <class T>
__device__ float dot(const T* a, const T* b, std::int64_t channels) {
  float sum = 0.0F;
  for (std::int64_t c = 0; c < channels; ++c) {
    sum = fmaf(widen(a[c]), widen(b[c]), sum);
  }
  return sum;
}

// Where a block's query stands.
struct Query {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t token;

  __device__ static Query of(std::int64_t number, const Shape& shape) {
    return {.batch = number / (shape.heads * shape.queries),
            .head = number / shape.queries % shape.heads,
            .token = number % shape.queries};
  }
};

// A softmax that is built up over blocks of keys, and one channel of what it weighs.
struct Running {
  float shift = -INFINITY;  // the largest score so far
  float total = 0.0F;       // of exp(score - shift)
  float output = 0.0F;      // of channel threadIdx.x
};

// Takes kThreads keys from `first` on into a query's softmax; thread i has the score of key first +
// i. All threads of a block call it.
template <class T, class Out>
__device__ void take_keys(const Forward<T, Out>& task,
                          const Query& query,
                          std::int64_t first,
                          float score,
                          Running& running) {
  __shared__ float weights[kThreads];
  const float largest = fmaxf(running.shift, block_max(score));
  if (largest == -INFINITY) {
    return;  // nothing is seen yet; the same on all threads
  }
  const float weight = expf(score - largest);
  const float kept = expf(running.shift - largest);
  weights[threadIdx.x] = weight;
  running.total = running.total * kept + block_sum(weight);
  running.shift = largest;
  if (threadIdx.x < task.shape.channels) {
    const std::int64_t group = query.head / task.shape.group();
    running.output *= kept;
    for (std::int64_t j = 0; j < kThreads && first + j < task.shape.keys; ++j) {
      const T* const v = task.v.at(query.batch, first + j, group);
      running.output = fmaf(weights[j], widen(v[threadIdx.x]), running.output);
    }
  }
  __syncthreads();
}

// Where a query's softmax begins: at what the steps before left, which is relative to lse and of
// which the total is then 1.
template <class T, class Out>
__device__ Running begin(const Forward<T, Out>& task, const Query& query, std::int64_t number) {
  Running running;
  if (task.carry_lse == nullptr || task.carry_lse[number] == -INFINITY) {
    return running;
  }
  running.shift = task.carry_lse[number];
  running.total = 1.0F;
  if (threadIdx.x < task.shape.channels) {
    running.output = task.carry_o.at(query.batch, query.token, query.head)[threadIdx.x];
  }
  return running;
}

template <class T, class Out>
__global__ void attend(Forward<T, Out> task) {
  const Shape& shape = task.shape;
  const std::int64_t count = shape.batch * shape.heads * shape.queries;
  for (std::int64_t number = blockIdx.x; number < count; number += gridDim.x) {
    const Query query = Query::of(number, shape);
    const std::int64_t group = query.head / shape.group();
    const T* const q = task.q.at(query.batch, query.token, query.head);
    Running running = begin(task, query, number);
    for (std::int64_t first = 0; first < shape.keys; first += kThreads) {
      const std::int64_t key = first + threadIdx.x;
      float score = -INFINITY;
      if (key < shape.keys && sees(task.mask, shape, query.batch, query.token, key)) {
        score = task.form.score(dot(q, task.k.at(query.batch, key, group), shape.channels));
      }
      take_keys(task, query, first, score, running);
    }
    const bool seen = running.total > 0.0F;
    if (threadIdx.x < shape.channels) {
      task.o.at(query.batch, query.token, query.head)[threadIdx.x] =
          narrow<Out>(seen ? running.output / running.total : 0.0F);
    }
    if (threadIdx.x == 0) {
      task.lse[number] = seen ? running.shift + logf(running.total) : -INFINITY;
    }
  }
}

// The softmax weight of a pair and the gradient of its score.
struct Pair {
  float weight;
  float slope;
};

template <class T, class Out>
__device__ Pair pair_of(const Backward<T, Out>& task, const Query& query, std::int64_t key) {
  const Shape& shape = task.shape;
  const std::int64_t number = shape.number_of(query.batch, query.head, query.token);
  const float lse = task.lse[number];
  if (lse == -INFINITY || !sees(task.mask, shape, query.batch, query.token, key)) {
    return {.weight = 0.0F, .slope = 0.0F};
  }
  const std::int64_t group = query.head / shape.group();
  const T* const q = task.q.at(query.batch, query.token, query.head);
  const T* const dout = task.dout.at(query.batch, query.token, query.head);
  const float score = task.form.score(dot(q, task.k.at(query.batch, key, group), shape.channels));
  const float weight = expf(score - lse);
  const float arriving = dot(dout, task.v.at(query.batch, key, group), shape.channels);
  return {.weight = weight,
          .slope = weight * (arriving - task.delta[number]) * task.form.slope(score)};
}

// delta = dout . o for each query, then dq.
template <class T, class Out>
__global__ void query_gradients(Backward<T, Out> task) {
  const Shape& shape = task.shape;
  __shared__ float slopes[kThreads];
  const std::int64_t count = shape.batch * shape.heads * shape.queries;
  for (std::int64_t number = blockIdx.x; number < count; number += gridDim.x) {
    const Query query = Query::of(number, shape);
    const std::int64_t group = query.head / shape.group();
    if (threadIdx.x == 0) {
      task.delta[number] = dot(task.dout.at(query.batch, query.token, query.head),
                               task.o.at(query.batch, query.token, query.head),
                               shape.channels);
    }
    __syncthreads();
    float gradient = 0.0F;
    for (std::int64_t first = 0; first < shape.keys; first += kThreads) {
      const std::int64_t key = first + threadIdx.x;
      slopes[threadIdx.x] = key < shape.keys ? pair_of(task, query, key).slope : 0.0F;
      __syncthreads();
      for (std::int64_t j = 0;
           threadIdx.x < shape.channels && j < kThreads && first + j < shape.keys;
           ++j) {
        const T* const k = task.k.at(query.batch, first + j, group);
        gradient = fmaf(slopes[j], widen(k[threadIdx.x]), gradient);
      }
      __syncthreads();
    }
    if (threadIdx.x < shape.channels) {
      float dq = task.form.scale * gradient;
      if (task.carry.data != nullptr) {
        dq += task.carry.at(query.batch, query.token, query.head)[threadIdx.x];
      }
      task.dq.at(query.batch, query.token, query.head)[threadIdx.x] = narrow<Out>(dq);
    }
  }
}

// dk and dv: over the queries of a key's group, head by head.
template <class T, class Out>
__global__ void key_gradients(Backward<T, Out> task) {
  const Shape& shape = task.shape;
  __shared__ float weights[kThreads];
  __shared__ float slopes[kThreads];
  const std::int64_t count = shape.batch * shape.kv_heads * shape.keys;
  const std::int64_t lanes = shape.group() * shape.queries;
  for (std::int64_t number = blockIdx.x; number < count; number += gridDim.x) {
    const std::int64_t batch = number / (shape.kv_heads * shape.keys);
    const std::int64_t group = number / shape.keys % shape.kv_heads;
    const std::int64_t key = number % shape.keys;
    const auto query_of = [&](std::int64_t lane) -> Query {
      return {.batch = batch,
              .head = group * shape.group() + lane / shape.queries,
              .token = lane % shape.queries};
    };
    float dk = 0.0F;
    float dv = 0.0F;
    for (std::int64_t first = 0; first < lanes; first += kThreads) {
      const std::int64_t lane = first + threadIdx.x;
      const Pair pair = lane < lanes ? pair_of(task, query_of(lane), key) : Pair{0.0F, 0.0F};
      weights[threadIdx.x] = pair.weight;
      slopes[threadIdx.x] = pair.slope;
      __syncthreads();
      for (std::int64_t j = 0; threadIdx.x < shape.channels && j < kThreads && first + j < lanes;
           ++j) {
        const Query query = query_of(first + j);
        const float q = widen(task.q.at(batch, query.token, query.head)[threadIdx.x]);
        const float dout = widen(task.dout.at(batch, query.token, query.head)[threadIdx.x]);
        dk = fmaf(slopes[j], q, dk);
        dv = fmaf(weights[j], dout, dv);
      }
      __syncthreads();
    }
    if (threadIdx.x < shape.channels) {
      task.dk.at(batch, key, group)[threadIdx.x] = narrow<Out>(task.form.scale * dk);
      task.dv.at(batch, key, group)[threadIdx.x] = narrow<Out>(dv);
    }
  }
}

template <class T, class Out>
void run_plain(const Context& context, const Forward<T, Out>& task) {
  const std::int64_t queries = task.shape.batch * task.shape.heads * task.shape.queries;
  launch(context, "attention", blocks_of_rows(context, queries), attend<T, Out>, task);
}

template <class T, class Out>
void run_plain(const Context& context, const Backward<T, Out>& task) {
  const Shape& shape = task.shape;
  const char* const name = "attention_backward";
  const std::int64_t queries = shape.batch * shape.heads * shape.queries;
  const std::int64_t keys = shape.batch * shape.kv_heads * shape.keys;
  launch(context, name, blocks_of_rows(context, queries), query_gradients<T, Out>, task);
  launch(context, name, blocks_of_rows(context, keys), key_gradients<T, Out>, task);
}

std::span<std::byte> behind(std::span<std::byte> workspace, std::int64_t bytes) {
  return workspace.subspan(static_cast<std::size_t>(bytes));
}

}  // namespace
}  // namespace cuda

void run(const AttentionAttrs& attrs, cuda::Context& context, const Views& views) {
  const AttentionOperands of = by_name(attrs, views);
  if (cuda::takes_flash(of)) {
    auto task = cuda::forward_task<BFloat16>(attrs, of);
    const cuda::Form form = cuda::form_of(attrs, of.q, of.k);
    if (form == cuda::Form::kWholeRows && cuda::run_graph(context, task, views.workspace)) {
      return;
    }
    if (form == cuda::Form::kDocuments) {
      // Behind what own kernels take: they read what it says.
      const std::int64_t own = cuda::ranges_workspace_bytes(task.shape);
      task.is_done = cuda::run_sequences(context, task, cuda::behind(views.workspace, own));
    }
    cuda::run_flash(context, task, views.workspace);
    return;
  }
  cuda::with_type(of.q.dtype, [&](auto element) {
    cuda::run_plain(context, cuda::forward_task<decltype(element)>(attrs, of));
  });
}

void run(const AttentionPartAttrs& attrs, cuda::Context& context, const Views& views) {
  const AttentionPartOperands part = by_name(attrs, views);
  const bool is_flash = cuda::takes_flash(part);
  cuda::with_type(part.of.o.dtype, [&](auto result) {
    using Out = decltype(result);
    if (is_flash) {
      cuda::run_flash(context, cuda::forward_task<BFloat16, Out>(attrs, part), views.workspace);
      return;
    }
    cuda::with_type(part.of.q.dtype, [&](auto element) {
      using T = decltype(element);
      if constexpr (std::is_same_v<Out, float> || std::is_same_v<Out, T>) {
        cuda::run_plain(context, cuda::forward_task<T, Out>(attrs, part));
      }
    });
  });
}

void run(const AttentionBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const AttentionBackwardOperands of = by_name(attrs, views);
  if (cuda::takes_flash(of)) {
    const auto task = cuda::backward_task<BFloat16>(attrs, of, views.workspace.data());
    if (cuda::form_of(attrs, of.q, of.k) != cuda::Form::kWholeRows ||
        !cuda::run_graph(context, task, views.workspace)) {
      cuda::run_flash(context, task, cuda::behind(views.workspace, cuda::delta_bytes(task.shape)));
    }
    return;
  }
  cuda::with_type(of.q.dtype, [&](auto element) {
    using T = decltype(element);
    cuda::run_plain(context, cuda::backward_task<T>(attrs, of, views.workspace.data()));
  });
}

void run(const AttentionPartBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const AttentionPartBackwardOperands part = by_name(attrs, views);
  if (cuda::takes_flash(part)) {
    const auto task = cuda::backward_task<BFloat16>(attrs, part, views.workspace.data());
    cuda::run_flash(context, task, cuda::behind(views.workspace, cuda::delta_bytes(task.shape)));
    return;
  }
  cuda::with_type(part.of.q.dtype, [&](auto element) {
    using T = decltype(element);
    cuda::run_plain(context, cuda::backward_task<T>(attrs, part, views.workspace.data()));
  });
}

}  // namespace tessera

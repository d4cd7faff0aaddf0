#include <cmath>

#include "tessera/backend/cuda/elements.h"
#include "tessera/ops/gradient_norm/exact_sum.h"
#include "tessera/ops/gradient_norm/gradient_norm.h"

namespace tessera {
namespace cuda {
namespace {

// A word of the accumulator, as atomicAdd() takes it.
using Word = unsigned long long;  // NOLINT(google-runtime-int)

constexpr int kSquaresBlock = 256;  // elements that are summed in f64
constexpr int kPartials = 16;       // partial sum l of them holds elements l, l + 16, ...

__device__ void add_word(std::int64_t* word, std::int64_t amount) {
  // Two's complement: sums of signed words are those of unsigned ones. Integers have no order.
  atomicAdd(reinterpret_cast<Word*>(word), static_cast<Word>(amount));
}

__global__ void clear_words(std::int64_t* words) {
  if (threadIdx.x < kExactSumWords) {
    words[threadIdx.x] = 0;
  }
}

// Sixteen threads take a block of elements, as the CPU's kernel sums it.
template <class T>
__global__ void add_squares(const T* data, std::int64_t size, std::int64_t* words) {
  __shared__ double partials[kThreads];
  __shared__ std::int64_t sums[kExactSumWords];
  if (threadIdx.x < kExactSumWords) {
    sums[threadIdx.x] = 0;
  }
  __syncthreads();
  const std::int64_t lane = threadIdx.x % kPartials;
  constexpr std::int64_t kBlocks = kThreads / kPartials;  // of elements, in a block of threads
  const std::int64_t num_blocks = (size + kSquaresBlock - 1) / kSquaresBlock;
  for (std::int64_t first = blockIdx.x * kBlocks; first < num_blocks;
       first += gridDim.x * kBlocks) {
    const std::int64_t begin = (first + threadIdx.x / kPartials) * kSquaresBlock;
    double partial = 0.0;
    for (std::int64_t i = begin + lane; i < begin + kSquaresBlock && i < size; i += kPartials) {
      const auto value = static_cast<double>(widen(data[i]));
      partial = fma(value, value, partial);
    }
    partials[threadIdx.x] = partial;
    __syncthreads();
    for (int half = kPartials / 2; half > 0; half /= 2) {
      if (lane < half) {
        partials[threadIdx.x] += partials[threadIdx.x + half];
      }
      __syncthreads();
    }
    if (lane == 0 && begin < size) {
      exact_add_to([&](std::size_t word, std::int64_t amount) { add_word(&sums[word], amount); },
                   partials[threadIdx.x]);
    }
    __syncthreads();
  }
  if (threadIdx.x < kExactSumWords) {
    add_word(&words[threadIdx.x], sums[threadIdx.x]);
  }
}

// words += other.
__global__ void merge_words(const std::int64_t* other, std::int64_t* words) {
  if (threadIdx.x < kExactSumWords) {
    words[threadIdx.x] += other[threadIdx.x];
  }
}

struct ClipScale {
  const float* loss;
  const float* apply;
  double clip;
  float* norm;
  float* scale;
  float* ok;
};

__global__ void clip_scale(ClipScale task, const std::int64_t* words) {
  if (threadIdx.x != 0) {
    return;
  }
  const double sum = exact_value(ConstExactSumWords(words, kExactSumWords));
  const auto norm = static_cast<float>(sqrt(sum));
  const double wanted = task.clip / (static_cast<double>(norm) + 1e-6);
  *task.norm = norm;
  // Not fmin(), which a NaN does not survive.
  *task.scale = task.clip > 0 ? static_cast<float>(wanted < 1.0 ? wanted : 1.0) : 1.0F;
  *task.ok = std::isfinite(*task.loss) && std::isfinite(norm) ? *task.apply : 0.0F;
}

}  // namespace
}  // namespace cuda

void run(const SumSquaresAttrs& /*attrs*/, cuda::Context& context, const Views& views) {
  const char* const name = "sum_squares";
  std::int64_t* const words = cpu::flat<std::int64_t>(views.out[0]).data();
  cuda::launch(context, name, 1, cuda::clear_words, words);
  for (const View& tensor : views.in) {
    const std::int64_t size = tensor.rows(tensor.num_dims).width;
    cuda::with_type(tensor.dtype, [&](auto element) {
      using T = decltype(element);
      cuda::launch(context,
                   name,
                   cuda::blocks_for(context, size / cuda::kPartials),
                   cuda::add_squares<T>,
                   tensor.as<const T>(),
                   size,
                   words);
    });
  }
}

std::int64_t cuda_workspace_bytes(const ClipScaleAttrs& /*attrs*/,
                                  std::span<const View> /*operands*/,
                                  std::span<const View> /*results*/) {
  return kExactSumWords * static_cast<std::int64_t>(sizeof(std::int64_t));
}

void run(const ClipScaleAttrs& attrs, cuda::Context& context, const Views& views) {
  const char* const name = "clip_scale";
  const auto num_sums = static_cast<std::size_t>(attrs.num_sums);
  auto* const words = reinterpret_cast<std::int64_t*>(views.workspace.data());
  cuda::launch(context, name, 1, cuda::clear_words, words);
  for (const View& sum : views.in.first(num_sums)) {
    cuda::launch(
        context, name, 1, cuda::merge_words, cpu::flat<const std::int64_t>(sum).data(), words);
  }
  const cuda::ClipScale task = {.loss = views.in[num_sums].as<const float>(),
                                .apply = views.in[num_sums + 1].as<const float>(),
                                .clip = attrs.clip,
                                .norm = views.out[0].as<float>(),
                                .scale = views.out[1].as<float>(),
                                .ok = views.out[2].as<float>()};
  cuda::launch(context, name, 1, cuda::clip_scale, task, words);
}

}  // namespace tessera

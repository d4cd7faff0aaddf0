#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/ops/gradient_norm/exact_sum.h"
#include "tessera/ops/gradient_norm/gradient_norm.h"
#include "tessera/ops/gradient_norm/gradient_norm_operands.h"

namespace tessera {
namespace cuda {
namespace {

// A word of the accumulator, as atomicAdd() takes it.
using Word = unsigned long long;  // NOLINT(google-runtime-int)

constexpr int kSquaresBlock = 256;           // elements that are summed in f64
constexpr int kPartials = 16;                // partial sum l of them holds elements l, l + 16, ...
constexpr int kLanes = 4;                    // threads that take a block of elements
constexpr int kOwn = kPartials / kLanes;     // partial sums of one
constexpr int kWarpBlocks = kWarp / kLanes;  // blocks that a warp takes at once
constexpr int kLaunchBlocks = kThreads / kLanes;  // blocks that a block of threads takes at once

constexpr unsigned kAllLanes = 0xFFFFFFFFU;

__device__ void add_word(std::int64_t* word, std::int64_t amount) {
  // Two's complement: sums of signed words are those of unsigned ones. Integers have no order.
  atomicAdd(reinterpret_cast<Word*>(word), static_cast<Word>(amount));
}

__global__ void clear_words(std::int64_t* words) {
  if (threadIdx.x < kExactSumWords) {
    words[threadIdx.x] = 0;
  }
}

// The partial sums of a block that one of its four lanes has: kOwn of them from first() on. Lanes
// read 64 contiguous bytes at a time: one row of 16 elements of f32, two of bf16.
template <class T>
class Partials {
 public:
  __device__ explicit Partials(unsigned lane) : lane_(static_cast<int>(lane)) {}

  // All elements of the block at `block`, which is aligned. All threads of a warp call it.
  __device__ void add_whole(const T* block) {
    constexpr int kAtOnce = 8;  // loads on their way
    constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
    for (int begin = 0; begin < kSquaresBlock; begin += kAtOnce * kLanes * kWidth) {
      Words words[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const T* const place = block + begin + (k * kLanes + lane_) * kWidth;
        words[k] = *reinterpret_cast<const Words*>(place);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        add(words[k]);
      }
    }
  }

  // Those of the first `count` elements at `block`, which may lie anywhere.
  __device__ void add_part(const T* block, int count) {
    const T* const place = block + first();
    const int left = count - first();
#pragma unroll 4
    for (int begin = 0; begin < kSquaresBlock; begin += kPartials) {
      for (int i = 0; i < kOwn; ++i) {
        add(i, begin + i < left ? widen(place[begin + i]) : 0.0F);
      }
    }
  }

  // The sum of all, folded pairwise, on each of the four lanes. All threads of a warp call it.
  __device__ double sum() const {
    double folded[kOwn];
    for (int i = 0; i < kOwn; ++i) {
      folded[i] = partials_[i] + __shfl_xor_sync(kAllLanes, partials_[i], kEighthAway);
      folded[i] += __shfl_xor_sync(kAllLanes, folded[i], kFourthAway);
    }
    return (folded[0] + folded[2]) + (folded[1] + folded[3]);
  }

 private:
  using Words = Pack<std::uint32_t, 4>;  // as one access reads them

  static constexpr bool kTwoRows = sizeof(T) == 2;
  // Lanes to the one with the partial sums l + 8, and to that with l + 4.
  static constexpr int kEighthAway = kTwoRows ? 1 : 2;
  static constexpr int kFourthAway = kTwoRows ? 2 : 1;

  __device__ int first() const {
    return kTwoRows ? lane_ % 2 * 8 + lane_ / 2 * kOwn : lane_ * kOwn;
  }

  __device__ void add(int i, float element) {
    const auto value = static_cast<double>(element);
    partials_[i] = fma(value, value, partials_[i]);
  }

  __device__ void add(const Words& words) {
    if constexpr (kTwoRows) {
      // Lanes 0 and 1 have read of the upper row, 2 and 3 of the lower one: each keeps the half
      // that is of its own sums and gives the other away.
      const bool is_lower = lane_ >= 2;
      std::uint32_t upper[2];
      std::uint32_t lower[2];
      for (int k = 0; k < 2; ++k) {
        const std::uint32_t given = is_lower ? words.at[k] : words.at[2 + k];
        const std::uint32_t got = __shfl_xor_sync(kAllLanes, given, kFourthAway);
        upper[k] = is_lower ? got : words.at[k];
        lower[k] = is_lower ? words.at[2 + k] : got;
      }
      add_row(upper);
      add_row(lower);
    } else {
      for (int i = 0; i < kOwn; ++i) {
        add(i, std::bit_cast<float>(words.at[i]));
      }
    }
  }

  // Of elements in bf16, two a word.
  __device__ void add_row(const std::uint32_t (&pairs)[2]) {
    for (int k = 0; k < 2; ++k) {
      add(2 * k, std::bit_cast<float>(pairs[k] << 16U));
      add(2 * k + 1, std::bit_cast<float>(pairs[k] & 0xFFFF0000U));
    }
  }

  int lane_;
  double partials_[kOwn] = {};
};

// What a lane has of an exact sum: the words w with w % 4 == lane, one at a time. Values within a
// factor of 2^32 stay within four words, so that it seldom turns to another one. A value adds less
// than 2^32 to it, and no thread meets 2^31 values, each of 256 elements.
class WordOfSum {
 public:
  __device__ WordOfSum(unsigned lane, std::int64_t* sums) : lane_(lane), word_(lane), sums_(sums) {}

  // Each of the four lanes calls it with the same value.
  __device__ void add(double value) {
    unsigned word = word_;
    std::int64_t amount = 0;
    exact_add_to(
        [&](std::size_t changed, std::int64_t by) {
          if (changed % kLanes == lane_) {
            word = static_cast<unsigned>(changed);
            amount = by;
          }
        },
        value);
    if (amount != 0 && word != word_) {
      flush();
      word_ = word;
    }
    amount_ += amount;
  }

  // Adds what the warp has to the sums. All threads of a warp call it, at the end.
  __device__ void finish() {
    for (int lanes = kLanes; lanes < kWarp; lanes *= 2) {
      const unsigned word = __shfl_xor_sync(kAllLanes, word_, lanes);
      const std::int64_t amount = __shfl_xor_sync(kAllLanes, amount_, lanes);
      if (word == word_) {
        amount_ = (threadIdx.x & static_cast<unsigned>(lanes)) == 0 ? amount_ + amount : 0;
      }
    }
    flush();
  }

 private:
  __device__ void flush() {
    if (amount_ != 0) {
      add_word(&sums_[word_], amount_);
      amount_ = 0;
    }
  }

  unsigned lane_;
  unsigned word_;
  std::int64_t amount_ = 0;
  std::int64_t* sums_;
};

// Four threads take a block of elements, which they sum as the CPU's kernel does.
template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    add_squares(const T* data, std::int64_t size, bool aligned, std::int64_t* words) {
  __shared__ std::int64_t sums[kExactSumWords];
  if (threadIdx.x < kExactSumWords) {
    sums[threadIdx.x] = 0;
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % kLanes;
  WordOfSum sum(lane, sums);
  // Of the warp, whose threads go the same ways.
  const std::int64_t warp = std::int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  const std::int64_t step = std::int64_t{gridDim.x} * kLaunchBlocks * kSquaresBlock;
  constexpr std::int64_t kOfWarp = std::int64_t{kWarpBlocks} * kSquaresBlock;
  for (std::int64_t begin = warp * kOfWarp; begin < size; begin += step) {
    const std::int64_t block = begin + std::int64_t{threadIdx.x % kWarp / kLanes} * kSquaresBlock;
    Partials<T> partials(lane);
    if (aligned && size - begin >= kOfWarp) {
      partials.add_whole(data + block);
    } else {
      const std::int64_t left = std::clamp<std::int64_t>(size - block, 0, kSquaresBlock);
      partials.add_part(data + block, static_cast<int>(left));
    }
    sum.add(partials.sum());
  }
  sum.finish();
  __syncthreads();
  if (threadIdx.x < kExactSumWords && sums[threadIdx.x] != 0) {
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

void run(const SumSquaresAttrs& attrs, cuda::Context& context, const Views& views) {
  const char* const name = "sum_squares";
  const SumSquaresOperands of = by_name(attrs, views);
  std::int64_t* const words = cpu::flat<std::int64_t>(of.words).data();
  cuda::launch(context, name, 1, cuda::clear_words, words);
  for (const View& tensor : of.tensors) {
    const std::int64_t size = tensor.rows(tensor.num_dims).width;
    cuda::with_type(tensor.dtype, [&](auto element) {
      using T = decltype(element);
      const std::int64_t blocks = (size + cuda::kSquaresBlock - 1) / cuda::kSquaresBlock;
      cuda::launch(context,
                   name,
                   cuda::blocks_for(context, blocks * cuda::kLanes),
                   cuda::add_squares<T>,
                   tensor.as<const T>(),
                   size,
                   reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0,
                   words);
    });
  }
}

void run(const ClipScaleAttrs& attrs, cuda::Context& context, const Views& views) {
  const char* const name = "clip_scale";
  const ClipScaleOperands of = by_name(attrs, views);
  auto* const words = reinterpret_cast<std::int64_t*>(views.workspace.data());
  cuda::launch(context, name, 1, cuda::clear_words, words);
  for (const View& sum : of.sums) {
    cuda::launch(
        context, name, 1, cuda::merge_words, cpu::flat<const std::int64_t>(sum).data(), words);
  }
  const cuda::ClipScale task = {.loss = of.loss.as<const float>(),
                                .apply = of.apply.as<const float>(),
                                .clip = attrs.clip,
                                .norm = of.norm.as<float>(),
                                .scale = of.scale.as<float>(),
                                .ok = of.ok.as<float>()};
  cuda::launch(context, name, 1, cuda::clip_scale, task, words);
}

}  // namespace tessera

#include "tessera/base/random.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tessera {
namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53U;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57U;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;

[[gnu::always_inline]] inline void philox_round(std::uint32_t (&c)[4],
                                                std::uint32_t k0,
                                                std::uint32_t k1) {
  const std::uint64_t product0 = std::uint64_t{kMultiplier0} * c[0];
  const std::uint64_t product1 = std::uint64_t{kMultiplier1} * c[2];
  const auto next0 = static_cast<std::uint32_t>(product1 >> 32U) ^ c[1] ^ k0;
  const auto next2 = static_cast<std::uint32_t>(product0 >> 32U) ^ c[3] ^ k1;
  c[1] = static_cast<std::uint32_t>(product1);
  c[3] = static_cast<std::uint32_t>(product0);
  c[0] = next0;
  c[2] = next2;
}

[[gnu::always_inline]] inline void philox_block(std::uint64_t key, std::uint32_t (&c)[4]) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
    philox_round(c, k0, k1);
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
}

// Natural logarithm of a normal positive float: exponent plus the Cephes polynomial for the
// mantissa in [sqrt(1/2), sqrt(2)).
[[gnu::always_inline]] inline float log_fixed(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  // Moves the mantissa's split from 1 to sqrt(1/2) = 0x3f3504f3.
  const std::uint32_t shifted = bits - 0x3f3504f3U;
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(shifted) >> 23);
  const float m = std::bit_cast<float>((shifted & 0x007fffffU) + 0x3f3504f3U) - 1.0F;
  float p = 7.0376836292e-2F;
  p = std::fma(p, m, -1.1514610310e-1F);
  p = std::fma(p, m, 1.1676998740e-1F);
  p = std::fma(p, m, -1.2420140846e-1F);
  p = std::fma(p, m, 1.4249322787e-1F);
  p = std::fma(p, m, -1.6668057665e-1F);
  p = std::fma(p, m, 2.0000714765e-1F);
  p = std::fma(p, m, -2.4999993993e-1F);
  p = std::fma(p, m, 3.3333331174e-1F);
  const float square = m * m;
  const float tail = std::fma(p, m * square, -0.5F * square);
  return std::fma(exponent, 0.693147180559945F, m + tail);
}

// The normal variate whose lower or upper tail probability is given by 32 random bits: one for the
// side, 31 for the tail, which is mapped to (cut_tail, 1/2).
[[gnu::always_inline]] inline float normal_from_bits(std::uint32_t bits, float cut_tail) {
  const auto k = static_cast<float>(static_cast<std::int32_t>(bits >> 1U));
  const float half_tail = std::fma(k, 0x1p-32F, 0x1p-33F);
  const float tail = std::fma(half_tail, std::fma(-2.0F, cut_tail, 1.0F), cut_tail);
  const float x = std::fma(-2.0F, tail, 1.0F);
  // 1 - x^2 = 4 tail (1 - tail), without cancellation.
  const float w = -log_fixed(4.0F * tail * (1.0F - tail));
  const float near = w - 2.5F;
  float p = 2.81022636e-08F;
  p = std::fma(p, near, 3.43273939e-07F);
  p = std::fma(p, near, -3.5233877e-06F);
  p = std::fma(p, near, -4.39150654e-06F);
  p = std::fma(p, near, 0.00021858087F);
  p = std::fma(p, near, -0.00125372503F);
  p = std::fma(p, near, -0.00417768164F);
  p = std::fma(p, near, 0.246640727F);
  p = std::fma(p, near, 1.50140941F);
  const float far = std::sqrt(std::max(w, 5.0F)) - 3.0F;
  float q = -0.000200214257F;
  q = std::fma(q, far, 0.000100950558F);
  q = std::fma(q, far, 0.00134934322F);
  q = std::fma(q, far, -0.00367342844F);
  q = std::fma(q, far, 0.00573950773F);
  q = std::fma(q, far, -0.0076224613F);
  q = std::fma(q, far, 0.00943887047F);
  q = std::fma(q, far, 1.00167406F);
  q = std::fma(q, far, 2.83297682F);
  const float magnitude = (w < 5.0F ? p : q) * x * 1.41421356237F;
  return (bits & 1U) != 0 ? magnitude : -magnitude;
}

struct FillTask {
  std::uint64_t key;
  std::uint64_t first_block;  // of four variates
  float std;
  float cut_tail;
};

constexpr int kLanes = 64;  // philox blocks that one pass of the inner loops handles

// Writes 4 * num_blocks variates. Plain loops over arrays, which the compiler turns into the vector
// instructions of the caller's target.
[[gnu::always_inline]] inline void fill_blocks(const FillTask& task,
                                               std::uint64_t begin,
                                               std::uint64_t end,
                                               float* out) {
  for (std::uint64_t base = begin; base < end; base += kLanes) {
    const int lanes = static_cast<int>(std::min<std::uint64_t>(kLanes, end - base));
    float values[4][kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::uint64_t block = task.first_block + base + static_cast<std::uint64_t>(lane);
      std::uint32_t c[4] = {
          static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32U), 0, 0};
      philox_block(task.key, c);
      for (int word = 0; word < 4; ++word) {
        values[word][lane] = normal_from_bits(c[word], task.cut_tail) * task.std;
      }
    }
    for (int lane = 0; lane < lanes; ++lane) {
      for (int word = 0; word < 4; ++word) {
        out[(base + static_cast<std::uint64_t>(lane)) * 4 + static_cast<std::uint64_t>(word)] =
            values[word][lane];
      }
    }
  }
}

using FillFunction = void (*)(const FillTask&, std::uint64_t, std::uint64_t, float*);

void fill_generic(const FillTask& t, std::uint64_t begin, std::uint64_t end, float* out) {
  fill_blocks(t, begin, end, out);
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void fill_avx2(const FillTask& t,
                                           std::uint64_t begin,
                                           std::uint64_t end,
                                           float* out) {
  fill_blocks(t, begin, end, out);
}

[[gnu::target("avx512f,avx512dq,avx2,fma")]] void fill_avx512(const FillTask& t,
                                                              std::uint64_t begin,
                                                              std::uint64_t end,
                                                              float* out) {
  fill_blocks(t, begin, end, out);
}
#endif

FillFunction choose_fill() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
    return fill_avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return fill_avx2;
  }
#endif
  return fill_generic;
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::array<std::uint32_t, 4> counter) {
  std::uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  philox_block(key, c);
  return {c[0], c[1], c[2], c[3]};
}

std::uint64_t random_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  }
  const auto mixed = philox(hash,
                            {static_cast<std::uint32_t>(seed),
                             static_cast<std::uint32_t>(seed >> 32U),
                             0x74657373U,
                             0x65726121U});
  return (std::uint64_t{mixed[1]} << 32U) | mixed[0];
}

double uniform(std::uint64_t key, std::uint64_t index) {
  const auto words = philox(
      key, {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32U), 0, 0});
  const std::uint64_t bits = ((std::uint64_t{words[1]} << 32U) | words[0]) >> 11U;
  return static_cast<double>(bits) * 0x1p-53;
}

void fill_normal(std::uint64_t key,
                 std::uint64_t first,
                 const NormalOptions& options,
                 std::span<float> out,
                 int threads) {
  const FillTask task{
      .key = key,
      .first_block = first / 4,
      .std = options.std,
      .cut_tail = options.cut > 0.0F
                      ? static_cast<float>(0.5 * std::erfc(double{options.cut} / std::sqrt(2.0)))
                      : 0.0F};
  static const FillFunction kFill = choose_fill();
  const std::uint64_t skip = first % 4;
  if (skip != 0 || out.size() % 4 != 0) {
    // Unaligned ends: draw whole blocks into a copy. Only tests and slices come here.
    const std::uint64_t blocks = (skip + out.size() + 3) / 4;
    constexpr std::uint64_t kChunk = 256;
    float buffer[kChunk * 4];
    for (std::uint64_t begin = 0; begin < blocks; begin += kChunk) {
      FillTask part = task;
      part.first_block += begin;
      const std::uint64_t count = std::min(kChunk, blocks - begin);
      kFill(part, 0, count, buffer);
      for (std::uint64_t i = 0; i < count * 4; ++i) {
        const std::uint64_t position = begin * 4 + i;
        if (position >= skip && position - skip < out.size()) {
          out[position - skip] = buffer[i];
        }
      }
    }
    return;
  }
  const std::uint64_t blocks = out.size() / 4;
  constexpr std::uint64_t kPiece = 4096;
  const auto pieces = static_cast<std::int64_t>((blocks + kPiece - 1) / kPiece);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    const std::uint64_t begin = static_cast<std::uint64_t>(piece) * kPiece;
    kFill(task, begin, std::min(blocks, begin + kPiece), out.data());
  }
}

}  // namespace tessera

#include "tessera/base/random.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/normal.h"
#include "tessera/base/thread_team.h"

namespace tessera {
namespace {

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

float cut_tail(const NormalOptions& options) {
  return options.cut > 0.0F
             ? static_cast<float>(0.5 * std::erfc(double{options.cut} / std::sqrt(2.0)))
             : 0.0F;
}

void fill_normal(std::uint64_t key,
                 std::uint64_t first,
                 const NormalOptions& options,
                 std::span<float> out,
                 ThreadTeam* team) {
  const FillTask task{
      .key = key, .first_block = first / 4, .std = options.std, .cut_tail = cut_tail(options)};
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
  const auto fill = [&](std::int64_t piece, int /*member*/) {
    const std::uint64_t begin = static_cast<std::uint64_t>(piece) * kPiece;
    kFill(task, begin, std::min(blocks, begin + kPiece), out.data());
  };
  if (team != nullptr) {
    team->run(pieces, fill);
    return;
  }
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    fill(piece, 0);
  }
}

}  // namespace tessera

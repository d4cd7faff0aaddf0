#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera {

class ThreadTeam;  // base/thread_team.h

// Philox4x32-10: four uniform 32-bit words that are a pure function of key and counter.
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::array<std::uint32_t, 4> counter);

// A 64-bit key for everything that is drawn under `name` in a run with `seed`: FNV-1a of the name,
// mixed with the seed.
std::uint64_t random_key(std::uint64_t seed, std::string_view name);

// Uniform in [0, 1) with 53 bits, from two words of philox(key, {index, index >> 32, 0, 0}).
double uniform(std::uint64_t key, std::uint64_t index);

// Normal variates with mean 0 and standard deviation `std`, cut at ±cut standard deviations
// (cut = 0: not cut).
struct NormalOptions {
  float std = 1.0F;
  float cut = 0.0F;
};

// How elements of a tensor start: as normal variates under a key, or all alike.
struct Initial {
  std::uint64_t key = 0;
  std::uint64_t first = 0;  // the index of the first element's variate
  NormalOptions normal = {};
  float constant = 0;  // what all are where normal.std is 0
};

// The probability of what is cut off on each side.
float cut_tail(const NormalOptions& options);

// out[i] = the normal variate with index first + i under `key`: a pure function of both, the same
// bits on every machine and backend (base/normal.h). Inverse of the normal distribution by one
// fixed polynomial with fused multiply-adds (Giles 2012, "Approximating the erfinv function");
// relative error below 1e-6. On the threads of `team`, if one is given.
void fill_normal(std::uint64_t key,
                 std::uint64_t first,
                 const NormalOptions& options,
                 std::span<float> out,
                 ThreadTeam* team = nullptr);

}  // namespace tessera

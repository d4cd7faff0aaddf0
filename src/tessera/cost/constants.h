#pragma once

#include <array>
#include <cstdint>

#include "tessera/mesh/device_spec.h"

namespace tessera {

// All numbers of this folder that neither a cluster file nor a program says, each with its source.
// "guess": of nobody's measurement.

// Queries and keys of a tile of attention: those across a border of the mask are computed whole.
// Source: Dao 2023, arXiv:2307.08691, section 3.3.
inline constexpr double kAttentionTile = 128.0;

// Bytes that must divide the rows of a product's matrices unless they are f32 (Work::row_bytes).
// Source: NVIDIA, Matrix Multiplication Background User's Guide, section "Tensor Core
// Requirements".
inline constexpr std::int64_t kAlignment = 16;

// How much longer a product takes whose rows they do not divide. A guess between 4 and 8, which
// steps of 104B models with heads of 216 and of 144 channels ask for (BigScience, 2021).
inline constexpr double kUnalignedTime = 4.0;

// Share of a stream's speed at which rows are read or written wherever they lie. A guess.
inline constexpr double kGatherShare = 0.5;

// What was touched so many bytes ago, over those of the cache, begins to have left it, and has left
// it: between the two it is in part there. A guess.
inline constexpr double kCachedUpTo = 0.5;
inline constexpr double kCachedBelow = 1.5;

// How a collective's speed grows with its bytes: half / bytes to this power. Fitted to all-reduces
// of 8 H100, of 4 and 8 A100 and of 8 V100 (bench/level_fit.cc).
inline constexpr double kHalfExponent = 0.65;

// Latency of a step of a ring, over that of a tree: a ring of 8 ranks is as fast as a tree. Source:
// NCCL, src/graph/tuning.cc at 01afd20a77, latencies over NVLink.
inline constexpr double kRingStep = 3.0 / 7.0;

// Bytes on the wire for each byte of data that NCCL moves when there are few: 120 of 128 are data,
// and it takes less of them to reach half of the speed, as its steps take 0.47 us in place of 3.4.
// Source: the same.
inline constexpr double kSmallBytes = 128.0 / 120.0;
inline constexpr double kSmallHalf = 0.47 / 3.4;

// Ranks from which NCCL lets switches add up. Source: what it chose on 2 to 8 H200.
inline constexpr std::int64_t kSwitchRanks = 5;

// Share of a level's efficiency that all-reduces reach whose sums are the switches': of 16 GiB,
// 0.686 of the bandwidth on 8 H100, where a ring of 8 A100 has 0.783. Source:
// NVIDIA/dgxc-benchmarking, nccl/README.md at 841f5466cd; stas00/ml-engineering, network/README.md
// at 744d01e18b.
inline constexpr double kSwitchShare = 0.875;

// Of n numbers with standard normal distribution the largest is expected at the quantile of (n -
// 3/8) / (n + 1/4). Source: Blom 1958, Statistical Estimates and Transformed Beta-Variables.
inline constexpr double kBlomShift = 0.375;
inline constexpr double kBlomStretch = 0.25;

// Steps by which a fit moves constants, one after the other.
inline constexpr std::array kFitFactors = {
    1.3, 1.1, 1.03, 1.01, 1.003, 1.001, 1.0003, 1.0001, 1.00003, 1.00001};

// What takes the place of a curve where a cluster file has none: that of an H100. Source:
// configs/clusters/h100-dgx.toml, fitted by bench/published_fit. k_half, tile_half and comm_share
// are guesses: the first two are about the most with which the best published product of no GPU
// needs more than its peak.
inline constexpr DeviceCurve kUsualCurve = {
    .matmul = {.bf16 = 0.677, .f8 = 0.741},
    .k_half = 133.0,
    .tile_half = 8.47,
    .stream = 0.797,
    .kernel = 1.84e-6,
    .attention = {.forward = 0.728, .backward = 0.837, .half = 399.0},
    .comm_share = 0.123};

}  // namespace tessera

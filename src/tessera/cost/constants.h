#pragma once

#include <cstdint>

#include "tessera/mesh/device_spec.h"

namespace tessera {

// All numbers of this folder that neither a cluster file nor a program says, each with its source.
// "guess": of nobody's measurement.

// Queries and keys of a tile of attention: those across a border of the mask are computed whole.
// Source: Dao 2023, arXiv:2307.08691, section 3.3.
inline constexpr double kAttentionTile = 128.0;

// Bytes that must divide the rows of a product's matrices unless they are f32. Source: NVIDIA,
// Matrix Multiplication Background User's Guide, section "Requirements to use tensor cores".
inline constexpr std::int64_t kAlignment = 16;

// How much longer a product takes whose rows they do not divide. A guess between 4 and 8, which
// steps of 104B models with heads of 216 and of 144 channels ask for (BigScience, 2021).
inline constexpr double kUnalignedTime = 4.0;

// Share of a stream's speed at which rows are read or written wherever they lie. A guess.
inline constexpr double kGatherShare = 0.5;

// What takes the place of a curve where a cluster file has none: that of an H100. Source:
// configs/clusters/h200.toml.
inline constexpr DeviceCurve kUsualCurve = {
    .matmul = {.bf16 = 0.85, .f8 = 0.85},
    .k_half = 210.0,
    .tile_half = 18.0,
    .stream = 0.81,
    .kernel = 1.7e-6,
    .attention = {.forward = 0.73, .backward = 0.845, .half = 420.0},
    .comm_share = 0.12};

}  // namespace tessera

#pragma once

#include <cstdint>

#include "tessera/actions/action_table.h"

namespace tessera {

// Tables of the known schedules over `ranks` pipeline ranks and `microbatches`, both at least 1.
// Microbatches of a stage rise in each of its kinds of action. Stage s of a looped schedule is on
// rank s mod ranks; rank r of a V has stages r and 2 * ranks - 1 - r. make_table() of schedules.h
// refuses what these do not take.

// All forwards, then all backwards. Source: Huang et al. 2019, arXiv:1811.06965; of slices: Li et
// al. 2021, TeraPipe, arXiv:2102.07988.
ActionTable gpipe(std::int64_t ranks, std::int64_t microbatches, std::int64_t slices = 1);

// A backward as soon as there is one. Source: Narayanan et al. 2019, PipeDream; 2021,
// arXiv:2104.04473; of slices: Sun et al. 2024, Seq1F1B, arXiv:2406.03488.
ActionTable one_f_one_b(std::int64_t ranks, std::int64_t microbatches, std::int64_t slices = 1);

// 1F1B over `chunks` stages per rank. Microbatches go in max(1, microbatches div ranks) rounds of
// equal size, as PyTorch cuts them. Source: Narayanan et al. 2021, arXiv:2104.04473.
ActionTable interleaved(std::int64_t ranks, std::int64_t chunks, std::int64_t microbatches);

// All forwards of a stage, then of the next one; then the backwards in turn. Source: Lamy-Poirier
// 2022, arXiv:2211.05953.
ActionTable looped_bfs(std::int64_t ranks, std::int64_t chunks, std::int64_t microbatches);

// 1F1B with weight gradients that fill the drain, in no more memory. Source: Qi et al. 2023,
// arXiv:2401.10241.
ActionTable zb_h1(std::int64_t ranks, std::int64_t microbatches);

// The same of the interleaved schedule.
ActionTable interleaved_zb(std::int64_t ranks, std::int64_t chunks, std::int64_t microbatches);

// Two stages per rank in a V: the last stage is on the first rank. Below 2 * ranks - 1 microbatches
// it is the table of that many with the rest left out, and idles more. Source: Qi et al. 2024,
// arXiv:2405.15362.
ActionTable zb_v(std::int64_t ranks, std::int64_t microbatches);

// The same V with forwards and backwards in pairs; at least 2 * ranks microbatches. Source:
// DeepSeek-AI 2025, DualPipeV of github.com/deepseek-ai/DualPipe.
ActionTable dualpipe_v(std::int64_t ranks, std::int64_t microbatches);

// The rounds of an interleaved schedule, which takes multiples of this many microbatches.
std::int64_t num_rounds(std::int64_t ranks, std::int64_t microbatches);

}  // namespace tessera

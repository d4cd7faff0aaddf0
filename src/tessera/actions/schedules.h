#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/actions/action_table.h"

namespace tessera {

enum class PipelineSchedule : std::uint8_t {
  kGPipe,
  k1F1B,
  kInterleaved,
  kLoopedBfs,
  kZbH1,
  kInterleavedZb,
  kZbV,
  kDualPipeV,
};

inline constexpr std::array kPipelineSchedules = {PipelineSchedule::kGPipe,
                                                  PipelineSchedule::k1F1B,
                                                  PipelineSchedule::kInterleaved,
                                                  PipelineSchedule::kLoopedBfs,
                                                  PipelineSchedule::kZbH1,
                                                  PipelineSchedule::kInterleavedZb,
                                                  PipelineSchedule::kZbV,
                                                  PipelineSchedule::kDualPipeV};

// "gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "interleaved-zb", "zb-v", "dualpipe-v".
std::string_view name(PipelineSchedule schedule);

// By name or by the name that PyTorch and TorchTitan have for it ("1F1B", "Schedule1F1B",
// "Interleaved1F1B"), in capitals or not. Errors: kInvalidConfig, which lists the names.
PipelineSchedule parse_pipeline_schedule(std::string_view text);

// Stages per rank where nobody says how many: 1 or 2.
std::int64_t default_chunks(PipelineSchedule schedule);

struct ScheduleRequest {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::int64_t ranks = 1;
  std::int64_t chunks = 1;  // stages per rank
  std::int64_t microbatches = 1;
  std::int64_t slices = 1;  // of a microbatch's tokens
};

// Errors: kInvalidConfig naming pipeline.chunks, where the schedule has another number of stages
// per rank.
void require_chunks(const ScheduleRequest& request);

// Whether the schedule goes through microbatches in slices of their tokens.
bool takes_slices(PipelineSchedule schedule);

// Errors: kInvalidConfig naming pipeline.slices, where the schedule takes whole sequences.
void require_slices(const ScheduleRequest& request);

// The table of a schedule. "gpipe", "1f1b" and "zb-h1" have one chunk; "zb-v" and "dualpipe-v" two,
// in a V; the others two or more, in loops. All take any number of ranks, and of microbatches with
// these exceptions: "interleaved" and "interleaved-zb" take multiples of max(1, microbatches div
// ranks), "dualpipe-v" at least 2 * ranks. "gpipe" and "1f1b" take slices, which go back in falling
// order. ranks * chunks * microbatches * slices is at most 2^24.
// Errors: kInvalidConfig naming the keys, and what would do.
ActionTable make_table(const ScheduleRequest& request);

// What the user may want to know of a schedule that make_table() takes.
std::vector<std::string> schedule_notes(const ScheduleRequest& request);

}  // namespace tessera

#include "tessera/actions/schedules.h"

#include "tessera/actions/generators.h"
#include "tessera/actions/timeline.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

// PyTorch's names for its classes, with "Schedule" before them or not; empty: PyTorch has none.
std::string_view torch_name(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kGPipe:
      return "gpipe";
    case PipelineSchedule::k1F1B:
      return "1f1b";
    case PipelineSchedule::kInterleaved:
      return "interleaved1f1b";
    case PipelineSchedule::kLoopedBfs:
      return "loopedbfs";
    case PipelineSchedule::kZbH1:
      return "";
    case PipelineSchedule::kInterleavedZb:
      return "interleavedzerobubble";
    case PipelineSchedule::kZbV:
      return "zbvzerobubble";
    case PipelineSchedule::kDualPipeV:
      return "dualpipev";
  }
  fail(ErrorCode::kInternal, "unknown schedule {}", static_cast<int>(schedule));
}

enum class ChunkRule : std::uint8_t { kOne, kTwo, kTwoOrMore };

ChunkRule chunk_rule(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kGPipe:
    case PipelineSchedule::k1F1B:
    case PipelineSchedule::kZbH1:
      return ChunkRule::kOne;
    case PipelineSchedule::kZbV:
    case PipelineSchedule::kDualPipeV:
      return ChunkRule::kTwo;
    case PipelineSchedule::kInterleaved:
    case PipelineSchedule::kLoopedBfs:
    case PipelineSchedule::kInterleavedZb:
      return ChunkRule::kTwoOrMore;
  }
  fail(ErrorCode::kInternal, "unknown schedule {}", static_cast<int>(schedule));
}

// What a looped schedule is with one stage per rank; any other is itself.
PipelineSchedule with_one_chunk(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kInterleaved:
      return PipelineSchedule::k1F1B;
    case PipelineSchedule::kLoopedBfs:
      return PipelineSchedule::kGPipe;
    case PipelineSchedule::kInterleavedZb:
      return PipelineSchedule::kZbH1;
    case PipelineSchedule::kGPipe:
    case PipelineSchedule::k1F1B:
    case PipelineSchedule::kZbH1:
    case PipelineSchedule::kZbV:
    case PipelineSchedule::kDualPipeV:
      break;
  }
  return schedule;
}

// So many forwards, and actions in proportion, a table may have.
constexpr std::int64_t kMostForwards = std::int64_t{1} << 24;

void require_size(const ScheduleRequest& request) {
  const auto& [schedule, ranks, chunks, microbatches, slices] = request;
  TESSERA_REQUIRE(ranks <= kMostForwards / chunks / microbatches / slices,
                  ErrorCode::kInvalidConfig,
                  "pipeline.schedule = \"{}\": parallel.pipeline = {}, pipeline.chunks = {} and {} "
                  "microbatches (train.global_batch / (data * microbatch)){} multiply to more than "
                  "{}: choose less of one of them",
                  name(schedule),
                  ranks,
                  chunks,
                  microbatches,
                  slices > 1 ? format(" of {} slices", slices) : "",
                  kMostForwards);
}

bool goes_in_rounds(std::int64_t ranks, std::int64_t microbatches) {
  return microbatches % num_rounds(ranks, microbatches) == 0;
}

void require_rounds(const ScheduleRequest& request) {
  if (goes_in_rounds(request.ranks, request.microbatches)) {
    return;
  }
  std::int64_t below = request.microbatches;
  while (!goes_in_rounds(request.ranks, below)) {
    --below;
  }
  std::int64_t above = request.microbatches;
  while (!goes_in_rounds(request.ranks, above)) {
    ++above;
  }
  fail(ErrorCode::kInvalidConfig,
       "pipeline.schedule = \"{}\" wants microbatches in multiples of its {} rounds, there are {} "
       "(train.global_batch / (data * microbatch)); {} and {} do; \"{}\" takes any number",
       name(request.schedule),
       num_rounds(request.ranks, request.microbatches),
       request.microbatches,
       below,
       above,
       name(with_one_chunk(request.schedule)));
}

double bubble_percent(const ActionTable& table) {
  return 100.0 * bubble(timeline(table));
}

void require_pairs(const ScheduleRequest& request) {
  if (request.microbatches >= 2 * request.ranks) {
    return;
  }
  fail(ErrorCode::kInvalidConfig,
       "pipeline.schedule = \"{}\" needs at least {} microbatches at pipeline {}, there are {}; "
       "\"zb-v\" takes {} (bubble {:.1f} %)",
       name(request.schedule),
       2 * request.ranks,
       request.ranks,
       request.microbatches,
       request.microbatches,
       bubble_percent(zb_v(request.ranks, request.microbatches)));
}

void require_valid(const ScheduleRequest& request) {
  TESSERA_REQUIRE(request.ranks >= 1 && request.microbatches >= 1 && request.slices >= 1,
                  ErrorCode::kInvalidArgument,
                  "a table of {} ranks, {} microbatches and {} slices, expected at least 1 of each",
                  request.ranks,
                  request.microbatches,
                  request.slices);
  require_slices(request);
  require_chunks(request);
  require_size(request);
  if (request.schedule == PipelineSchedule::kInterleaved ||
      request.schedule == PipelineSchedule::kInterleavedZb) {
    require_rounds(request);
  }
  if (request.schedule == PipelineSchedule::kDualPipeV) {
    require_pairs(request);
  }
}

}  // namespace

std::string_view name(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kGPipe:
      return "gpipe";
    case PipelineSchedule::k1F1B:
      return "1f1b";
    case PipelineSchedule::kInterleaved:
      return "interleaved";
    case PipelineSchedule::kLoopedBfs:
      return "looped-bfs";
    case PipelineSchedule::kZbH1:
      return "zb-h1";
    case PipelineSchedule::kInterleavedZb:
      return "interleaved-zb";
    case PipelineSchedule::kZbV:
      return "zb-v";
    case PipelineSchedule::kDualPipeV:
      return "dualpipe-v";
  }
  fail(ErrorCode::kInternal, "unknown schedule {}", static_cast<int>(schedule));
}

PipelineSchedule parse_pipeline_schedule(std::string_view text) {
  const std::string small = without_capitals(text);
  std::string known;
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    const std::string_view torch = torch_name(schedule);
    if (small == name(schedule) ||
        (!torch.empty() && (small == torch || small == format("schedule{}", torch)))) {
      return schedule;
    }
    known += format("{}\"{}\"", known.empty() ? "" : ", ", name(schedule));
  }
  TESSERA_REQUIRE(small != "pipelineschedulemulti" && small != "pipelineschedulesingle",
                  ErrorCode::kInvalidConfig,
                  "pipeline.schedule = \"{}\" is what PyTorch runs tables with: name the table, a "
                  "path that ends in .csv",
                  printable(text));
  fail(ErrorCode::kInvalidConfig,
       "pipeline.schedule = \"{}\" is not a schedule: expected one of {}, or a path that ends in "
       ".csv",
       printable(text),
       known);
}

bool takes_slices(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::kGPipe || schedule == PipelineSchedule::k1F1B;
}

void require_slices(const ScheduleRequest& request) {
  TESSERA_REQUIRE(request.slices == 1 || takes_slices(request.schedule),
                  ErrorCode::kInvalidConfig,
                  "pipeline.slices = {}: pipeline.schedule = \"{}\" is of whole sequences; "
                  "\"1f1b\", \"gpipe\" and tables take slices",
                  request.slices,
                  name(request.schedule));
}

void require_chunks(const ScheduleRequest& request) {
  switch (chunk_rule(request.schedule)) {
    case ChunkRule::kOne:
      TESSERA_REQUIRE(request.chunks == 1,
                      ErrorCode::kInvalidConfig,
                      "pipeline.chunks = {} has no effect: pipeline.schedule = \"{}\" has 1 stage "
                      "per rank; \"interleaved\" has as many as pipeline.chunks says",
                      request.chunks,
                      name(request.schedule));
      break;
    case ChunkRule::kTwo:
      TESSERA_REQUIRE(request.chunks == 2,
                      ErrorCode::kInvalidConfig,
                      "pipeline.chunks = {}: pipeline.schedule = \"{}\" has 2 stages per rank",
                      request.chunks,
                      name(request.schedule));
      break;
    case ChunkRule::kTwoOrMore:
      TESSERA_REQUIRE(request.chunks >= 2,
                      ErrorCode::kInvalidConfig,
                      "pipeline.chunks = {}: pipeline.schedule = \"{}\" wants 2 stages per rank or "
                      "more; \"{}\" has 1",
                      request.chunks,
                      name(request.schedule),
                      name(with_one_chunk(request.schedule)));
      break;
  }
}

std::int64_t default_chunks(PipelineSchedule schedule) {
  return chunk_rule(schedule) == ChunkRule::kOne ? 1 : 2;
}

ActionTable make_table(const ScheduleRequest& request) {
  require_valid(request);
  const auto& [schedule, ranks, chunks, microbatches, slices] = request;
  switch (schedule) {
    case PipelineSchedule::kGPipe:
      return gpipe(ranks, microbatches, slices);
    case PipelineSchedule::k1F1B:
      return one_f_one_b(ranks, microbatches, slices);
    case PipelineSchedule::kInterleaved:
      return interleaved(ranks, chunks, microbatches);
    case PipelineSchedule::kLoopedBfs:
      return looped_bfs(ranks, chunks, microbatches);
    case PipelineSchedule::kZbH1:
      return zb_h1(ranks, microbatches);
    case PipelineSchedule::kInterleavedZb:
      return interleaved_zb(ranks, chunks, microbatches);
    case PipelineSchedule::kZbV:
      return zb_v(ranks, microbatches);
    case PipelineSchedule::kDualPipeV:
      return dualpipe_v(ranks, microbatches);
  }
  fail(ErrorCode::kInternal, "unknown schedule {}", static_cast<int>(schedule));
}

std::vector<std::string> schedule_notes(const ScheduleRequest& request) {
  std::vector<std::string> notes;
  const std::int64_t enough = 2 * request.ranks - 1;
  if (request.schedule == PipelineSchedule::kZbV && request.microbatches < enough) {
    notes.push_back(
        format("pipeline.schedule = \"zb-v\" is at its best from {} microbatches at pipeline {}, "
               "there are {}: bubble {:.1f} %, \"zb-h1\" has {:.1f} %",
               enough,
               request.ranks,
               request.microbatches,
               bubble_percent(zb_v(request.ranks, request.microbatches)),
               bubble_percent(zb_h1(request.ranks, request.microbatches))));
  }
  return notes;
}

}  // namespace tessera

#include "tessera/resolve/explain_pipeline.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <string_view>
#include <vector>

#include "tessera/actions/csv.h"
#include "tessera/actions/draw.h"
#include "tessera/actions/timeline.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/mesh/traffic.h"

namespace tessera {
namespace {

// "4, 3, 2, 1".
template <class List, class Projection = std::identity>
std::string numbers_text(const List& list, const Projection& projection = {}) {
  std::string text;
  for (const auto& element : list) {
    text += format("{}{}", text.empty() ? "" : ", ", std::invoke(projection, element));
  }
  return text;
}

std::string microbatches_text(const PipelinePlan& plan) {
  const std::int64_t count = plan.table.microbatches;
  return (count == 1 ? "1 microbatch" : format("{} microbatches", count)) +
         (plan.slice_lengths.empty()
              ? ""
              : format(" in slices of {} tokens", numbers_text(plan.slice_lengths)));
}

std::string stages_text(const PipelinePlan& plan) {
  const ActionTable& table = plan.table;
  return format(
      "{} of {} layers{}",
      format_plural(table.stages, "stage"),
      numbers_text(plan.layers),
      table.stages > table.ranks ? format(" on ranks {}", numbers_text(table.rank_of_stage)) : "");
}

std::string held_text(const Timeline& timeline, std::int64_t slices) {
  std::string text = format("forwards of {}{} by rank",
                            slices > 1 ? "slices: " : "",
                            numbers_text(timeline.held_by_rank, &PeakHeld::forwards));
  const bool holds_weights = std::ranges::any_of(
      timeline.held_by_rank, [](const PeakHeld& held) { return held.weight_gradients > 0; });
  return text + (holds_weights
                     ? format(", weight gradients to come of {}",
                              numbers_text(timeline.held_by_rank, &PeakHeld::weight_gradients))
                     : "");
}

// What one pipeline rank sends to others in a step, by level.
std::map<std::string, std::int64_t> sent_by_level(const RankWork& work, const Mesh& mesh) {
  std::map<std::string, std::int64_t> bytes_of;
  for (const CollectiveRow& row : work.collectives) {
    if (row.kind != name(CollectiveKind::kSend)) {
      continue;
    }
    for (const auto& [level, bytes] : by_level(row.sent, mesh)) {
      bytes_of[level] += std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
    }
  }
  return bytes_of;
}

std::string boundaries_text(const Explanation& facts) {
  std::map<std::string, std::int64_t> most;
  for (const RankWork& work : facts.work) {
    for (const auto& [level, bytes] : sent_by_level(work, facts.layout().mesh)) {
      most[level] = std::max(most[level], bytes);
    }
  }
  std::string text;
  for (const auto& [level, bytes] : most) {
    text += format("{}{} over {}", text.empty() ? "" : ", ", format_bytes(bytes), level);
  }
  return text;
}

std::string percent(double share) {
  return format("{:.1f} %", 100.0 * share);
}

const PipelinePlan& require_pipeline(const Explanation& facts) {
  TESSERA_REQUIRE(facts.run.plan.pipeline.has_value(),
                  ErrorCode::kInvalidConfig,
                  "the run has no pipeline, so there is no schedule to show: set parallel.pipeline "
                  "to 2 or more");
  return *facts.run.plan.pipeline;
}

Timeline timeline_of(const Explanation& facts) {
  return timeline(require_pipeline(facts).table, facts.run.stage_costs, facts.run.hop);
}

}  // namespace

std::string pipeline_text(const Explanation& facts) {
  if (!facts.run.plan.pipeline) {
    return "";
  }
  const PipelinePlan& plan = *facts.run.plan.pipeline;
  const Timeline time = timeline_of(facts);
  return format(
      "\npipeline: {}, {}; {}\n"
      "  bubble: ranks wait {} of a step, {} for the schedule and {} for ranks with more work; {} "
      "if stages were equal\n"
      "  in flight at most: {}\n"
      "  boundaries: a rank sends up to {} in a step{}\n",
      facts.config.pipeline.schedule,
      microbatches_text(plan),
      stages_text(plan),
      percent(bubble(time)),
      percent(bubble(time) - imbalance(time)),
      percent(imbalance(time)),
      percent(bubble(timeline(plan.table))),
      held_text(time, plan.table.slices),
      boundaries_text(facts),
      facts.run.hop > 0 ? format("; a hop takes {:.3g} ms", 1e3 * facts.run.hop) : "");
}

std::string schedule_text(const Explanation& facts, std::size_t width) {
  return draw_table(require_pipeline(facts).table, timeline_of(facts), width);
}

std::string schedule_gantt(const Explanation& facts) {
  return draw_gantt(require_pipeline(facts).table, timeline_of(facts));
}

std::string schedule_csv(const Explanation& facts) {
  return to_csv(require_pipeline(facts).table);
}

}  // namespace tessera

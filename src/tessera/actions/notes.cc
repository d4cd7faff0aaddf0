#include "tessera/actions/notes.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

#include "tessera/actions/as_index.h"
#include "tessera/actions/sum_order.h"
#include "tessera/actions/timeline.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

constexpr double kMuchIdle = 0.4;

bool is_loop(const ActionTable& table) {
  for (std::int64_t stage = 0; stage < table.stages; ++stage) {
    if (table.rank_of_stage[as_index(stage)] != stage % table.ranks) {
      return false;
    }
  }
  return table.stages % table.ranks == 0;
}

bool is_v(const ActionTable& table) {
  for (std::int64_t stage = 0; stage < table.stages; ++stage) {
    if (table.rank_of_stage[as_index(stage)] != std::min(stage, table.stages - 1 - stage)) {
      return false;
    }
  }
  return table.stages == 2 * table.ranks;
}

struct Bound {
  std::int64_t forwards = 0;
  std::string_view schedule;
};

// What the schedule of this shape that starts backwards as soon as it can holds on a rank.
std::optional<Bound> forwards_bound(const ActionTable& table, std::int64_t rank) {
  // Two stages on a single rank are a loop, too, in which a V may hold one forward more.
  if (is_v(table)) {
    return Bound{2 * table.ranks + 1, "dualpipe-v"};
  }
  if (is_loop(table)) {
    const std::int64_t after = table.ranks - 1 - rank;
    const std::int64_t chunks = table.stages / table.ranks;
    if (chunks == 1) {
      return Bound{after + 1, "1f1b"};
    }
    const std::int64_t rounds = std::max<std::int64_t>(1, table.microbatches / table.ranks);
    const std::int64_t round = (table.microbatches + rounds - 1) / rounds;
    return Bound{(chunks - 1) * round + 2 * after + 1, "interleaved"};
  }
  return std::nullopt;
}

std::optional<std::string> idle_note(const Timeline& timeline) {
  const auto least = std::ranges::min_element(timeline.work);
  const std::int64_t rank = least - timeline.work.begin();
  const double idle = bubble(timeline, rank);
  if (idle <= kMuchIdle) {
    return std::nullopt;
  }
  return format(
      "rank {} idles for {:.0f} % of the step, if all stages cost the same", rank, 100.0 * idle);
}

std::optional<std::string> held_note(const ActionTable& table, const Timeline& timeline) {
  for (std::int64_t rank = 0; rank < table.ranks; ++rank) {
    const std::int64_t held = timeline.held_by_rank[as_index(rank)].forwards;
    const std::optional<Bound> bound = forwards_bound(table, rank);
    if (bound && held > bound->forwards) {
      return format("rank {} holds the results of {} forwards; \"{}\" would hold {}",
                    rank,
                    held,
                    bound->schedule,
                    bound->forwards);
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> notes(const ActionTable& table) {
  std::vector<std::string> found;
  if (const std::optional<StageAction> falling = first_falling(table)) {
    found.push_back(format(
        "stage {} runs {} after a later microbatch: sums are in another order than {}, and results "
        "differ in their last bits",
        falling->stage,
        to_string(*falling),
        table.slices == 1 ? "without a pipeline" : "those of rising microbatches"));
  }
  const Timeline equal = timeline(table);
  for (const auto& note :
       {idle_note(equal), table.slices == 1 ? held_note(table, equal) : std::nullopt}) {
    if (note) {
      found.push_back(*note);
    }
  }
  return found;
}

}  // namespace tessera

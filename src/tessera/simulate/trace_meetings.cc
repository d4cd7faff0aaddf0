#include "tessera/simulate/trace_meetings.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/program/collective_calls.h"
#include "tessera/simulate/class_links.h"

namespace tessera {
namespace {

using Processes = std::vector<std::size_t>;

// Those whose ranks are with `rank` along the axes, each once; none where a rank is not there.
Processes group_of(const Mesh& mesh,
                   const std::vector<std::size_t>& axes,
                   std::size_t rank,
                   std::span<const std::size_t> process_of) {
  Processes group;
  for (const std::int64_t member : mesh.members(axes, static_cast<std::int64_t>(rank))) {
    group.push_back(process_of[static_cast<std::size_t>(member)]);
  }
  std::ranges::sort(group);
  group.erase(std::ranges::unique(group).begin(), group.end());
  return group.back() == kNoProcess ? Processes() : group;
}

class ArrowFinder {
 public:
  explicit ArrowFinder(std::span<const TraceTalks> talks) : talks_(talks) {}

  // The processes do the same along a group, call by call.
  void add_collectives(const TraceTalks::Group& group, const Processes& processes) {
    std::vector<std::span<const TraceVisit>> visits;
    std::size_t num_calls = static_cast<std::size_t>(-1);
    for (const std::size_t process : processes) {
      const auto found = talks_[process].collectives.find(group);
      if (found == talks_[process].collectives.end()) {
        return;
      }
      visits.emplace_back(found->second);
      num_calls = std::min(num_calls, visits.back().size());
    }
    for (std::size_t call = 0; call < num_calls; ++call) {
      const auto last = std::ranges::max_element(
          visits, {}, [&](std::span<const TraceVisit> of) { return of[call].came; });
      for (std::size_t i = 0; i < visits.size(); ++i) {
        const std::size_t from = processes[static_cast<std::size_t>(last - visits.begin())];
        if (visits[i][call].came < (*last)[call].came) {
          add(from, (*last)[call], processes[i], visits[i][call]);
        }
      }
    }
  }

  void add_transfers(std::size_t sender,
                     std::size_t receiver,
                     std::span<const TraceVisit> sends,
                     std::span<const TraceVisit> receives) {
    for (std::size_t i = 0; i < std::min(sends.size(), receives.size()); ++i) {
      add(sender, sends[i], receiver, receives[i]);
    }
  }

  std::vector<TraceArrow> take() { return std::move(arrows_); }

 private:
  // None where an end has no length there, or left before.
  void add(std::size_t from, const TraceVisit& sender, std::size_t to, const TraceVisit& receiver) {
    const Ticks at = std::max(sender.came, receiver.came);
    if (sender.came < sender.left && at < receiver.left) {
      arrows_.push_back({.from = {.process = from, .thread = sender.thread, .at = sender.came},
                         .to = {.process = to, .thread = receiver.thread, .at = at}});
    }
  }

  std::span<const TraceTalks> talks_;
  std::vector<TraceArrow> arrows_;
};

}  // namespace

std::vector<TraceArrow> meeting_arrows(const Mesh& mesh,
                                       std::span<const std::size_t> process_of,
                                       std::span<const TraceTalks> talks) {
  ArrowFinder finder(talks);
  for (std::size_t process = 0; process < talks.size(); ++process) {
    const TraceTalks& own = talks[process];
    for (const auto& [group, visits] : own.collectives) {
      const Processes processes = group_of(mesh, group.second, own.first_rank, process_of);
      if (processes.size() > 1 && processes.front() == process) {
        finder.add_collectives(group, processes);
      }
    }
    for (const auto& [channel, sends] : own.sends) {
      const std::size_t receiver = process_of[peer_of(mesh, channel, own.first_rank)];
      if (receiver == kNoProcess) {
        continue;
      }
      const auto receives = talks[receiver].receives.find(channel);
      if (receives != talks[receiver].receives.end()) {
        finder.add_transfers(process, receiver, sends, receives->second);
      }
    }
  }
  return finder.take();
}

std::vector<TraceLeg> legs_of(const TimedProgram& program, const ClassTimeline& timeline) {
  std::vector<TraceLeg> legs;
  std::vector<std::size_t> next(timeline.streams.size(), 0);  // of each stream's spans
  for (const IssueStep& step : program.order.steps) {
    const StepIndex index = program.order.index_of(step);
    const std::vector<Span>& spans = timeline.streams[step.stream];
    Ticks at = timeline.begin[index];
    const std::uint32_t first = program.first_piece[step.place];
    const std::uint32_t last = step.works ? program.first_piece[step.place + 1] : first;
    for (std::uint32_t piece = first; piece < last; ++piece) {
      TraceLeg leg = {.thread = step.stream, .piece = piece, .came = at, .moves = at};
      for (std::size_t& i = next[step.stream];
           i < spans.size() && spans[i].step == index && spans[i].piece == piece;
           ++i) {
        at = spans[i].end;
        const bool moves = spans[i].kind == SpanKind::kMoving || spans[i].kind == SpanKind::kShared;
        leg.moves = moves ? leg.moves : at;
      }
      leg.left = at;
      if (program.pieces[piece].is_leg()) {
        legs.push_back(leg);
      }
    }
  }
  std::ranges::stable_sort(legs, {}, &TraceLeg::thread);
  return legs;
}

TraceTalks talks_of(const TimedProgram& program,
                    const ClassTimeline& timeline,
                    std::span<const TraceLeg> legs) {
  TraceTalks talks = {.first_rank = timeline.first_rank};
  for (const TraceLeg& leg : legs) {
    const Piece& piece = program.pieces[leg.piece];
    const TraceVisit visit = {.thread = leg.thread, .came = leg.came, .left = leg.left};
    if (piece.is_transfer()) {
      auto& ends = piece.kind == PieceKind::kSend ? talks.sends : talks.receives;
      ends[program.channels[piece.partners]].push_back(visit);
    } else {
      talks.collectives[{leg.thread, {piece.partners}}].push_back(visit);
    }
  }
  return talks;
}

TraceTalks talks_of(const Mesh& mesh, const SeenRank& seen) {
  std::vector<TraceVisit> visits(seen.order.steps.size());
  for (std::size_t stream = 0; stream < seen.streams.size(); ++stream) {
    for (const SeenStep& step : seen.streams[stream]) {
      visits[step.step] = {.thread = stream, .came = step.begin, .left = step.end};
    }
  }
  TraceTalks talks = {.first_rank = seen.rank};
  std::map<StepIndex, std::vector<std::size_t>> axes;
  std::map<StepIndex, std::vector<const ChannelEnd*>> ends;
  const CollectiveSequence sequence = collective_calls(seen.program);
  for (const CollectiveCall& call : sequence.calls) {
    if (call.channel) {
      ends[call.step].push_back(&*call.channel);
      continue;
    }
    const auto axis = std::ranges::find(mesh.axes, call.axis, &MeshAxis::name);
    TESSERA_CHECK(
        axis != mesh.axes.end(), "a program talks along axis {}, which the mesh lacks", call.axis);
    axes[call.step].push_back(static_cast<std::size_t>(axis - mesh.axes.begin()));
  }
  for (auto& [step, listed] : axes) {
    std::ranges::sort(listed);
    listed.erase(std::ranges::unique(listed).begin(), listed.end());
    talks.collectives[{visits[step].thread, listed}].push_back(visits[step]);
  }
  for (const auto& [step, of_step] : ends) {
    for (const ChannelEnd* end : of_step) {
      (end->sends ? talks.sends : talks.receives)[{end->axes, end->places}].push_back(visits[step]);
    }
  }
  return talks;
}

}  // namespace tessera

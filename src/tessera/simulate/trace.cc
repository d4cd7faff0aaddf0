#include "tessera/simulate/trace.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/op.h"
#include "tessera/program/operand_types.h"
#include "tessera/simulate/trace_counters.h"
#include "tessera/simulate/trace_meetings.h"

namespace tessera {
namespace {

// Numbers texts from 0.
class TraceNames {
 public:
  explicit TraceNames(std::vector<std::string>& names) : names_(names) {}

  std::uint32_t operator[](std::string_view text) {
    const auto [found, is_new] =
        numbers_.try_emplace(std::string(text), static_cast<std::uint32_t>(names_.size()));
    if (is_new) {
      names_.emplace_back(text);
    }
    return found->second;
  }

 private:
  std::vector<std::string>& names_;
  std::map<std::string, std::uint32_t> numbers_;
};

std::vector<TracePlace> places_of(const Program& program,
                                  const IssueOrder& order,
                                  TraceNames& names) {
  std::vector<TracePlace> places;
  places.reserve(order.steps.size());
  for (const IssueStep& step : order.steps) {
    const Call& call = call_of(program, step);
    const Segment& segment = program[call.segment];
    places.push_back({.call = step.call,
                      .instruction = step.instruction,
                      .microbatch = call.microbatch,
                      .segment = names[segment.name],
                      .op = names[info(*instruction_of(program, step).op).name],
                      .action = segment.code.action});
  }
  return places;
}

TraceKind kind_of(const Instruction& instruction) {
  const TensorTypes types = operand_types(instruction);
  const Collectives uses = collectives(*instruction.op, types);
  if (!uses.empty()) {
    return !uses.front().channel                        ? TraceKind::kCollective
           : uses.front().kind == CollectiveKind::kSend ? TraceKind::kSend
                                                        : TraceKind::kReceive;
  }
  const Works works = work(*instruction.op, types);
  const auto has = [&](WorkKind kind) {
    return std::ranges::find(works, kind, &Work::kind) != works.end();
  };
  if (has(WorkKind::kAttention) || has(WorkKind::kAttentionBackward)) {
    return TraceKind::kAttention;
  }
  return has(WorkKind::kProduct) ? TraceKind::kProduct : TraceKind::kStream;
}

// By place.
std::vector<TraceKind> kinds_of(const Program& program) {
  std::vector<TraceKind> kinds;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      kinds.push_back(kind_of(instruction));
    }
  }
  return kinds;
}

TraceKind kind_of(PieceKind kind) {
  switch (kind) {
    case PieceKind::kProduct:
      return TraceKind::kProduct;
    case PieceKind::kAttention:
      return TraceKind::kAttention;
    case PieceKind::kStream:
      return TraceKind::kStream;
    case PieceKind::kCollective:
      return TraceKind::kCollective;
    case PieceKind::kSend:
      return TraceKind::kSend;
    case PieceKind::kReceive:
      return TraceKind::kReceive;
  }
  fail(ErrorCode::kInternal, "unknown kind of piece {}", static_cast<int>(kind));
}

std::vector<TraceThread> empty_threads(const Program& program) {
  std::vector<TraceThread> threads;
  for (const std::string& stream : program.streams) {
    threads.push_back({.name = stream, .spans = {}});
  }
  return threads;
}

// With a span for each step of the order, whose own has no length where the timeline has none.
std::vector<TraceThread> threads_of(const TimedProgram& program,
                                    const ClassTimeline& timeline,
                                    const std::vector<TraceKind>& kinds) {
  std::vector<TraceThread> threads = empty_threads(*program.program);
  std::vector<std::size_t> next(threads.size(), 0);  // of each stream's spans
  for (const IssueStep& step : program.order.steps) {
    const StepIndex index = program.order.index_of(step);
    const std::vector<Span>& spans = timeline.streams[step.stream];
    std::vector<TraceSpan>& own = threads[step.stream].spans;
    std::size_t& i = next[step.stream];
    if (i == spans.size() || spans[i].step != index) {
      own.push_back({.begin = timeline.begin[index],
                     .end = timeline.begin[index],
                     .step = index,
                     .kind = step.works ? kinds[step.place] : TraceKind::kNothing});
    }
    for (; i < spans.size() && spans[i].step == index; ++i) {
      own.push_back({.begin = spans[i].begin,
                     .end = spans[i].end,
                     .step = index,
                     .kind = kind_of(program.pieces[spans[i].piece].kind),
                     .part = spans[i].kind});
    }
  }
  return threads;
}

std::string name_of_ranks(std::size_t first, std::size_t count) {
  return count > 1 ? format("rank {} x{}", first, count) : format("rank {}", first);
}

// The times of a rank that was seen, by step.
struct SeenTimes {
  explicit SeenTimes(const SeenRank& seen)
      : begin(seen.order.steps.size(), -1), end(seen.order.steps.size(), -1) {
    std::size_t num_steps = 0;
    for (const std::vector<SeenStep>& steps : seen.streams) {
      for (const SeenStep& step : steps) {
        begin.at(step.step) = step.begin;
        end.at(step.step) = step.end;
        ++num_steps;
      }
    }
    TESSERA_CHECK(num_steps == begin.size() && std::ranges::find(begin, -1) == begin.end(),
                  "rank {}: {} steps were seen of {}",
                  seen.rank,
                  num_steps,
                  begin.size());
  }

  std::vector<Ticks> begin;
  std::vector<Ticks> end;
};

std::vector<TraceThread> threads_of(const SeenRank& seen) {
  const std::vector<TraceKind> kinds = kinds_of(seen.program);
  std::vector<TraceThread> threads = empty_threads(seen.program);
  for (std::size_t stream = 0; stream < seen.streams.size(); ++stream) {
    for (const SeenStep& step : seen.streams[stream]) {
      const IssueStep& of = seen.order.steps[step.step];
      threads[stream].spans.push_back({.begin = step.begin,
                                       .end = step.end,
                                       .step = step.step,
                                       .kind = of.works ? kinds[of.place] : TraceKind::kNothing});
    }
  }
  return threads;
}

}  // namespace

std::string_view name(TraceKind kind) {
  switch (kind) {
    case TraceKind::kProduct:
      return "product";
    case TraceKind::kAttention:
      return "attention";
    case TraceKind::kStream:
      return "streaming";
    case TraceKind::kCollective:
      return "collective";
    case TraceKind::kSend:
      return "send";
    case TraceKind::kReceive:
      return "receive";
    case TraceKind::kNothing:
      return "nothing";
  }
  return "?";
}

std::string_view name(SpanKind part) {
  switch (part) {
    case SpanKind::kKernel:
      return "kernel";
    case SpanKind::kAway:
      return "away";
    case SpanKind::kLatency:
      return "latency";
    case SpanKind::kMoving:
      return "moving";
    case SpanKind::kShared:
      return "shared";
  }
  return "?";
}

std::string place_text(const StepTrace& trace, const TracePlace& place) {
  return format("segment {}, microbatch {}, instruction {}: {}",
                trace.names[place.segment],
                place.microbatch,
                place.instruction,
                trace.names[place.op]);
}

StepTrace trace_of(const RankPrograms& ranks, const StepTimeline& timeline) {
  StepTrace trace;
  trace.step = timeline.step;
  TraceNames names(trace.names);
  std::vector<std::vector<TraceKind>> kinds;
  for (const TimedProgram& program : ranks.programs) {
    trace.places.push_back(places_of(*program.program, program.order, names));
    kinds.push_back(kinds_of(*program.program));
  }
  std::vector<std::vector<TraceLeg>> legs;
  std::vector<TraceTalks> talks;
  for (const ClassTimeline& own : timeline.classes) {
    const TimedProgram& program = ranks.programs[own.program];
    legs.push_back(legs_of(program, own));
    talks.push_back(talks_of(program, own, legs.back()));
  }
  for (std::size_t c = 0; c < timeline.classes.size(); ++c) {
    const ClassTimeline& own = timeline.classes[c];
    const TimedProgram& program = ranks.programs[own.program];
    TraceProcess& process = trace.processes.emplace_back(TraceProcess{
        .name = name_of_ranks(own.first_rank, own.num_ranks),
        .first_rank = own.first_rank,
        .num_ranks = own.num_ranks,
        .program = own.program,
        .threads = threads_of(program, own, kinds[own.program]),
        .counters = memory_counters(*program.program, program.order, own.begin, own.end)});
    std::ranges::move(link_counters(ranks, timeline, c, legs),
                      std::back_inserter(process.counters));
  }
  trace.arrows = meeting_arrows(ranks.mesh, timeline.class_of, talks);
  return trace;
}

StepTrace trace_of(const Mesh& mesh, std::span<const SeenRank> ranks) {
  StepTrace trace;
  TraceNames names(trace.names);
  std::vector<TraceTalks> talks;
  std::vector<std::size_t> process_of(static_cast<std::size_t>(mesh.num_ranks()), kNoProcess);
  std::map<const Program*, std::size_t> programs;
  for (const SeenRank& seen : ranks) {
    const auto [program, is_new] = programs.try_emplace(&seen.program, programs.size());
    if (is_new) {
      trace.places.push_back(places_of(seen.program, seen.order, names));
    }
    const SeenTimes times(seen);
    trace.step = std::max(trace.step, times.end.empty() ? 0 : std::ranges::max(times.end));
    process_of.at(seen.rank) = trace.processes.size();
    talks.push_back(talks_of(mesh, seen));
    trace.processes.push_back(
        {.name = name_of_ranks(seen.rank, 1),
         .first_rank = seen.rank,
         .program = program->second,
         .threads = threads_of(seen),
         .counters = memory_counters(seen.program, seen.order, times.begin, times.end)});
  }
  trace.arrows = meeting_arrows(mesh, process_of, talks);
  return trace;
}

}  // namespace tessera

#include "tessera/simulate/attribution.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

class Attributor {
 public:
  Attributor(const Mesh& mesh, const TimedProgram& program, const ClassTimeline& own, double spread)
      : mesh_(mesh), program_(program), own_(own), spread_(spread), steps_(own.streams.size()) {
    for (const IssueStep& step : program.order.steps) {
      const StepIndex index = program.order.index_of(step);
      last_of_stream_0_.push_back(steps_[0].empty() ? index : steps_[0].back());
      steps_[step.stream].push_back(index);
    }
    find_microbatches();
  }

  Attribution run(Ticks step) {
    cover(0, 0, own_.last());
    if (own_.last() < step) {
      add(Cause::kOthers, 0, step - own_.last());
    }
    Attribution result;
    for (const auto& [key, row] : rows_) {
      if (row.ticks != 0) {
        result.rows.push_back(row);
      }
    }
    result.links = links();
    return result;
  }

 private:
  // From the first product or attention of microbatches, before which a rank may make what depends
  // on nobody, to their last kernel.
  void find_microbatches() {
    first_ = own_.last();
    for (const Span& span : own_.streams[0]) {
      const Action action = action_of(span);
      if (span.kind == SpanKind::kKernel && is_of_microbatches(action)) {
        const PieceKind kind = program_.pieces[span.piece].kind;
        first_ = kind == PieceKind::kStream ? first_ : std::min(first_, span.begin);
        last_ = std::max(last_, span.end);
      }
    }
  }

  Action action_of(const Span& span) const {
    const Program& program = *program_.program;
    return program[call_of(program, program_.order.steps[span.step]).segment].code.action;
  }

  // What a stream does from `begin` to `end`, and where it does nothing, those that it waits for.
  void cover(std::size_t stream, Ticks begin, Ticks end) {
    const std::vector<StepIndex>& steps = steps_[stream];
    auto next =
        std::ranges::upper_bound(steps, begin, {}, [&](StepIndex step) { return own_.end[step]; });
    Ticks at = begin;
    for (; next != steps.end() && at < end; ++next) {
      wait(*next, at, std::min(own_.begin[*next], end));
      at = std::max(at, std::min(own_.begin[*next], end));
      const Ticks until = std::min(own_.end[*next], end);
      if (at < until) {
        cover_spans(stream, at, until);
        at = until;
      }
    }
    if (at < end) {
      tail(at, end);
    }
  }

  void cover_spans(std::size_t stream, Ticks begin, Ticks end) {
    const std::vector<Span>& spans = own_.streams[stream];
    for (auto span = std::ranges::upper_bound(spans, begin, {}, &Span::end);
         span != spans.end() && span->begin < end;
         ++span) {
      add(*span, std::min(span->end, end) - std::max(span->begin, begin));
    }
  }

  // From `begin` to `end` a step has not begun.
  void wait(StepIndex step, Ticks begin, Ticks end) {
    if (begin >= end) {
      return;
    }
    const IssueStep& waiting = program_.order.steps[step];
    StepIndex latest = step;
    Ticks until = begin;
    const auto consider = [&](StepIndex awaited) {
      if (own_.end[awaited] > until) {
        latest = awaited;
        until = own_.end[awaited];
      }
    };
    for (const StepIndex awaited : program_.order.waits_of(waiting)) {
      consider(awaited);
    }
    if (waiting.stream != 0 && last_of_stream_0_[step] < step) {
      consider(last_of_stream_0_[step]);
    }
    until = std::min(until, end);
    if (begin < until) {
      cover(program_.order.steps[latest].stream, begin, until);
    }
    if (until < end) {
      add(Cause::kLaunch, 0, end - until);
    }
  }

  // Stream 0 has ended, and the step has not.
  void tail(Ticks begin, Ticks end) {
    for (std::size_t stream = 1; stream < steps_.size(); ++stream) {
      if (!steps_[stream].empty() && own_.end[steps_[stream].back()] >= end) {
        cover(stream, begin, end);
        return;
      }
    }
    fail(ErrorCode::kInternal, "no stream of rank {} ends last", own_.first_rank);
  }

  void add(const Span& span, Ticks ticks) {
    const Piece& piece = program_.pieces[span.piece];
    if (!piece.is_leg()) {
      const Ticks mean =
          spread_ == 1.0 ? ticks
                         : static_cast<Ticks>(std::llround(static_cast<double>(ticks) / spread_));
      add(cause_of(piece, span), 0, mean);
      add(Cause::kSpread, 0, ticks - mean);
      return;
    }
    if (span.kind == SpanKind::kAway && is_of_pipeline(piece)) {
      const Cause cause = span.end <= first_    ? Cause::kFill
                          : span.begin >= last_ ? Cause::kDrain
                                                : Cause::kBubble;
      add(cause, 0, ticks);
      return;
    }
    CauseRow& row = piece.is_transfer() ? add(Cause::kTransfer, piece.level, ticks)
                                        : add(Cause::kCollective, piece.partners, ticks);
    part_of(row, span.kind) += ticks;
  }

  bool is_of_pipeline(const Piece& leg) const {
    return leg.is_transfer() || mesh_.axes[leg.partners].group == AxisGroup::kPipeline;
  }

  Cause cause_of(const Piece& piece, const Span& span) const {
    if (action_of(span) == Action::kUpdate) {
      return Cause::kUpdate;
    }
    return piece.kind == PieceKind::kProduct     ? Cause::kProduct
           : piece.kind == PieceKind::kAttention ? Cause::kAttention
                                                 : Cause::kStream;
  }

  static Ticks& part_of(CauseRow& row, SpanKind kind) {
    switch (kind) {
      case SpanKind::kLatency:
        return row.latency;
      case SpanKind::kMoving:
        return row.moving;
      case SpanKind::kShared:
        return row.shared;
      case SpanKind::kAway:
      case SpanKind::kKernel:
        break;
    }
    return row.away;
  }

  CauseRow& add(Cause cause, std::size_t where, Ticks ticks) {
    CauseRow& row = rows_[{cause, where}];
    row.cause = cause;
    row.where = where;
    row.ticks += ticks;
    return row;
  }

  std::vector<LinkRow> links() const {
    std::map<std::pair<bool, std::size_t>, LinkRow> rows;
    const auto row_of = [&](const Piece& piece) -> LinkRow& {
      const std::size_t where = piece.is_transfer() ? piece.level : piece.partners;
      LinkRow& row = rows[{piece.is_transfer(), where}];
      row.is_transfer = piece.is_transfer();
      row.where = where;
      return row;
    };
    for (const std::vector<Span>& spans : own_.streams) {
      for (const Span& span : spans) {
        const Piece& piece = program_.pieces[span.piece];
        if (piece.is_leg() && span.kind != SpanKind::kAway) {
          row_of(piece).busy += span.end - span.begin;
        }
      }
    }
    for (const IssueStep& step : program_.order.steps) {
      for (const Piece& piece : program_.pieces_of(step)) {
        if (step.works && piece.is_leg()) {
          row_of(piece).sent += piece.sent;
        }
      }
    }
    std::vector<LinkRow> list;
    for (const auto& [key, row] : rows) {
      list.push_back(row);
    }
    return list;
  }

  const Mesh& mesh_;
  const TimedProgram& program_;
  const ClassTimeline& own_;
  double spread_;
  std::vector<std::vector<StepIndex>> steps_;  // by stream
  std::vector<StepIndex> last_of_stream_0_;    // by step, of those issued before it; else itself
  Ticks first_ = 0;
  Ticks last_ = 0;
  std::map<std::pair<Cause, std::size_t>, CauseRow> rows_;
};

}  // namespace

std::string_view name(Cause cause) {
  switch (cause) {
    case Cause::kProduct:
      return "products";
    case Cause::kAttention:
      return "attention";
    case Cause::kStream:
      return "streaming";
    case Cause::kUpdate:
      return "update";
    case Cause::kSpread:
      return "spread of speeds";
    case Cause::kLaunch:
      return "launch";
    case Cause::kCollective:
      return "collectives";
    case Cause::kTransfer:
      return "transfers";
    case Cause::kFill:
      return "pipeline fill";
    case Cause::kDrain:
      return "pipeline drain";
    case Cause::kOthers:
      return "other ranks still run";
    case Cause::kBubble:
      return "pipeline bubble";
  }
  return "?";
}

Ticks Attribution::total() const {
  return std::accumulate(rows.begin(), rows.end(), Ticks{0}, [](Ticks sum, const CauseRow& row) {
    return sum + row.ticks;
  });
}

Attribution attribute(const RankPrograms& ranks,
                      const StepTimeline& timeline,
                      std::size_t of_class) {
  const ClassTimeline& own = timeline.classes.at(of_class);
  Attribution result =
      Attributor(ranks.mesh, ranks.programs[own.program], own, timeline.spread).run(timeline.step);
  TESSERA_CHECK(result.total() == timeline.step,
                "rank {}: {} ps of {} have a cause",
                own.first_rank,
                result.total(),
                timeline.step);
  return result;
}

}  // namespace tessera

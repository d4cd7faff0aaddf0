#include "tessera/resolve/compare_run.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <set>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/resolve/simulation_report.h"
#include "tessera/simulate/compare_traces.h"

namespace tessera {
namespace {

constexpr std::size_t kMostKinds = 8;  // of work: all

// "128x64"; "1" of a scalar.
std::string shape_text(const TensorType& type) {
  std::string text;
  for (const std::int64_t bound : type.bounds()) {
    text += format("{}{}", text.empty() ? "" : "x", bound);
  }
  return text.empty() ? "1" : text;
}

// "forward matmul 128x64, 64x64": the first of its operands' shapes that differ.
std::string op_text(const Program& program, const IssueStep& step) {
  constexpr std::size_t kMostShapes = 3;
  const Instruction& instruction = instruction_of(program, step);
  std::vector<std::string> shapes;
  for (const TensorRef& operand : instruction.operands) {
    const std::string shape = shape_text(operand.type);
    if (shapes.size() < kMostShapes && std::ranges::find(shapes, shape) == shapes.end()) {
      shapes.push_back(shape);
    }
  }
  std::string text = format("{} {}",
                            name(program[call_of(program, step).segment].code.action),
                            info(*instruction.op).name);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    text += (i == 0 ? " " : ", ") + shapes[i];
  }
  return text;
}

PlaceTexts texts_of_shapes(const RankPrograms& ranks) {
  PlaceTexts texts;
  for (const TimedProgram& timed : ranks.programs) {
    texts.emplace_back();
    for (const IssueStep& step : timed.order.steps) {
      texts.back().push_back(op_text(*timed.program, step));
    }
  }
  return texts;
}

// How the processes of what was seen are those of the simulation.
struct RankMatch {
  std::vector<std::size_t> program_of;  // of each program that was seen, the simulation's
  std::vector<std::size_t> weights;     // of each process of the simulation, the ranks seen
};

RankMatch match_ranks(const StepTrace& seen,
                      const std::vector<std::string>& sources,
                      const StepTrace& simulated,
                      const StepTimeline& timeline) {
  RankMatch match = {.program_of = std::vector<std::size_t>(seen.places.size(), 0),
                     .weights = std::vector<std::size_t>(simulated.processes.size(), 0)};
  for (std::size_t p = 0; p < seen.processes.size(); ++p) {
    const TraceProcess& process = seen.processes[p];
    const std::string& source = sources[p];
    const std::size_t rank = process.first_rank;
    TESSERA_REQUIRE(process.num_ranks == 1 && rank < timeline.class_of.size(),
                    ErrorCode::kInvalidConfig,
                    "{}: found {}, expected one of the {} that the run has",
                    source,
                    process.name,
                    format_plural(std::ssize(timeline.class_of), "rank"));
    const std::size_t of_class = timeline.class_of[rank];
    const std::size_t program = simulated.processes[of_class].program;
    const std::string other = first_other_place(seen, process.program, simulated, program);
    TESSERA_REQUIRE(other.empty(),
                    ErrorCode::kInvalidConfig,
                    "{}: rank {} ran another program than its config gives here: {}; another "
                    "version of tessera has run it, or the cluster lays it out otherwise",
                    source,
                    rank,
                    other);
    match.program_of[process.program] = program;
    ++match.weights[of_class];
  }
  return match;
}

// Texts of the simulation's places, for what was seen at them.
PlaceTexts seen_texts(const PlaceTexts& simulated, const RankMatch& match) {
  PlaceTexts texts;
  for (const std::size_t program : match.program_of) {
    texts.push_back(simulated[program]);
  }
  return texts;
}

// "run/trace-2.json"; "run/trace-2-rank-0.json and 3 more" of several files.
std::string sources_text(const std::vector<std::string>& sources) {
  const auto num_files = std::ssize(std::set<std::string>(sources.begin(), sources.end()));
  return num_files == 0   ? "no file"
         : num_files == 1 ? sources.front()
                          : format("{} and {} more", sources.front(), num_files - 1);
}

// "2 ranks"; "1 of 2 ranks" where the others left no trace.
std::string ranks_text(const StepTrace& seen, const StepTimeline& timeline) {
  const std::string all = format_plural(std::ssize(timeline.class_of), "rank");
  return seen.processes.size() < timeline.class_of.size()
             ? format("{} of {}", seen.processes.size(), all)
             : all;
}

std::string step_text(const MeasuredStep& seen, const SimulatedRun& run, double predicted) {
  const bool is_on_device = run.facts() != nullptr && run.facts()->run.target.is_device();
  const bool has_metrics = is_on_device && seen.seconds;
  const double seconds = has_metrics ? *seen.seconds : to_seconds(seen.trace.step);
  std::string text = format("step {:.4g} s{}, predicted {:.4g} s: the prediction is {}\n",
                            seconds,
                            has_metrics ? " by metrics.jsonl" : "",
                            predicted,
                            percent_text(seconds, predicted));
  if (is_on_device) {
    text +=
        "  the trace says when the host issued work to a device, not when that did it: the rows "
        "measured are of the host\n";
  }
  return text;
}

}  // namespace

std::string percent_text(double a, double b) {
  constexpr double kShownFrom = 0.05;  // with one decimal
  const double percent = a > 0.0 ? 100.0 * (b / a - 1.0) : 0.0;
  return std::abs(percent) < kShownFrom
             ? "as long"
             : format("{:.1f} % {}", std::abs(percent), percent < 0.0 ? "less" : "more");
}

std::string compare_run_text(const MeasuredStep& step,
                             const SimulatedRun& run,
                             const CompareRows& rows) {
  const StepTrace& seen = step.trace;
  const StepTimeline timeline = run.simulate();
  const StepTrace simulated = trace_of(run.ranks(), timeline);
  const RankMatch match = match_ranks(seen, step.sources, simulated, timeline);
  const TraceShares measured(seen);
  const TraceShares predicted(simulated, match.weights);
  std::string text = format("{}: {}, beside its simulation on {}\n  constants: {}\n",
                            sources_text(step.sources),
                            ranks_text(seen, timeline),
                            run.cluster().name,
                            constants_text(run.cluster()));
  text += step_text(step, run, to_seconds(simulated.step));
  const auto add = [&](std::string_view what, const PlaceTexts& of_simulated, std::size_t most) {
    const Differences differences =
        compare(predicted, of_simulated, measured, seen_texts(of_simulated, match));
    text += "\n" +
            differences_text(differences, {.what = what, .a = "predicted", .b = "measured"}, most);
  };
  add("by kind of work", texts_of_kinds(simulated), kMostKinds);
  if (rows.of_places) {
    add("by place", texts_of_places(simulated), rows.most);
  } else {
    add("by op and shapes", texts_of_shapes(run.ranks()), rows.most);
  }
  return text;
}

std::string compare_traces_text(const StepTrace& a, const StepTrace& b, const CompareRows& rows) {
  const TraceShares shares_a(a);
  const TraceShares shares_b(b);
  std::string text = format("step {:.4g} s in A, {:.4g} s in B: B takes {}\n",
                            to_seconds(a.step),
                            to_seconds(b.step),
                            percent_text(to_seconds(a.step), to_seconds(b.step)));
  const auto add =
      [&](std::string_view what, PlaceTexts (*texts)(const StepTrace&), std::size_t most) {
        text += "\n" + differences_text(compare(shares_a, texts(a), shares_b, texts(b)),
                                        {.what = what, .a = "A", .b = "B"},
                                        most);
      };
  add("by kind of work", texts_of_kinds, kMostKinds);
  rows.of_places ? add("by place", texts_of_places, rows.most)
                 : add("by op", texts_of_ops, rows.most);
  return text;
}

}  // namespace tessera

// How near simulated steps are to played ones: ranks of this machine whose products take as long as
// on a slow device, and whose collectives as long as on slow levels, by sleeping. What is compared
// is the order in which things happen and wait, not how long they take alone: that both are told.
// All programs are run in turn, several times over; a program whose own spread over these rounds is
// above 2 % is run once more as often, and then listed as not judged.
//
// usage: played_bench [--rounds=N] [--steps=N]      rounds of N steps each, of which one is dropped

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/prctl.h>

#include "bench/judged_steps.h"
#include "tessera/base/format.h"
#include "tessera/base/median.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/placement.h"
#include "tessera/ops/op.h"
#include "tessera/plan/run_layout.h"
#include "tessera/program/operand_types.h"
#include "tessera/runtime/launcher.h"
#include "tessera/simulate/attribution.h"
#include "tessera/simulate/simulate.h"
#include "tests/distributed/rank_steps.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

constexpr double kStepSeconds = 0.8;  // of computation
constexpr double kTalkShare = 0.6;    // of that, for which links are busy

struct PlayedRun {
  std::string what;
  RankRun run;
  Cluster cluster;
  std::vector<double> meeting_seconds = {};  // by axis, of a collective beside latency and bytes
};

// How much longer a collective of few bytes takes than its latency, by axis, where the ranks of all
// groups meet at a time. Threads share this machine's cores, and sleep.
std::vector<double> meeting_seconds(const Mesh& mesh) {
  constexpr int kTimes = 200;
  constexpr double kLatency = 2e-3;
  const std::vector<Level> level = {{.name = "all", .size = mesh.num_ranks(), .latency = kLatency}};
  std::vector<double> seconds;
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    double own = 0.0;
    launch_ranks(mesh.num_ranks(), {.throttle = level}, [&](World& world) {
      const std::array listed = {axis};
      const std::unique_ptr<Communicator> group = world.group(mesh.members(listed, world.rank()));
      std::vector<std::byte> all(static_cast<std::size_t>(64 * group->size()));
      const std::span part =
          std::span(all).subspan(static_cast<std::size_t>(64 * group->rank()), 64);
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kTimes; ++i) {
        group->all_gather(part, all, part.size());
      }
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (world.rank() == 0) {
        own = taken.count() / kTimes - kLatency;
      }
    });
    seconds.push_back(own);
  }
  return seconds;
}

// The ranks of a run, with times that its device and its throttle make them take.
class PlayedPrograms {
 public:
  explicit PlayedPrograms(const PlayedRun& played)
      : played_(played), programs_(rank_programs(played.run)) {
    for (const Program& program : programs_) {
      timed_.push_back(time(program));
    }
    const Mesh& mesh = played.run.mesh;
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      program_of_.push_back(
          programs_.size() == 1 ? 0 : static_cast<std::size_t>(pipeline_place(mesh, rank)));
    }
  }

  RankPrograms ranks() const {
    return {.mesh = played_.run.mesh,
            .cluster = played_.cluster,
            .programs = timed_,
            .program_of = program_of_};
  }

  // The most of a rank.
  double flop() const {
    double most = 0.0;
    for (const Program& program : programs_) {
      double sum = 0.0;
      for (const IssueStep& step : issue_order(program).steps) {
        const Instruction& instruction = instruction_of(program, step);
        if (step.works && step.stream == 0) {
          sum += cost(*instruction.op, operand_types(instruction)).flop;
        }
      }
      most = std::max(most, sum);
    }
    return most;
  }

 private:
  // Only stream 0 computes on the device, and only FLOP take time there.
  TimedProgram time(const Program& program) const {
    TimedProgram timed =
        time_program(program, played_.run.mesh, played_.cluster, CollectiveStyle::kOwn);
    std::vector<Piece> pieces;
    std::size_t place = 0;
    for (const Segment& segment : program.segments) {
      for (const Instruction& instruction : segment.instructions) {
        const std::uint32_t begin = timed.first_piece[place];
        const std::uint32_t end = timed.first_piece[place + 1];
        timed.first_piece[place++] = static_cast<std::uint32_t>(pieces.size());
        for (std::uint32_t i = begin; i < end; ++i) {
          if (timed.pieces[i].is_leg()) {
            pieces.push_back(played_leg(timed.pieces[i]));
          }
        }
        const double flop = cost(*instruction.op, operand_types(instruction)).flop;
        const Ticks ticks = to_ticks(flop / played_.run.device_flops);
        if (instruction.stream == StreamId{0} && ticks > 0) {
          pieces.push_back({.kind = PieceKind::kProduct, .ticks = ticks, .compute = Piece::kWhole});
        }
      }
    }
    timed.first_piece[place] = static_cast<std::uint32_t>(pieces.size());
    timed.pieces = std::move(pieces);
    return timed;
  }

  // A played collective has its latency once, whatever it is and over how many ranks.
  Piece played_leg(Piece leg) const {
    if (!leg.is_transfer()) {
      const double meeting =
          played_.meeting_seconds.empty() ? 0.0 : played_.meeting_seconds[leg.partners];
      leg.ticks = to_ticks(played_.cluster.levels[leg.level].latency + meeting);
    }
    return leg;
  }

  const PlayedRun& played_;
  std::vector<Program> programs_;
  std::vector<TimedProgram> timed_;
  std::vector<std::size_t> program_of_;
};

RankRun small_run(const Mesh& mesh, std::int64_t microbatches, std::int64_t data, bool overlap) {
  return {.model = {.dim = 48, .layers = 3, .heads = 4, .kv_heads = 4, .ffn = 96, .vocab = 96},
          .mesh = mesh,
          .microbatches = microbatches,
          .global_batch = 2 * microbatches * data,
          .sequence_length = 32,
          .overlap = overlap};
}

// Data ranks side by side, and between pipeline ranks slower links.
Cluster levels_of(std::int64_t data, std::int64_t pipeline) {
  return {.name = "played",
          .device = {},
          .levels = {{.name = "node", .size = data, .bandwidth = 1e9, .latency = 20e-6},
                     {.name = "cluster", .size = pipeline, .bandwidth = 2e8, .latency = 50e-6}}};
}

std::vector<PlayedRun> played_runs() {
  std::vector<PlayedRun> runs;
  bool overlap = true;
  std::int64_t microbatches = 2;
  for (const std::int64_t ranks : {2, 4, 6, 8, 12}) {
    const Cluster cluster = load_cluster(std::filesystem::path(TESSERA_SOURCE_DIR) / "configs" /
                                         "clusters" / format("virtual-{}.toml", ranks));
    const Mesh mesh = make_mesh(cluster, {.data = ranks});
    std::vector<std::string> presets = {"ddp", "fsdp"};
    if (cluster.levels.size() > 1) {
      presets.insert(presets.end(), {"hsdp@" + cluster.levels[0].name, "topo", "zeropp"});
    }
    for (const std::string& name : presets) {
      RankRun run = small_run(mesh, microbatches, ranks, overlap);
      run.placement = preset(name, mesh).placement;
      runs.push_back({format("{} data ranks, {}, {} microbatches{}",
                             ranks,
                             name,
                             microbatches,
                             overlap ? ", overlapped" : ""),
                      run,
                      cluster});
      overlap = !overlap;
      microbatches = microbatches == 2 ? 3 : 2;
    }
  }
  using enum PipelineSchedule;
  for (const PipelineSchedule schedule : {kGPipe, k1F1B, kInterleaved, kZbH1, kZbV}) {
    for (const std::int64_t data : {1, 2}) {
      const Cluster cluster = levels_of(data, 3);
      RankRun run = small_run(make_mesh(cluster, {.data = data, .pipeline = 3}), 6, data, false);
      const std::int64_t stages = 3 * default_chunks(schedule);
      run.model.layers = 6;
      run.pipeline = {.layers = std::vector<std::int64_t>(static_cast<std::size_t>(stages),
                                                          run.model.layers / stages),
                      .schedule = schedule};
      runs.push_back(
          {format("3 pipeline ranks of {} data ranks, {}", data, name(schedule)), run, cluster});
    }
  }
  return runs;
}

// The run at such a pace that a step computes for kStepSeconds, and its links are busy for a share
// of that.
PlayedRun paced(PlayedRun played) {
  played.cluster.device.memory_bandwidth = 1e12;
  played.cluster.device.peak_flops = {.f32 = 1e12, .bf16 = 1e12};
  played.run.device_flops = 1e12;
  const PlayedPrograms programs(played);
  played.run.device_flops = programs.flop() / kStepSeconds;
  const StepTimeline timeline = simulate(programs.ranks(), {.contention = false, .slow = {}});
  Ticks busy = 0;
  for (const LinkRow& row : attribute(programs.ranks(), timeline, 0).links) {
    busy += row.busy;
  }
  const double slower = kTalkShare * kStepSeconds / to_seconds(std::max<Ticks>(1, busy));
  for (Level& level : played.cluster.levels) {
    level.bandwidth /= slower;
  }
  played.run.throttle = played.cluster.levels;
  played.meeting_seconds = meeting_seconds(played.run.mesh);
  return played;
}

// The median of so many steps; what the first does beside is not a step's.
double step_seconds(RankRun run, std::int64_t steps) {
  run.steps = steps + 1;
  std::vector<double> seconds = run_ranks(run).step_seconds;
  seconds.erase(seconds.begin());
  return median(std::move(seconds));
}

// The number after NAME= among the arguments, at least 1.
std::int64_t option(std::span<char*> arguments, std::string_view name, std::int64_t otherwise) {
  for (const std::string_view argument : arguments.subspan(1)) {
    if (argument.starts_with(name)) {
      return std::max(1, std::atoi(argument.data() + name.size()));
    }
  }
  return otherwise;
}

void run_benchmark(std::span<char*> arguments) {
  const std::int64_t steps = option(arguments, "--steps=", 4);
  const std::int64_t rounds = option(arguments, "--rounds=", 5);
  std::vector<PlayedRun> runs;
  std::vector<JudgedStep> programs;
  for (const PlayedRun& each : played_runs()) {
    runs.push_back(paced(each));
    programs.push_back(
        {.what = each.what,
         .simulated = to_seconds(simulate(PlayedPrograms(runs.back()).ranks()).step)});
  }
  measure_in_rounds(
      programs, rounds, [&](std::size_t i) { return step_seconds(runs[i].run, steps); });
  print_judged(programs, "2 %");
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  ::prctl(PR_SET_TIMERSLACK, 1);  // nanoseconds; threads inherit it
  tessera::run_benchmark({argv, static_cast<std::size_t>(argc)});
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

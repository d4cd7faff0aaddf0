#include "tests/distributed/simulated_ranks.h"

#include <numeric>
#include <string>
#include <utility>

#include "tessera/plan/run_layout.h"

namespace tessera {

Cluster cluster_of(const Mesh& mesh) {
  Cluster cluster = {.name = "simulated",
                     .device = {.name = "simulated",
                                .memory_bandwidth = 1e11,
                                .peak_flops = {.f32 = 1e12, .bf16 = 2e12, .f8 = 4e12}},
                     .levels = {}};
  const std::vector<std::string> names =
      mesh.levels.empty() ? std::vector<std::string>{"local"} : mesh.levels;
  double times = 1.0;
  for (const std::string& name : names) {
    Level level = {.name = name, .bandwidth = 1e10 / times, .latency = 1e-6 * times};
    for (const MeshAxis& axis : mesh.axes) {
      level.size *= axis.level == name ? axis.size : 1;
    }
    cluster.levels.push_back(level);
    times *= 3.0;
  }
  return cluster;
}

std::vector<Program> plain_programs(const RankRun& run) {
  const CompileOptions options = rank_options(run, {});
  if (options.pipeline) {
    return compile_pipeline(whole_graph(run), options);
  }
  std::vector<Program> programs;
  programs.push_back(compile_training(whole_graph(run), options));
  return programs;
}

std::vector<std::size_t> program_of_ranks(const Mesh& mesh, std::size_t num_programs) {
  std::vector<std::size_t> program_of;
  for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    program_of.push_back(num_programs == 1 ? 0
                                           : static_cast<std::size_t>(pipeline_place(mesh, rank)));
  }
  return program_of;
}

SimulatedRanks::SimulatedRanks(const Mesh& mesh,
                               Cluster cluster,
                               std::vector<Program> programs,
                               CollectiveStyle style)
    : mesh_(mesh),
      cluster_(std::move(cluster)),
      programs_(std::move(programs)),
      program_of_(program_of_ranks(mesh, programs_.size())) {
  for (const Program& program : programs_) {
    timed_.push_back(time_program(program, mesh_, cluster_, style));
  }
}

void SimulatedRanks::change_pieces(const TakePieces& take) {
  for (std::size_t program = 0; program < timed_.size(); ++program) {
    TimedProgram& timed = timed_[program];
    std::vector<Piece> pieces;
    std::size_t place = 0;
    for (const Segment& segment : programs_[program].segments) {
      for (std::size_t i = 0; i < segment.instructions.size(); ++i, ++place) {
        const std::span<const Piece> own =
            std::span(timed.pieces)
                .subspan(timed.first_piece[place],
                         timed.first_piece[place + 1] - timed.first_piece[place]);
        const std::vector<Piece> taken = take(program, segment, i, own);
        timed.first_piece[place] = static_cast<std::uint32_t>(pieces.size());
        pieces.insert(pieces.end(), taken.begin(), taken.end());
      }
    }
    timed.first_piece[place] = static_cast<std::uint32_t>(pieces.size());
    timed.pieces = std::move(pieces);
  }
}

StepTimeline SimulatedRanks::simulate_apart(const SimulationOptions& options) const {
  std::vector<TimedProgram> programs;
  std::vector<std::size_t> program_of(program_of_.size());
  std::iota(program_of.begin(), program_of.end(), std::size_t{0});
  for (const std::size_t program : program_of_) {
    programs.push_back(timed_[program]);
  }
  return tessera::simulate(
      {.mesh = mesh_, .cluster = cluster_, .programs = programs, .program_of = program_of},
      options);
}

}  // namespace tessera

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/mesh/random_mesh.h"
#include "tessera/ops/fence/fence.h"
#include "tessera/program/program.h"
#include "tessera/simulate/simulate.h"
#include "tessera/simulate/timed_program.h"

namespace tessera {

// For tests: a kernel that takes `ticks`, and the shares of the device and of its memory.
inline Piece kernel(Ticks ticks, double compute = 1.0, double memory = 0.0) {
  const auto share = [](double part) {
    return static_cast<std::int64_t>(part * static_cast<double>(Piece::kWhole));
  };
  return {.kind = PieceKind::kProduct,
          .ticks = ticks,
          .compute = share(compute),
          .memory = share(memory)};
}

inline Piece collective(std::uint32_t axis, std::uint32_t level, Ticks latency, Ticks moving) {
  return {.kind = PieceKind::kCollective,
          .partners = axis,
          .level = level,
          .ticks = latency,
          .moving = moving};
}

// A program whose instructions compute nothing and take what they are told.
class TestStep {
 public:
  explicit TestStep(std::size_t num_streams = 1) : program_(std::make_shared<Program>()) {
    program_->streams.assign(num_streams, "stream");
    program_->segments = {{.name = "step", .instructions = {}}};
    program_->calls = {{.segment = {0}}};
  }

  // An instruction, and the event of its end.
  EventId add(std::size_t stream, std::vector<Piece> pieces, std::vector<EventId> waits = {}) {
    const auto event = EventId::of(pieces_.size());
    program_->segments[0].instructions.push_back({.op = make_op(FenceAttrs{}),
                                                  .operands = {},
                                                  .results = {},
                                                  .stream = StreamId::of(stream),
                                                  .waits = std::move(waits),
                                                  .signals = {event}});
    pieces_.push_back(std::move(pieces));
    return event;
  }

  // A one-way connection along the axis, between neighbours of those places.
  std::uint32_t channel(const AxisSize& axis, std::int64_t from, std::int64_t to) {
    channels_.push_back({{axis}, {.from = from, .to = to}});
    return static_cast<std::uint32_t>(channels_.size() - 1);
  }

  const Program& program() const { return *program_; }

  // Borrows the program.
  TimedProgram timed() const {
    TimedProgram timed;
    timed.program = program_.get();
    timed.order = issue_order(*program_);
    timed.channels = channels_;
    for (const std::vector<Piece>& pieces : pieces_) {
      timed.first_piece.push_back(static_cast<std::uint32_t>(timed.pieces.size()));
      timed.pieces.insert(timed.pieces.end(), pieces.begin(), pieces.end());
    }
    timed.first_piece.push_back(static_cast<std::uint32_t>(timed.pieces.size()));
    return timed;
  }

 private:
  std::shared_ptr<Program> program_;
  std::vector<std::vector<Piece>> pieces_;
  std::vector<ChannelName> channels_;
};

// All ranks of a cluster in a step each, some of them in the same.
struct TestRanks {
  TestRanks(const std::vector<std::int64_t>& sizes, const MeshDegrees& degrees)
      : cluster(test_cluster(sizes)), mesh(make_mesh(cluster, degrees)) {}

  void add(const TestStep& step, std::size_t num_ranks) {
    program_of.insert(program_of.end(), num_ranks, programs.size());
    programs.push_back(step.timed());
    steps.push_back(step);
  }

  RankPrograms ranks() const {
    return {.mesh = mesh, .cluster = cluster, .programs = programs, .program_of = program_of};
  }

  StepTimeline simulate(const SimulationOptions& options = {}) const {
    return tessera::simulate(ranks(), options);
  }

  Cluster cluster;
  Mesh mesh;
  std::vector<TestStep> steps = {};  // of whose programs these are
  std::vector<TimedProgram> programs = {};
  std::vector<std::size_t> program_of = {};
};

}  // namespace tessera

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/comm/communicator.h"
#include "tessera/launch/rank_backend.h"
#include "tessera/program/program.h"
#include "tessera/runtime/executor.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {

// The programs of a run's ranks, compiled once: by pipeline rank, or the one of all.
std::vector<Program> rank_programs(const RankRun& run);

// Weights as a run begins with, and rows of tokens in all microbatches, none of them masked.
void fill(Executor& executor, const RankRun& run, const Program& program, std::int64_t rank);

// The steps of one rank, of one thread, one by one: for what is measured between them.
class RankSteps {
 public:
  // What runs the ops in place of a rank's backend, which it borrows.
  using Wrap = std::function<std::unique_ptr<Backend>(Backend& backend)>;

  // Borrows world and program.
  RankSteps(World& world, const RankRun& run, const Program& program, const Wrap& wrap = nullptr);

  void step();

  Executor& executor() { return executor_; }

 private:
  RankBackend rank_;
  std::unique_ptr<Backend> wrapped_;
  Executor executor_;
  std::int64_t labels_;  // of a step
  std::int64_t updates_ = 0;
};

}  // namespace tessera

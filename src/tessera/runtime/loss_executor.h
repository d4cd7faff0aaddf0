#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "tessera/backend/backend.h"
#include "tessera/program/program.h"
#include "tessera/runtime/executor.h"

namespace tessera {

// Runs a program that computes losses and trains nothing (validation, evaluation): all of its
// microbatches, or the first ones of them, none of which knows of the others.
class LossExecutor {
 public:
  // Both as Executor's. Borrows program and backend for its life.
  LossExecutor(const Program& program, Backend& backend);
  LossExecutor(const Program& program, Backend& backend, ProgramArenas arenas);

  // Of the whole program: whose inputs are written before run(), and outputs read after it.
  Executor& executor() { return all_; }

  std::int64_t num_microbatches() const { return all_.program().num_microbatches; }

  // Runs the first `count` microbatches, whose rows are written; as quick as it can be where the
  // count is num_microbatches(), or that of the last time that it was not.
  // Errors: as Executor::run_step().
  void run(std::int64_t count);

  // Of the last run.
  float output(std::string_view name, std::int64_t microbatch) {
    return all_.output_scalar(name, microbatch);
  }

 private:
  // A step of fewer microbatches.
  struct Rest {
    Rest(Program fewer, LossExecutor& owner);

    Program program;
    Executor executor;
  };

  Backend& backend_;
  ProgramArenas arenas_;
  Executor all_;
  std::optional<Rest> rest_;
};

}  // namespace tessera

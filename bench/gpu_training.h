#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <nlohmann/json.hpp>

#include "bench/gpu_train_case.h"
#include "tessera/backend/backend.h"
#include "tessera/ir/graph.h"
#include "tessera/program/program.h"
#include "tessera/runtime/training_step.h"

namespace tessera {

inline constexpr int kRecordedSteps = 3;  // of a process that records what the GPU does

// The training program of a case, on random tokens unless it gets others.
class Training {
 public:
  using InputOf = std::function<std::int32_t(std::string_view input, std::int64_t index)>;

  Training(const Case& test, Backend& backend, bool on_cpu);

  void set_inputs(const InputOf& value_of);

  // Its seconds.
  double step(float learning_rate = 3e-4F);

  // Per token.
  double loss() {
    return double{TrainingStep(executor_).outputs().loss_sum} / static_cast<double>(tokens_);
  }

  double init_seconds() const { return init_seconds_; }

  double flop_per_token() const { return flop_per_token_; }

  std::int64_t plan_bytes() const { return program_.arena_bytes; }

  // That a step runs.
  std::int64_t num_instructions() const;

 private:
  Graph graph_;
  Program program_;
  Executor executor_;
  std::int64_t tokens_;
  double flop_per_token_;
  double init_seconds_ = 0;
  int updates_ = 0;
};

// Of the first GPU, or of the CPU.
std::unique_ptr<Backend> make_backend(bool on_cpu);

// What a process of ours does, from `start` of the process on.
nlohmann::json run_own(const Case& test, bool on_cpu, std::chrono::steady_clock::time_point start);

// How long the GPU was idle, in a process of its own: recording takes time, and has to begin before
// there are graphs.
nlohmann::json run_activity(const Case& test);

}  // namespace tessera

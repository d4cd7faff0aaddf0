#include "bench/gpu_training.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "bench/gpu_activity.h"
#include "bench/gpu_ceilings.h"
#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/device_backend.h"
#include "tessera/backend/devices.h"
#include "tessera/base/elapsed.h"
#include "tessera/base/machine.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/state/training_state.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmup = 3;

// On the GPU as a run with run.time_gemms has it.
std::unique_ptr<DeviceBackend> make_gpu_backend() {
  DeviceOptions options;
  if (const auto cache = user_cache_directory()) {
    options.algorithm_files = {*cache / "gemms.txt"};
  }
  return make_device_backend(0, 1, options);
}

struct Idle {
  std::optional<double> by_records;  // CUPTI's, where it works
  double by_events = 0;              // between the spans
};

Idle measure_idle(const Case& test, TimedWork::Span span, GpuActivity& activity) {
  const std::unique_ptr<DeviceBackend> backend = make_gpu_backend();
  TimedWork timed(*backend, span);
  Training training(test, timed, false);
  for (int i = 0; i < kWarmup; ++i) {
    training.step();
  }
  activity.restart();
  timed.start();
  for (int i = 0; i < kRecordedSteps; ++i) {
    training.step();
  }
  // Most instructions are one kernel, some several, few none.
  const std::int64_t least = kRecordedSteps * training.num_instructions() / 2;
  return {.by_records = activity.idle_share(least), .by_events = timed.idle_between()};
}

}  // namespace

Training::Training(const Case& test, Backend& backend, bool on_cpu)
    : graph_(training_graph(test.description(), test.batch, test.seq, DType::kBF16)),
      program_(compile_training(graph_, compile_options(test, backend, on_cpu))),
      executor_(program_, backend),
      tokens_(static_cast<std::int64_t>(test.tokens())),
      flop_per_token_(training_flop_per_token(
          test.description(), count_parameters(parameter_inits(graph_)), test.seq)) {
  const Clock::time_point start = Clock::now();
  initialize_state(executor_, parameter_inits(graph_), 1);
  init_seconds_ = seconds_since(start);
  std::uint32_t random = 12345;
  set_inputs([&](std::string_view input, std::int64_t i) {
    random = random * 1664525U + 1013904223U;
    const std::int64_t place = i % test.seq;
    return static_cast<std::int32_t>(
        input == "documents"   ? place / test.document_tokens()
        : input == "positions" ? place % test.document_tokens()
                               : (random >> 8U) % static_cast<std::uint32_t>(test.sizes.vocab));
  });
}

void Training::set_inputs(const InputOf& value_of) {
  for (const Binding& input : program_.inputs) {
    auto* const values = reinterpret_cast<std::int32_t*>(executor_.bytes(input).data());
    for (std::int64_t i = 0; i < input.tensor.type.num_elements(); ++i) {
      values[i] = value_of(input.name, i);
    }
  }
}

double Training::step(float learning_rate) {
  const Clock::time_point start = Clock::now();
  TrainingStep(executor_).run(
      {.num_labels = tokens_, .learning_rate = learning_rate, .update_number = ++updates_});
  return seconds_since(start);
}

std::int64_t Training::num_instructions() const {
  std::int64_t count = 0;
  for (const Call& call : program_.calls) {
    count += std::ranges::count_if(
        program_[call.segment].instructions,
        [&](const Instruction& instruction) { return program_.runs(instruction, call); });
  }
  return count;
}

std::unique_ptr<Backend> make_backend(bool on_cpu) {
  return on_cpu ? make_cpu_backend(1) : make_gpu_backend();
}

nlohmann::json run_own(const Case& test, bool on_cpu, Clock::time_point start) {
  const std::int64_t context_bytes = on_cpu ? 0 : used_device_bytes();
  const std::unique_ptr<Backend> backend = make_backend(on_cpu);
  Training training(test, *backend, on_cpu);
  training.step();
  nlohmann::json result = {{"first_step_s", seconds_since(start)},
                           {"init_s", training.init_seconds()},
                           {"flop_per_token", training.flop_per_token()},
                           {"plan_bytes", training.plan_bytes()}};
  const std::int64_t used_bytes = on_cpu ? 0 : used_device_bytes();
  std::vector<double> losses = {training.loss()};
  std::vector<double> seconds;
  for (int i = 1; i < kWarmup + kSteps; ++i) {
    const double step = training.step();
    losses.push_back(training.loss());
    if (i >= kWarmup) {
      seconds.push_back(step);
    }
  }
  result["seconds"] = seconds;
  result["losses"] = losses;
  if (!on_cpu) {
    result["context_bytes"] = context_bytes;
    result["used_bytes"] = std::max(used_bytes, used_device_bytes()) - context_bytes;
  }
  return result;
}

nlohmann::json run_activity(const Case& test) {
  GpuActivity activity;
  const Idle within = measure_idle(test, TimedWork::Span::kStep, activity);
  if (within.by_records) {
    nlohmann::json kernels = nlohmann::json::array();
    for (const KernelTime& each : activity.kernel_times()) {
      kernels.push_back({each.name,
                         static_cast<double>(each.count) / kRecordedSteps,
                         each.seconds / kRecordedSteps});
    }
    return {{"idle", *within.by_records}, {"kernels", kernels}};
  }
  return {{"problem", activity.problem()},
          {"idle_between_steps", within.by_events},
          {"idle_between_ops", measure_idle(test, TimedWork::Span::kOp, activity).by_events}};
}

}  // namespace tessera

// What surrounds the kernels: the executor's cost of an instruction, the time from the start of a
// process to the end of its first step, the memory of a process beside its plan, what it takes to
// plan large runs and microbatches in flight, and the tokenizer.
//
// usage: core_bench            (it starts itself again as core_bench --child=... for the second and
//                               third)

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/process_cost.h"
#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/null/null_backend.h"
#include "tessera/base/elapsed.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/median.h"
#include "tessera/base/units.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/compile.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/passes/program/assign_slots.h"
#include "tessera/plan/graphs.h"
#include "tessera/program/test_in_flight.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kThreads = 2;

void executor_overhead() {
  const auto backend = make_null_backend();
  const Program program = compile_training(
      training_graph(describe_llama(llama_flavor("debug")), 1, 512, DType::kF32), {});
  std::int64_t instructions = 0;
  for (const Call& call : program.calls) {
    instructions += static_cast<std::int64_t>(program[call.segment].instructions.size());
  }
  Executor executor(program, *backend);
  std::vector<double> seconds;
  for (int i = 0; i < 101; ++i) {
    const Clock::time_point start = Clock::now();
    executor.run_step();
    seconds.push_back(seconds_since(start));
  }
  std::printf("executor: %.4f us an instruction (%ld instructions, null kernels)   target 1\n",
              median(seconds) / static_cast<double>(instructions) * 1e6,
              static_cast<long>(instructions));
}

// Runs `steps` steps of a model with constant tokens; the arena's size comes back.
std::int64_t train_steps(const LlamaConfig& config,
                         std::int64_t batch,
                         std::int64_t seq,
                         int steps) {
  const auto backend = make_cpu_backend(kThreads);
  const Graph graph = training_graph(describe_llama(config), batch, seq, DType::kF32);
  const Program program = compile_training(graph, {.workspace_bytes = workspace_of(*backend)});
  Executor executor(program, *backend);
  initialize_state(executor, parameter_inits(graph), 1);
  for (int i = 1; i <= steps; ++i) {
    TrainingStep(executor).run({.num_labels = batch * seq, .update_number = i});
  }
  return program.arena_bytes;
}

LlamaConfig tiny() {
  return {.dim = 64, .layers = 2, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 256};
}

LlamaConfig model_134m() {
  return {.dim = 768, .layers = 12, .heads = 12, .kv_heads = 12, .ffn = 2048, .vocab = 32000};
}

int child(std::string_view mode) {
  if (mode == "first-step") {
    train_steps(tiny(), 1, 64, 1);
    return 0;
  }
  const std::int64_t plan = train_steps(model_134m(), 2, 512, 2);
  const std::int64_t peak = status_bytes("VmHWM:");
  std::printf("memory, 134 M f32: plan %s, whole process at its peak %s: %s more   target 64 MiB\n",
              format_bytes(plan).c_str(),
              format_bytes(peak).c_str(),
              format_bytes(peak - plan).c_str());
  return 0;
}

double run_process(const std::vector<std::string>& arguments) {
  return cost_of_process(arguments, false).seconds;
}

void start_to_first_step(const std::string& self) {
  std::vector<double> own;
  std::vector<double> peer;
  for (int i = 0; i < 7; ++i) {
    own.push_back(run_process({self, "--child=first-step"}));
    peer.push_back(run_process({"/usr/bin/python3", "-c", "import torch"}));
  }
  std::printf(
      "start to end of the first step (tiny model): %.1f ms   target 100\n"
      "  beside it, python3 -c \"import torch\": %.1f ms%s\n",
      median(own) * 1e3,
      median(peer) * 1e3,
      median(peer) < 0 ? " (failed: is python3-torch installed?)" : "");
}

// The whole of `tessera explain`, of which the compilation is a part.
void plans() {
  struct Plan {
    const char* name;
    std::vector<std::string> overrides;
    const char* target;
  };

  const Plan all[] = {
      {"Llama 8B on 64 ranks (data 8 fsdp x tensor 8, 4 microbatches)",
       {"--model.flavor=8B", "--parallel.ranks=64", "--train.global_batch=32"},
       "compiles in 1 s"},
      {"Llama 405B on 512 ranks (data 64 fsdp x tensor 8, 16 microbatches)",
       {"--model.flavor=405B", "--parallel.ranks=512", "--train.global_batch=1024"},
       "5 s and 2 GB"},
  };
  for (const Plan& plan : all) {
    std::vector<std::string> arguments = {"build/tessera",
                                          "explain",
                                          "configs/runs/quickstart.toml",
                                          "--parallel.tensor=8",
                                          "--state.preset=fsdp",
                                          "--train.microbatch=1",
                                          "--data.sequence_length=8192"};
    arguments.insert(arguments.end(), plan.overrides.begin(), plan.overrides.end());
    std::vector<double> seconds;
    std::int64_t peak = 0;
    for (int i = 0; i < 5; ++i) {
      const ProcessCost cost = cost_of_success(arguments);
      seconds.push_back(cost.seconds);
      peak = cost.peak_bytes;
    }
    std::printf("explain, %s: %.2f s, %s   target: %s\n",
                plan.name,
                median(seconds),
                format_bytes(peak).c_str(),
                plan.target);
  }
}

// The first of 16 pipeline ranks of a model of 126 layers, by the number of its microbatches: what
// grows with the calls of a step alone.
void microbatches_in_flight() {
  constexpr std::int64_t kInFlight = 16;
  const Graph graph = training_graph(
      describe_llama({.dim = 64, .layers = 8, .heads = 4, .kv_heads = 2, .ffn = 128, .vocab = 256}),
      1,
      64,
      DType::kF32);
  double few_planned = 0;
  double few_verified = 0;
  for (const std::int64_t microbatches : {16, 64}) {
    CompileOptions options;
    options.update.num_microbatches = microbatches;
    Program program = compile_training(graph, options);
    call_in_order(program, one_forward_one_backward(microbatches, kInFlight));
    std::vector<double> planning;
    std::vector<double> verifying;
    for (int i = 0; i < 9; ++i) {
      const Clock::time_point start = Clock::now();
      const Program planned = plan_memory(assign_slots(program));
      planning.push_back(seconds_since(start));
      const Clock::time_point middle = Clock::now();
      verify(planned);
      verifying.push_back(seconds_since(middle));
    }
    const double planned = median(planning);
    const double verified = median(verifying);
    std::printf(
        "8 layers, 16 of %ld microbatches in flight: planned in %.1f ms, verified in %.1f ms",
        static_cast<long>(microbatches),
        planned * 1e3,
        verified * 1e3);
    if (few_planned > 0) {
      std::printf(", %.2f and %.2f times those of 16   target 50 ms planned, 4.4 times",
                  planned / few_planned,
                  verified / few_verified);
    }
    std::printf("\n");
    few_planned = planned;
    few_verified = verified;
  }
}

void tokenizer() {
  const std::filesystem::path corpus = "build/quickstart/cmake-help.txt";
  if (!std::filesystem::exists(corpus)) {
    std::printf("tokenizer: skipped, %s is missing (./x train makes it)\n", corpus.c_str());
    return;
  }
  const std::string text = read_file(corpus);
  const Clock::time_point start = Clock::now();
  const Tokenizer trained = train_bpe(text, {.vocab_size = 2048});
  const double training = seconds_since(start);
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    const Clock::time_point begin = Clock::now();
    trained.encode(text);
    seconds.push_back(seconds_since(begin));
  }
  std::printf(
      "tokenizer: trained with 2048 entries in %.2f s   target 5\n"
      "  encodes %.1f MB/s on one thread   target 10\n",
      training,
      static_cast<double>(text.size()) / median(seconds) / 1e6);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--child=")) {
      return tessera::child(argument.substr(std::string_view("--child=").size()));
    }
  }
  tessera::executor_overhead();
  tessera::start_to_first_step(argv[0]);
  tessera::run_process({argv[0], "--child=memory"});
  tessera::plans();
  tessera::microbatches_in_flight();
  tessera::tokenizer();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}

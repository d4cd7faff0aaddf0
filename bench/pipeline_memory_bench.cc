// The memory of a pipeline's ranks beside what it must be: the arena beside the largest sum of the
// bytes that live at one time, with and without what lives always, for every schedule; the memory
// of a whole process beside its plan, and what its steps allocate; and what a run allocates around
// its steps.
//
// usage: pipeline_memory_bench      (all but the first it starts itself for again, with
// --child=...)

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/process_cost.h"
#include "tessera/actions/schedules.h"
#include "tessera/base/units.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/placement.h"
#include "tessera/models/llama/llama.h"
#include "tessera/program/lives.h"
#include "tessera/runtime/launcher.h"
#include "tessera/state/test_training.h"
#include "tessera/train/test_run.h"
#include "tessera/train/trainer.h"
#include "tests/distributed/backend_of_transfers.h"
#include "tests/distributed/count_allocations.h"
#include "tests/distributed/rank_steps.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

constexpr std::string_view kChild = "--child=";
constexpr std::string_view kRun = "run";  // the child that trains one

LlamaConfig model_134m() {
  return {.dim = 768, .layers = 12, .heads = 12, .kv_heads = 12, .ffn = 2048, .vocab = 32000};
}

// Of the bytes of a program: those that live always, and the most of the others that live at once.
struct Living {
  std::int64_t persistent = 0;
  std::int64_t most = 0;
};

Living living(const Program& program) {
  Living bytes;
  for (const Buffer& buffer : program.buffers) {
    bytes.persistent += buffer.persistent ? program.total_bytes(buffer) : 0;
  }
  std::int64_t now = 0;
  for_each_life_event(program, [&](const LifeEvent& event) {
    const std::int64_t size = program[event.of.buffer].bytes;
    now += event.is_end ? -size : size;
    bytes.most = std::max(bytes.most, now);
  });
  return bytes;
}

RankRun run_of(const LlamaConfig& model,
               const MeshDegrees& degrees,
               PipelineSchedule schedule,
               std::int64_t microbatches) {
  const std::int64_t ranks = degrees.pipeline * degrees.tensor * degrees.data;
  const std::int64_t stages = degrees.pipeline * default_chunks(schedule);
  RankRun run = {.model = model,
                 .mesh = make_mesh(local_cluster(ranks), degrees),
                 .microbatches = microbatches,
                 .global_batch = microbatches * degrees.data,
                 .sequence_length = 512};
  if (degrees.pipeline > 1) {
    for (std::int64_t stage = 0; stage < stages; ++stage) {
      run.pipeline.layers.push_back((stage + 1) * model.layers / stages -
                                    stage * model.layers / stages);
    }
    run.pipeline.schedule = schedule;
  }
  return run;
}

// The arena over what lives: of all, and without what lives always.
std::pair<double, double> ratios_of(const Program& program) {
  const Living bytes = living(program);
  const auto arena = static_cast<double>(program.arena_bytes);
  return {arena / static_cast<double>(bytes.persistent + bytes.most),
          (arena - static_cast<double>(bytes.persistent)) / static_cast<double>(bytes.most)};
}

void print_ratios(const char* model,
                  const char* degrees,
                  std::string_view schedule,
                  const std::vector<Program>& programs) {
  double whole = 0;
  double temporary = 0;
  std::int64_t largest = 0;
  for (const Program& program : programs) {
    const auto [of_all, of_temporary] = ratios_of(program);
    whole = std::max(whole, of_all);
    temporary = std::max(temporary, of_temporary);
    largest = std::max(largest, program.arena_bytes);
  }
  std::printf("  %-6s %-16s %-15s %10s %9.4f %22.4f   target 1.03\n",
              model,
              degrees,
              std::string(schedule).c_str(),
              format_bytes(largest).c_str(),
              whole,
              temporary);
}

// Sixteen layers of the debug model on 8 pipeline ranks, where lives last from 1 to 16
// microbatches.
void arenas_of_many_microbatches() {
  LlamaConfig model = llama_flavor("debug");
  model.layers = 16;
  for (const std::int64_t microbatches : {24, 64}) {
    for (const PipelineSchedule schedule : kPipelineSchedules) {
      const RankRun run = run_of(model, {.pipeline = 8}, schedule, microbatches);
      const std::string ranks = "p 8 m " + std::to_string(microbatches);
      print_ratios("debug", ranks.c_str(), name(schedule), rank_programs(run));
    }
  }
  for (const auto& [name_of, sliced] :
       {std::pair("debug", model), std::pair("8 B", llama_flavor("8B"))}) {
    for (const std::int64_t slices : {2, 4, 8}) {
      RankRun run = run_of(sliced, {.pipeline = 4}, PipelineSchedule::k1F1B, 8);
      run.pipeline.slices = slices;
      const std::string ranks = "p 4 slices " + std::to_string(slices);
      print_ratios(name_of, ranks.c_str(), "1f1b", rank_programs(run));
    }
  }
}

void arenas() {
  std::printf(
      "arena / most bytes that live at once, of the worst pipeline rank; 8 microbatches where none "
      "are said\n"
      "  model  ranks            schedule         largest       all  without persistent\n");
  for (const auto& [name_of, model] :
       {std::pair("debug", llama_flavor("debug")), std::pair("134 M", model_134m())}) {
    for (const std::int64_t ranks : {2, 4}) {
      for (const PipelineSchedule schedule : kPipelineSchedules) {
        const RankRun run = run_of(model, {.pipeline = ranks}, schedule, 8);
        print_ratios(name_of, ranks == 2 ? "p 2" : "p 4", name(schedule), rank_programs(run));
      }
    }
  }
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    if (schedule == PipelineSchedule::kDualPipeV) {
      continue;  // of at least twice as many microbatches as ranks
    }
    RankRun run =
        run_of(llama_flavor("405B"), {.data = 128, .tensor = 8, .pipeline = 16}, schedule, 16);
    run.sequence_length = 8192;
    run.placement = preset("fsdp", run.mesh).placement;
    run.overlap = true;
    print_ratios("405 B", "p 16 t 8 d 128", name(schedule), rank_programs(run));
  }
  arenas_of_many_microbatches();
}

struct ChildCase {
  std::int64_t ranks = 0;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  bool computes = false;  // or moves tensors alone
};

std::string argument_of(const ChildCase& each) {
  return std::string(kChild) + std::to_string(each.ranks) + (each.computes ? "," : "-") +
         std::string(name(each.schedule));
}

ChildCase parse_child(std::string_view argument) {
  argument.remove_prefix(kChild.size());
  const std::size_t end = argument.find_first_of(",-");
  return {.ranks = std::atoll(std::string(argument).c_str()),
          .schedule = parse_pipeline_schedule(argument.substr(end + 1)),
          .computes = argument[end] == ','};
}

// In a process of its own: steps of a model, their allocations and the memory beside the plan.
void child(const ChildCase& each) {
  RankRun run = run_of(model_134m(), {.pipeline = each.ranks}, each.schedule, 8);
  run.sequence_length = 128;
  const std::vector<Program> programs = rank_programs(run);
  std::int64_t plan = 0;
  for (const Program& program : programs) {
    plan += program.arena_bytes;
  }
  RankSteps::Wrap wrap = [](Backend& backend) {
    return std::make_unique<BackendOfTransfers>(backend);
  };
  const std::int64_t before = status_bytes("VmRSS:");
  std::barrier meeting(static_cast<std::ptrdiff_t>(each.ranks));
  launch_ranks(each.ranks, {}, [&](World& world) {
    RankSteps steps(world,
                    run,
                    programs[static_cast<std::size_t>(world.rank())],
                    each.computes ? nullptr : wrap);
    steps.step();
    meeting.arrive_and_wait();
    count_allocations();
    meeting.arrive_and_wait();
    for (int step = 2; step <= 5; ++step) {
      steps.step();
    }
    meeting.arrive_and_wait();
    counted_allocations();
    meeting.arrive_and_wait();
  });
  const CountedAllocations found = counted_allocations();
  if (!each.computes) {
    std::printf("                    transfers alone %31ld %16ld   target 0\n",
                static_cast<long>(found.own.made),
                static_cast<long>(found.of_products.made));
    return;
  }
  std::printf("  %-3ld %-15s %10s %10s %12s %10ld %16ld   target 32 MB beyond, 0 of its own\n",
              static_cast<long>(each.ranks),
              std::string(name(each.schedule)).c_str(),
              format_bytes(before).c_str(),
              format_bytes(plan).c_str(),
              format_bytes(status_bytes("VmHWM:") - before - plan).c_str(),
              static_cast<long>(found.own.made),
              static_cast<long>(found.of_products.made));
}

// A run of one rank, as `tessera train` runs it: from the beginning of step 2 to that of step 6.
void child_of_run() {
  const TestRun test;
  CountedAllocations found;
  TrainHooks hooks;
  hooks.before_step = [&](std::int64_t /*rank*/, std::int64_t step) {
    if (step == 2) {
      count_allocations();
    } else if (step == 6) {
      found = counted_allocations();
    }
  };
  train(test.config("run"), tiny_llama(), hooks);
  std::printf("  a run of one rank, with batches, records and lines %13ld %16ld\n",
              static_cast<long>(found.own.made),
              static_cast<long>(found.of_products.made));
}

void start(const std::string& self, const std::string& argument) {
  if (cost_of_process({self, argument}, false).seconds < 0) {
    std::printf("  %s failed\n", argument.c_str());
  }
}

void processes(const std::string& self) {
  std::printf(
      "134 M, f32, 8 microbatches of 128 tokens, ranks of a process\n"
      "                                                           allocations in steps 2 to 5\n"
      "  p   schedule            before       plan  peak beyond        own    inside oneDNN\n");
  for (const std::int64_t ranks : {2, 4}) {
    for (const auto schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZbV}) {
      for (const bool computes : {true, false}) {
        const std::string argument =
            argument_of({.ranks = ranks, .schedule = schedule, .computes = computes});
        start(self, argument);
      }
    }
  }
  start(self, std::string(kChild) + std::string(kRun));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc == 2 && std::string_view(argv[1]).starts_with(tessera::kChild)) {
    if (std::string_view(argv[1]).ends_with(tessera::kRun)) {
      tessera::child_of_run();
      return 0;
    }
    tessera::child(tessera::parse_child(argv[1]));
    return 0;
  }
  tessera::arenas();
  tessera::processes(argv[0]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}

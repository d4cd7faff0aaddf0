#include "tessera/train/trainer.h"

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/base/machine.h"
#include "tessera/base/mapped_files.h"
#include "tessera/base/units.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/config/config.h"
#include "tessera/dataset/run_data.h"
#include "tessera/dataset/text_encoder.h"
#include "tessera/infer/generate.h"
#include "tessera/launch/exit_record.h"
#include "tessera/launch/rank_launch.h"
#include "tessera/launch/run_directory.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/run_layout.h"
#include "tessera/resolve/adapters.h"
#include "tessera/resolve/choose_memory.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/resolve/memory_choice.h"
#include "tessera/resolve/predicted_step.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/resolve_layout.h"
#include "tessera/resolve/run_memory.h"
#include "tessera/resolve/start_checks.h"
#include "tessera/runtime/launcher.h"
#include "tessera/state/state_parts.h"
#include "tessera/train/rank_trainer.h"

namespace tessera {
namespace {

// The programs of a run and how many bytes a rank of this process may use.
std::pair<RunPrograms, std::int64_t> compile_with_limit(const RunConfig& config,
                                                        const PlannedRun& run) {
  require_inputs_fit(config, run.plan, memory_limit(config, run.plan.layout, 0));
  RunPrograms programs = compile_run(run.plan, run.target, config.passes.dump);
  require_each_tensor_once(
      programs, parameter_inits(step_graph(run.plan)), run.plan.optimizer.moments);
  const std::int64_t limit = memory_limit(config, run.plan.layout, most_channels(programs));
  return {std::move(programs), limit};
}

// What an earlier start in the run's directory chose, as memory.chosen has it; whether it is of
// this run is for fit_memory() to see.
std::string earlier_choice(const RunConfig& config) {
  const std::filesystem::path file = std::filesystem::path(config.run.dir) / "config.toml";
  std::error_code error;
  const MemorySection& memory = config.memory;
  const std::array auto_keys = {
      memory.offload_optimizer, memory.offload_parameters, memory.offload_activations};
  if (memory.recompute != Recompute::kAuto &&
      std::ranges::find(auto_keys, Offload::kAuto) == auto_keys.end()) {
    return {};
  }
  if (config.run.dir.empty() || !config.memory.chosen.empty() ||
      !std::filesystem::is_regular_file(file, error)) {
    return config.memory.chosen;
  }
  try {
    MemorySection before = parse_run_config(read_file(file), file.string()).memory;
    const std::string chosen = std::exchange(before.chosen, {});
    before.limit_bytes = memory.limit_bytes;
    // With other keys another choice may be better.
    return chosen.empty() || before != memory ? "" : to_string(parse_memory_choice(chosen));
  } catch (const Error& unreadable) {
    if (!is_info_silenced()) {
      log_warning(format("{}: what an earlier start chose is not taken", unreadable.what()));
    }
    return {};  // damaged, or of another version: this start chooses, and writes it anew
  }
}

// `room` is that of all processes, which choose alike. What is chosen, as memory.chosen has it.
std::string fit_and_check(const RunConfig& config,
                          PlannedRun& run,
                          RunPrograms& programs,
                          const RoomToKeep& room) {
  const std::int64_t limit = room.limit;
  run.chosen_before.reset();
  if (!room.chosen.empty()) {
    run.chosen_before = parse_memory_choice(room.chosen);
  }
  const ResolvedLayout resolved = resolve_layout(config);
  const DeviceSpec device =
      run.target.device.memory_bytes > 0 ? run.target.device : resolved.device;
  const bool is_shared = config.memory.limit_bytes == 0 && !run.target.is_device();
  const RankRoom rank = {.limit = is_shared ? room_beside_others(limit) : limit,
                         .on_device = run.target.is_device(),
                         .rates = move_rates(device, resolved.disk_bandwidth, room.ranks_here)};
  const auto chosen = fit_memory(run, programs, device, rank, config.passes.dump);
  if (chosen && chosen->bytes <= limit) {
    log_info(to_string(*chosen, run));
  }
  require_fits(programs, run, config, limit);
  if (!chosen) {
    return {};
  }
  return to_string(chosen->search ? choice_of(run, *chosen, rank.limit) : *run.chosen_before);
}

// Writes the tokenizer's marks into `config`.
RunSequences load_sequences(RunConfig& config, std::int64_t vocab) {
  const std::optional<Tokenizer> tokenizer = run_tokenizer(config, vocab);
  if (!tokenizer) {
    log_info(
        "no tokenizer: the data are ids below model.vocab; what is trained has none for "
        "generate, samples and text to evaluate, and is exported without one");
  } else if (!config.sample.prompt.empty()) {
    with_context(
        [] { return "sample.prompt"; },
        [&] { prompt_tokens(*tokenizer, config.sample.prompt, config.data.sequence_length); });
  }
  if (tokenizer) {
    if (!is_info_silenced()) {
      log_marks(*tokenizer, config.tokenizer.eos.has_value());
    }
    config = with_marks_of(*tokenizer, std::move(config));
  }
  return run_sequences(config, tokenizer, vocab);
}

void say_what_runs(const RunSetup& setup) {
  const RunConfig& config = setup.config;
  const RunLayout& layout = setup.run.plan.layout;
  const std::int64_t ranks = layout.mesh.num_ranks();
  const ParameterCounts parameters = count_parameters(setup.parameters);
  const RunMemory memory = run_memory(setup.run, setup.programs);
  log_info(format(
      "model: {} parameters{}; memory{}: {}; threads{}: {}{}",
      format_grouped(parameters.all),
      parameters.frozen > 0
          ? format(", {} of them trained", format_grouped(parameters.all - parameters.frozen))
          : "",
      ranks > 1 ? " a rank" : "",
      format_bytes(memory.total()),
      ranks > 1 ? " a rank" : "",
      config.run.threads,
      ranks > 1
          ? format("; ranks: {} ({}data {}, {}tensor {}; state {})",
                   ranks,
                   setup.programs.size() > 1 ? format("pipeline {}, ", setup.programs.size()) : "",
                   layout.num_data(),
                   layout.num_context() > 1 ? format("context {}, ", layout.num_context()) : "",
                   config.parallel.tensor,
                   config.state.preset)
          : ""));
  const auto say_offloaded = [&](const RunMemory::OtherSpace& space, const std::string& where) {
    if (space.bytes > 0) {
      log_info(format("offloaded{}: {} {}, from which a step fetches {} and where it stores {}",
                      ranks > 1 ? " by a rank" : "",
                      format_bytes(space.bytes),
                      where,
                      format_bytes(space.traffic.fetched),
                      format_bytes(space.traffic.stored)));
    }
  };
  for (const std::string& line : idle_offloads(setup.programs, setup.run.plan)) {
    log_warning(line);
  }
  say_offloaded(memory.host, "to the host's memory");
  say_offloaded(memory.file, format("to a file in {}", setup.run.offload_dir.string()));
  for (const std::string& note : setup.run.notes) {
    log_info(format("pipeline: {}", note));
  }
  const std::int64_t threads = config.run.threads * ranks_on_machine(config);
  if (threads > std::int64_t{2} * usable_cores() && config.run.threads > 1) {
    log_warning(
        format("{} threads on {} cores keep each other waiting: run.threads = 0 takes as "
               "many as there is room for",
               threads,
               usable_cores()));
  }
}

// Trains as the rank of `world`; an error that leaves it leaves the rank's record.
TrainResult train_with_record(const RunSetup& setup, World& world) {
  const std::int64_t rank = world.rank();
  std::optional<std::int64_t> last_step;
  try {
    return train_rank(setup, world, last_step);
  } catch (...) {
    const Error error = to_error(std::current_exception());
    const bool has_moved = setup.home != nullptr && !setup.home->is_in_place();
    const std::filesystem::path run_dir =
        has_moved ? setup.home->place() : std::filesystem::path(setup.config.run.dir);
    if (!run_dir.empty()) {
      write_exit_record({.run_dir = run_dir, .rank = rank},
                        world.size() > 1 ? rank_failure(rank, error) : error,
                        last_step);
    }
    throw;
  }
}

// The ranks of this process; what rank 0 found, or the process's only one.
TrainResult train_ranks(const RunSetup& setup, World* launched, const RankFiles& files) {
  TrainResult result;
  const auto train_one = [&](World& world) {
    RunSetup own = setup;
    own.takes_signals = launched != nullptr || world.rank() == 0;
    TrainResult ended = train_with_record(own, world);
    if (own.takes_signals) {
      result = std::move(ended);
    }
  };
  const auto record = [&](const Error& error) { write_exit_record(files, error, result.step); };
  run_ranks(setup.config, launched, train_one, {.files = files, .on_lost = record});
  if (launched != nullptr) {
    result.rank = launched->rank();
  }
  return result;
}

// What a process has before its ranks begin.
struct Prepared {
  std::unique_ptr<World> world;  // of a process that a launcher started
  RunConfig config;
  PlannedRun run;
  RunPrograms programs;
  RunSequences sequences;
};

Prepared prepare(const RunConfig& config,
                 PlannedRun run,
                 const std::optional<MpiLaunch>& launch,
                 const RankFiles& files) {
  require_enough_bytes(config);
  if (launch) {
    require_launched(config, *launch);
    if (launch->rank == 0) {
      // May train it, while the others wait to be joined.
      run_tokenizer(config, run.plan.model.vocab);
    }
  }
  std::unique_ptr<World> world = join_launched(
      config, launch, [&](const Error& error) { write_exit_record(files, error, std::nullopt); });
  RunConfig named = config;
  // A launcher ends all processes as soon as one has ended: each leaves its record before that.
  const auto together = [&](std::int64_t turn, const auto& body) {
    return run_together(
        world.get(), [&] { return with_exit_record(files, std::nullopt, body); }, turn);
  };
  auto compiled = together(0, [&] { return compile_with_limit(config, run); });
  RunPrograms& programs = compiled.first;
  const RoomToKeep room = room_of_launch(world.get(),
                                         {.limit = compiled.second,
                                          .ranks_here = ranks_on_machine(config),
                                          .chosen = earlier_choice(config)});
  RunSequences sequences = together(1, [&] {
    named.memory.chosen = fit_and_check(config, run, programs, room);
    return load_sequences(named, run.plan.model.vocab);
  });
  return {.world = std::move(world),
          .config = std::move(named),
          .run = std::move(run),
          .programs = std::move(programs),
          .sequences = std::move(sequences)};
}

// What an earlier run said of this process's failure.
void forget_exit(const std::filesystem::path& run_dir, const std::optional<MpiLaunch>& launch) {
  std::error_code error;
  if (std::filesystem::is_directory(run_dir, error)) {  // not before rank 0 has made it
    remove_exit_records(run_dir, launch ? launch->rank : 0, launch ? launch->size : 1);
  }
}

}  // namespace

TrainResult train(const RunConfig& config, const ModelDescription& model, const TrainHooks& hooks) {
  const std::optional<MpiLaunch> launch = find_mpi_launch();
  RunConfig resolved = resolve_run(config);
  const std::string own_tokenizer = find_own_tokenizer(resolved);
  if (own_tokenizer != resolved.tokenizer.path && (!launch || launch->rank == 0)) {
    log_warning(
        format("{} does not exist: the tokenizer that the run was trained with, {}, is "
               "taken",
               resolved.tokenizer.path,
               own_tokenizer));
  }
  resolved.tokenizer.path = own_tokenizer;
  PlannedRun planned = plan_run(resolved, model.adapters ? model : with_adapters(model, resolved));
  planned.target = hooks.target.value_or(planned.target);
  std::optional<RunDirectory> home;
  if (!launch || launch->rank == 0) {
    home.emplace(resolved.run.dir);
  } else {
    silence_info();
  }
  forget_exit(resolved.run.dir, launch);
  const RankFiles files = {.run_dir = resolved.run.dir, .rank = launch ? launch->rank : 0};
  set_mapped_file_record(std::filesystem::absolute(exit_record_path(files.run_dir, files.rank)),
                         files.rank);
  const Prepared prepared = with_exit_record(
      files, std::nullopt, [&] { return prepare(resolved, std::move(planned), launch, files); });
  const PlannedRun& run = prepared.run;
  const std::vector<ParameterInit> parameters = parameter_inits(step_graph(run.plan));
  std::optional<StepTraceFile> trace;
  if (hooks.trace_step) {
    trace.emplace(*hooks.trace_step, run.plan.layout.mesh, prepared.programs);
  }
  const PredictedStep predicted = !launch || launch->rank == 0
                                      ? predict_step(prepared.config, run, prepared.programs)
                                      : PredictedStep();
  const RunSetup setup = {.config = prepared.config,
                          .run = run,
                          .programs = prepared.programs,
                          .sequences = prepared.sequences,
                          .parameters = parameters,
                          .hooks = hooks,
                          .home = home ? &*home : nullptr,
                          .predicted_step = predicted,
                          .trace = trace ? &*trace : nullptr};
  say_what_runs(setup);
  if (predicted.seconds) {
    log_info(format("step: {:.4g} s predicted by the figures of {} ({})",
                    *predicted.seconds,
                    prepared.config.cluster.file,
                    predicted.constants));
  } else if (!predicted.note.empty()) {
    log_info(predicted.note);
  }
  return train_ranks(setup, prepared.world.get(), files);
}

}  // namespace tessera

#include "tessera/train/run_memory.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/train/resolve.h"
#include "tessera/train/run_layout.h"
#include "tessera/train/step_program.h"
#include "tessera/train/training_state.h"

namespace tessera {
namespace {

// A change of the plan that may make a run fit.
struct Remedy {
  std::string text;
  RunConfig config;
};

// From the cheapest; each keeps the run's results but for the order of sums.
std::vector<Remedy> remedies(const RunConfig& config) {
  std::vector<Remedy> list;
  if (saves_in_background(config) && config.run.device == "cpu") {
    list.push_back({.text = "checkpoint.async = false", .config = config});
    list.back().config.checkpoint.async = false;
  }
  RunConfig changed = config;
  if (config.memory.recompute == Recompute::kNone) {
    changed.memory.recompute = Recompute::kFull;
    list.push_back({.text = "memory.recompute = \"full\"", .config = changed});
  }
  if (config.train.microbatch > 1) {
    RunConfig smaller = config;
    smaller.train.microbatch = 1;
    list.push_back({.text = "train.microbatch = 1", .config = smaller});
    if (config.memory.recompute == Recompute::kNone) {
      changed.train.microbatch = 1;
      list.push_back(
          {.text = "memory.recompute = \"full\" and train.microbatch = 1", .config = changed});
    }
  }
  return list;
}

// The plan that needs least, at ever shorter sequences: the longest that fits, or the shortest.
Remedy shorter_sequences(const RunConfig& config,
                         const std::function<std::int64_t(const RunConfig&)>& needed_bytes) {
  constexpr std::int64_t kShortest = 16;
  Remedy remedy{.text = {}, .config = config};
  remedy.config.memory.recompute = Recompute::kFull;
  remedy.config.train.microbatch = 1;
  std::int64_t& length = remedy.config.data.sequence_length;
  do {
    length = std::max(length / 2, kShortest);
  } while (length > kShortest && needed_bytes(remedy.config) > memory_limit(config));
  remedy.text =
      format("data.sequence_length = {} with memory.recompute = \"full\" and train.microbatch = 1",
             length);
  return remedy;
}

// What ranks 0 to num_ranks - 1 write checkpoints from.
std::int64_t copies_of_ranks(const RunConfig& config,
                             const ModelDescription& model,
                             const Program& step,
                             std::int64_t num_ranks) {
  const RunLayout layout = run_layout(config);
  const std::vector<ParameterInit> parameters = parameter_inits(step_graph(config, model));
  std::size_t bytes = 0;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    bytes += CheckpointSaver().copy_bytes(
        saved_tensors(step, parameters, state_part(layout.mesh, rank, layout.dims())));
  }
  return static_cast<std::int64_t>(bytes);
}

// Rank 0's machine saves most: what several ranks hold is saved by the first.
void require_host_holds_copies(const RunPrograms& programs,
                               const RunConfig& config,
                               const ModelDescription& model,
                               const RunMemory& memory) {
  const std::int64_t ranks = ranks_on_machine(config);
  const std::int64_t needed = copies_of_ranks(config, model, programs.step, ranks);
  const std::int64_t free = free_memory_bytes();
  TESSERA_REQUIRE(needed <= free,
                  ErrorCode::kOutOfMemory,
                  "the state is saved from the host's memory, of which {} {}, and {} is free\n{}"
                  "  optimizer.moments = \"bf16\" saves less, and so do parts of the state on more "
                  "machines (parallel.ranks), or a smaller model\n",
                  ranks > 1 ? format("{} ranks need", ranks) : "it needs",
                  format_bytes(needed),
                  format_bytes(free),
                  memory_table(memory));
}

}  // namespace

bool saves_in_background(const RunConfig& config) {
  return config.checkpoint.async && config.checkpoint.every > 0 &&
         config.checkpoint.every <= config.train.steps;
}

RunMemory run_memory(const RunConfig& config,
                     const ModelDescription& model,
                     const RunPrograms& programs) {
  RunMemory memory{.categories = memory_by_category(programs.step),
                   .arena = programs.arena_bytes(),
                   .on_device = config.run.device == "cuda"};
  if (programs.validation) {
    // The two never run at one time; the rows are in one order.
    const std::vector<MemoryRow> rows = memory_by_category(*programs.validation);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::int64_t& peak = memory.categories[i].peak_bytes;
      peak = std::max(peak, rows[i].peak_bytes);
    }
  }
  if (memory.on_device || saves_in_background(config)) {
    // Rank 0 saves most: what several ranks hold, and slices without padding.
    memory.checkpoint_copy = copies_of_ranks(config, model, programs.step, 1);
  }
  return memory;
}

std::string memory_table(const RunMemory& memory) {
  std::string text;
  const auto row = [&](std::string_view name, std::int64_t bytes, const std::string& note) {
    text += format("  {:<12} {:>12}{}\n", name, format_bytes(bytes), note);
  };
  for (const MemoryRow& category : memory.categories) {
    row(name(category.category), category.peak_bytes, "");
  }
  row("arena",
      memory.arena,
      format("  ({} bytes; parts that are never alive together share memory)",
             format_grouped(memory.arena)));
  if (memory.checkpoint_copy > 0) {
    row("checkpoint",
        memory.checkpoint_copy,
        format("  ({} bytes {})",
               format_grouped(memory.checkpoint_copy),
               memory.on_device ? "of the host, from which saves are written"
                                : "beside the arena, from which saves are written; none with "
                                  "checkpoint.async = false"));
  }
  return text;
}

void require_fits(const RunPrograms& programs,
                  const RunConfig& config,
                  const ModelDescription& model,
                  const WorkspaceQuery& workspace_bytes) {
  const std::int64_t limit = memory_limit(config);
  const RunMemory memory = run_memory(config, model, programs);
  if (memory.total() <= limit) {
    if (memory.on_device) {
      require_host_holds_copies(programs, config, model, memory);
    }
    return;
  }
  const auto needed_bytes = [&](RunConfig changed) {
    changed.passes.dump.clear();
    return run_memory(changed, model, compile_run(changed, model, workspace_bytes)).total();
  };
  std::string advice;
  bool some_fit = false;
  const auto advise = [&](const Remedy& remedy) {
    const std::int64_t bytes = needed_bytes(remedy.config);
    some_fit = some_fit || bytes <= limit;
    advice += format("  {} needs {}{}\n",
                     remedy.text,
                     format_bytes(bytes),
                     bytes <= limit ? ", which fits" : "");
  };
  std::ranges::for_each(remedies(config), advise);
  if (!some_fit) {
    advise(shorter_sequences(config, needed_bytes));
  }
  if (!some_fit) {
    advice += "  nothing of this fits: choose a smaller model\n";
  }
  fail(ErrorCode::kOutOfMemory,
       "the run needs {} and may use {}{}\n{}{}",
       format_bytes(memory.total()),
       format_bytes(limit),
       config.memory.limit_bytes > 0 ? " (memory.limit_bytes)"
       : memory.on_device            ? " (its part of what is free on the GPU, beside what CUDA's "
                                       "libraries take)"
                                     : " (free on this machine)",
       memory_table(memory),
       advice);
}

std::unique_ptr<Arena> allocate_arena(Backend& backend,
                                      const RunPrograms& programs,
                                      const RunConfig& config,
                                      const ModelDescription& model) {
  try {
    return backend.allocate(programs.arena_bytes());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) {
      throw;
    }
    fail(ErrorCode::kOutOfMemory,
         "{}\nThe plan needs this memory, which others may have taken meanwhile:\n{}",
         error.what(),
         memory_table(run_memory(config, model, programs)));
  }
}

}  // namespace tessera

#include "tessera/train/run_memory.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "tessera/base/error.h"
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
  if (saves_in_background(config)) {
    const RunLayout layout = run_layout(config);
    // Rank 0 saves most: what several ranks hold, and slices without padding.
    const auto tensors = saved_tensors(programs.step,
                                       parameter_inits(step_graph(config, model)),
                                       state_part(layout.mesh, 0, layout.dims()));
    memory.checkpoint_copy = static_cast<std::int64_t>(CheckpointSaver().copy_bytes(tensors));
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
        format("  ({} bytes {}, from which saves are written; none with "
               "checkpoint.async = false)",
               format_grouped(memory.checkpoint_copy),
               memory.on_device ? "of the host" : "beside the arena"));
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

#include "tessera/resolve/run_memory.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/part_copy.h"
#include "tessera/config/config.h"
#include "tessera/plan/plan.h"
#include "tessera/program/channels.h"
#include "tessera/resolve/resolve.h"
#include "tessera/state/state_parts.h"
#include "tessera/state/training_state.h"

namespace tessera {
namespace {

// A change of the plan that may make a run fit.
struct Remedy {
  std::string text;
  PlannedRun run;
};

// Of as many sequences a step.
void make_microbatches_smallest(Plan& plan) {
  plan.num_microbatches *= plan.microbatch;
  plan.microbatch = 1;
}

// Whether there may be more microbatches, whose gradients are added up: not of a pipeline, whose
// schedule is of so many.
bool may_be_cut(const Plan& plan) {
  return plan.microbatch > 1 && plan.optimizer.gradients == DType::kF32 && !plan.pipeline;
}

bool recomputes_all(const Plan& plan) {
  return plan.passes.recompute == recompute_all();
}

std::string joined(const std::vector<std::string>& texts) {
  std::string text;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < texts.size() ? ", " : " and ") + texts[i];
  }
  return text;
}

// Whether to compute all again is another plan: not where other keys say what of it is kept,
// with which it is none, or that of some layers.
bool may_recompute_all(const PlannedRun& run, const RunConfig& config) {
  const MemorySection& memory = config.memory;
  return !run.chooses_recompute && !recomputes_all(run.plan) && memory.keep.empty() &&
         memory.recompute_ops.empty() && memory.recompute_layers.is_all();
}

using Change = void (*)(PlannedRun& run);

// From the cheapest; each keeps the run's results except for the order of sums.
std::vector<std::pair<std::string, Change>> changes(const PlannedRun& run,
                                                    const RunConfig& config) {
  std::vector<std::pair<std::string, Change>> list;
  if (run.saves_in_background && !run.target.is_device()) {
    list.emplace_back("checkpoint.async = false",
                      [](PlannedRun& changed) { changed.saves_in_background = false; });
  }
  if (may_recompute_all(run, config)) {
    // What is enough is chosen then; all that it could do is what it needs.
    list.emplace_back("memory.recompute = \"auto\"",
                      [](PlannedRun& changed) { changed.plan.passes.recompute = recompute_all(); });
  }
  if (may_be_cut(run.plan)) {
    list.emplace_back("train.microbatch = 1",
                      [](PlannedRun& changed) { make_microbatches_smallest(changed.plan); });
  }
  return list;
}

// So many changes at once, in all ways.
std::vector<Remedy> remedies(const PlannedRun& run, const RunConfig& config, int number) {
  const auto list = changes(run, config);
  std::vector<Remedy> result;
  for (unsigned set = 1; set < 1U << list.size(); ++set) {
    if (std::popcount(set) != number) {
      continue;
    }
    Remedy remedy{.text = {}, .run = run};
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if ((set >> i & 1U) != 0) {
        texts.push_back(list[i].first);
        list[i].second(remedy.run);
      }
    }
    remedy.text = joined(texts);
    result.push_back(std::move(remedy));
  }
  return result;
}

// With all changes; of layers the least is kept, to which "auto" comes.
PlannedRun least(const PlannedRun& run, const RunConfig& config) {
  PlannedRun changed = run;
  for (const auto& [text, change] : changes(run, config)) {
    change(changed);
  }
  if (run.chooses_recompute) {
    changed.plan.passes.recompute = recompute_all();
  }
  return changed;
}

// " with a, b and c" of all changes.
std::string with_changes(const PlannedRun& run, const RunConfig& config) {
  std::vector<std::string> texts;
  for (const auto& [text, change] : changes(run, config)) {
    texts.push_back(text);
  }
  return texts.empty() ? "" : " with " + joined(texts);
}

// The same run with all that "auto" may move where it moves to: what "auto" comes to in the end.
RunConfig with_all_moved(RunConfig config) {
  for (Offload* const key : {&config.memory.offload_optimizer,
                             &config.memory.offload_parameters,
                             &config.memory.offload_activations}) {
    *key = *key == Offload::kAuto ? Offload::kAll : *key;
  }
  return config;
}

PlannedRun with_all_moved(const PlannedRun& run, const RunConfig& config) {
  if (!run.may_move.any()) {
    return run;
  }
  PlannedRun moved = plan_run(with_all_moved(config), run.plan.model, run.target);
  if (run.chooses_recompute) {
    moved.plan.passes.recompute = run.plan.passes.recompute;
    for (RecomputeRule& rule : moved.plan.passes.recompute) {
      rule.store.clear();  // all are
    }
  }
  return moved;
}

using NeededBytes = std::function<std::int64_t(const PlannedRun&)>;

// As many ranks that share each sequence as it takes for the run to fit, in place of data ranks,
// with all other changes; none where no number is enough.
std::optional<Remedy> shared_sequences(const RunConfig& config,
                                       const PlannedRun& run,
                                       const NeededBytes& needed_bytes,
                                       std::int64_t limit) {
  RunConfig changed = config;
  if (may_be_cut(run.plan)) {
    changed.train.microbatch = 1;
  }
  if (may_recompute_all(run, config)) {
    changed.memory.recompute = Recompute::kFull;
  }
  const std::int64_t data = run.plan.layout.num_data();
  for (std::int64_t context = 2; config.parallel.context == 1 && data % context == 0;
       context *= 2) {
    changed.parallel.context = context;
    changed.parallel.data = data / context;
    std::string text = format("parallel.context = {}", context);
    if (config.origins.places.contains("parallel.data")) {
      text += format(" and parallel.data = {}", data / context);
    }
    try {
      validate_run(changed);
      Remedy remedy = {.text = text + with_changes(run, config),
                       .run = least(plan_run(changed, run.plan.model, run.target), changed)};
      if (needed_bytes(remedy.run) <= limit) {
        return remedy;
      }
    } catch (const Error&) {
      return std::nullopt;  // this run's ranks cannot share sequences
    }
  }
  return std::nullopt;
}

// What is offloaded more, the fewest keys that are enough, with all other changes where it takes
// them; none where nothing is enough, or all is offloaded already. What they need is said of all
// that they could move, of which "auto" moves as much as has no room.
std::optional<Remedy> more_offloaded(const RunConfig& config,
                                     const PlannedRun& run,
                                     const NeededBytes& needed_bytes,
                                     std::int64_t limit) {
  RunConfig changed = config;
  std::vector<std::string> keys;
  for (const auto& [key, offload] :
       {std::pair("memory.offload_optimizer", &MemorySection::offload_optimizer),
        std::pair("memory.offload_parameters", &MemorySection::offload_parameters),
        std::pair("memory.offload_activations", &MemorySection::offload_activations)}) {
    if (changed.memory.*offload == Offload::kAll) {
      continue;
    }
    changed.memory.*offload = Offload::kAll;
    keys.push_back(format("{} = \"auto\"", key));
    const PlannedRun offloaded = plan_run(changed, run.plan.model, run.target);
    Remedy alone = {.text = joined(keys), .run = offloaded};
    alone.run.plan.passes.recompute = run.plan.passes.recompute;
    if (needed_bytes(alone.run) <= limit) {
      return alone;
    }
    Remedy with_all = {.text = joined(keys) + with_changes(offloaded, config),
                       .run = least(offloaded, changed)};
    if (needed_bytes(with_all.run) <= limit) {
      return with_all;
    }
  }
  return std::nullopt;
}

// The plan that needs least, at ever shorter sequences: the longest that fits, or the shortest.
Remedy shorter_sequences(const PlannedRun& run,
                         const RunConfig& config,
                         const NeededBytes& needed_bytes,
                         std::int64_t limit) {
  constexpr std::int64_t kShortest = 16;
  Remedy remedy{.text = {}, .run = least(run, config)};
  Plan& plan = remedy.run.plan;
  const std::int64_t unit = sequence_unit(plan.layout);
  const std::int64_t shortest = std::max(unit, kShortest / unit * unit);
  do {
    plan.sequence_length = std::max(plan.sequence_length / 2 / unit * unit, shortest);
  } while (plan.sequence_length > shortest && needed_bytes(remedy.run) > limit);
  remedy.text =
      format("data.sequence_length = {}{}", plan.sequence_length, with_changes(run, config));
  return remedy;
}

// What ranks write checkpoints from.
class RankCopies {
 public:
  RankCopies(const Plan& plan, const RunPrograms& programs)
      : programs_(programs),
        parameters_(parameter_inits(step_graph(plan))),
        parts_(plan.layout, programs) {}

  std::int64_t bytes(std::int64_t rank) const {
    return static_cast<std::int64_t>(part_copy_bytes(
        saved_tensors(programs_.of(rank).step, parameters_, parts_.of(rank), SavedFrom::kDevice)));
  }

 private:
  const RunPrograms& programs_;
  std::vector<ParameterInit> parameters_;
  StateParts parts_;
};

// The most that ranks of one machine write checkpoints from, where each has so many: of those with
// one pipeline rank the first, since what several ranks hold is saved by the first.
std::int64_t copies_of_machine(const RunPrograms& programs, const Plan& plan, std::int64_t ranks) {
  const RankCopies copies(plan, programs);
  const std::int64_t all = plan.layout.mesh.num_ranks();
  std::int64_t most = 0;
  for (std::size_t place = 0; place < programs.size(); ++place) {
    const std::int64_t first = programs.first_rank(place) / ranks * ranks;
    std::int64_t bytes = 0;
    for (std::int64_t rank = first; rank < std::min(first + ranks, all); ++rank) {
      bytes += copies.bytes(rank);
    }
    most = std::max(most, bytes);
  }
  return most;
}

void require_host_holds_copies(const RunPrograms& programs,
                               const Plan& plan,
                               std::int64_t ranks,
                               const RunMemory& memory) {
  std::int64_t in_host = 0;
  for (const Programs& own : programs) {
    in_host = std::max(in_host, own.step.host_bytes);
  }
  const std::int64_t needed = copies_of_machine(programs, plan, ranks) + ranks * in_host;
  const std::int64_t free = free_memory_bytes();
  TESSERA_REQUIRE(needed <= free,
                  ErrorCode::kOutOfMemory,
                  "the state is saved from the host's memory{}, of which {} {}, and {} is free\n{}"
                  "  optimizer.moments = \"bf16\" saves less, and so do parts of the state on more "
                  "machines (parallel.ranks), or a smaller model\n",
                  in_host > 0 ? ", where what is offloaded lies" : "",
                  ranks > 1 ? format("{} ranks need", ranks) : "it needs",
                  format_bytes(needed),
                  format_bytes(free),
                  memory_table(memory));
}

RunMemory::OtherSpace other_space(const Program& step, Space space) {
  return {.bytes = step.bytes_in(space), .traffic = space_traffic(step, space)};
}

// Of a rank with these programs, which writes checkpoints from `copy_bytes`.
RunMemory rank_memory(const Programs& programs, std::int64_t copy_bytes, bool on_device) {
  RunMemory memory{.categories = memory_by_category(programs.step),
                   .arena = programs.arena_bytes(),
                   .checkpoint_copy = copy_bytes,
                   .on_device = on_device,
                   .host = other_space(programs.step, Space::kHost),
                   .file = other_space(programs.step, Space::kFile)};
  if (programs.validation) {
    // The two never run at one time; the rows are in one order.
    const std::vector<MemoryRow> rows = memory_by_category(*programs.validation);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::int64_t& peak = memory.categories[i].peak_bytes;
      peak = std::max(peak, rows[i].peak_bytes);
    }
  }
  return memory;
}

}  // namespace

RunMemory run_memory(const PlannedRun& run, const RunPrograms& programs) {
  return run_memory(run, programs, run.target.is_device());
}

RunMemory run_memory(const PlannedRun& run, const RunPrograms& programs, bool on_device) {
  std::optional<RankCopies> copies;
  if (on_device || run.saves_in_background) {
    copies.emplace(run.plan, programs);
  }
  RunMemory most;
  std::vector<std::int64_t> totals;
  for (std::size_t place = 0; place < programs.size(); ++place) {
    RunMemory own = rank_memory(
        programs[place], copies ? copies->bytes(programs.first_rank(place)) : 0, on_device);
    totals.push_back(own.total());
    if (place == 0 || own.total() > most.total()) {
      most = std::move(own);
      most.pipeline_rank = place;
    }
  }
  if (totals.size() > 1) {
    most.by_pipeline_rank = std::move(totals);
  }
  return most;
}

std::vector<std::string> idle_offloads(const RunPrograms& programs, const Plan& plan) {
  struct Offloaded {
    std::string_view key;
    Space space;
    Category category;
  };

  std::vector<std::string> lines;
  for (const auto& [key, space, category] :
       {Offloaded{"optimizer", plan.passes.optimizer, Category::kOptimizer},
        Offloaded{"parameters", plan.passes.parameters, Category::kParameter},
        Offloaded{"activations", plan.passes.activations, Category::kActivation}}) {
    const auto lies_there = [&](const Buffer& buffer) {
      return buffer.space == space && buffer.category == category;
    };
    const bool is_idle = std::ranges::none_of(programs, [&](const Programs& own) {
      return std::ranges::any_of(own.step.buffers, lies_there);
    });
    if (space != Space::kDevice && is_idle) {
      lines.push_back(
          format("memory.offload_{} has no effect in this run: what there is of them is "
                 "smaller than a page, gathered by the update, read by three actions, or "
                 "needed at once",
                 key));
    }
  }
  return lines;
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
  const auto space_row = [&](std::string_view space, const RunMemory::OtherSpace& of) {
    if (of.bytes > 0) {
      row(space,
          of.bytes,
          format("  ({} bytes{}; a step fetches {} and stores {})",
                 format_grouped(of.bytes),
                 space == "host" && !memory.on_device ? " beside the arena" : "",
                 format_bytes(of.traffic.fetched),
                 format_bytes(of.traffic.stored)));
    }
  };
  space_row("host", memory.host);
  space_row("file", memory.file);
  for (std::size_t i = 0; i < memory.by_pipeline_rank.size(); ++i) {
    row(format("pipeline {}", i),
        memory.by_pipeline_rank[i],
        format("  ({} bytes{})",
               format_grouped(memory.by_pipeline_rank[i]),
               i == memory.pipeline_rank ? " in all, the most: the lines above are of its ranks"
                                         : " in all"));
  }
  return text;
}

std::int64_t most_channels(const RunPrograms& programs) {
  std::size_t most = 0;
  for (const Programs& own : programs) {
    auto channels = channels_of(own.step);
    if (own.validation) {
      channels.merge(channels_of(*own.validation));
    }
    most = std::max(most, channels.size());
  }
  return static_cast<std::int64_t>(most);
}

void require_inputs_fit(const RunConfig& config, const Plan& plan, std::int64_t limit) {
  const Graph graph = step_graph(plan);
  double bytes = 0;
  for (const ValueId input : graph.sources(ValueKind::kInput)) {
    bytes += static_cast<double>(graph[input].type.num_bytes());
  }
  bytes *= static_cast<double>(plan.num_microbatches) / static_cast<double>(plan.layout.num_data());
  // Where one sequence is too much already, no batch is small enough.
  const double of_one = bytes / static_cast<double>(config.train.global_batch);
  const std::string_view key =
      of_one > static_cast<double>(limit) ? "data.sequence_length" : "train.global_batch";
  TESSERA_REQUIRE(
      bytes <= static_cast<double>(limit),
      ErrorCode::kOutOfMemory,
      "{}: the token ids of a step need {}, and the run may use {}: choose a smaller {}",
      placed(config, key),
      format_bytes(static_cast<std::int64_t>(std::min(bytes, 0x1p62))),
      format_bytes(limit),
      key);
}

void require_fits(const RunPrograms& programs,
                  const PlannedRun& run,
                  const RunConfig& config,
                  std::int64_t limit) {
  const RunMemory memory = run_memory(run, programs);
  if (memory.total() <= limit) {
    if (memory.on_device) {
      require_host_holds_copies(programs, run.plan, ranks_on_machine(config), memory);
    }
    return;
  }
  const RunConfig all_moved = with_all_moved(config);
  const PlannedRun least_run = with_all_moved(run, config);
  const auto needed_bytes = [](const PlannedRun& changed) {
    return run_memory(changed, compile_run(changed.plan, changed.target)).total();
  };
  std::string advice;
  bool some_fit = false;
  const auto advise = [&](const Remedy& remedy) {
    const std::int64_t bytes = needed_bytes(remedy.run);
    some_fit = some_fit || bytes <= limit;
    advice += format("  {} needs {}{}\n",
                     remedy.text,
                     format_bytes(bytes),
                     bytes <= limit ? ", which fits" : "");
  };
  constexpr int kMostChanges = 3;
  for (int number = 1; number <= kMostChanges && !some_fit; ++number) {
    std::ranges::for_each(remedies(least_run, all_moved, number), advise);
  }
  if (!some_fit) {
    if (const auto remedy = shared_sequences(all_moved, least_run, needed_bytes, limit)) {
      advise(*remedy);
    }
  }
  if (!some_fit) {
    // A step takes longer for the one, and is another for the other.
    const auto remedy = more_offloaded(all_moved, least_run, needed_bytes, limit);
    advise(shorter_sequences(least_run, all_moved, needed_bytes, limit));
    if (remedy) {
      advise(*remedy);
    }
  }
  if (!some_fit) {
    advice +=
        "  nothing of this fits: choose a smaller model, optimizer.moments = \"bf16\", or more "
        "ranks that share its state (state.preset, parallel.tensor, parallel.pipeline)\n";
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

ProgramArenas allocate_arenas(Backend& backend,
                              const RunPrograms& programs,
                              const PlannedRun& run,
                              std::int64_t rank) {
  const Programs& own = programs.of(rank);
  try {
    ProgramArenas arenas = {.device = backend.allocate(own.arena_bytes()),
                            .device_bytes = own.arena_bytes()};
    if (own.step.host_bytes > 0) {
      arenas.host = backend.allocate_host(own.step.host_bytes);
    }
    if (own.step.file_bytes > 0) {
      arenas.file = std::make_shared<FileArena>(run.offload_dir, own.step.file_bytes);
    }
    return arenas;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) {
      throw;
    }
    fail(ErrorCode::kOutOfMemory,
         "{}\nThe plan needs this memory, which others may have taken meanwhile:\n{}",
         error.what(),
         memory_table(run_memory(run, programs)));
  }
}

}  // namespace tessera

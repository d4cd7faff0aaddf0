#include "tessera/train/run_facts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <system_error>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/config/config.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Zeros of a decimal fraction tell nothing: 0.0008, not 0.00080.
std::string number(double value) {
  return format("{:.6g}", value);
}

// "2026-01-31T23:59:59Z" as "2026-01-31 23:59 UTC"
std::string readable(const std::string& time) {
  constexpr std::size_t kDay = 10;
  constexpr std::size_t kMinute = 16;
  return time.size() == kMinute + 4
             ? format("{} {} UTC", time.substr(0, kDay), time.substr(kDay + 1, kMinute - kDay - 1))
             : time;
}

std::int64_t directory_bytes(const fs::path& directory) {
  std::int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    std::error_code error;
    const auto size = fs::file_size(entry.path(), error);
    bytes += error ? 0 : static_cast<std::int64_t>(size);
  }
  return bytes;
}

// The value of a column in the last step; nothing where that has none.
std::optional<std::int64_t> last_bytes(const MetricsTable& metrics, const std::string& column) {
  const std::span<const double> values = metrics.column(column);
  if (values.empty() || !std::isfinite(values.back())) {
    return std::nullopt;
  }
  return std::llround(values.back());
}

}  // namespace

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return names.size() > kMaxListed ? text + format(" and {} more", names.size() - kMaxListed)
                                   : text;
}

FactGroup model_facts(const RunConfig& config, const std::vector<Session>& sessions) {
  const ModelSection& model = config.model;
  FactGroup group{.title = "Model", .facts = {}};
  const auto add = [&](const char* label, std::string value) {
    group.facts.push_back({.label = label, .value = std::move(value)});
  };
  add("Family", model.flavor.empty() ? model.name : model.name + " " + model.flavor);
  if (!sessions.empty()) {
    add("Parameters",
        format("{} ({})",
               format_grouped(sessions.back().start.parameters),
               format_count(static_cast<double>(sessions.back().start.parameters))));
  }
  const auto add_size = [&](const char* label, const std::optional<std::int64_t>& value) {
    if (value) {
      add(label, format_grouped(*value));
    }
  };
  add_size("Width", model.dim);
  add_size("Layers", model.layers);
  add_size("Heads", model.heads);
  add_size("Key/value heads", model.kv_heads);
  add_size("Feed-forward", model.ffn);
  add_size("Vocabulary", model.vocab);
  add("Computes in", std::string(name(config.train.dtype)));
  return group;
}

FactGroup layout_facts(const RunConfig& config) {
  const std::int64_t ranks = config.parallel.ranks.value_or(1);
  FactGroup group{.title = "Layout", .facts = {}};
  const auto add = [&](const char* label, std::string value) {
    group.facts.push_back({.label = label, .value = std::move(value)});
  };
  add("Ranks", format_grouped(ranks));
  add("Data", format_grouped(config.parallel.data.value_or(ranks)));
  if (config.parallel.context > 1) {
    add("Context",
        format("{}, {}", format_grouped(config.parallel.context), to_string(config.context.kind)));
  }
  add("Tensor", format_grouped(config.parallel.tensor));
  if (config.parallel.pipeline > 1) {
    add("Pipeline",
        format("{}, {}", format_grouped(config.parallel.pipeline), config.pipeline.schedule));
  }
  add("State", config.state.preset);
  add("Threads a rank", format_grouped(config.run.threads));
  add("Recompute", std::string(to_string(config.memory.recompute)));
  if (!config.cluster.file.empty()) {
    add("Cluster", config.cluster.file);
  }
  return group;
}

FactGroup data_facts(const RunConfig& config) {
  const std::int64_t length = config.data.sequence_length;
  return {.title = "Data",
          .facts = {
              {.label = "Files", .value = listed(config.data.files)},
              {.label = "Format", .value = std::string(to_string(config.data.format))},
              {.label = "Tokenizer",
               .value = config.tokenizer.path.empty() ? "none" : config.tokenizer.path},
              {.label = "Sequence", .value = format_plural(length, "token")},
              {.label = "Batch",
               .value = format("{}, {}",
                               format_plural(config.train.global_batch, "sequence"),
                               format_plural(config.train.global_batch * length, "token"))},
              {.label = "Microbatch", .value = format_plural(config.train.microbatch, "sequence")},
              {.label = "Shuffled", .value = config.data.shuffle ? "yes" : "no"},
              {.label = "Seed", .value = format("{}", config.run.seed)}}};
}

FactGroup optimizer_facts(const RunConfig& config) {
  const OptimizerSection& optimizer = config.optimizer;
  return {.title = "Optimizer",
          .facts = {
              {.label = "Name", .value = std::string(to_string(optimizer.name))},
              {.label = "Learning rate", .value = number(optimizer.lr)},
              {.label = "Betas",
               .value = format("{}, {}", number(optimizer.betas[0]), number(optimizer.betas[1]))},
              {.label = "Weight decay",
               .value = format(
                   "{} of {} weights", number(optimizer.weight_decay), to_string(optimizer.decay))},
              {.label = "Clipping",
               .value = optimizer.clip > 0 ? format("norm {}", number(optimizer.clip)) : "off"},
              {.label = "Warmup", .value = format_plural(config.schedule.warmup, "step")},
              {.label = "Decay",
               .value = format("last {} of the steps", number(config.schedule.decay_ratio))}}};
}

FactGroup session_facts(const std::vector<Session>& sessions) {
  FactGroup group{.title = "Sessions and machine", .facts = {}};
  const auto add = [&](std::string label, std::string value) {
    group.facts.push_back({.label = std::move(label), .value = std::move(value)});
  };
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    const Session& session = sessions[i];
    const std::string first = format_grouped(session.start.step + 1);
    add(format("Session {}", i + 1),
        session.end ? format("steps {} to {}, {} to {}",
                             first,
                             format_grouped(session.end->step),
                             readable(session.started),
                             readable(session.ended))
                    : format("steps {} on, {}, no end", first, readable(session.started)));
  }
  if (!sessions.empty()) {
    const Session& last = sessions.back();
    add("Host", last.host);
    add("Processor", last.cpu);
    add("Cores", format_grouped(last.cores));
    add("Memory", format_bytes(last.memory_bytes));
  }
  return group;
}

FactGroup checkpoint_facts(const fs::path& run_dir) {
  FactGroup group{.title = "Checkpoints", .facts = {}};
  std::vector<fs::path> complete;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_dir / "checkpoints", error)) {
    if (fs::exists(entry.path() / "manifest.json", error) && !entry.is_symlink(error) &&
        !entry.path().filename().string().starts_with(".")) {
      complete.push_back(entry.path());
    }
  }
  std::ranges::sort(complete);
  const std::size_t first = complete.size() > kMaxListed ? complete.size() - kMaxListed : 0;
  if (first > 0) {
    group.facts.push_back(
        {.label = "Older", .value = format_plural(static_cast<std::int64_t>(first), "checkpoint")});
  }
  for (const fs::path& path : std::span(complete).subspan(first)) {
    group.facts.push_back(
        {.label = path.filename().string(), .value = format_bytes(directory_bytes(path))});
  }
  if (const fs::path best = fs::read_symlink(run_dir / "checkpoints/best", error); !error) {
    group.facts.push_back({.label = "Best", .value = best.string()});
  }
  if (complete.empty()) {
    group.facts.push_back({.label = "None", .value = "no checkpoint is complete"});
  }
  return group;
}

namespace {

std::string waiting_text(const PipelineWaiting& waiting) {
  return waiting.measured ? format("; waits {:.1f} % of a step, by its schedule {:.1f} %",
                                   100 * *waiting.measured,
                                   100 * waiting.expected)
                          : "";
}

}  // namespace

std::optional<FactGroup> pipeline_facts(const MetricsTable& metrics,
                                        const std::vector<Session>& sessions) {
  const std::vector<PipelineWaiting> waiting = sessions.empty() || !sessions.back().end
                                                   ? std::vector<PipelineWaiting>()
                                                   : sessions.back().end->pipeline;
  FactGroup group{.title = "Pipeline ranks", .facts = {}};
  for (std::size_t place = 0;; ++place) {
    const std::string prefix = format("pipeline_ranks/{}/", place);
    const std::optional<std::int64_t> memory = last_bytes(metrics, prefix + "memory_bytes");
    if (!memory) {
      break;
    }
    group.facts.push_back(
        {.label = format("Pipeline rank {}", place),
         .value = format("{}, sends {} a step{}",
                         format_bytes(*memory),
                         format_bytes(last_bytes(metrics, prefix + "comm_bytes").value_or(0)),
                         place < waiting.size() ? waiting_text(waiting[place]) : "")});
  }
  return group.facts.empty() ? std::nullopt : std::optional(std::move(group));
}

}  // namespace tessera

#include "bench/published_row.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <string_view>

#include "tessera/base/format.h"

namespace tessera {
namespace {

// The words of the README beside the tables, by column.
constexpr auto kFamilies =
    std::to_array<std::string_view>({"gpt", "gpt-rope", "gpt-alibi", "mpt", "llama"});
constexpr auto kMlps = std::to_array<std::string_view>({"gelu", "swiglu", "squared-relu"});
constexpr auto kStates = std::to_array<std::string_view>(
    {"ddp", "zero1", "zero2", "zero3", "hsdp", "shard-grad-op", "zeropp", "gemini"});
constexpr auto kRecomputes = std::to_array<std::string_view>(
    {"none", "full", "full-but-last-stage", "attention-core", "every-second-product"});
constexpr auto kAttentions = std::to_array<std::string_view>({"unfused", "fused-softmax", "flash"});
constexpr auto kCompiled =
    std::to_array<std::string_view>({"eager", "fused-kernels", "compile", "te"});
constexpr auto kDtypes = std::to_array<std::string_view>(
    {"fp16", "bf16", "amp-bf16", "fp8", "fp8-tensorwise", "fp8-tensorwise-gather", "fp8-rowwise"});
constexpr auto kGradients = std::to_array<std::string_view>({"fp16", "bf16", "fp32"});

// The cells of a row, with defaults for empty ones.
class Cells {
 public:
  Cells(const CsvTable& table, std::size_t row, const PublishedDefaults& defaults)
      : table_(table), row_(row), defaults_(defaults) {}

  const std::string& text(std::string_view column) const { return table_.text(row_, column); }

  // The cell, or its default; notes which it was.
  std::string cell(std::string_view column) {
    const std::string& own = text(column);
    if (!own.empty()) {
      return own;
    }
    const std::optional<std::string> other = defaults_.cell(text("system"), column);
    if (!other) {
      table_.refuse(row_, column, "a value, or a default in bench/published_defaults.toml");
    }
    assumed_.emplace_back(column);
    return *other;
  }

  std::int64_t count(std::string_view column) const { return table_.count(row_, column); }

  std::int64_t count_or_default(std::string_view column) {
    return text(column).empty() ? parsed(column, cell(column)) : count(column);
  }

  std::optional<std::int64_t> maybe_count(std::string_view column) const {
    return text(column).empty() ? std::nullopt : std::optional(count(column));
  }

  std::optional<double> maybe_amount(std::string_view column) const {
    return text(column).empty() ? std::nullopt : std::optional(table_.amount(row_, column));
  }

  bool flag(std::string_view column) {
    const std::string value = cell(column);
    if (value != "0" && value != "1") {
      table_.refuse(row_, column, "0 or 1, or nothing where it is not known");
    }
    return value == "1";
  }

  std::string word(std::string_view column, std::span<const std::string_view> words) {
    std::string value = cell(column);
    if (std::ranges::find(words, value) == words.end()) {
      std::string all;
      for (const std::string_view each : words) {
        all += format("{}{}", all.empty() ? "" : ", ", each);
      }
      table_.refuse(row_, column, "one of " + all);
    }
    return value;
  }

  std::vector<std::string> assumed() const { return assumed_; }

 private:
  std::int64_t parsed(std::string_view column, const std::string& value) const {
    const std::int64_t number = std::atoll(value.c_str());
    if (number < 1) {
      table_.refuse(row_, column, "a whole number, at least 1, as default");
    }
    return number;
  }

  const CsvTable& table_;
  std::size_t row_;
  const PublishedDefaults& defaults_;
  std::vector<std::string> assumed_;
};

std::vector<std::string> words_of(const std::string& cell) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < cell.size();) {
    const std::size_t end = std::min(cell.find(' ', begin), cell.size());
    if (end > begin) {
      words.push_back(cell.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  return words;
}

void read_model(Cells& cells, PublishedRow& row) {
  row.family = cells.word("family", kFamilies);
  row.model = cells.text("model");
  row.layers = cells.count("layers");
  row.hidden = cells.count("hidden");
  row.heads = cells.count("heads");
  row.kv_heads = cells.maybe_count("kv_heads").value_or(row.heads);
  row.ffn = cells.count("ffn");
  row.mlp = cells.word("mlp", kMlps);
  row.vocab = cells.count("vocab");
  row.tied = cells.flag("tied");
  row.seq = cells.count("seq");
}

// Of a rank; by default a number, or "layers" for as many as a rank has layers.
std::int64_t chunks(Cells& cells, std::int64_t layers) {
  constexpr std::string_view kColumn = "vpp";
  if (cells.text(kColumn).empty() && cells.cell(kColumn) == "layers") {
    return std::max<std::int64_t>(1, layers);
  }
  return cells.count_or_default(kColumn);
}

void read_layout(Cells& cells, PublishedRow& row) {
  row.global_batch = cells.count("global_batch");
  row.microbatch = cells.count_or_default("microbatch");
  row.tp = cells.maybe_count("tp").value_or(1);
  row.sp = cells.flag("sp");
  row.cp = cells.maybe_count("cp").value_or(1);
  row.pp = cells.maybe_count("pp").value_or(1);
  row.vpp = chunks(cells, row.layers / row.pp);
  row.ep = cells.maybe_count("ep").value_or(1);
  row.dp = cells.maybe_count("dp");
  row.state = cells.word("state", kStates);
  row.shard_ranks = cells.maybe_count("shard_ranks");
}

void read_machine(Cells& cells, const PublishedDefaults& defaults, PublishedRow& row) {
  constexpr double kGigabyte = 1e9;
  row.system = cells.text("system");
  row.chip = cells.text("chip");
  row.gpus = cells.count("gpus");
  row.gpus_per_node = cells.maybe_count("gpus_per_node");
  if (const auto own = cells.maybe_amount("intra_GBps_per_gpu")) {
    row.intra_bandwidth = *own * kGigabyte;
  }
  constexpr std::string_view kInter = "inter_GBps_per_gpu";
  if (const auto own = cells.maybe_amount(kInter)) {
    row.inter_bandwidth = *own * kGigabyte;
  } else if (defaults.cell(row.system, kInter)) {
    row.inter_bandwidth = std::atof(cells.cell(kInter).c_str()) * kGigabyte;
  }
}

// By default where the system says so, and never in flash attention, of which no op drops any.
bool has_dropout(Cells& cells, const PublishedDefaults& defaults, const PublishedRow& row) {
  constexpr std::string_view kDropout = "dropout";
  if (!cells.text(kDropout).empty()) {
    return cells.text(kDropout) != "0" && cells.maybe_amount(kDropout).has_value();
  }
  return row.attention != "flash" && defaults.cell(row.system, kDropout) && cells.flag(kDropout);
}

}  // namespace

PublishedRow read_published_row(const CsvTable& table,
                                std::size_t number,
                                const PublishedDefaults& defaults) {
  Cells cells(table, number, defaults);
  PublishedRow row;
  row.id = cells.text("id");
  read_machine(cells, defaults, row);
  read_model(cells, row);
  read_layout(cells, row);
  row.recompute = cells.word("recompute", kRecomputes);
  row.attention = cells.word("attention", kAttentions);
  row.compiled = cells.word("compiled", kCompiled);
  row.dtype = cells.word("dtype", kDtypes);
  row.grad_reduce_dtype = cells.word("grad_reduce_dtype", kGradients);
  row.has_dropout = has_dropout(cells, defaults, row);
  row.guesses = words_of(cells.text("guess"));
  row.seconds = cells.maybe_amount("target_step_s");
  row.assumed = cells.assumed();
  row.traits = words_of(defaults.cell(row.system, "traits").value_or(""));
  return row;
}

}  // namespace tessera

#include "tessera/infer/cached_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/units.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/program/step_names.h"

namespace tessera {
namespace {

// Where every state lies: equal for programs that may share an arena.
std::vector<std::pair<Binding, std::int64_t>> places_of_states(const Program& program) {
  std::vector<std::pair<Binding, std::int64_t>> places;
  for (const Binding& state : program.states) {
    Binding place = state;
    place.tensor.buffer = {};
    places.emplace_back(std::move(place), program[state.tensor.buffer].offsets.at(0));
  }
  return places;
}

}  // namespace

std::span<std::int32_t> CachedModel::Step::input(std::string_view name) {
  const auto bytes = executor->bytes(find_binding(program.inputs, name));
  return {reinterpret_cast<std::int32_t*>(bytes.data()), bytes.size() / sizeof(std::int32_t)};
}

CachedModel::CachedModel(const ModelDescription& model,
                         std::unique_ptr<Backend> backend,
                         const CachedModelOptions& options)
    : options_(options),
      backend_(std::move(backend)),
      parameters_(parameter_inits(generation_graph(model, 1, options.dtype, options.batch))),
      piece_{.tokens = std::min(options.chunk, options.sequence_length),
             .program = compile(model, std::min(options.chunk, options.sequence_length))},
      single_{.tokens = 1, .program = compile(model, 1)},
      lengths_(static_cast<std::size_t>(options.batch), 0),
      logits_(static_cast<std::size_t>(options.batch * model.vocab)) {
  TESSERA_CHECK(places_of_states(piece_.program) == places_of_states(single_.program),
                "the programs of a prompt and of a token keep their states at different places");
  const std::int64_t arena_bytes =
      std::max(piece_.program.arena_bytes, single_.program.arena_bytes);
  TESSERA_REQUIRE(arena_bytes <= options.memory_limit_bytes,
                  ErrorCode::kOutOfMemory,
                  "the model with room for {} sequences of {} tokens needs {}, and may use {}: "
                  "choose a smaller --context{}, or --dtype=bf16",
                  options.batch,
                  options.sequence_length,
                  format_bytes(arena_bytes),
                  format_bytes(options.memory_limit_bytes),
                  options.batch > 1 ? " or --batch" : "");
  const ProgramArenas arenas = {.device = backend_->allocate(arena_bytes),
                                .device_bytes = arena_bytes};
  start(piece_, arenas);
  start(single_, arenas);
}

Program CachedModel::compile(const ModelDescription& model, std::int64_t tokens) {
  return compile_generation(model,
                            {.dtype = options_.dtype,
                             .batch = options_.batch,
                             .tokens = tokens,
                             .cache_length = options_.sequence_length,
                             .threads = options_.threads},
                            options_.target);
}

void CachedModel::start(Step& step, const ProgramArenas& arenas) {
  step.executor = std::make_unique<Executor>(step.program, *backend_, arenas);
}

void CachedModel::append(std::span<const std::span<const std::int32_t>> tokens) {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto count = static_cast<std::int64_t>(tokens[i].size());
    TESSERA_REQUIRE(lengths_[i] + count <= options_.sequence_length,
                    ErrorCode::kInvalidArgument,
                    "sequence {} has {} tokens and would have {} more, expected at most {}",
                    i,
                    lengths_[i],
                    count,
                    options_.sequence_length);
    longest = std::max(longest, count);
  }
  for (std::int64_t first = 0; first < longest;) {
    Step& step = longest - first == 1 ? single_ : piece_;
    run(step, tokens, first);
    first += step.tokens;
  }
}

void CachedModel::run(Step& step,
                      std::span<const std::span<const std::int32_t>> tokens,
                      std::int64_t first) {
  // All of them: what lies there may be another program's.
  const std::span<std::int32_t> key_positions = step.input(step_names::kKeyPositions);
  const auto rows = static_cast<std::size_t>(options_.sequence_length);
  for (std::size_t begin = 0; begin < key_positions.size(); begin += rows) {
    const std::span<std::int32_t> sequence = key_positions.subspan(begin, rows);
    std::iota(sequence.begin(), sequence.end(), 0);
  }
  std::ranges::fill(step.input(step_names::kKeyDocuments), 0);
  std::ranges::fill(step.input("documents"), 0);
  std::vector<bool> ends(tokens.size(), false);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto size = static_cast<std::int64_t>(tokens[i].size());
    const std::int64_t begin = std::min(first, size);
    const std::int64_t count = std::min(size - begin, step.tokens);
    set_sequence(
        step,
        i,
        tokens[i].subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)));
    lengths_[i] += count;
    ends[i] = count > 0 && begin + count == size;
  }
  step.executor->run_step();
  const auto bytes = step.executor->bytes(find_binding(step.program.outputs, "logits"));
  const auto* found = reinterpret_cast<const float*>(bytes.data());
  const std::size_t vocab = logits_.size() / lengths_.size();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (ends[i]) {
      std::copy_n(found + i * vocab, vocab, logits_.data() + i * vocab);
    }
  }
}

// Behind the tokens is padding: no row of the caches, and nobody reads what it gives.
void CachedModel::set_sequence(Step& step,
                               std::size_t sequence,
                               std::span<const std::int32_t> tokens) {
  const auto width = static_cast<std::size_t>(step.tokens);
  const auto row = [&](std::string_view name) {
    return step.input(name).subspan(sequence * width, width);
  };
  const std::span<std::int32_t> ids = row("tokens");
  const std::span<std::int32_t> positions = row("positions");
  const std::span<std::int32_t> slots = row("slots");
  for (std::size_t i = 0; i < width; ++i) {
    const bool is_token = i < tokens.size();
    const auto position =
        static_cast<std::int32_t>(lengths_[sequence]) + static_cast<std::int32_t>(i);
    ids[i] = is_token ? tokens[i] : 0;
    positions[i] = is_token ? position : 0;
    slots[i] = is_token ? position : -1;
  }
  step.input("last")[sequence] = tokens.empty() ? 0 : static_cast<std::int32_t>(tokens.size()) - 1;
}

std::span<const float> CachedModel::logits(std::int64_t sequence) const {
  const std::size_t vocab = logits_.size() / lengths_.size();
  return std::span(logits_).subspan(static_cast<std::size_t>(sequence) * vocab, vocab);
}

}  // namespace tessera

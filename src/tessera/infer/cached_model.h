#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/models/model.h"
#include "tessera/plan/target.h"
#include "tessera/runtime/executor.h"
#include "tessera/state/training_state.h"

namespace tessera {

struct CachedModelOptions {
  DType dtype = DType::kF32;
  std::int64_t batch = 1;            // sequences at a time
  std::int64_t sequence_length = 0;  // tokens that a sequence may have
  std::int64_t chunk = 1;            // tokens of a prompt that run at a time, at most
  std::int64_t memory_limit_bytes = INT64_MAX;
  Target target = cpu_target();  // what the backend runs on
  std::int64_t threads = 1;      // of the backend, where that is a CPU
};

// A model that is fed sequences piece by piece and gives the logits after each: keys and values of
// earlier tokens are kept. Two programs, one for pieces of prompts and one for single tokens, share
// weights and caches.
class CachedModel {
 public:
  // On `backend`. The weights are zeros until `executor()` is filled. Errors: kOutOfMemory, also
  // where weights and caches need more than the limit.
  CachedModel(const ModelDescription& model,
              std::unique_ptr<Backend> backend,
              const CachedModelOptions& options);

  // Holds the weights, parameters().
  Executor& executor() { return *single_.executor; }

  const std::vector<ParameterInit>& parameters() const { return parameters_; }

  std::size_t batch() const { return lengths_.size(); }

  // Tokens that sequence `sequence` has had.
  std::int64_t length(std::int64_t sequence) const {
    return lengths_[static_cast<std::size_t>(sequence)];
  }

  // Sequence `sequence` begins anew.
  void clear(std::int64_t sequence) { lengths_[static_cast<std::size_t>(sequence)] = 0; }

  // Appends tokens[i], which may be none, to sequence i; `tokens` has one entry a sequence.
  // Errors: kInvalidArgument where a sequence would have more than sequence_length tokens.
  void append(std::span<const std::span<const std::int32_t>> tokens);

  // The logits (vocab) after the last token of a sequence that has any.
  std::span<const float> logits(std::int64_t sequence) const;

 private:
  struct Step {
    std::int64_t tokens = 1;  // of each sequence that it runs
    Program program = {};
    std::unique_ptr<Executor> executor = nullptr;

    std::span<std::int32_t> input(std::string_view name);
  };

  Program compile(const ModelDescription& model, std::int64_t tokens);
  void start(Step& step, const ProgramArenas& arenas);
  void run(Step& step, std::span<const std::span<const std::int32_t>> tokens, std::int64_t first);
  void set_sequence(Step& step, std::size_t sequence, std::span<const std::int32_t> tokens);

  CachedModelOptions options_;
  std::unique_ptr<Backend> backend_;
  std::vector<ParameterInit> parameters_;
  Step piece_;
  Step single_;
  std::vector<std::int64_t> lengths_;
  std::vector<float> logits_;  // (batch, vocab)
};

}  // namespace tessera

#include "tessera/dataset/input_rows.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/program/step_names.h"

namespace tessera {
namespace {

bool has_input(const Executor& executor, std::string_view name) {
  const std::vector<Binding>& inputs = executor.program().inputs;
  return std::ranges::find(inputs, name, &Binding::name) != inputs.end();
}

}  // namespace

void load_row(Executor& executor,
              const SequenceSource& source,
              std::int64_t sequence,
              std::int64_t row,
              std::int64_t microbatch) {
  std::vector<std::vector<std::int32_t>> unread;  // of inputs that the program has not
  const auto input = [&](std::string_view name) -> std::span<std::int32_t> {
    if (has_input(executor, name)) {
      return input_row(executor, name, row, microbatch);
    }
    return unread.emplace_back(static_cast<std::size_t>(source.sequence_length()));
  };
  source.read(sequence,
              {.inputs = input(step_names::kTokens),
               .labels = input(step_names::kLabels),
               .positions = input(step_names::kPositions),
               .documents = input(step_names::kDocuments)});
}

void load_empty_row(Executor& executor, std::int64_t row) {
  for (const std::string_view input :
       {step_names::kTokens, step_names::kPositions, step_names::kDocuments, step_names::kLabels}) {
    if (has_input(executor, input)) {
      std::ranges::fill(input_row(executor, input, row),
                        input == step_names::kLabels ? kIgnoredLabel : 0);
    }
  }
}

}  // namespace tessera

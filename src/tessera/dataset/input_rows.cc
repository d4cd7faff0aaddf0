#include "tessera/dataset/input_rows.h"

#include <algorithm>
#include <string_view>

#include "tessera/program/step_names.h"

namespace tessera {

void load_row(Executor& executor,
              const SequenceSource& source,
              std::int64_t sequence,
              std::int64_t row,
              std::int64_t microbatch) {
  const auto input = [&](std::string_view name) {
    return input_row(executor, name, row, microbatch);
  };
  source.read(sequence,
              {.inputs = input(step_names::kTokens),
               .labels = input(step_names::kLabels),
               .positions = input(step_names::kPositions),
               .documents = input(step_names::kDocuments)});
}

void load_empty_row(Executor& executor, std::int64_t row) {
  for (const std::string_view input :
       {step_names::kTokens, step_names::kPositions, step_names::kDocuments}) {
    std::ranges::fill(input_row(executor, input, row), 0);
  }
  std::ranges::fill(input_row(executor, step_names::kLabels, row), kIgnoredLabel);
}

}  // namespace tessera

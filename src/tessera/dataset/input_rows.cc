#include "tessera/dataset/input_rows.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/base/random.h"
#include "tessera/program/step_names.h"

namespace tessera {

std::span<std::int32_t> find_input_row(Executor& executor,
                                       std::string_view input,
                                       std::int64_t row,
                                       std::int64_t microbatch) {
  const std::vector<Binding>& inputs = executor.program().inputs;
  return std::ranges::find(inputs, input, &Binding::name) == inputs.end()
             ? std::span<std::int32_t>()
             : input_row(executor, input, row, microbatch);
}

void load_row(Executor& executor,
              const SequenceSource& source,
              std::int64_t sequence,
              std::int64_t row,
              std::int64_t microbatch) {
  std::vector<std::vector<std::int32_t>> unread;  // of inputs that the program has not
  const auto input = [&](std::string_view name) -> std::span<std::int32_t> {
    if (const auto own = find_input_row(executor, name, row, microbatch); !own.empty()) {
      return own;
    }
    return unread.emplace_back(static_cast<std::size_t>(source.sequence_length()));
  };
  source.read(sequence,
              {.inputs = input(step_names::kTokens),
               .labels = input(step_names::kLabels),
               .positions = input(step_names::kPositions),
               .documents = input(step_names::kDocuments)});
}

void load_number(Executor& executor,
                 std::uint64_t seed,
                 std::int64_t number,
                 std::int64_t row,
                 std::int64_t microbatch) {
  const std::vector<Binding>& inputs = executor.program().inputs;
  const auto found = std::ranges::find(inputs, step_names::kSequences, &Binding::name);
  if (found != inputs.end()) {
    const auto offset = static_cast<std::uint32_t>(random_key(seed, step_names::kSequences));
    auto* const numbers =
        reinterpret_cast<std::uint32_t*>(executor.bytes(*found, microbatch).data());
    numbers[row] = static_cast<std::uint32_t>(number) + offset;
  }
}

void load_empty_row(Executor& executor, std::int64_t row, std::int64_t microbatch) {
  for (const std::string_view input :
       {step_names::kTokens, step_names::kPositions, step_names::kDocuments, step_names::kLabels}) {
    std::ranges::fill(find_input_row(executor, input, row, microbatch),
                      input == step_names::kLabels ? kIgnoredLabel : 0);
  }
}

}  // namespace tessera

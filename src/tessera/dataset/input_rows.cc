#include "tessera/dataset/input_rows.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/base/random.h"
#include "tessera/program/step_names.h"

namespace tessera {

namespace {

bool has_input(const Executor& executor, std::string_view input) {
  const std::vector<Binding>& inputs = executor.program().inputs;
  return std::ranges::find(inputs, input, &Binding::name) != inputs.end();
}

}  // namespace

SequenceRow read_row(const SequenceSource& source, std::int64_t sequence) {
  SequenceRow row = empty_row(source.sequence_length());
  source.read(sequence,
              {.inputs = row.tokens,
               .labels = row.labels,
               .positions = row.positions,
               .documents = row.documents});
  return row;
}

SequenceRow empty_row(std::int64_t length) {
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(length), 0);
  SequenceRow row = {.tokens = zeros,
                     .labels = std::vector<std::int32_t>(zeros.size(), kIgnoredLabel),
                     .positions = zeros,
                     .documents = zeros};
  std::iota(row.positions.begin(), row.positions.end(), 0);
  return row;
}

void write_row(Executor& executor,
               const SequenceRow& sequence,
               const ContextPart& part,
               std::int64_t row,
               std::int64_t microbatch) {
  const std::vector<std::int32_t> order =
      context_order(std::ssize(sequence.labels), part.ranks, part.balance);
  const std::size_t own = order.size() / static_cast<std::size_t>(part.ranks);
  const auto write = [&](std::string_view input,
                         const std::vector<std::int32_t>& ids,
                         std::span<const std::int32_t> places) {
    if (has_input(executor, input)) {
      const std::span<std::int32_t> written = input_row(executor, input, row, microbatch);
      TESSERA_CHECK(written.size() == places.size(),
                    "{}: a row of {} ids, expected {}",
                    input,
                    written.size(),
                    places.size());
      std::ranges::transform(places, written.begin(), [&](std::int32_t i) {
        return ids[static_cast<std::size_t>(i)];
      });
    }
  };
  const std::span<const std::int32_t> all(order);
  const std::span places = all.subspan(static_cast<std::size_t>(part.place) * own, own);
  write(step_names::kTokens, sequence.tokens, places);
  write(step_names::kLabels, sequence.labels, places);
  write(step_names::kPositions, sequence.positions, places);
  write(step_names::kDocuments, sequence.documents, places);
  write(step_names::kKeyPositions, sequence.positions, all);
  write(step_names::kKeyDocuments, sequence.documents, all);
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
  for (const std::string_view input : {step_names::kTokens,
                                       step_names::kPositions,
                                       step_names::kDocuments,
                                       step_names::kLabels,
                                       step_names::kKeyPositions,
                                       step_names::kKeyDocuments}) {
    if (has_input(executor, input)) {
      std::ranges::fill(input_row(executor, input, row, microbatch),
                        input == step_names::kLabels ? kIgnoredLabel : 0);
    }
  }
}

}  // namespace tessera

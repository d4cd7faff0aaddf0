#include "tessera/train/input_rows.h"

#include <algorithm>
#include <cstddef>

namespace tessera {

std::span<std::int32_t> input_row(Executor& executor,
                                  std::string_view input,
                                  std::int64_t row,
                                  std::int64_t microbatch) {
  const Binding& binding = find_binding(executor.program().inputs, input);
  const std::span<std::byte> bytes = executor.bytes(binding, microbatch);
  const std::span ids(reinterpret_cast<std::int32_t*>(bytes.data()),
                      bytes.size() / sizeof(std::int32_t));
  const auto length = static_cast<std::size_t>(binding.tensor.type.dims.back().bound);
  return ids.subspan(static_cast<std::size_t>(row) * length, length);
}

void load_row(Executor& executor,
              const SequenceSource& source,
              std::int64_t sequence,
              std::int64_t row,
              std::int64_t microbatch) {
  const auto input = [&](std::string_view name) {
    return input_row(executor, name, row, microbatch);
  };
  source.read(sequence,
              {.inputs = input("tokens"),
               .labels = input("labels"),
               .positions = input("positions"),
               .documents = input("documents")});
}

void load_empty_row(Executor& executor, std::int64_t row) {
  for (const std::string_view input : {"tokens", "positions", "documents"}) {
    std::ranges::fill(input_row(executor, input, row), 0);
  }
  std::ranges::fill(input_row(executor, "labels", row), kIgnoredLabel);
}

}  // namespace tessera

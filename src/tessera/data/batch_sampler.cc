#include "tessera/data/batch_sampler.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/data/permutation.h"

namespace tessera {
namespace {

Permutation epoch_order(const BatchSamplerOptions& options, std::int64_t epoch) {
  return {random_key(options.seed, format("data.epoch.{}", epoch)), options.num_sequences};
}

}  // namespace

BatchSampler::BatchSampler(const BatchSamplerOptions& options) : options_(options) {
  TESSERA_REQUIRE(options_.num_sequences >= 1 && options_.global_batch >= 1,
                  ErrorCode::kInvalidArgument,
                  "batches of {} from {} sequences: expected at least 1 of both",
                  options_.global_batch,
                  options_.num_sequences);
}

std::vector<std::int64_t> BatchSampler::batch(std::int64_t step) const {
  TESSERA_REQUIRE(
      step >= 1, ErrorCode::kInvalidArgument, "step {}: expected to count from 1", step);
  const std::int64_t first = (step - 1) * options_.global_batch;
  std::int64_t epoch = first / options_.num_sequences;
  std::int64_t place = first % options_.num_sequences;
  Permutation order = epoch_order(options_, epoch);
  std::vector<std::int64_t> sequences(static_cast<std::size_t>(options_.global_batch));
  for (std::int64_t& sequence : sequences) {
    if (place == options_.num_sequences) {
      place = 0;
      order = epoch_order(options_, ++epoch);
    }
    sequence = options_.shuffle ? order(place) : place;
    ++place;
  }
  return sequences;
}

}  // namespace tessera

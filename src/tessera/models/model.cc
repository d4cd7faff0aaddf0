#include "tessera/models/model.h"

#include <algorithm>

namespace tessera {

double training_flop_per_token(const ModelDescription& description,
                               const ParameterCounts& parameters,
                               std::int64_t sequence_length) {
  const auto multiplied =
      static_cast<double>(parameters.all - description.num_embedding_parameters);
  // Where anything is frozen, the embedding is.
  const auto frozen = static_cast<double>(
      std::max<std::int64_t>(parameters.frozen - description.num_embedding_parameters, 0));
  const auto attention = static_cast<double>(description.num_layers * description.num_heads) * 2.0 *
                         static_cast<double>(description.head_dim * sequence_length);
  return 6.0 * multiplied - 2.0 * frozen + 6.0 * attention;
}

}  // namespace tessera

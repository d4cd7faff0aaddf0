#include "tessera/models/model.h"

namespace tessera {

double training_flop_per_token(const ModelDescription& description,
                               std::int64_t num_parameters,
                               std::int64_t sequence_length) {
  const auto multiplied =
      static_cast<double>(num_parameters - description.num_embedding_parameters);
  const auto attention = static_cast<double>(description.num_layers * description.num_heads) * 2.0 *
                         static_cast<double>(description.head_dim * sequence_length);
  return 6.0 * multiplied + 6.0 * attention;
}

}  // namespace tessera

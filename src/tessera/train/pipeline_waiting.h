#pragma once

#include <optional>

namespace tessera {

// Shares of a step in which a pipeline rank waits for others.
struct PipelineWaiting {
  // Of a session's steps but the first, by its rank that waited least; nothing where there was one.
  std::optional<double> measured = {};
  double expected = 0;  // by the timeline of the stages' costs

  friend bool operator==(const PipelineWaiting&, const PipelineWaiting&) = default;
};

}  // namespace tessera

#pragma once

namespace tessera {

// Shares of a step in which a pipeline rank waits for others.
struct PipelineWaiting {
  double measured = 0;  // of a session's steps, by its rank that waited least
  double expected = 0;  // by the timeline of the stages' costs

  friend bool operator==(const PipelineWaiting&, const PipelineWaiting&) = default;
};

}  // namespace tessera

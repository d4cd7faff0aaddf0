#pragma once

#include <functional>
#include <memory>
#include <set>

#include <cuda_runtime_api.h>

#include "tessera/backend/backend.h"
#include "tessera/backend/cuda/device/check.h"

namespace tessera::cuda {

using CapturedGraph = Handle<cudaGraph_t, cudaGraphDestroy>;

// One of a backend's, whose graph may have to end before it.
class CudaRecording final : public Recording {
 public:
  CudaRecording(const CapturedGraph& graph,
                std::set<CudaRecording*>& all,
                std::function<void(cudaGraphExec_t)> begin);

  ~CudaRecording() override;

  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;

  void replay() override;

  // What the first replay would else do on its way. Returns when the stream is done with it.
  void make_ready(cudaStream_t stream);

  void drop();

 private:
  using GraphExec = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

  std::unique_ptr<GraphExec> exec_;
  std::set<CudaRecording*>& all_;
  std::function<void(cudaGraphExec_t)> begin_;
};

bool is_capturing(cudaStream_t stream);

// Records for a backend, and knows the recordings that it has.
class Recorder {
 public:
  // What `runs` enqueues on the stream, and on those that wait for it and for which it then waits.
  // The caller owns the graph.
  cudaGraph_t capture(cudaStream_t stream, const std::function<void()>& runs);

  bool is_recording() const { return is_recording_; }

  // The recording under way has a collective.
  void note_collective() { has_collectives_ = true; }

  // Whether the last recording has any.
  bool has_collectives() const { return has_collectives_; }

  // `begin` starts a replay.
  std::unique_ptr<CudaRecording> make(const CapturedGraph& graph,
                                      std::function<void(cudaGraphExec_t)> begin);

  // Frees the graphs of all.
  void drop();

 private:
  bool is_recording_ = false;
  bool has_collectives_ = false;
  std::set<CudaRecording*> recordings_;
};

}  // namespace tessera::cuda

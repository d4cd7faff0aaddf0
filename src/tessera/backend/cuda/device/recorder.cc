#include "tessera/backend/cuda/device/recorder.h"

#include <utility>

#include "tessera/backend/cuda/device/context.h"
#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

cudaGraphExec_t instantiate(const CapturedGraph& graph) {
  cudaGraphExec_t exec = nullptr;
  // Kernels keep the priority of the streams that they were recorded on.
  check(cudaGraphInstantiate(&exec, graph.get(), cudaGraphInstantiateFlagUseNodePriority),
        "cudaGraphInstantiate()");
  return exec;
}

cudaGraph_t capture_stream(cudaStream_t stream, const std::function<void()>& runs) {
  // Other threads, which may wait for their devices meanwhile, do not disturb it.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture()");
  cudaGraph_t graph = nullptr;
  try {
    runs();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream, &graph));
    const CapturedGraph unfinished(graph);
    static_cast<void>(cudaGetLastError());
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph),
        "cudaStreamEndCapture() (run.cuda_graphs = false runs without)");
  return graph;
}

}  // namespace

CudaRecording::CudaRecording(const CapturedGraph& graph,
                             std::set<CudaRecording*>& all,
                             std::function<void(cudaGraphExec_t)> begin)
    : exec_(std::make_unique<GraphExec>(instantiate(graph))), all_(all), begin_(std::move(begin)) {
  all_.insert(this);
}

CudaRecording::~CudaRecording() {
  all_.erase(this);
}

void CudaRecording::replay() {
  TESSERA_CHECK(exec_ != nullptr, "a replay of what was dropped");
  begin_(exec_->get());
}

void CudaRecording::make_ready(cudaStream_t stream) {
  check(cudaGraphUpload(exec_->get(), stream), "cudaGraphUpload()");
  synchronize(stream);
}

void CudaRecording::drop() {
  exec_.reset();
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing()");
  return status != cudaStreamCaptureStatusNone;
}

cudaGraph_t Recorder::capture(cudaStream_t stream, const std::function<void()>& runs) {
  is_recording_ = true;
  has_collectives_ = false;
  try {
    const cudaGraph_t graph = capture_stream(stream, runs);
    is_recording_ = false;
    return graph;
  } catch (...) {
    is_recording_ = false;
    throw;
  }
}

std::unique_ptr<CudaRecording> Recorder::make(const CapturedGraph& graph,
                                              std::function<void(cudaGraphExec_t)> begin) {
  return std::make_unique<CudaRecording>(graph, recordings_, std::move(begin));
}

void Recorder::drop() {
  for (CudaRecording* const recording : recordings_) {
    recording->drop();
  }
}

}  // namespace tessera::cuda

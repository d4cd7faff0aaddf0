#pragma once

// Stands for CUDA's runtime on machines without a GPU, as far as tests and what they test use it:
// the devices of stand_in_machine(), whose streams are threads and whose memory is the host's. What
// is given to a stream is done later.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

#include <cuda_runtime_api.h>

// The name is CUDA's.
// NOLINTNEXTLINE(readability-identifier-naming)
struct CUstream_st {
 public:
  using Work = std::function<void()>;

  explicit CUstream_st(int device);

  // When all is done.
  ~CUstream_st();

  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  void give(Work work);
  bool is_done();
  void wait();

  const int device;
  cudaGraph_t recorded = nullptr;  // where what it is given goes

 private:
  void loop(const std::stop_token& stop);

  std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::deque<Work> work_;  // the first is under way
  std::jthread thread_;
};

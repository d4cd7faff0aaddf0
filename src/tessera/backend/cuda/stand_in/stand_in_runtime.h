#pragma once

// Stands for CUDA's runtime on machines without a GPU, as far as tests and what they test use it:
// the devices of stand_in_machine(), whose streams are threads and whose memory is the host's. What
// is given to a stream is done later.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

// What streams are recorded to, from the begin of a capture to its end. As CUDA has it, a stream is
// part of it from when it waits for an event of one that is, what was given to a stream outside
// cannot be waited for, and in the end the first stream must have waited for all others.
struct StandInCapture {
  struct Node {
    std::function<void()> work;
    std::vector<std::size_t> behind;  // nodes that are done before it
  };

  cudaStream_t first = nullptr;
  std::vector<cudaStream_t> streams;  // part of it
  std::vector<Node> nodes;
  bool is_broken = false;  // by a call that it does not allow
  bool has_ended = false;
};

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
  std::shared_ptr<StandInCapture> capture = nullptr;  // where what it is given goes
  std::vector<std::size_t> last;                      // of that, what the next node is behind

 private:
  void loop(const std::stop_token& stop);

  std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::deque<Work> work_;  // the first is under way
  std::jthread thread_;
};

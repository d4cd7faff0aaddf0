#pragma once

#include "tessera/backend/cuda/device/device_mover.h"
#include "tessera/comm/collective_context.h"

struct CUstream_st;  // of the CUDA runtime, where cudaStream_t is a pointer to it

namespace tessera::cuda {

struct Fault;
class Gemms;
class Graphs;

// What CUDA kernels of one stream share. Borrows all of it.
class Context : public CollectiveContext {
 public:
  Context(CUstream_st* stream, Fault* fault, Gemms& gemms, Graphs& graphs, int multiprocessors)
      : CollectiveContext(make_device_mover(*this)),
        stream_(stream),
        fault_(fault),
        gemms_(gemms),
        graphs_(graphs),
        multiprocessors_(multiprocessors) {}

  CUstream_st* stream() const { return stream_; }

  // Where kernels report what is wrong with their data, in the device's memory.
  Fault* fault() const { return fault_; }

  // What runs matrix products.
  Gemms& gemms() const { return gemms_; }

  // What runs attention where a library knows how.
  Graphs& graphs() const { return graphs_; }

  int multiprocessors() const { return multiprocessors_; }

 private:
  CUstream_st* stream_;
  Fault* fault_;
  Gemms& gemms_;
  Graphs& graphs_;
  int multiprocessors_;
};

// Throws kDeviceError where the launch of a kernel of that name, the last one, failed.
void check_launch(const char* kernel);

// Returns when all of the stream is done. Errors: kDeviceError.
void synchronize(CUstream_st* stream);

}  // namespace tessera::cuda

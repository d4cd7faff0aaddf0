#pragma once

#include <cstddef>
#include <functional>
#include <unordered_map>

#include <oneapi/dnnl/dnnl.hpp>

#include "tessera/backend/cpu/gemm.h"

namespace tessera::cpu {

// A compiled product with the memory objects that its executions reuse.
struct GemmPrimitive {
  dnnl::matmul primitive;
  dnnl::memory a;
  dnnl::memory b;
  dnnl::memory c;
  dnnl::memory workspace;
  std::size_t workspace_bytes = 0;
};

struct GemmHash {
  std::size_t operator()(const Gemm& gemm) const;
};

// oneDNN primitives by shape: compiled once a process, used by one thread.
class PrimitiveCache {
 public:
  PrimitiveCache();

  // Errors: kUnsupported where oneDNN has no implementation for this processor.
  GemmPrimitive& gemm(const Gemm& key);

  dnnl::stream& stream() { return stream_; }

  // Whether gemm() takes bf16 here.
  bool multiplies_bf16() const { return multiplies_bf16_; }

 private:
  GemmPrimitive compile(const Gemm& key) const;

  dnnl::engine engine_;
  dnnl::stream stream_;
  bool multiplies_bf16_;
  std::unordered_map<Gemm, GemmPrimitive, GemmHash> gemms_;
};

}  // namespace tessera::cpu

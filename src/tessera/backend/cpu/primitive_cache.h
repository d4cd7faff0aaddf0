#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <unordered_map>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "tessera/backend/cpu/gemm.h"

namespace tessera::cpu {

// The arguments that a thread's executions of a product reuse: memory objects, of which only the
// addresses change, and the list of them that oneDNN takes.
class GemmArguments {
 public:
  // Where the product needs no workspace, oneDNN looks at none.
  GemmArguments(const dnnl::matmul::primitive_desc& description, const dnnl::engine& engine);

  // Where the next execution reads and writes.
  void set(const void* a, const void* b, void* c, void* workspace);

  std::span<const dnnl_exec_arg_t> list() const { return list_; }

 private:
  std::array<dnnl::memory, 4> memory_;
  std::array<dnnl_exec_arg_t, 4> list_;
};

// A product compiled for one thread; any of a team may run it.
struct GemmPrimitive {
  dnnl::matmul primitive;
  std::vector<GemmArguments> arguments;  // by member of the team
  std::size_t workspace_bytes = 0;
};

struct GemmHash {
  std::size_t operator()(const Gemm& gemm) const;
};

// oneDNN primitives by shape: compiled once a team, looked up by one thread.
class PrimitiveCache {
 public:
  // For a team of so many threads.
  explicit PrimitiveCache(int threads);

  // Errors: kUnsupported where oneDNN has no implementation for this processor.
  GemmPrimitive& gemm(const Gemm& key);

  dnnl::stream& stream() { return stream_; }

  // Whether gemm() takes bf16 here.
  bool multiplies_bf16() const { return multiplies_bf16_; }

 private:
  GemmPrimitive compile(const Gemm& key) const;

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::size_t threads_;
  bool multiplies_bf16_;
  std::unordered_map<Gemm, GemmPrimitive, GemmHash> gemms_;
};

}  // namespace tessera::cpu

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/mesh/placement.h"
#include "tessera/models/llama/llama.h"

namespace tessera {

// A run of a small model on ranks that are threads, one OpenMP thread each.
struct RankRun {
  LlamaConfig model;
  Mesh mesh;
  Placement placement = {};
  std::int64_t microbatches = 1;  // of global_batch / microbatches sequences over all ranks
  std::int64_t global_batch = 12;
  std::int64_t sequence_length = 16;
  std::int64_t steps = 10;
  DType dtype = DType::kF32;
  bool recompute = false;
};

// What all layouts of a run must agree on.
struct RankResult {
  std::vector<float> losses;                          // by step, mean over the labels that count
  std::vector<float> grad_norms;                      // by step
  std::map<std::string, std::vector<float>> weights;  // whole, in f32, at the end
};

// Runs it; every rank must report the same losses. Errors: of any rank.
RankResult run_ranks(const RankRun& run);

}  // namespace tessera

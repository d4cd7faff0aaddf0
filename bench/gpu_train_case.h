#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/models/llama/llama.h"
#include "tessera/models/model.h"
#include "tessera/passes/compile.h"
#include "tessera/passes/graph/product_epilogues.h"
#include "tessera/passes/graph/quantize_products.h"
#include "tessera/passes/graph/round_gradients.h"
#include "tessera/passes/graph/round_logits.h"

namespace tessera {

// What gpu_train_bench measures.

inline constexpr int kSteps = 6;  // timed ones of a process, ours or the peer's

// A case in another way, measured beside it.
struct Variant {
  const char* name;    // of its lines
  const char* option;  // of the process
  const char* text;    // what it is
};

struct Case {
  std::string name;
  bool llama = true;
  LlamaConfig sizes;
  std::int64_t batch = 1;
  std::int64_t seq = 0;
  double target = 0;           // of tokens/s over the peer's; 0: none is set
  double stretch = 0;          // beyond it
  double idle_target = 0;      // 0: none is set
  std::int64_t document = 0;   // tokens of a document; 0: each row is one
  bool small = false;          // on the CPU
  bool only_named = false;     // left out unless --case names it
  bool compares_loss = false;  // of recipes, on text; else speed is measured
  std::string note = "";
  std::optional<Float8Options> float8 = {};
  double whole_gb = 0;  // of the GPU's memory, in 1e9 bytes: with less, layers are recomputed
  bool recompute = false;
  bool round_logits = true;     // to bf16: PyTorch's autocast has them so
  bool round_gradients = true;  // of products, to bf16: PyTorch's autocast does so to weights' too
  bool any_order = false;       // of sums in attention's gradients (run.deterministic = false)
  bool gelu_products = true;    // on the GPU
  std::vector<Variant> also = {};
  std::string beside = "";  // the case of ours that it is compared with, in place of PyTorch

  double tokens() const { return static_cast<double>(batch * seq); }

  std::int64_t document_tokens() const { return document > 0 ? document : seq; }

  ModelDescription description() const;
};

// Those of the GPU and, small, those that try the program on the CPU.
std::vector<Case> cases();

// As a run has them. Borrows the backend.
CompileOptions compile_options(const Case& test, Backend& backend, bool on_cpu);

// What bench/peers/torch_llama_gpu.py has to know of a case.
std::string peer_arguments(const Case& test);

}  // namespace tessera

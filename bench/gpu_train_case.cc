#include "bench/gpu_train_case.h"

#include <span>

#include "tessera/base/format.h"
#include "tessera/ir/op.h"
#include "tessera/ir/view.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/passes/graph/chunk_loss.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

constexpr LlamaConfig kLlama8bOf16Layers = {
    .dim = 4096, .layers = 16, .heads = 32, .kv_heads = 8, .ffn = 14336, .vocab = 128256};
// Without recompute we need 79 to 84 GiB, PyTorch about 95.
constexpr double kWholeLlama = 115;
constexpr LlamaConfig kTiny = {
    .dim = 64, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 128, .vocab = 256};

constexpr Variant kAnyOrder = {.name = "any order",
                               .option = "--any-order",
                               .text = "attention's gradients in any order, as PyTorch's"};
constexpr Variant kGeluApart = {
    .name = "gelu apart", .option = "--gelu-apart", .text = "gelu in kernels of its own"};

}  // namespace

ModelDescription Case::description() const {
  if (llama) {
    return describe_llama(sizes);
  }
  return describe_gpt2({.dim = sizes.dim,
                        .layers = sizes.layers,
                        .heads = sizes.heads,
                        .ffn = sizes.ffn,
                        .vocab = sizes.vocab,
                        .padded_vocab = sizes.vocab,
                        .positions = seq});
}

std::vector<Case> cases() {
  return {
      {.name = "float8-loss",
       .sizes = {.dim = 256, .layers = 6, .heads = 16, .kv_heads = 16, .ffn = 768, .vocab = 2048},
       .batch = 8,
       .seq = 256,
       .compares_loss = true,
       .round_logits = false,
       .round_gradients = false},
      {.name = "llama",
       .sizes = kLlama8bOf16Layers,
       .seq = 8192,
       .target = 1.12,
       .stretch = 1.25,
       .idle_target = 0.01,
       .whole_gb = kWholeLlama,
       .also = {kAnyOrder}},
      {.name = "llama-documents",
       .sizes = kLlama8bOf16Layers,
       .seq = 8192,
       .document = 1024,
       .only_named = true,
       .whole_gb = kWholeLlama,
       .beside = "llama"},
      {.name = "llama-float8",
       .sizes = kLlama8bOf16Layers,
       .seq = 8192,
       .target = 1.3,
       .note = "products of the layers and of the head in 8-bit floats, one scale a tensor",
       .float8 = Float8Options{.head = true, .fast_accumulation = true, .keep_weight_codes = true},
       .whole_gb = kWholeLlama,
       .beside = "llama"},
      {.name = "gpt2",
       .llama = false,
       .sizes =
           {.dim = 768, .layers = 12, .heads = 12, .kv_heads = 12, .ffn = 3072, .vocab = 50304},
       .batch = 32,
       .seq = 1024,
       .target = 1.1,
       .note = "goal: 600,000 tokens/s",
       .also = {kAnyOrder, kGeluApart}},
      {.name = "small", .sizes = kTiny, .batch = 2, .seq = 64, .small = true, .also = {kAnyOrder}},
      {.name = "small-documents",
       .sizes = kTiny,
       .batch = 2,
       .seq = 64,
       .document = 24,
       .small = true,
       .beside = "small"},
      {.name = "small-float8",
       .sizes = kTiny,
       .batch = 2,
       .seq = 64,
       .small = true,
       .float8 = Float8Options{.head = true, .fast_accumulation = true, .keep_weight_codes = true},
       .beside = "small"},
      {.name = "small-gpt2",
       .llama = false,
       .sizes = {.dim = 64, .layers = 2, .heads = 4, .kv_heads = 4, .ffn = 256, .vocab = 256},
       .batch = 2,
       .seq = 64,
       .small = true,
       .also = {kGeluApart}}};
}

CompileOptions compile_options(const Case& test, Backend& backend, bool on_cpu) {
  return {.float8 = test.float8,
          .attention = {.whole_rows = test.document == 0, .any_order = test.any_order},
          .logits_bytes = on_cpu ? 0 : kDeviceLogitsBytes,
          .round_logits = test.round_logits,
          .round_gradients = test.round_gradients,
          .recompute = test.recompute ? recompute_all() : RecomputeRules(),
          .gelu_products = !on_cpu && test.gelu_products,
          .workspace_bytes = workspace_of(backend)};
}

std::string peer_arguments(const Case& test) {
  const LlamaConfig& sizes = test.sizes;
  return format(
      "--model={} --dim={} --layers={} --heads={} --kv_heads={} --ffn={} --vocab={} "
      "--batch={} --seq={} --steps={} --recompute={} --device={}",
      test.llama ? "llama3" : "gpt2",
      sizes.dim,
      sizes.layers,
      sizes.heads,
      sizes.kv_heads,
      sizes.ffn,
      sizes.vocab,
      test.batch,
      test.seq,
      kSteps,
      test.recompute ? 1 : 0,
      test.small ? "cpu" : "cuda");
}

}  // namespace tessera

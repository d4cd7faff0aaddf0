#include <vector>

#include "tessera/config/codec.h"
#include "tessera/config/run_config.h"
#include "tessera/config/schema_rows.h"
#include "tessera/config/schema_sections.h"

namespace tessera {
namespace {

using schema_rows::row;
using schema_rows::section;

ConfigSection train() {
  using S = TrainSection;
  return section(
      "train",
      &RunConfig::train,
      "How long and how much at once.",
      {row("steps", &S::steps, codec::size(), "Optimizer steps."),
       row("global_batch", &S::global_batch, codec::size(), "Sequences per step."),
       row("microbatch",
           &S::microbatch,
           codec::size(),
           "Sequences per forward and backward; divides global_batch. Smaller needs less memory."),
       row("dtype",
           &S::dtype,
           codec::choice({DType::kF32, DType::kBF16}, tessera::name),
           "Type of activations and of the weights that compute. Optimizer state is f32."),
       row("logits",
           &S::logits,
           codec::choice({DType::kF32, DType::kBF16}, tessera::name),
           "Format of logits between the head's product and the loss, which computes in f32. bf16, "
           "as most other systems have it, halves what GPUs move of them: with train.dtype = "
           "\"bf16\"."),
       row("tf32",
           &S::tf32,
           codec::boolean(),
           "On GPUs, whether products of f32 round their factors to tf32 (10 bits in place of 23), "
           "which tensor cores take."),
       row("dropout",
           &S::dropout,
           codec::below_one(),
           "Rate at which attention's probabilities, and what layers add to the residual stream, "
           "are dropped, on CPUs, with passes.attention other than \"flash\". 0: none.")});
}

ConfigSection validation() {
  using S = ValidationSection;
  return section(
      "validation",
      &RunConfig::validation,
      "The loss on data that is kept out of training: data.validation_share or "
      "data.validation_files.",
      {row("every", &S::every, codec::size_or_zero(), "Steps between validations. 0: never."),
       row("sequences",
           &S::sequences,
           codec::size_or_zero(),
           "Sequences that a validation reads, always the same, evenly spread over those held out. "
           "0: all.")});
}

ConfigSection lora() {
  using S = LoraSection;
  return section(
      "lora",
      &RunConfig::lora,
      "Low-rank adapters (LoRA): the weights of model.weights stay as they are, and to each target "
      "W a product of two small matrices is added, W + alpha / rank * B A, which alone is trained.",
      {row("rank",
           &S::rank,
           codec::size_or_zero(),
           "Rows of A and columns of B. 0: no adapters, every weight is trained."),
       row("alpha",
           &S::alpha,
           codec::positive(),
           "Scale of the adapters, times rank. Left out: rank, a scale of 1."),
       row("targets",
           &S::targets,
           codec::text_list(),
           "Weights that get an adapter, in every layer, by the last part of their names here "
           "(\"wq\") or in Hugging Face's files (\"q_proj\"). Empty: all matrices of the "
           "layers.")});
}

ConfigSection float8() {
  using S = Float8Section;
  return section(
      "float8",
      &RunConfig::float8,
      "Matrix products of the layers, those of backward too, in 8-bit floats with scales of the "
      "values at hand. Weights, gradients and what lies between products keep train.dtype, and so "
      "do adapters and, unless it is chosen, the head. CPUs emulate it exactly, and more slowly "
      "than f32.",
      {row("recipe",
           &S::recipe,
           codec::choice({Float8Recipe::kOff, Float8Recipe::kTensorwise, Float8Recipe::kRowwise}),
           "What shares a scale: a whole tensor, or each row of a left factor and each column of a "
           "right one, with scales that are powers of two. off: no 8-bit floats."),
       row("gradients",
           &S::gradients,
           codec::choice({DType::kF8E5M2, DType::kF8E4M3}, tessera::name),
           "Format of the gradients that products of backward read; their other factors are "
           "f8e4m3. Left out: f8e5m2 with recipe tensorwise, f8e4m3 with rowwise."),
       row("skip_first",
           &S::skip_first,
           codec::size_or_zero(),
           "The first layers that stay in train.dtype."),
       row("skip_last",
           &S::skip_last,
           codec::size_or_zero(),
           "The last layers that stay in train.dtype."),
       row("head",
           &S::head,
           codec::boolean(),
           "Whether the head's products are in 8-bit floats as well. The gradient of its logits is "
           "f8e5m2 with every recipe: most of it is probabilities that f8e4m3 takes for zero."),
       row("fast_accumulation",
           &S::fast_accumulation,
           codec::boolean(),
           "On GPUs, whether the layers' products of forward may add up with fewer bits than f32 "
           "has, as tensor cores do it fastest. CPUs add in f32 all the same."),
       row("keep_weight_codes",
           &S::keep_weight_codes,
           codec::boolean(),
           "Whether weights are quantized once for forward and backward, with recipe tensorwise. "
           "Of several microbatches, weights that lie whole are quantized once a step, and their "
           "codes take two bytes a weight of the layers; otherwise it is once a microbatch and one "
           "byte, and weights that are cut (state.param) are gathered once.")});
}

ConfigSection optimizer() {
  using S = OptimizerSection;
  return section(
      "optimizer",
      &RunConfig::optimizer,
      "How weights follow gradients.",
      {row("name", &S::name, codec::choice({OptimizerName::kAdamW}), "Optimizer."),
       row("lr", &S::lr, codec::positive(), "Peak learning rate."),
       row("betas", &S::betas, codec::pair(codec::below_one()), "Decay of the two moments."),
       row("eps", &S::eps, codec::positive(), "Added to the root of the second moment."),
       row("weight_decay",
           &S::weight_decay,
           codec::not_negative(),
           "Decoupled weight decay: each step takes the learning rate times this off every weight "
           "that is trained, or off matrices alone (decay)."),
       row("decay",
           &S::decay,
           codec::choice({DecayedWeights::kAll, DecayedWeights::kMatrices}),
           "Which weights decay. all: every weight that is trained, norms, biases and embeddings "
           "too, as PyTorch's AdamW over all parameters does. matrices: the weights of products, "
           "adapters too, and of a tied model the embedding, which is its head; norms, biases and "
           "embeddings that are looked up alone stay out. So nanoGPT and llm.c do it, but for "
           "GPT-2's embedding of positions, which decays there."),
       row("clip",
           &S::clip,
           codec::not_negative(),
           "Gradients are scaled down to this global L2 norm. 0: never."),
       row("moments",
           &S::moments,
           codec::choice({DType::kF32, DType::kBF16}, tessera::name),
           "Format of the two moments at rest. bf16 halves them; updates are computed in f32, and "
           "betas may then be 0.99 at most."),
       row("gradients",
           &S::gradients,
           codec::choice({DType::kF32, DType::kBF16}, tessera::name),
           "Format of the layers' weight gradients. bf16 halves what they take and what the update "
           "reads: in bf16 training, where nothing adds them up (one microbatch, one data "
           "rank).")});
}

ConfigSection schedule() {
  using S = Schedule;
  return section(
      "schedule",
      &RunConfig::schedule,
      "Learning rate over the run: warmup, a stable part, decay.",
      {row("warmup",
           &S::warmup,
           codec::size_or_zero(),
           "Steps of linear warmup: step n takes optimizer.lr * min(1, n / warmup). Left out or in "
           "a file, it is shorter where the run is too short for it and the decay."),
       row("decay_ratio",
           &S::decay_ratio,
           codec::ratio(),
           "Share of the steps, at the end, over which the rate decays. 0: never. With a warmup "
           "that is named it may be left out, too."),
       row("decay",
           &S::decay,
           codec::choice({Decay::kLinear, Decay::kCosine, Decay::kSqrt}),
           "Shape of the decay."),
       row("floor",
           &S::floor,
           codec::ratio(),
           "Share of optimizer.lr that the decay ends at; step `steps + 1` would reach it.")});
}

}  // namespace

std::vector<ConfigSection> training_sections() {
  return {train(), validation(), lora(), float8(), optimizer(), schedule()};
}

}  // namespace tessera

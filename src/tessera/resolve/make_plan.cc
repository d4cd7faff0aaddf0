#include "tessera/resolve/make_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/resolve/recompute_rules.h"
#include "tessera/resolve/resolve_layout.h"
#include "tessera/resolve/resolve_pipeline.h"

namespace tessera {
namespace {

std::optional<Float8Options> float8_options(const Float8Section& float8) {
  if (float8.recipe == Float8Recipe::kOff) {
    return std::nullopt;
  }
  const bool rowwise = float8.recipe == Float8Recipe::kRowwise;
  return Float8Options{
      .rowwise = rowwise,
      .gradients = float8.gradients.value_or(rowwise ? DType::kF8E4M3 : DType::kF8E5M2),
      .skip_first = float8.skip_first,
      .skip_last = float8.skip_last,
      .head = float8.head,
      .fast_accumulation = float8.fast_accumulation,
      .keep_weight_codes = float8.keep_weight_codes};
}

AttentionKernels kernels(AttentionOps ops) {
  switch (ops) {
    case AttentionOps::kFlash:
      return AttentionKernels::kFlash;
    case AttentionOps::kFusedSoftmax:
      return AttentionKernels::kFusedSoftmax;
    case AttentionOps::kUnfused:
      return AttentionKernels::kUnfused;
  }
  return AttentionKernels::kFlash;
}

// Where what a key says of lies, where the key is `is`.
Space space_where(const RunConfig& config, Offload key, Offload is) {
  if (key != is) {
    return Space::kDevice;
  }
  switch (config.memory.offload_to) {
    case OffloadTo::kAuto:
      break;
    case OffloadTo::kHost:
      return Space::kHost;
    case OffloadTo::kFile:
      return Space::kFile;
  }
  return config.run.device == "cuda" ? Space::kHost : Space::kFile;
}

// A copy would take the memory that states elsewhere were to spare.
bool saves_in_background(const RunConfig& config, const Plan& plan) {
  return config.checkpoint.async && config.checkpoint.every > 0 &&
         config.checkpoint.every <= config.train.steps && !plan.passes.has_states_elsewhere();
}

// Whether attention sees the tokens of a sequence one after the other.
bool has_rows_in_order(const RunConfig& config) {
  return config.parallel.context == 1 ||
         config.context.layout() ==
             ContextLayout{.kind = ContextKind::kUlysses, .balance = ContextBalance::kNone};
}

// All but the pipeline.
Plan make_plan(const RunConfig& config, const ModelDescription& model) {
  const MemorySection& memory = config.memory;
  Plan plan = {
      .model = model,
      .sequence_length = config.data.sequence_length,
      .microbatch = config.train.microbatch,
      .validates = config.validation.every > 0,
      .layout = resolve_layout(config).layout,
      .dtype = config.train.dtype,
      .logits = config.train.logits,
      .float8 = float8_options(config.float8),
      .optimizer = {.beta1 = config.optimizer.betas[0],
                    .beta2 = config.optimizer.betas[1],
                    .eps = config.optimizer.eps,
                    .weight_decay = config.optimizer.weight_decay,
                    .decays_all = config.optimizer.decay == DecayedWeights::kAll,
                    .clip = config.optimizer.clip,
                    .moments = config.optimizer.moments,
                    .gradients = config.optimizer.gradients},
      .passes = {.fuse = config.passes.fuse,
                 .group_gemms = config.passes.group_gemms,
                 .gelu_products = config.passes.gelu_products,
                 .overlap = config.comm.overlap,
                 .overlap_layers = config.comm.overlap_layers,
                 .whole_rows = !config.data.document_mask && has_rows_in_order(config),
                 .any_order = !config.run.deterministic,
                 .attention = kernels(config.passes.attention),
                 .optimizer = space_where(config, memory.offload_optimizer, Offload::kAll),
                 .parameters = space_where(config, memory.offload_parameters, Offload::kAll),
                 .activations = space_where(config, memory.offload_activations, Offload::kAll),
                 .dropout = config.train.dropout},
      .threads = std::max<std::int64_t>(1, config.run.threads)};
  plan.num_microbatches = config.train.global_batch / plan.batch();
  return plan;
}

}  // namespace

PlannedRun plan_run(const RunConfig& config, const ModelDescription& model, const Target& target) {
  PlannedRun run = {
      .plan = make_plan(config, model),
      .target = target,
      .offload_dir = config.memory.offload_dir.empty() ? config.run.dir : config.memory.offload_dir,

      .chooses_recompute = config.memory.recompute == Recompute::kAuto,
      .may_move = {
          .optimizer = space_where(config, config.memory.offload_optimizer, Offload::kAuto),
          .parameters = space_where(config, config.memory.offload_parameters, Offload::kAuto),
          .activations = space_where(config, config.memory.offload_activations, Offload::kAuto)}};
  run.saves_in_background = saves_in_background(config, run.plan);
  if (run.chooses_memory() && !config.memory.chosen.empty()) {
    with_context([&] { return placed(config, "memory.chosen"); },
                 [&] { run.chosen_before = parse_memory_choice(config.memory.chosen); });
  }
  // As of one stage, for what layers cost.
  run.plan.passes.recompute = recompute_rules(config, run.plan);
  if (auto pipeline = resolve_pipeline(config, run.plan, target)) {
    run.plan.pipeline = std::move(pipeline->plan);
    run.stage_costs = std::move(pipeline->stage_costs);
    run.hop = pipeline->hop;
    run.notes = std::move(pipeline->notes);
    run.plan.passes.recompute = recompute_rules(config, run.plan);
  }
  return run;
}

PlannedRun plan_run(const RunConfig& config, const ModelDescription& model) {
  return plan_run(config, model, run_target(config));
}

Target run_target(const RunConfig& config) {
  return config.run.device == "cuda" ? cuda_target() : cpu_target();
}

}  // namespace tessera

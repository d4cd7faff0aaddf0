#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/actions/action_table.h"
#include "tessera/ir/dtype.h"
#include "tessera/models/model.h"
#include "tessera/passes/graph/group_gemms.h"
#include "tessera/passes/graph/product_epilogues.h"
#include "tessera/passes/graph/quantize_products.h"
#include "tessera/passes/graph/unfuse_attention.h"
#include "tessera/passes/memory/offload_states.h"
#include "tessera/passes/memory/recompute_rule.h"
#include "tessera/plan/run_layout.h"
#include "tessera/program/program.h"

namespace tessera {

// The constants of AdamW.
struct OptimizerPlan {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool decays_all = true;  // else matrices alone (undecayed_weights())
  double clip = 1.0;       // global L2 norm of the gradient; 0: off
  DType moments = DType::kF32;
  DType gradients = DType::kF32;  // as products make them; bf16 for one microbatch and data rank
};

// What the compiler may choose, and was told.
struct PassPlan {
  RecomputeRules recompute = {};  // what layers compute in forward, again in backward
  bool fuse = true;
  bool group_gemms = true;
  bool gelu_products = true;  // where the target has them
  bool overlap = true;        // collectives of state with compute
  std::int64_t overlap_layers = 1;
  bool whole_rows = false;  // every sequence is one document
  bool any_order = false;   // sums of attention's backward may have any order
  AttentionKernels attention = AttentionKernels::kFlash;
  bool joins_accumulation = true;      // gradients are added up by what makes them
  bool scatter_hops = false;           // along the pipeline, of what tensor ranks all have
  bool gathers_ahead = false;          // of updated parameters, in the next step's start
  bool tensor_beside = false;          // collectives of activations beside products
  Space optimizer = Space::kDevice;    // where moments and masters lie
  Space parameters = Space::kDevice;   // where parameters do
  Space activations = Space::kDevice;  // where activations wait for backward,
  bool all_activations = true;         // or those alone that `recompute` stores
  std::vector<OffloadedBytes> moved_states = {};  // of states, by pipeline rank; none: all
  double dropout = 0.0;  // of attention's probabilities and of residuals in training; 0: none

  bool has_states_elsewhere() const {
    return optimizer != Space::kDevice || parameters != Space::kDevice;
  }
};

// How the ranks along the pipeline share the layers and the microbatches of a step.
struct PipelinePlan {
  ActionTable table;                             // of the plan's microbatches
  std::vector<std::int64_t> layers;              // by stage, how many
  std::vector<std::int64_t> slice_lengths = {};  // of a sequence, in tokens; none: whole

  friend bool operator==(const PipelinePlan&, const PipelinePlan&) = default;
};

// That `layers` are those of so many stages, and of a model of so many layers. Errors:
// kInvalidConfig with both counts.
void require_layers(std::span<const std::int64_t> layers,
                    std::int64_t stages,
                    std::int64_t num_layers);

// That the slices are those of the table, and of sequences of so many tokens. Errors:
// kInvalidConfig with both counts.
void require_slice_lengths(const PipelinePlan& pipeline, std::int64_t sequence_length);

// All that decides the programs of a run, with a Target (compile.h). It names no file, no device
// and no config: whoever has a plan, made from a run file or by a planner, can compile it.
struct Plan {
  ModelDescription model;  // with its adapters
  std::int64_t sequence_length = 512;
  std::int64_t microbatch = 1;        // sequences of a data rank
  std::int64_t num_microbatches = 1;  // of a step
  bool validates = false;             // between steps, on batches of a microbatch's size
  RunLayout layout = {};
  std::optional<PipelinePlan> pipeline = {};  // where the mesh has pipeline ranks
  DType dtype = DType::kF32;                  // of compute: f32 or bf16
  DType logits = DType::kF32;                 // likewise
  std::optional<Float8Options> float8 = {};   // none: products in dtype
  OptimizerPlan optimizer = {};
  PassPlan passes = {};
  std::int64_t threads = 1;  // of a rank whose target is a CPU

  // Sequences of a microbatch on all data ranks.
  std::int64_t batch() const { return microbatch * layout.num_data(); }
};

// The forward graph of the plan's microbatches, of all data ranks: training_graph().
Graph step_graph(const Plan& plan);

// As TOML; parses back to a plan with the same programs.
std::string to_string(const Plan& plan);

// `source` names the text in errors. Errors: kInvalidConfig with place, found and expected, for
// unknown and missing keys, values out of range and meshes or placements that do not fit; a model
// that no family describes.
Plan parse_plan(std::string_view text, std::string_view source);

}  // namespace tessera

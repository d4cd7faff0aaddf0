#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/actions/action_table.h"
#include "tessera/actions/schedules.h"
#include "tessera/backend/device_backend.h"
#include "tessera/launch/rank_backend.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/context_order.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/placement.h"
#include "tessera/mesh/traffic.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/compile.h"
#include "tessera/passes/graph/quantize_products.h"
#include "tessera/passes/program/lower.h"
#include "tessera/program/program.h"
#include "tests/distributed/whole_states.h"

namespace tessera {

// Which instructions of the step run; the others are left out, and what is computed means nothing.
enum class Keep : std::uint8_t { kAll, kComputation, kCollectives };

// Grouped queries, an odd vocabulary, widths that no number of ranks divides.
LlamaConfig odd_llama(std::int64_t layers = 3);

// Of any family, odd likewise, with low-rank adapters of the weights that are named.
ModelDescription odd_model(const char* name, std::vector<std::string> adapted = {});

// Weights of every family's layers.
std::vector<std::string> attention_and_feed_forward();

// Ranks of this machine.
Mesh local_mesh(const MeshDegrees& degrees);

// That many ranks on configs/clusters/virtual-N.toml, data ranks where no more is said. Of the
// checkout that TESSERA_SOURCE names in the environment, else the one that the test was built from.
Mesh virtual_mesh(std::int64_t ranks, std::int64_t tensor = 1);

// That file.
std::string virtual_cluster(std::int64_t ranks);

// Every placement without a secondary copy.
std::vector<Placement> placements(const Mesh& mesh);

// The presets whose levels the mesh has, and parameters cut over more levels than their second
// copy, with gradients as topo has them.
std::vector<Placement> preset_placements(const Mesh& mesh);

// How the ranks along the mesh's pipeline axes share the layers.
struct PipelineRun {
  std::vector<std::int64_t> layers = {};  // by stage; none: all ranks have all
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::int64_t slices = 1;                // of a microbatch's tokens
  double token_growth = 0.0;              // as of split_tokens()
  std::optional<ActionTable> table = {};  // in place of the schedule's
  // On devices always in one queue.
  TransferLaunch launch = TransferLaunch::kByStream;
};

// A run of a small model on ranks that are threads, of one thread each.
struct RankRun {
  LlamaConfig model;
  ModelDescription other = {};  // where it has a model: in place of the Llama
  Mesh mesh;
  Placement placement = {};
  SecondaryUse secondary_use = SecondaryUse::kAll;
  std::int64_t microbatches = 1;  // of global_batch / microbatches sequences over all ranks
  std::int64_t global_batch = 12;
  std::int64_t sequence_length = 16;
  std::int64_t document_length = 0;   // tokens of each document of a sequence; 0: it is one
  std::int64_t steps = 10;            // two under a sanitizer, unless one_batch
  std::uint64_t seed = 42;            // of the weights
  std::filesystem::path resume = {};  // a checkpoint, after whose step it goes on; empty: none
  std::filesystem::path save = {};    // the directory that its last step is saved to; empty: none
  DType dtype = DType::kF32;
  DType moments = DType::kF32;
  std::optional<Float8Options> float8 = {};
  bool recompute = false;
  RecomputeKept kept = RecomputeKept::kInputs;  // where it is recomputed
  RecomputeRules rules = {};                    // where it is not
  AttentionKernels attention = AttentionKernels::kFlash;
  std::optional<double> dropout = {};
  bool joins_accumulation = true;
  bool scatter_hops = false;
  bool gathers_ahead = false;
  bool tensor_beside = false;
  bool fuse = true;
  bool sequence_parallel = false;
  ContextLayout context = {};
  PipelineRun pipeline = {};   // where the mesh has one
  std::int64_t in_flight = 1;  // microbatches whose forward runs before a backward
  bool overlap = false;
  std::int64_t overlap_layers = 1;
  OffloadOptions offload = {};       // not to files
  std::vector<Level> throttle = {};  // LocalOptions
  double device_flops = 0;  // FLOP/s of a slower device, which a rank plays by sleeping; 0: none
  Keep keep = Keep::kAll;
  StateWires wires = {};            // by level
  std::int64_t unapplied_step = 0;  // which the host says to leave the weights as they are; 0: none
  std::int64_t unknown_token_step = 0;  // with a token that the model has not; 0: none
  bool one_batch = false;               // every step has the tokens of the first
  bool loss_twice = false;              // the second one as a statistic
  std::function<void(Program& program, std::int64_t rank)> change = nullptr;  // of what is compiled
  std::function<std::unique_ptr<DeviceBackend>()> device = nullptr;  // of each rank; null: the CPU
  JoinNative join = nullptr;  // the world of the devices' collectives, where they have one
};

// What all layouts of a run must agree on.
struct RankResult {
  std::vector<float> losses;           // by step, mean over the labels that count
  std::vector<float> statistics;       // by step, mean likewise; of loss_twice
  std::vector<float> grad_norms;       // by step
  std::vector<double> step_seconds;    // by step, of one rank
  std::vector<double> waited_seconds;  // by step, for the other stream
  std::size_t num_replayed = 0;        // recordings, in the last step of one rank
  States states;                       // at the end
  Traffic sent;                        // of each rank, by level, in all steps
};

// The model that is trained.
ModelDescription description(const RankRun& run);

std::int64_t num_layers(const RankRun& run);

// The forward graph of its microbatches, of all data ranks.
Graph whole_graph(const RankRun& run);

// Token t of sequence s of step n, and whether its label counts: some do not.
std::int32_t token(std::int64_t step, std::int64_t sequence, std::int64_t t, std::int64_t vocab);
bool counts(std::int64_t sequence, std::int64_t t);

// How its programs are compiled.
CompileOptions rank_options(const RankRun& run, const WorkspaceQuery& workspace_bytes);

// What a rank runs. `workspace_bytes` may be empty: then the program has no workspaces.
Program rank_program(const RankRun& run,
                     const WorkspaceQuery& workspace_bytes,
                     std::int64_t rank = 0);

// What its pipeline ranks do.
ActionTable action_table(const RankRun& run);

// Runs it; every rank must report the same losses and norms, and hold the same states where several
// have them. Errors: of any rank.
RankResult run_ranks(const RankRun& run);

}  // namespace tessera

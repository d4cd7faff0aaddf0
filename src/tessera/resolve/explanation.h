#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/traffic.h"
#include "tessera/models/model.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/run_layout.h"
#include "tessera/program/cost_table.h"
#include "tessera/resolve/choose_memory.h"
#include "tessera/resolve/run_memory.h"
#include "tessera/state/training_state.h"

namespace tessera {

// What a collective is for.
enum class TrafficPurpose : std::uint8_t {
  kParameters,   // gathered for the layers, or written into their second copy
  kGradients,    // reduced
  kUpdates,      // updated parameters, gathered from their masters
  kActivations,  // and their gradients, of tensor parallelism
  kScalars,      // losses and the gradient norm
};

inline constexpr std::array kTrafficPurposes = {TrafficPurpose::kParameters,
                                                TrafficPurpose::kGradients,
                                                TrafficPurpose::kUpdates,
                                                TrafficPurpose::kActivations,
                                                TrafficPurpose::kScalars};

std::string_view name(TrafficPurpose purpose);

// Collectives of one op over the same axes in a segment's action.
struct CollectiveRow {
  std::string action;
  std::string op;
  std::string kind;
  std::string axes;
  TrafficPurpose purpose = TrafficPurpose::kParameters;
  std::int64_t count = 0;  // a step
  Traffic sent = {};       // by a rank in them, by axis
};

// Runs of attention in a step, forward or backward, on a CUDA device.
struct AttentionRuns {
  std::int64_t all = 0;
  std::int64_t own = 0;  // by own kernels, of those: cuDNN does not take them
};

// Where a parameter or a buffer lies.
struct ParameterPlace {
  std::string name;
  TensorType whole;
  std::string axes;                   // that cut it; "" for none
  TensorType local;                   // a rank's part of it
  std::int64_t elements_at_rest = 0;  // of that, where state.param cuts it further
  bool sliced = false;                // whether it does
  bool frozen = false;
  bool buffer = false;
};

// What a rank sends on a level of the cluster in a step.
struct LevelTraffic {
  std::string level;
  ClassBytes bytes = {};
  std::array<std::int64_t, kTrafficPurposes.size()> by_purpose = {};
  double bandwidth = 0;  // bytes/s of a rank where all send at once; 0: not known

  std::int64_t total() const;

  // Nothing where the bandwidth is not known.
  std::optional<double> seconds() const;
};

// Whether the memory that a rank needs is there.
struct MemoryFit {
  enum class Limit : std::uint8_t { kNone, kConfig, kDevice, kMachine };

  std::int64_t needed = 0;
  Limit of = Limit::kNone;  // what says how much there is
  std::int64_t limit = 0;   // 0 where nothing does
};

std::string_view name(MemoryFit::Limit limit);

// What a rank does in a step, by its program.
struct RankWork {
  std::vector<CostRow> ops;
  Cost cost;                         // of all ops
  AttentionRuns attention;           // none where the target is no CUDA device
  AttentionRuns attention_backward;  // likewise
  std::int64_t gathered_heads = 0;   // gathers of all heads of queries or keys, for their norms
  std::vector<CollectiveRow> collectives;
  std::vector<LevelTraffic> levels;  // those on which something is sent, innermost first
};

// Everything that `tessera explain` says of a run, before it is written down.
struct Explanation {
  RunConfig config;  // resolved
  PlannedRun run;
  DeviceSpec device;  // of the target or of cluster.file; all unknown where neither says
  double disk_bandwidth = kUsualDisk;  // of cluster.file, else usual; for what is offloaded
  std::vector<std::string> notes;      // about the placement
  RunPrograms programs;
  std::vector<ParameterInit> parameters;
  ParameterCounts counts;
  RunMemory memory;
  MemoryFit fit;
  std::optional<ChosenMemory> chosen = {};  // where less is kept than could be, to fit
  std::vector<RankWork> work;               // of a rank of each pipeline rank

  const RunLayout& layout() const { return run.plan.layout; }

  const ModelDescription& model() const { return run.plan.model; }

  std::int64_t num_ranks() const { return layout().mesh.num_ranks(); }

  std::int64_t tokens_per_step() const;

  // By training_flop_per_token().
  double flop_per_token() const;
};

// The programs of a plan that need not fit; only what this machine could not write down is refused.
RunPrograms compile_plan(const RunConfig& config, const PlannedRun& run);

struct PlannedMemory {
  RunMemory memory;
  MemoryFit fit;
};

// What the rank of a run that takes most takes, and what there is for it. `programs` are those of
// `run`, and `config` is the resolved one that it was made from.
PlannedMemory planned_memory(const RunConfig& config,
                             const PlannedRun& run,
                             const RunPrograms& programs);

std::vector<ParameterPlace> parameter_places(const Explanation& facts);

// Compiles the step of `config`, which need not say what the run reads and writes, for `target`
// (find_target()), or for what run.device says where that is empty. No device is needed, whatever
// the target. Errors: kInvalidConfig.
Explanation explain(RunConfig config, const std::string& target = {});

// The same for a target; none: that of run.device. `change` is what the plan has that no key says.
Explanation explain(RunConfig config,
                    const std::optional<Target>& target,
                    const std::function<void(Plan&)>& change = nullptr);

}  // namespace tessera

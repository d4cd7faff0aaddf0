#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/placement.h"

namespace tessera {

// How training state lies on the data ranks.
struct StateChoice {
  std::string preset = "ddp";
  std::optional<Placement> degrees = {};  // in place of the preset's
  std::string wire_param = {};            // as state.wire_param; empty: as the run has it
  std::string wire_grad = {};             // likewise

  friend bool operator==(const StateChoice&, const StateChoice&) = default;
};

// What a planner settles of a run. All else stays as the run file has it.
struct PlanChoice {
  std::int64_t tensor = 1;
  std::int64_t context = 1;
  std::int64_t pipeline = 1;
  std::int64_t data = 1;
  std::int64_t microbatch = 1;
  std::int64_t num_microbatches = 1;  // of a step; follows from the global batch
  Recompute recompute = Recompute::kNone;
  std::string schedule = {};  // of pipeline ranks; empty: there are none
  std::int64_t chunks = 1;
  std::vector<std::int64_t> layers = {};  // of each stage; none without a pipeline
  StateChoice state = {};
  std::int64_t overlap_layers = 1;  // that state may be ahead or behind
  bool float8 = false;  // products of the layers in 8-bit floats, which the run file has not

  std::int64_t num_ranks() const { return tensor * context * pipeline * data; }

  // Over how many states may be cut.
  std::int64_t state_ranks() const { return data * context; }

  MeshDegrees degrees() const {
    return {.data = data, .tensor = tensor, .context = context, .pipeline = pipeline};
  }

  friend bool operator==(const PlanChoice&, const PlanChoice&) = default;
};

// `config` with the choice in place of all that it says of what a planner settles.
RunConfig with_choice(RunConfig config, const PlanChoice& choice);

// The keys that a planner settles, each with what with_choice() makes of it, as
// "--section.key=value"; "--section.key=" for one that is left out.
std::vector<std::string> choice_overrides(const RunConfig& config, const PlanChoice& choice);

// In words, those by which `--why` finds a plan: "t8", "c2" where there are context ranks, "p16",
// "d128"; "fsdp" or "(8,8,8,32)", "o2"
// with state two layers ahead; "interleaved", "v2"; "full" where layers are computed again; "b1".
// Wires and formats that the run file has not are marked: "param-bf16/int8!".
std::string mesh_words(const PlanChoice& choice);
std::string state_words(const PlanChoice& choice);
std::string schedule_words(const PlanChoice& choice);
std::string recompute_words(const PlanChoice& choice);
std::string all_words(const PlanChoice& choice);

// "t8 fsdp" as two words.
std::vector<std::string> split_words(std::string_view text);

// Whether all words of `text` are among those of the choice. A mark may be left out.
bool has_words(const PlanChoice& choice, std::string_view text);

// Whether it changes numbers: it sends or multiplies in a format that the run file has not.
bool is_marked(const PlanChoice& choice);

// How many of tensor, context, pipeline and data have more than one rank.
std::int64_t num_axes(const PlanChoice& choice);

}  // namespace tessera

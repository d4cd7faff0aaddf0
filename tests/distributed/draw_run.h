#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/random.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/placement.h"
#include "tessera/models/model.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {

// How many of what a test draws: as many as this variable of the environment says, where it is set.
std::uint64_t num_drawn(const char* variable, std::uint64_t usual);

// Numbers that a seed decides, one after the other.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}

  // In [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(uniform(seed_, count_++) *
                                           static_cast<double>(high - low + 1));
  }

  bool one_in(std::int64_t n) { return between(1, n) == 1; }

  template <class T>
  T one_of(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(
        between(0, static_cast<std::int64_t>(choices.size()) - 1))];
  }

 private:
  std::uint64_t seed_;
  std::uint64_t count_ = 0;
};

// A small model of any family, for so many tensor ranks.
ModelDescription draw_model(Draw& draw, std::int64_t tensor, std::int64_t vocab);

// A run that nobody chose: of a small model of any family, in f32 or bf16, on up to six ranks.
RankRun draw_run(Draw& draw);

// Over how many ranks states are cut; gradients as `grad` says, where it does.
Placement draw_placement(Draw& draw, const Mesh& mesh, std::optional<std::int64_t> grad = {});

// How each of the layers is recomputed, if it is: ops by name where the run multiplies with
// matmuls.
RecomputeRules draw_rules(Draw& draw, const RankRun& run);

// Says what was drawn.
std::string text(const RankRun& run);

}  // namespace tessera

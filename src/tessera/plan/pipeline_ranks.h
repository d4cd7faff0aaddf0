#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/plan/run_layout.h"

namespace tessera {

// A T for each pipeline rank of a mesh, in their order, such as the programs that they run. Ranks
// of one place along the pipeline share it: they differ in the data that they read and in the parts
// of tensors that they hold, and in nothing else.
template <class T>
class ByPipelineRank {
 public:
  ByPipelineRank() = default;

  // One T for all ranks, however many: a mesh without pipeline ranks.
  // NOLINTNEXTLINE(google-explicit-constructor): what a run is without a pipeline
  ByPipelineRank(T value) { values_.push_back(std::move(value)); }

  // Errors: kInternal unless there is one for each pipeline rank.
  ByPipelineRank(const Mesh& mesh, std::vector<T> values) : values_(std::move(values)) {
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      places_.push_back(static_cast<std::size_t>(pipeline_place(mesh, rank)));
    }
    const std::size_t expected = std::ranges::max(places_) + 1;
    TESSERA_CHECK(values_.size() == expected,
                  "found {} for the {} pipeline ranks of a mesh",
                  values_.size(),
                  expected);
  }

  // How many there are; 1 without a pipeline.
  std::size_t size() const { return values_.size(); }

  // Of the ranks of one place.
  const T& operator[](std::size_t place) const { return values_.at(place); }

  auto begin() const { return values_.begin(); }

  auto end() const { return values_.end(); }

  std::size_t place_of(std::int64_t rank) const {
    return places_.empty() ? 0 : places_.at(static_cast<std::size_t>(rank));
  }

  const T& of(std::int64_t rank) const { return values_.at(place_of(rank)); }

  // The lowest rank of a place.
  std::int64_t first_rank(std::size_t place) const {
    return std::ranges::find(places_, place) - places_.begin();
  }

 private:
  std::vector<std::size_t> places_;  // by rank; empty: one for all
  std::vector<T> values_;
};

}  // namespace tessera

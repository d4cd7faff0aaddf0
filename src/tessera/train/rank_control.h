#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera {

// What the ranks of a run tell each other beside its steps: all of them call the same, at the same
// points. Errors: as Communicator's operations, which say where the run was.
class RankControl {
 public:
  explicit RankControl(World& world);

  // Whether this rank keeps the run's files and speaks for all: rank 0.
  bool leads() const { return rank_ == 0; }

  bool is_alone() const { return num_ranks_ == 1; }

  // Where the run is from now on.
  void go_on(const char* when) { when_ = when; }

  // body(group), the group being all ranks.
  template <class Body>
  decltype(auto) talk(const Body& body) {
    return with_context([this] { return when_; },
                        [&]() -> decltype(auto) { return body(*group_); });
  }

  // What every rank says, on every rank.
  std::vector<std::string> from_all(const std::string& text);

  // What rank 0 says, on every rank.
  std::string from_leader(const std::string& text);

  // Makes each of them what the ranks' largest is.
  void take_largest(std::span<std::int64_t> values);

 private:
  std::int64_t rank_;
  std::int64_t num_ranks_;
  std::unique_ptr<Communicator> group_;
  const char* when_ = "before the first step";
};

}  // namespace tessera

#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/launch/patience.h"

namespace tessera {

// What the ranks of a run tell each other beside its steps: all of them call the same, at the same
// points. Errors: as Communicator's operations, which say where the run was.
class RankControl {
 public:
  // `patience_seconds`: how long ranks wait for each other's disks.
  RankControl(World& world, double patience_seconds);

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

  // body(), which some ranks may be much longer at than others, since their disks are slow; ends on
  // all ranks when it has on each. It does not talk. Errors: as Patience's, and body's own.
  template <class Body>
  void patiently(const char* doing, const Body& body) {
    Patience patience(*group_, doing, patience_seconds_);
    body();
    talk([&](Communicator&) { patience.wait(); });
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
  double patience_seconds_;
  std::unique_ptr<Communicator> group_;
  const char* when_ = "before the first step";
};

}  // namespace tessera

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera {

// What every World, its communicators and its channels must do, whatever carries the data. A case
// is run by every rank of a run, at any number of ranks; it throws kInternal where something is not
// as it must be.
struct ConformanceCase {
  std::string_view name;
  void (*run)(World& world) = nullptr;
};

// Cases that leave the run as it was: any number of them, one after the other.
std::span<const ConformanceCase> conformance_cases();

// How a run of two ranks or more fails. `run` fails with one of `codes` and a message that has
// `text`, on every rank, or on all but the last, which then just returns.
struct FailureCase {
  std::string_view name;
  void (*run)(World& world) = nullptr;
  std::vector<ErrorCode> codes;
  std::string_view text;
  bool last_rank_returns = false;
};

// Each needs a run of its own, with a deadline of a second or two.
std::span<const FailureCase> failure_cases();

// Waits that outlast a deadline because a rank works meanwhile. Each needs a run of its own, with a
// deadline of a second or two, which it is told, and leaves it as it was.
struct PatienceCase {
  std::string_view name;
  void (*run)(World& world, double deadline_seconds) = nullptr;
};

std::span<const PatienceCase> patience_cases();

// Runs it and says what happened to this rank; throws kInternal where that is not as it must be.
std::string expect_failure(const FailureCase& failure, World& world);

// The results of a list of collectives over all dtypes and folds, on values whose sums depend on
// the order: equal bytes wherever the number of ranks and the rank are equal.
std::vector<std::byte> collective_results(World& world);

}  // namespace tessera

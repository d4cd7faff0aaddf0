#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/run_config.h"

namespace tessera {

// The keys that differ and for which a run that goes on behind `step` has other bits than one that
// was never stopped, each with both values: "run.threads (1, now 2)". train.steps is among them
// where it gave the steps so far other learning rates; what of the schedule follows from it, since
// nobody set it, is not. Nor are those that a checkpoint is refused for, nor pipeline.schedule,
// whose table decides (actions/sum_order.h).
std::vector<std::string> changed_keys(const RunConfig& before,
                                      const RunConfig& now,
                                      std::int64_t step);

// "the learning rate goes from 5e-05 at step 20 to 0.00033 at step 21", where the two configs give
// `step` different ones and there are steps to come; else "".
std::string learning_rate_jump(const RunConfig& before, const RunConfig& now, std::int64_t step);

// A key with the values that two configs have, as TOML; "left out" where one has none.
struct ChangedKey {
  std::string key;
  std::string before;
  std::string now;

  friend bool operator==(const ChangedKey&, const ChangedKey&) = default;
};

// All keys that differ.
std::vector<ChangedKey> differing_keys(const RunConfig& before, const RunConfig& now);

// The same, in the form of changed_keys().
std::vector<std::string> all_changed_keys(const RunConfig& before, const RunConfig& now);

// A key and its value, as TOML; "left out" where it has none.
using KeyValue = std::pair<std::string, std::string>;

// The keys that decide what a step does and on how many ranks; none of where it runs, what it reads
// and what it writes.
std::vector<KeyValue> step_keys(const RunConfig& config);

}  // namespace tessera

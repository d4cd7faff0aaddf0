#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// What a stage computes of a microbatch. A backward is input gradient and weight gradient in one.
enum class ActionKind : std::uint8_t { kForward, kBackward, kInputGradient, kWeightGradient };

// 'F', 'B', 'I' or 'W', as in PyTorch's tables.
char letter(ActionKind kind);

struct StageAction {
  std::int64_t stage = 0;
  ActionKind kind = ActionKind::kForward;
  std::int64_t microbatch = 0;
  std::int64_t slice = 0;  // which run of the microbatch's tokens

  friend auto operator<=>(const StageAction&, const StageAction&) = default;
};

// "2F0": the forward of stage 2, microbatch 0; "2F0.1": of its slice 1.
std::string to_string(const StageAction& action);

// A pipeline schedule: what each pipeline rank does in a step, in order. Times are not part of it:
// a rank starts an action as soon as the one before has ended and its operands are there.
struct ActionTable {
  std::int64_t ranks = 0;
  std::int64_t stages = 0;
  std::int64_t microbatches = 0;
  std::vector<std::int64_t> rank_of_stage;
  std::vector<std::vector<StageAction>> rows;  // by rank
  std::int64_t slices = 1;                     // of a microbatch

  friend bool operator==(const ActionTable&, const ActionTable&) = default;
};

// The stages of a rank, in rising order.
std::vector<std::int64_t> stages_of_rank(const ActionTable& table, std::int64_t rank);

std::int64_t num_actions(const ActionTable& table);

}  // namespace tessera

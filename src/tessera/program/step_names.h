#pragma once

// What the inputs, scalars and outputs of a model's programs are called.
namespace tessera::step_names {

// Inputs (batch, seq) i32.
inline constexpr const char* kTokens = "tokens";
inline constexpr const char* kPositions = "positions";
inline constexpr const char* kDocuments = "documents";
inline constexpr const char* kLabels = "labels";

// Inputs (batch, keys) i32 where attention's keys are others than its queries' tokens: of all keys.
inline constexpr const char* kKeyPositions = "key_positions";
inline constexpr const char* kKeyDocuments = "key_documents";

// An input (batch) i32 where there is dropout: numbers of sequences, which repeat in no step.
inline constexpr const char* kSequences = "sequences";

// Scalars f32. The first is 1 / labels that count in the step, on all ranks: the gradient of the
// mean loss by the loss of each of them.
inline constexpr const char* kInverseLabels = "inverse_labels";
inline constexpr const char* kLearningRate = "learning_rate";
inline constexpr const char* kUpdateNumber = "update_number";
inline constexpr const char* kApply = "apply";

// Outputs () f32.
inline constexpr const char* kLoss = "loss";
inline constexpr const char* kGradNorm = "grad_norm";
inline constexpr const char* kApplied = "applied";

}  // namespace tessera::step_names

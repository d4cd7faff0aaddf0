#include "tessera/train/way_on.h"

#include <exception>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/agreement.h"

namespace tessera {
namespace {

// Whether the machine or another rank failed, not what the run was given.
bool is_of_machine(ErrorCode code) {
  return code == ErrorCode::kDeviceError || code == ErrorCode::kPeerFailure ||
         code == ErrorCode::kTimeout;
}

// `error` with a note. That of another rank gets it behind its message, which may have it from
// there: contexts say where this rank was.
Error noted(const Error& error, const std::string& note) {
  if (error.code() != ErrorCode::kPeerFailure) {
    return Error(error).add_context(note);
  }
  const bool is_said = error.message().find(note) != std::string::npos;
  Error failure(error.code(), error.message() + (is_said ? "" : "; " + note));
  for (const std::string& context : error.context()) {
    failure.add_context(context);
  }
  return failure;
}

// Whether "auto", which finds what is newest, must be said.
std::string same_command(const SaveRules& rules, bool finds_newest) {
  return finds_newest && !rules.resumes_newest() ? "the same command with --checkpoint.resume=auto"
                                                 : "the same command";
}

std::string way_on(const LastState& state, const GoodState& good, const SaveRules& rules) {
  if (state.is_saved) {
    return format("{}: {} goes on from there", state.text, same_command(rules, true));
  }
  const std::string before = state.text.empty() ? "" : state.text + "; ";
  // One may have been published that the ranks had no step left to hear of.
  try {
    const auto newest = find_newest_checkpoint(rules.directory());
    if (newest && (!good.checkpoint || checkpoint_step(*newest).value_or(0) > good.step)) {
      return format("{}the newest checkpoint is {}: {} goes on from there",
                    before,
                    newest->string(),
                    same_command(rules, true));
    }
  } catch (const std::exception& error) {
    // The run's own error is what counts.
    return format("{}the run's checkpoints cannot be looked at: {}", before, error.what());
  }
  if (good.checkpoint) {
    return format("{}{}: {} goes on from there",
                  before,
                  good.words(),
                  same_command(rules, good.checkpoint->parent_path() == rules.directory()));
  }
  return before + "there is no checkpoint yet: the same command begins again";
}

}  // namespace

std::string GoodState::words() const {
  return format("the last good checkpoint is {}",
                checkpoint ? checkpoint->string() : "the initial state");
}

LastState after_last_save(const LastSave& last,
                          const std::set<std::int64_t>& missing,
                          bool is_alone) {
  const std::int64_t step = last.meta.step;
  if (last.is_saved) {
    return {};
  }
  if (is_alone) {
    return {
        .is_saved = true,
        .text = format("the state after step {} is saved as {}", step, last.directory.string())};
  }
  if (missing.empty()) {
    return {.is_saved = true, .text = format("all ranks have saved the state after step {}", step)};
  }
  return {.text = format("of the state after step {} the parts of these ranks are missing: {}{}",
                         step,
                         list_ranks(std::vector(missing.begin(), missing.end())),
                         last.torn.empty() ? "" : format("; on this one {}", last.torn))};
}

Error with_way_on(const Error& error,
                  const LastState& state,
                  const GoodState& good,
                  const SaveRules& rules) {
  if (is_of_machine(error.code())) {
    return noted(error, way_on(state, good, rules));
  }
  return state.text.empty() ? error : noted(error, state.text);
}

}  // namespace tessera

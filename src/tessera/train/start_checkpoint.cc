#include "tessera/train/start_checkpoint.h"

#include <exception>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/resolve/require_checkpoint.h"

namespace tessera {
namespace {

// body(), whose errors say the place of checkpoint.resume.
template <class Body>
std::filesystem::path of_resume(const SaveRules& rules, const Body& body) {
  return with_context([&] { return rules.resume_place; }, body);
}

std::optional<std::filesystem::path> configured_start(const SaveRules& rules) {
  if (rules.resumes_newest()) {
    return find_newest_name(rules.directory());
  }
  if (rules.keys.resume == "none") {
    const auto newest = find_newest_checkpoint(rules.directory());
    TESSERA_REQUIRE(!newest,
                    ErrorCode::kInvalidConfig,
                    "checkpoint.resume = \"none\", but {} exists: choose another run.dir, remove "
                    "it, or resume",
                    newest.value_or("").string());
    return std::nullopt;
  }
  const std::filesystem::path named = rules.keys.resume;
  return of_resume(rules, [&] { return find_checkpoint(named).value_or(named); });
}

// Rank 0 alone looks: others might look at another time.
std::filesystem::path find_start(RankControl& control, const SaveRules& rules) {
  std::string found;
  control.patiently("finishing what an interrupted run has saved", [&] {
    if (!control.leads()) {
      return;
    }
    // Whatever the run starts from: what would be left of another branch is set aside, not removed.
    for (const std::filesystem::path& path : finish_interrupted_saves(rules.directory())) {
      log_info(format("{} was written when the run was interrupted, and is now a checkpoint",
                      path.string()));
    }
    found = configured_start(rules).value_or(std::filesystem::path()).string();
  });
  found = control.from_leader(found);
  if (found.empty() || rules.resumes_newest()) {
    return found;
  }
  // What is no checkpoint all ranks refuse alike.
  return of_resume(rules, [&] { return require_checkpoint(found); });
}

// Why a checkpoint was not loaded.
struct Refusal {
  std::exception_ptr own;  // null: other ranks' alone
  std::string first;       // the first rank's that refuses; empty: loaded
};

// Loads `path`; returns why the first rank refuses it, if any does.
Refusal try_load(RankControl& control,
                 const std::filesystem::path& path,
                 const LoadCheckpoint& load) {
  Refusal result;
  std::string problem;
  control.patiently("loading the checkpoint", [&] {
    try {
      load(path);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidData) {
        throw;
      }
      result.own = std::current_exception();
      problem = error.what();
    }
  });
  for (const std::string& text : control.from_all(problem)) {
    result.first = result.first.empty() ? text : result.first;
  }
  return result;
}

// Where the run goes on from in place of `refused`: that itself where every byte of it is as it was
// written, else the newest one before it of which that holds; what is damaged loses its name. All
// that rank 0 reads.
std::filesystem::path fall_back(RankControl& control,
                                const std::filesystem::path& directory,
                                const std::filesystem::path& refused) {
  std::string found;
  std::string error;
  control.patiently("looking for a checkpoint that is whole", [&] {
    if (!control.leads()) {
      return;
    }
    std::vector<std::filesystem::path> damaged;
    std::optional<std::filesystem::path> candidate = refused;
    for (; candidate; candidate = find_newest_name(directory, checkpoint_step(*candidate))) {
      const std::string damage = find_damage(*candidate);
      if (damage.empty()) {
        break;
      }
      error += "; " + damage;
      damaged.push_back(*candidate);
    }
    // Without a whole one they keep their names: the next start is not to find nothing.
    if (!candidate) {
      return;
    }
    found = candidate->string();
    for (const std::filesystem::path& path : damaged) {
      log_warning(format("DAMAGED CHECKPOINT: {} is set aside as {}",
                         path.string(),
                         set_aside_damaged(path).string()));
    }
    if (!damaged.empty()) {
      log_warning(format("going on from {}, the newest that is whole{}", found, error));
    }
  });
  found = control.from_leader(found);
  // Never a new start in silence, where a run has come far.
  TESSERA_REQUIRE(
      !found.empty(),
      ErrorCode::kInvalidData,
      "no checkpoint in {} is whole: to begin again, remove them or choose another run.dir{}",
      directory.string(),
      error);
  return found;
}

// Loads `path`, or what the run goes on from in its place; returns that.
std::filesystem::path load_whole(RankControl& control,
                                 const SaveRules& rules,
                                 std::filesystem::path path,
                                 const LoadCheckpoint& load) {
  while (true) {
    const Refusal refusal = try_load(control, path, load);
    if (refusal.first.empty()) {
      return path;
    }
    const std::filesystem::path next = fall_back(control, rules.directory(), path);
    if (next == path) {  // it is whole, and not this run's
      if (refusal.own) {
        std::rethrow_exception(refusal.own);
      }
      fail(ErrorCode::kPeerFailure, "another rank refuses the checkpoint: {}", refusal.first);
    }
    path = next;
  }
}

}  // namespace

std::optional<std::filesystem::path> load_start_checkpoint(RankControl& control,
                                                           const SaveRules& rules,
                                                           const LoadCheckpoint& load) {
  std::filesystem::path path = find_start(control, rules);
  if (path.empty()) {
    return std::nullopt;
  }
  if (rules.falls_back()) {
    return load_whole(control, rules, path, load);
  }
  control.patiently("loading the checkpoint", [&] { load(path); });
  return path;
}

}  // namespace tessera

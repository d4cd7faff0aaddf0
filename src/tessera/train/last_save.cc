#include "tessera/train/last_save.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/save_directory.h"
#include "tessera/train/run_record.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPause = std::chrono::milliseconds(20);

class LastSaver {
 public:
  explicit LastSaver(const LastSave& save)
      : save_(save),
        path_(save_directory(save.directory, save.options.launch, save.options.first_attempt)) {}

  std::set<std::int64_t> run() {
    if (save_.options.num_ranks == 1) {
      if (!save_.is_saved) {
        save_alone();
      }
      return {};
    }
    if (save_.is_saved) {
      leave_notes();
      wait_for_next_step();
      return {};
    }
    std::exception_ptr failure;
    if (!save_.torn.empty()) {
      note(path_, save_.torn);
    } else if (!save_.under_way) {
      try {
        write(save_.options.rank);
      } catch (...) {
        failure = std::current_exception();
        note(path_, to_error(failure).what());
      }
    }
    leave_notes();
    wait();
    if (failure) {
      std::rethrow_exception(failure);
    }
    return missing(look());
  }

 private:
  // Others may be a step ahead, or behind: they need not wait for this rank.
  void leave_notes() const {
    for (const std::int64_t step : {save_.meta.step - 1, save_.meta.step + 1}) {
      if (step < 1) {
        continue;
      }
      note(save_of(step), format("the last step that it ended is {}", save_.meta.step));
    }
  }

  // Where other ranks write the state after `step` on their way out.
  std::filesystem::path save_of(std::int64_t step) const {
    return save_directory(
        checkpoint_directory(save_.directory.parent_path(), step), save_.options.launch, 0);
  }

  // Why this rank writes no part there. Without a note others wait as long as they would.
  void note(const std::filesystem::path& save, const std::string& reason) const {
    try {
      note_no_part(save, save_.options.rank, save_.options.num_ranks, reason);
    } catch (const Error& error) {
      log_warning(error.what());
    }
  }

  // One that has the states of this rank, too, may have ended the next step, and then saves it for
  // both: it is over when this process ends.
  void wait_for_next_step() const {
    bool has_replica = false;
    for (std::int64_t rank = 0; rank < save_.options.num_ranks; ++rank) {
      has_replica = has_replica ||
                    (rank != save_.options.rank && save_.has_states_of(rank, save_.options.rank));
    }
    if (!has_replica) {
      return;
    }
    const std::filesystem::path next = save_of(save_.meta.step + 1);
    const auto all = static_cast<std::size_t>(save_.options.num_ranks);
    SaveProgress seen = look_at_save(next, save_.options.num_ranks);
    Clock::time_point since = Clock::now();
    while (seen.written.size() < all && seen.without.size() < all &&
           seconds_since(since) < save_.patience_seconds) {
      std::this_thread::sleep_for(kPause);
      SaveProgress now = look_at_save(next, save_.options.num_ranks);
      if (now != seen) {
        seen = std::move(now);
        since = Clock::now();
      }
    }
  }

  SaveProgress look() const {
    SaveProgress progress = look_at_save(path_, save_.options.num_ranks);
    std::error_code error;
    if (std::filesystem::exists(save_.directory / "manifest.json", error)) {
      // Rank 0 has just given it its name.
      for (std::int64_t rank = 0; rank < save_.options.num_ranks; ++rank) {
        progress.written.insert(rank);
      }
    }
    return progress;
  }

  std::set<std::int64_t> missing(const SaveProgress& progress) const {
    std::set<std::int64_t> ranks;
    for (std::int64_t rank = 0; rank < save_.options.num_ranks; ++rank) {
      if (!progress.written.contains(rank)) {
        ranks.insert(rank);
      }
    }
    return ranks;
  }

  void save_alone() {
    TESSERA_REQUIRE(save_.torn.empty(), ErrorCode::kDeviceError, "{}", save_.torn);
    CheckpointSaver saver(save_.options);
    try {
      save_part(saver, 0);
    } catch (...) {
      const Error error = to_error(std::current_exception());
      saver.abandon();  // nobody else adds to it
      throw Error(error);
    }
    saver.finish();
  }

  // The part of `rank`.
  void write(std::int64_t rank) {
    SaverOptions options = save_.options;
    if (rank == 0 && options.rank != 0 && !save_.metrics_line.empty()) {
      // Rank 0 may not have come to it.
      options.beside.insert_or_assign(metrics_file({}).string(), save_.metrics_line);
    }
    options.rank = rank;
    CheckpointSaver saver(options);
    save_part(saver, rank);
  }

  void save_part(CheckpointSaver& saver, std::int64_t rank) const {
    const auto tensors = save_.tensors_of(rank);
    TESSERA_CHECK(tensors.has_value(), "the states of rank {} are not here", rank);
    saver.write(save_.directory, save_.meta, *tensors);
    if (saver.status() == SaveStatus::kFailed) {
      throw Error(saver.error());
    }
  }

  void wait() {
    SaveProgress seen = look();
    Clock::time_point since = Clock::now();
    while (has_hope(seen, seconds_since(since))) {
      SaveProgress now = look();
      if (now != seen) {
        seen = std::move(now);
        since = Clock::now();
      } else {
        std::this_thread::sleep_for(kPause);
      }
    }
  }

  // Whether a part may still come after nothing has happened for so long. Those that their own
  // ranks do not write are written here where this rank is the first that can.
  bool has_hope(const SaveProgress& seen, double quiet_seconds) {
    const bool is_late = quiet_seconds >= save_.patience_seconds;
    bool hope = false;
    for (const std::int64_t rank : missing(seen)) {
      const auto first = std::ranges::find_if(
          seen.written, [&](std::int64_t writer) { return save_.has_states_of(writer, rank); });
      const bool is_given_up = is_late || seen.without.contains(rank);
      if (first == seen.written.end()) {
        hope = hope || !is_given_up;
      } else if (is_given_up && *first == save_.options.rank && save_.has_states) {
        write(rank);
        hope = true;
      } else {
        hope = hope || quiet_seconds < 2 * save_.patience_seconds;
      }
    }
    return hope;
  }

  const LastSave& save_;
  std::filesystem::path path_;
};

}  // namespace

std::set<std::int64_t> save_last_step(const LastSave& save) {
  return LastSaver(save).run();
}

}  // namespace tessera

#include "tessera/train/last_save.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/checkpoint/save_directory.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

class LastSaver {
 public:
  explicit LastSaver(const LastSave& save)
      : save_(save),
        path_(save.under_way.value_or(save_directory(save.directory, save.options.launch, 0))) {}

  std::set<std::int64_t> run() {
    if (save_.options.num_ranks == 1) {
      if (!save_.is_saved) {
        save_alone();
      }
      return {};
    }
    if (!save_.is_saved && !save_.torn.empty()) {
      note_no_part(path_, save_.options.rank, save_.options.num_ranks, save_.torn);
    } else if (!save_.is_saved && !save_.under_way) {
      write(save_.options.rank);
    }
    leave_notes();
    if (save_.is_saved) {
      return {};
    }
    wait();
    return missing(look());
  }

 private:
  // Others may be a step ahead, or behind: they need not wait for this rank.
  void leave_notes() const {
    for (const std::int64_t step : {save_.meta.step - 1, save_.meta.step + 1}) {
      if (step < 1) {
        continue;
      }
      const std::filesystem::path other = checkpoint_directory(save_.directory.parent_path(), step);
      note_no_part(save_directory(other, save_.options.launch, 0),
                   save_.options.rank,
                   save_.options.num_ranks,
                   format("the last step that it ended is {}", save_.meta.step));
    }
  }

  SaveProgress look() const { return look_at_save(path_, save_.options.num_ranks); }

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
    constexpr auto kPause = std::chrono::milliseconds(20);
    SaveProgress seen = look();
    Clock::time_point since = Clock::now();
    while (has_hope(seen, std::chrono::duration<double>(Clock::now() - since).count())) {
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
      if (first == seen.written.end() || save_.under_way) {
        hope = hope || !is_given_up;
      } else if (is_given_up && *first == save_.options.rank) {
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

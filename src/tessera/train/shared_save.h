#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/launch/rank_control.h"
#include "tessera/train/last_save.h"

namespace tessera {

// A save that all ranks of a run make together, as each of them has it: CheckpointSaver, with the
// ranks' talk about a save's end. All ranks call the same, at the same points, unless a comment
// says otherwise. Errors: what the ranks' talk throws.
class SharedSave {
 public:
  // Whether training goes on while the ranks write a copy, or waits for them; and whether it ends
  // where they fail.
  enum class How { kBackground, kWaiting, kNow };

  struct UnderWay {
    std::filesystem::path path;
    std::int64_t step = 0;
    How how = How::kNow;
  };

  // `options` are those of this rank's part.
  SharedSave(RankControl& control, const SaverOptions& options);

  // Every rank learns the name under which this launch saves. While no save is under way, as
  // move_to() and put_beside().
  void name_launch();

  // The run's directory has this name from now on.
  void move_to(const std::filesystem::path& run_dir);

  // A file of this name and text goes into every checkpoint.
  void put_beside(std::string name, std::string text);

  // Takes the memory for copies of these, which need no data yet.
  void reserve(std::span<const CheckpointTensor> tensors) { saver_.reserve(tensors); }

  std::int64_t memory_bytes() const { return saver_.memory_bytes(); }

  // Starts to save `tensors` as the state of `meta`.
  void start(UnderWay save, const CheckpointMeta& meta, std::span<const CheckpointTensor> tensors);

  bool is_under_way() const { return status() != SaveStatus::kIdle; }

  // The save that was started last.
  const UnderWay& under_way() const { return under_way_; }

  // This rank's.
  SaveStatus status() const { return saver_.status(); }

  // Waits until no rank writes any more.
  void wait();

  // Ends a save that no rank writes any more: in a checkpoint, or in nothing where any rank has
  // `failed`. Returns why there is no checkpoint of it; empty where there is one.
  std::string end(bool failed);

  // When there is nobody to agree with: what this rank writes in the background comes to its end.
  // Alone it makes a checkpoint of it. Returns whether it did. Errors: as
  // CheckpointSaver::finish().
  bool end_alone();

  // Fills in how this rank is to save `last`, whose directory and meta are known, whether that is
  // under way and, where it is, why it failed, in `torn`. For this rank alone.
  void describe(LastSave& last) const;

  // Removes on a thread of its own what the run has no use for.
  DirectoryRemover& remover() { return saver_.remover(); }

 private:
  std::string failure();
  std::string published();

  RankControl& control_;
  SaverOptions options_;
  CheckpointSaver saver_;
  UnderWay under_way_;
};

}  // namespace tessera

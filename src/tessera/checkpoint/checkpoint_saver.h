#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_part.h"
#include "tessera/checkpoint/directory_remover.h"
#include "tessera/checkpoint/part_copy.h"
#include "tessera/checkpoint/save_status.h"

namespace tessera {

struct SaverOptions {
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
  // Whether start() copies the data, with so many threads. Otherwise it stays as it is for as long
  // as status() is kWriting.
  bool copies = true;
  int threads = 1;
  std::int64_t max_file_bytes = SaveOptions().max_file_bytes;
  // The number of the first attempt to save a step.
  std::int64_t first_attempt = 0;
  // What make_launch_name() gave rank 0, on every rank; one alone may leave it out.
  std::string launch = {};
  // Is never made anew: where it is gone, a save fails. Empty: what is missing is made.
  std::filesystem::path home = {};
  // What the checkpoint is to have of all ranks, without data, which finish() looks at. Empty: what
  // the parts have.
  std::vector<CheckpointTensor> tensors = {};
  // By name, texts that rank 0 writes as files beside those that the manifest lists.
  std::map<std::string, std::string> beside = {};
  // A file that says how the state came about: made durable before the part of rank 0 is, since the
  // next start goes on from the parts alone. Empty: none.
  std::filesystem::path record = {};
  // As that of write_safetensors(), on the thread that writes.
  std::function<void(std::int64_t)> written = {};
};

// One rank's side of saving checkpoints. Every rank writes what it holds, all at the same time:
//   .tmp-step-00000400.<launch>.<attempt>/                    beside the final directory
//     model-00001-of-0000N.safetensors                        parameters, under their own names
//     optimizer-00001-of-0000N.safetensors                    the rest, under "<role>/<name>"
//     rank-00003-model-00001-of-0000N.safetensors, ...        the same of several ranks
//     part-00003-of-00008.json                                a manifest of what this rank wrote
// and once all have done so rank 0 merges the parts into manifest.json and renames the directory.
// Whatever happens before the rename, earlier checkpoints stay as they were. What another launch
// writes lies elsewhere, so that a rank that outlives its run harms nobody.
//
// The ranks share a file system. They agree on what happens next, at the same point of each
// one's program:
//   1. start() on every rank, with the same directory and meta.
//   2. At later points, such as the end of each step: they exchange their status(). While one of
//      them is kWriting, nothing is done.
//   3. Once none is: finish() on every rank where all are kWritten, else abandon() on every rank,
//      and those that failed report error().
// Before the next start(), and at the end of the run, they call wait() instead of status(), and
// then do 3. One rank alone does the same without an exchange.
//
// A rank on its way out, which can talk to nobody, still saves what it has: where status() is kIdle
// it calls write() for the last step that ended, where kWriting or kWritten that step's save goes
// on (wait() tells how it ended), and it calls neither finish() nor abandon() but ends. All ranks'
// attempts of a step have the same number as long as they called start() and write() for it equally
// often. finish_interrupted_saves() of the next start makes a checkpoint where all parts are there,
// and else says which are missing.
class CheckpointSaver {
 public:
  explicit CheckpointSaver(const SaverOptions& options = {});

  // Waits for the background. What is not finished stays as a temporary: where all ranks have
  // written their parts, finish_interrupted_saves() finishes it.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Takes the memory for copies of these, which need no data yet, where start() copies, so that the
  // first save need not wait for it.
  void reserve(std::span<const CheckpointTensor> tensors);

  // What it has taken so far, and keeps.
  std::int64_t memory_bytes() const { return copy_.memory_bytes(); }

  // From now on. No save is under way.
  void set_options(SaverOptions options) { options_ = std::move(options); }

  // Copies the bytes to memory of its own, which is kept for the next save, unless it need not, and
  // writes them in the background, or at once where the system gives no thread. Errors:
  // kInvalidArgument unless kIdle, for a repeated (name, role), or data that does not match the
  // shape.
  void start(const std::filesystem::path& directory,
             const CheckpointMeta& meta,
             std::span<const CheckpointTensor> tensors);

  // The same without the copy: data stay as they are for as long as status() is kWriting.
  void start_in_place(const std::filesystem::path& directory,
                      const CheckpointMeta& meta,
                      std::span<const CheckpointTensor> tensors);

  // The same in the foreground: kWritten or kFailed when it returns.
  void write(const std::filesystem::path& directory,
             const CheckpointMeta& meta,
             std::span<const CheckpointTensor> tensors);

  SaveStatus status() const { return status_.now(); }

  // The status once it is not kWriting.
  SaveStatus wait() const { return status_.wait(); }

  // Why the write failed. Errors: kInvalidArgument unless kFailed.
  Error error() const { return status_.error(); }

  // Of the save under way.
  const std::filesystem::path& directory() const { return directory_; }

  // The number of the attempt to save `directory` that is under way, else of the next one.
  std::int64_t attempt(const std::filesystem::path& directory) const;

  // After kWritten on all ranks: rank 0 publishes the checkpoint, the others only become kIdle.
  // Errors: kInvalidArgument unless kWritten; kDeviceError naming the path and the system's reason,
  // or a part that is missing; kInvalidData where the parts do not make up every tensor, once. The
  // temporary is then removed.
  void finish();

  // After kWritten or kFailed on all ranks: gives the save up. Rank 0 removes the temporary, or
  // leaves that to a thread of its own where it takes long.
  void abandon();

  // Removes on a thread of its own what a run has no use for.
  DirectoryRemover& remover() { return remover_; }

 private:
  void begin(const std::filesystem::path& directory,
             const CheckpointMeta& meta,
             std::span<const CheckpointTensor> tensors);
  void write_in_background();
  void write_part() noexcept;

  SaverOptions options_;
  std::filesystem::path directory_;
  std::int64_t attempt_ = 0;  // to save `directory_`
  std::filesystem::path temporary_;
  DirectoryRemover remover_;
  CheckpointPart part_;
  PartCopy copy_;
  std::thread background_;
  WatchedStatus status_;
};

}  // namespace tessera

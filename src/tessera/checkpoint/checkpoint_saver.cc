#include "tessera/checkpoint/checkpoint_saver.h"

#include <exception>
#include <iterator>
#include <system_error>

#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/base/status_line.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/save_directory.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Makes the record of a run durable; a failure is a warning.
void sync_record(const fs::path& record) {
  std::error_code error;
  if (!fs::exists(record, error)) {
    return;
  }
  try {
    sync_file(record);
  } catch (const Error& failure) {
    log_warning(failure.what());  // the state is worth more
  }
}

// Makes a rank's part durable in `temporary`: its files, and then the manifest that lists them.
void write_files(CheckpointPart& part, const fs::path& temporary, const SaverOptions& options) {
  std::error_code error;
  TESSERA_REQUIRE(options.home.empty() || fs::is_directory(options.home, error),
                  ErrorCode::kDeviceError,
                  "{} is no longer there",
                  options.home.string());
  create_durable_directories(temporary);
  for (const PartFile& file : part.files) {
    // "pt" is what readers of model files expect of row-major weights.
    part.manifest.files.push_back(
        {.name = file.name,
         .digest = write_safetensors(
             temporary / file.name, file.tensors, {{"format", "pt"}}, options.written)});
  }
  if (options.rank == 0) {
    for (const auto& [name, text] : options.beside) {
      write_file_atomic(temporary / name, text);
    }
    sync_record(options.record);
  }
  write_file_atomic(temporary / part_name(options.rank, options.num_ranks),
                    print_manifest(part.manifest));
}

}  // namespace

CheckpointSaver::CheckpointSaver(const SaverOptions& options) : options_(options) {}

CheckpointSaver::~CheckpointSaver() {
  if (background_.joinable()) {
    background_.join();
  }
}

void CheckpointSaver::begin(const fs::path& directory,
                            const CheckpointMeta& meta,
                            std::span<const CheckpointTensor> tensors) {
  TESSERA_REQUIRE(status() == SaveStatus::kIdle,
                  ErrorCode::kInvalidArgument,
                  "the save of {} is not finished",
                  directory_.string());
  part_ = plan_part(meta,
                    tensors,
                    {.rank = options_.rank,
                     .num_ranks = options_.num_ranks,
                     .max_file_bytes = options_.max_file_bytes});
  attempt_ = attempt(directory);
  directory_ = directory;
  TESSERA_REQUIRE(options_.num_ranks == 1 || !options_.launch.empty(),
                  ErrorCode::kInvalidArgument,
                  "several ranks save under the name of one launch");
  if (options_.launch.empty()) {
    options_.launch = make_launch_name();
  }
  temporary_ = save_directory(directory, options_.launch, attempt_);
}

std::int64_t CheckpointSaver::attempt(const fs::path& directory) const {
  if (directory != directory_) {
    return options_.first_attempt;
  }
  return status() == SaveStatus::kIdle ? attempt_ + 1 : attempt_;
}

void CheckpointSaver::start(const fs::path& directory,
                            const CheckpointMeta& meta,
                            std::span<const CheckpointTensor> tensors) {
  begin(directory, meta, tensors);
  if (options_.copies) {
    reserve(tensors);
    copy_.take(part_.files, options_.threads);
  }
  write_in_background();
}

void CheckpointSaver::start_in_place(const fs::path& directory,
                                     const CheckpointMeta& meta,
                                     std::span<const CheckpointTensor> tensors) {
  begin(directory, meta, tensors);
  write_in_background();
}

void CheckpointSaver::write(const fs::path& directory,
                            const CheckpointMeta& meta,
                            std::span<const CheckpointTensor> tensors) {
  begin(directory, meta, tensors);
  status_.become(SaveStatus::kWriting);
  write_part();
}

void CheckpointSaver::write_in_background() {
  status_.become(SaveStatus::kWriting);
  try {
    background_ = std::thread([this] { write_part(); });
  } catch (const std::system_error&) {
    write_part();
  }
}

void CheckpointSaver::reserve(std::span<const CheckpointTensor> tensors) {
  if (options_.copies) {
    copy_.reserve(part_copy_bytes(tensors, options_.max_file_bytes));
  }
}

void CheckpointSaver::write_part() noexcept {
  try {
    with_context([&] { return saving(directory_); },
                 [&] { write_files(part_, temporary_, options_); });
    status_.become(SaveStatus::kWritten);
  } catch (const Error& error) {
    status_.become(SaveStatus::kFailed, error);
  } catch (...) {
    status_.become(SaveStatus::kFailed, to_error(std::current_exception()));
  }
}

void CheckpointSaver::finish() {
  TESSERA_REQUIRE(status() == SaveStatus::kWritten,
                  ErrorCode::kInvalidArgument,
                  "no save is written that could be finished");
  try {
    if (options_.rank == 0) {
      publish(temporary_, directory_, options_.num_ranks, remover_, options_.tensors);
    }
  } catch (...) {
    const Error error = to_error(std::current_exception());
    abandon();
    throw Error(error);
  }
  abandon();
}

void CheckpointSaver::abandon() {
  wait();
  if (background_.joinable()) {
    background_.join();
  }
  std::error_code error;
  if (options_.rank == 0 && fs::exists(temporary_, error)) {
    remover_.remove(temporary_);
  }
  status_.become(SaveStatus::kIdle);
}

void save_checkpoint(const fs::path& directory,
                     const CheckpointMeta& meta,
                     std::span<const CheckpointTensor> tensors,
                     const SaveOptions& options) {
  remove_left_saves(directory);
  std::int64_t bytes = 0;
  for (const CheckpointTensor& tensor : tensors) {
    bytes += tensor.source ? 0 : std::ssize(tensor.data);
  }
  WorkLine line("writing", bytes);
  CheckpointSaver saver({.max_file_bytes = options.max_file_bytes,
                         .written = [&](std::int64_t more) { line.add(more); }});
  saver.write(directory, meta, tensors);
  if (saver.status() == SaveStatus::kFailed) {
    const Error error = saver.error();
    saver.abandon();
    throw Error(error);
  }
  saver.finish();
}

}  // namespace tessera

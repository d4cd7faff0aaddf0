#include "tessera/checkpoint/checkpoint_saver.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/status_line.h"
#include "tessera/base/stream_copy.h"
#include "tessera/base/threads.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/save_directory.h"
#include "tessera/checkpoint/tensor_size.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Tensors of the model have its own names, so that other tools read their files as weights.
std::string key_of(const CheckpointTensor& tensor) {
  return is_of_model(tensor.role) ? tensor.name
                                  : format("{}/{}", to_string(tensor.role), tensor.name);
}

void require_unique(std::span<const CheckpointTensor> tensors) {
  std::set<std::pair<std::string_view, TensorRole>> seen;
  for (const CheckpointTensor& tensor : tensors) {
    TESSERA_REQUIRE(seen.emplace(tensor.name, tensor.role).second,
                    ErrorCode::kInvalidArgument,
                    "{} '{}' is in the checkpoint twice",
                    to_string(tensor.role),
                    tensor.name);
  }
}

TensorSlice slice_of(const CheckpointTensor& tensor) {
  return tensor.slice ? *tensor.slice : whole_slice(tensor.shape);
}

// The tensors of one kind of file, in runs of at most max_bytes.
std::vector<std::vector<const CheckpointTensor*>> split(std::span<const CheckpointTensor> tensors,
                                                        bool of_model,
                                                        std::int64_t max_bytes) {
  std::vector<std::vector<const CheckpointTensor*>> files;
  std::int64_t filled = 0;
  for (const CheckpointTensor& tensor : tensors) {
    if (is_of_model(tensor.role) != of_model) {
      continue;
    }
    const auto size = static_cast<std::int64_t>(saved_bytes(tensor));
    if (files.empty() || filled > max_bytes - size) {
      files.emplace_back();
      filled = 0;
    }
    files.back().push_back(&tensor);
    filled += size;
  }
  return files;
}

std::size_t align(std::size_t bytes) {
  return (bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
}

// What one thread copies at a time.
constexpr std::size_t kCopyBytes = std::size_t{4} << 20U;

struct Copy {
  std::span<const std::byte> from;
  std::byte* to;
};

void run(std::span<const Copy> copies, int threads) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < copies.size(); i = next++) {
      stream_copy(copies[i].to, copies[i].from);
    }
  };
  std::vector<std::jthread> others;
  const auto helpers = std::min(static_cast<std::size_t>(threads), copies.size());
  for (std::size_t i = 1; i < helpers && start_thread(others, work); ++i) {
  }
  work();
}

}  // namespace

std::size_t saved_bytes(const CheckpointTensor& tensor) {
  const std::array<std::int64_t, 1> count = {slice_of(tensor).count};
  const std::optional<std::int64_t> bytes = tensor_size_bytes(tensor.dtype, count);
  TESSERA_REQUIRE(bytes.has_value(),
                  ErrorCode::kInvalidArgument,
                  "{} '{}' has a size that no memory has",
                  to_string(tensor.role),
                  tensor.name);
  return static_cast<std::size_t>(*bytes);
}

CheckpointSaver::CheckpointSaver(const SaverOptions& options) : options_(options) {}

CheckpointSaver::~CheckpointSaver() {
  if (background_.joinable()) {
    background_.join();
  }
}

std::vector<CheckpointSaver::File> CheckpointSaver::plan(std::span<const CheckpointTensor> tensors,
                                                         Manifest& part) const {
  require_unique(tensors);
  const std::string rank =
      options_.num_ranks == 1 ? std::string() : format("rank-{:05}-", options_.rank);
  std::vector<File> files;
  for (const bool of_model : {true, false}) {
    const auto runs = split(tensors, of_model, options_.max_file_bytes);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      File file{.name = format("{}{}-{:05}-of-{:05}.safetensors",
                               rank,
                               of_model ? "model" : "optimizer",
                               i + 1,
                               runs.size()),
                .tensors = {}};
      for (const CheckpointTensor* tensor : runs[i]) {
        const TensorSlice slice = slice_of(*tensor);
        file.tensors.push_back({.name = key_of(*tensor),
                                .dtype = tensor->dtype,
                                .shape = is_box(slice) ? slice.extent : std::vector{slice.count},
                                .data = tensor->data,
                                .source = tensor->source});
        part.tensors.push_back(
            {.name = tensor->name,
             .role = tensor->role,
             .dtype = tensor->dtype,
             .shape = tensor->shape,
             .slices = {{.file = file.name, .key = key_of(*tensor), .part = slice}}});
      }
      verify(file.tensors);
      file.tensors = in_file_order(file.tensors);
      files.push_back(std::move(file));
    }
  }
  return files;
}

void CheckpointSaver::begin(const fs::path& directory,
                            const CheckpointMeta& meta,
                            std::span<const CheckpointTensor> tensors) {
  TESSERA_REQUIRE(status() == SaveStatus::kIdle,
                  ErrorCode::kInvalidArgument,
                  "the save of {} is not finished",
                  directory_.string());
  Manifest part{.meta = meta, .files = {}, .tensors = {}};
  files_ = plan(tensors, part);
  part_ = std::move(part);
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
    copy();
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
  become(SaveStatus::kWriting);
  write_part();
}

void CheckpointSaver::write_in_background() {
  become(SaveStatus::kWriting);
  try {
    background_ = std::thread([this] { write_part(); });
  } catch (const std::system_error&) {
    write_part();
  }
}

// Each file's data begin at a multiple of the alignment, as they do in the file.
std::size_t CheckpointSaver::copy_bytes(std::span<const CheckpointTensor> tensors) const {
  std::size_t bytes = 0;
  for (const bool of_model : {true, false}) {
    for (const auto& file : split(tensors, of_model, options_.max_file_bytes)) {
      bytes = align(bytes);
      for (const CheckpointTensor* tensor : file) {
        bytes += saved_bytes(*tensor);
      }
    }
  }
  return PageBuffer::rounded(bytes);
}

void CheckpointSaver::reserve(std::span<const CheckpointTensor> tensors) {
  if (!options_.copies) {
    return;
  }
  const std::size_t bytes = copy_bytes(tensors);
  if (copy_.bytes().size() < bytes) {
    copy_ = PageBuffer();  // gone before the larger one comes
    copy_ = PageBuffer(bytes);
    copy_.populate();
  }
}

void CheckpointSaver::copy() {
  std::vector<Copy> copies;
  std::size_t at = 0;
  for (File& file : files_) {
    at = align(at);
    for (SafetensorsTensor& tensor : file.tensors) {
      const std::span<std::byte> to = copy_.bytes().subspan(at, tensor.data.size());
      at += to.size();
      for (std::size_t done = 0; done < to.size(); done += kCopyBytes) {
        const std::size_t count = std::min(kCopyBytes, to.size() - done);
        copies.push_back({.from = tensor.data.subspan(done, count), .to = to.data() + done});
      }
      tensor.data = to;
      tensor.source.reset();
    }
  }
  run(copies, options_.threads);
}

void CheckpointSaver::write_part() noexcept {
  try {
    with_context(
        [&] { return saving(directory_); },
        [&] {
          std::error_code error;
          TESSERA_REQUIRE(options_.home.empty() || fs::is_directory(options_.home, error),
                          ErrorCode::kDeviceError,
                          "{} is no longer there",
                          options_.home.string());
          create_durable_directories(temporary_);
          for (const File& file : files_) {
            // "pt" is what readers of model files expect of row-major weights.
            part_.files.push_back(
                {.name = file.name,
                 .digest = write_safetensors(
                     temporary_ / file.name, file.tensors, {{"format", "pt"}}, options_.written)});
          }
          if (options_.rank == 0) {
            for (const auto& [name, text] : options_.beside) {
              write_file_atomic(temporary_ / name, text);
            }
            sync_record();
          }
          write_file_atomic(temporary_ / part_name(options_.rank, options_.num_ranks),
                            print_manifest(part_));
        });
    become(SaveStatus::kWritten);
  } catch (const Error& error) {
    become(SaveStatus::kFailed, error);
  } catch (...) {
    become(SaveStatus::kFailed, to_error(std::current_exception()));
  }
}

void CheckpointSaver::sync_record() const {
  std::error_code error;
  if (!fs::exists(options_.record, error)) {
    return;
  }
  try {
    sync_file(options_.record);
  } catch (const Error& failure) {
    log_warning(failure.what());  // the state is worth more
  }
}

void CheckpointSaver::become(SaveStatus status, std::optional<Error> error) {
  const std::lock_guard lock(mutex_);
  status_ = status;
  error_ = std::move(error);
  changed_.notify_all();
}

SaveStatus CheckpointSaver::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

SaveStatus CheckpointSaver::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return status_ != SaveStatus::kWriting; });
  return status_;
}

Error CheckpointSaver::error() const {
  const std::lock_guard lock(mutex_);
  TESSERA_REQUIRE(error_, ErrorCode::kInvalidArgument, "no save has failed");
  return *error_;
}

void CheckpointSaver::finish() {
  TESSERA_REQUIRE(status() == SaveStatus::kWritten,
                  ErrorCode::kInvalidArgument,
                  "no save is written that could be finished");
  try {
    if (options_.rank == 0) {
      publish(temporary_, directory_, options_.num_ranks, remover_);
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
  become(SaveStatus::kIdle);
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

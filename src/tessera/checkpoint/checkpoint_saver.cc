#include "tessera/checkpoint/checkpoint_saver.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/stream_copy.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/tensor_size.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Parameters have the model's own names, so that other tools read their files as weights.
std::string key_of(const CheckpointTensor& tensor) {
  return tensor.role == TensorRole::kParameter
             ? tensor.name
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
                                                        bool parameters,
                                                        std::int64_t max_bytes) {
  std::vector<std::vector<const CheckpointTensor*>> files;
  std::int64_t filled = 0;
  for (const CheckpointTensor& tensor : tensors) {
    if ((tensor.role == TensorRole::kParameter) != parameters) {
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

// Creates `directory` and what is missing above it, each made durable in its parent.
void create_durable_directory(const fs::path& directory) {
  std::error_code error;
  if (directory.empty() || fs::is_directory(directory, error)) {
    return;
  }
  create_durable_directory(directory.parent_path());
  fs::create_directory(directory, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot create directory {}: {}",
                  directory.string(),
                  error.message());
  sync_directory(directory.has_parent_path() ? directory.parent_path() : fs::path("."));
}

void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// Gives `from` the name `to`. A directory that has the name goes, under a temporary name, to
// `displaced` or is left under `from`.
void rename_over(const fs::path& from, const fs::path& to, const fs::path& displaced) {
  if (::rename(from.c_str(), to.c_str()) == 0) {
    return;
  }
  if (errno == ENOTEMPTY || errno == EEXIST) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      return;
    }
    // Not every file system can exchange names in one go (NFS cannot).
    if (::rename(to.c_str(), displaced.c_str()) == 0 && ::rename(from.c_str(), to.c_str()) == 0) {
      return;
    }
  }
  fail(ErrorCode::kDeviceError,
       "cannot rename {} to {}: {}",
       from.string(),
       to.string(),
       std::strerror(errno));
}

std::string part_name(std::int64_t rank, std::int64_t num_ranks) {
  return format("part-{:05}-of-{:05}.json", rank, num_ranks);
}

Manifest read_part(const fs::path& directory, std::int64_t rank, std::int64_t num_ranks) {
  const fs::path path = directory / part_name(rank, num_ranks);
  std::error_code error;
  TESSERA_REQUIRE(fs::exists(path, error),
                  ErrorCode::kDeviceError,
                  "{} is missing, which rank {} has written: all ranks must see one file system",
                  path.string(),
                  rank);
  return parse_manifest(read_file(path), path, ManifestScope::kPart);
}

// Parts, and what an interrupted save of the same step left behind.
void remove_unlisted(const fs::path& directory, const Manifest& manifest) {
  std::set<std::string, std::less<>> listed = {"manifest.json"};
  for (const ManifestFile& file : manifest.files) {
    listed.insert(file.name);
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (!listed.contains(entry.path().filename().string())) {
      fs::remove_all(entry.path());
    }
  }
}

// What happens to `directory` meanwhile.
std::string saving(const fs::path& directory) {
  return format("while saving checkpoint {}; earlier checkpoints are intact", directory.string());
}

// Makes the checkpoint `directory` of what all ranks have written to `temporary`.
void publish(const fs::path& temporary, const fs::path& directory, std::int64_t num_ranks) {
  with_context(
      [&] { return saving(directory); },
      [&] {
        std::vector<Manifest> parts;
        for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
          parts.push_back(read_part(temporary, rank, num_ranks));
        }
        const Manifest manifest = merge(parts);
        verify(manifest);
        write_file_atomic(temporary / "manifest.json", print_manifest(manifest));
        remove_unlisted(temporary, manifest);
        const fs::path displaced = temporary.string() + "-old";
        remove_quietly(displaced);
        sync_directory(temporary);
        rename_over(temporary, directory, displaced);
        sync_directory(directory.has_parent_path() ? directory.parent_path() : fs::path("."));
        remove_quietly(displaced);
      });
}

// The number behind `words` in a name; 0 where there is none.
std::int64_t number_behind(std::string_view name, std::string_view words) {
  const std::size_t place = name.find(words);
  std::int64_t number = 0;
  if (place != std::string_view::npos) {
    std::from_chars(name.data() + place + words.size(), name.data() + name.size(), number);
  }
  return number;
}

// The number of ranks all of which have written their parts to `temporary`; 0 where some has not.
std::int64_t num_complete_parts(const fs::path& temporary) {
  std::map<std::int64_t, std::int64_t> found;  // parts, by the number that there should be
  std::error_code error;
  for (fs::directory_iterator it(temporary, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::int64_t rank = number_behind(name, "part-");
    const std::int64_t num_ranks = number_behind(name, "-of-");
    if (rank < num_ranks && name == part_name(rank, num_ranks)) {
      ++found[num_ranks];
    }
  }
  for (const auto& [num_ranks, parts] : found) {
    if (parts == num_ranks) {
      return num_ranks;
    }
  }
  return 0;
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
  for (std::size_t i = 1; i < helpers; ++i) {
    others.emplace_back(work);
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
  for (const bool parameters : {true, false}) {
    const auto runs = split(tensors, parameters, options_.max_file_bytes);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      File file{.name = format("{}{}-{:05}-of-{:05}.safetensors",
                               rank,
                               parameters ? "model" : "optimizer",
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
  directory_ = directory;
  temporary_ =
      directory.parent_path() / format("{}{}", kTemporaryPrefix, directory.filename().string());
}

void CheckpointSaver::start(const fs::path& directory,
                            const CheckpointMeta& meta,
                            std::span<const CheckpointTensor> tensors) {
  begin(directory, meta, tensors);
  if (options_.copies) {
    reserve(tensors);
    copy();
  }
  become(SaveStatus::kWriting);
  background_ = std::thread([this] { write_part(); });
}

void CheckpointSaver::write(const fs::path& directory,
                            const CheckpointMeta& meta,
                            std::span<const CheckpointTensor> tensors) {
  begin(directory, meta, tensors);
  become(SaveStatus::kWriting);
  write_part();
}

// Each file's data begin at a multiple of the alignment, as they do in the file.
std::size_t CheckpointSaver::copy_bytes(std::span<const CheckpointTensor> tensors) const {
  std::size_t bytes = 0;
  for (const bool parameters : {true, false}) {
    for (const auto& file : split(tensors, parameters, options_.max_file_bytes)) {
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
          create_durable_directory(temporary_);
          for (const File& file : files_) {
            // "pt" is what readers of model files expect of row-major weights.
            part_.files.push_back({.name = file.name,
                                   .digest = write_safetensors(
                                       temporary_ / file.name, file.tensors, {{"format", "pt"}})});
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
      publish(temporary_, directory_, options_.num_ranks);
    }
  } catch (...) {
    abandon();
    throw;
  }
  abandon();
}

void CheckpointSaver::abandon() {
  wait();
  if (background_.joinable()) {
    background_.join();
  }
  if (options_.rank == 0 && !temporary_.empty()) {
    // After a save over an older checkpoint of the same name this is the older one.
    remove_quietly(temporary_);
  }
  become(SaveStatus::kIdle);
}

std::vector<fs::path> finish_interrupted_saves(const fs::path& parent) {
  std::vector<fs::path> finished;
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(parent, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    found.push_back(it->path());
  }
  for (const fs::path& temporary : found) {
    const std::string name = temporary.filename().string();
    const std::int64_t num_ranks =
        name.starts_with(kTemporaryPrefix) ? num_complete_parts(temporary) : 0;
    if (num_ranks == 0) {
      continue;
    }
    const fs::path directory = parent / name.substr(kTemporaryPrefix.size());
    try {
      publish(temporary, directory, num_ranks);
      finished.push_back(directory);
    } catch (const Error& problem) {
      log_warning(problem.what());
    }
  }
  return finished;
}

void save_checkpoint(const fs::path& directory,
                     const CheckpointMeta& meta,
                     std::span<const CheckpointTensor> tensors,
                     const SaveOptions& options) {
  CheckpointSaver saver({.max_file_bytes = options.max_file_bytes});
  saver.write(directory, meta, tensors);
  if (saver.status() == SaveStatus::kFailed) {
    const Error error = saver.error();
    saver.abandon();
    throw Error(error);
  }
  saver.finish();
}

}  // namespace tessera

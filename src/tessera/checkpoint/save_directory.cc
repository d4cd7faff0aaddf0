#include "tessera/checkpoint/save_directory.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/machine.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/require_model.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Of a host's name what may stand in a file's; "." separates the words of a save's name.
std::string file_name_of_host() {
  constexpr std::size_t kMostCharacters = 32;
  std::string name = host_name().substr(0, kMostCharacters);
  for (char& c : name) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    c = plain ? c : '_';
  }
  return name;
}

// The words of a save's name; none where it is another one.
struct SaveName {
  std::string checkpoint;
  std::string launch;
};

std::optional<SaveName> parse_save_name(const fs::path& path) {
  std::string name = path.filename().string();
  const std::size_t attempt = name.rfind('.');
  const std::size_t launch = attempt == std::string::npos || attempt == 0
                                 ? std::string::npos
                                 : name.rfind('.', attempt - 1);
  if (!name.starts_with(kTemporaryPrefix) || launch == std::string::npos ||
      launch <= kTemporaryPrefix.size()) {
    return std::nullopt;
  }
  return SaveName{
      .checkpoint = name.substr(kTemporaryPrefix.size(), launch - kTemporaryPrefix.size()),
      .launch = name.substr(launch + 1, attempt - launch - 1)};
}

// "<host>-<process>-<random>" of this host and a process that is no more.
bool is_of_ended_process(std::string_view launch) {
  const std::string host = file_name_of_host() + "-";
  if (!launch.starts_with(host)) {
    return false;
  }
  launch.remove_prefix(host.size());
  pid_t process = 0;
  const auto [end, error] = std::from_chars(launch.data(), launch.data() + launch.size(), process);
  return error == std::errc() && end != launch.data() + launch.size() && *end == '-' &&
         process > 0 && ::kill(process, 0) != 0 && errno == ESRCH;
}

// Gives `from` the name `to`. A directory that has the name goes to `displaced` or is left under
// `from`.
void rename_over(const fs::path& from, const fs::path& to, const fs::path& displaced) {
  if (::rename(from.c_str(), to.c_str()) == 0) {
    return;
  }
  if (errno == ENOTEMPTY || errno == EEXIST) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      return;
    }
    // Not every file system can exchange names in one go (NFS cannot). What a kill between these
    // two leaves under `from` is complete: the next start gives it its name.
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

Manifest read_part(const fs::path& save, std::int64_t rank, std::int64_t num_ranks) {
  const fs::path path = save / part_name(rank, num_ranks);
  std::error_code error;
  TESSERA_REQUIRE(fs::exists(path, error),
                  ErrorCode::kDeviceError,
                  "{} is missing, which rank {} has written: all ranks must see one file system",
                  path.string(),
                  rank);
  return parse_manifest(read_file(path), path, ManifestScope::kPart);
}

// What was written may be gone: another program's removal, a disk of another node. Errors: `code`.
void require_files(const fs::path& save, const Manifest& manifest, ErrorCode code) {
  for (const ManifestFile& file : manifest.files) {
    const fs::path path = save / file.name;
    struct stat found{};
    const bool is_there = ::lstat(path.c_str(), &found) == 0;
    TESSERA_REQUIRE(is_there && S_ISREG(found.st_mode) && found.st_size == file.digest.size_bytes,
                    code,
                    "{} was written with {} bytes, and now {}: it was changed from outside, or the "
                    "ranks do not see one file system",
                    path.string(),
                    file.digest.size_bytes,
                    !is_there ? std::string("cannot be found: ") + std::strerror(errno)
                    : S_ISREG(found.st_mode) ? format("has {}", found.st_size)
                                             : std::string("is no file"));
  }
}

void require_step(const Manifest& manifest, const fs::path& directory) {
  const std::optional<std::int64_t> step = checkpoint_step(directory);
  TESSERA_REQUIRE(!step || *step == manifest.meta.step,
                  ErrorCode::kInvalidData,
                  "its parts are of step {}",
                  manifest.meta.step);
}

struct Part {
  std::int64_t rank = 0;
  std::int64_t num_ranks = 0;
};

constexpr const char* kPartFormat = "part-%" SCNd64 "-of-%" SCNd64 ".json";
constexpr const char* kNoPartFormat = "no-part-%" SCNd64 "-of-%" SCNd64 ".txt";

std::string no_part_name(std::int64_t rank, std::int64_t num_ranks) {
  return format("no-part-{:05}-of-{:05}.txt", rank, num_ranks);
}

// The rank of a name of this form, which `print` makes.
std::optional<Part> parse_name(const std::string& name,
                               const char* form,
                               std::string (*print)(std::int64_t, std::int64_t)) {
  std::int64_t rank = -1;
  std::int64_t num_ranks = 0;
  // NOLINTNEXTLINE(cert-err34-c): what was read must print the name again
  const int words = std::sscanf(name.c_str(), form, &rank, &num_ranks);
  const bool is_part =
      words == 2 && rank >= 0 && rank < num_ranks && name == print(rank, num_ranks);
  return is_part ? std::optional(Part{.rank = rank, .num_ranks = num_ranks}) : std::nullopt;
}

// Calls body(entry) for those of a directory, as far as it can be read.
template <class Body>
void for_each_entry(const fs::path& directory, const Body& body) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    body(*it);
  }
}

// The ranks whose parts are there, by the number that there should be.
std::map<std::int64_t, std::set<std::int64_t>> find_parts(const fs::path& save) {
  std::map<std::int64_t, std::set<std::int64_t>> found;
  for_each_entry(save, [&](const fs::directory_entry& entry) {
    if (const auto part = parse_name(entry.path().filename().string(), kPartFormat, part_name)) {
      found[part->num_ranks].insert(part->rank);
    }
  });
  return found;
}

// " (its update of step 82 had begun)" where the rank has said why it has no part.
std::string why_without(const fs::path& save, std::int64_t rank, std::int64_t num_ranks) {
  try {
    return format(" ({})", read_file(save / no_part_name(rank, num_ranks)));
  } catch (const Error&) {
    return "";
  }
}

// Nothing lists them, and they change nothing where one stays.
void remove_parts(const fs::path& checkpoint) {
  for (const auto& [num_ranks, ranks] : find_parts(checkpoint)) {
    for (const std::int64_t rank : ranks) {
      std::error_code ignored;
      fs::remove(checkpoint / part_name(rank, num_ranks), ignored);
    }
  }
}

// The way of a complete directory to its name.
void give_name(const fs::path& save, const fs::path& directory, DirectoryRemover& remover) {
  const fs::path displaced =
      directory.parent_path() / format("{}removed-{}",
                                       kTemporaryPrefix,
                                       save.filename().string().substr(kTemporaryPrefix.size()));
  sync_directory(save);
  rename_over(save, directory, displaced);
  try {
    sync_directory(directory_of(directory));
  } catch (const Error& problem) {
    // It has its name: only a power cut could take that back.
    log_warning(problem.what());
  }
  // Not before, so that a kill in between leaves parts or a manifest.
  remove_parts(directory);
  std::error_code ignored;
  for (const fs::path& older : {displaced, save}) {
    if (fs::exists(older, ignored)) {
      remover.remove(older);
    }
  }
}

// A kill came between the manifest and the name.
bool has_whole_manifest(const fs::path& save, const fs::path& directory) {
  std::error_code error;
  if (!fs::exists(save / "manifest.json", error)) {
    return false;
  }
  try {
    const fs::path path = save / "manifest.json";
    const Manifest manifest = parse_manifest(read_file(path), path);
    require_files(save, manifest, ErrorCode::kInvalidData);
    require_step(manifest, directory);
    return true;
  } catch (const Error& problem) {
    if (problem.code() == ErrorCode::kDeviceError) {
      throw;
    }
    log_warning(problem.what());
    return false;
  }
}

// The checkpoint that the parts make up. A file that is not as they say is an error of `changed`.
void publish_parts(const fs::path& save,
                   const fs::path& directory,
                   std::int64_t num_ranks,
                   DirectoryRemover& remover,
                   std::span<const CheckpointTensor> expected,
                   ErrorCode changed) {
  with_context([&] { return saving(directory); },
               [&] {
                 std::vector<Manifest> parts;
                 for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
                   parts.push_back(read_part(save, rank, num_ranks));
                 }
                 const Manifest manifest = merge(parts);
                 verify(manifest);
                 if (!expected.empty()) {
                   require_tensors(manifest, expected);
                 }
                 require_step(manifest, directory);
                 require_files(save, manifest, changed);
                 write_file_atomic(save / "manifest.json", print_manifest(manifest));
                 give_name(save, directory, remover);
               });
}

// Says which parts are missing where there are some.
bool finish_interrupted_save(const fs::path& save,
                             const fs::path& directory,
                             DirectoryRemover& remover) {
  if (has_whole_manifest(save, directory)) {
    give_name(save, directory, remover);
    return true;
  }
  for (const auto& [num_ranks, ranks] : find_parts(save)) {
    if (std::ssize(ranks) == num_ranks) {
      publish_parts(save, directory, num_ranks, remover, {}, ErrorCode::kInvalidData);
      return true;
    }
    std::string missing;
    for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
      if (!ranks.contains(rank)) {
        missing +=
            format("{}{}{}", missing.empty() ? "" : ", ", rank, why_without(save, rank, num_ranks));
      }
    }
    log_warning(
        format("there is no checkpoint {}: of the {} ranks that were to write it when the run was "
               "interrupted, the parts of these are missing: {}",
               directory.string(),
               num_ranks,
               missing));
  }
  return false;
}

}  // namespace

std::string make_launch_name() {
  std::random_device device;
  return format("{}-{}-{:08x}", file_name_of_host(), static_cast<int>(::getpid()), device());
}

fs::path save_directory(const fs::path& directory, std::string_view launch, std::int64_t attempt) {
  return directory.parent_path() /
         format("{}{}.{}.{}", kTemporaryPrefix, directory.filename().string(), launch, attempt);
}

fs::path saved_checkpoint(const fs::path& save) {
  const std::optional<SaveName> name = parse_save_name(save);
  return name ? save.parent_path() / name->checkpoint : fs::path();
}

std::string part_name(std::int64_t rank, std::int64_t num_ranks) {
  return format("part-{:05}-of-{:05}.json", rank, num_ranks);
}

void note_no_part(const fs::path& save,
                  std::int64_t rank,
                  std::int64_t num_ranks,
                  const std::string& reason) {
  create_durable_directories(save);
  write_file_atomic(save / no_part_name(rank, num_ranks), reason);
}

SaveProgress look_at_save(const fs::path& save, std::int64_t num_ranks) {
  SaveProgress progress;
  for_each_entry(save, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    if (const auto part = parse_name(name, kPartFormat, part_name)) {
      if (part->num_ranks == num_ranks) {
        progress.written.insert(part->rank);
      }
    } else if (const auto none = parse_name(name, kNoPartFormat, no_part_name)) {
      progress.without.insert(none->rank);
    }
    std::error_code error;
    const std::uintmax_t size = entry.file_size(error);
    progress.bytes += error ? 0 : size;
  });
  return progress;
}

std::string saving(const fs::path& directory) {
  // Somebody may have removed them.
  std::error_code error;
  bool has_earlier = false;
  for (fs::directory_iterator it(directory.parent_path(), error);
       !error && it != fs::directory_iterator();
       it.increment(error)) {
    std::error_code absent;
    has_earlier = has_earlier || (checkpoint_step(it->path()) && it->path() != directory &&
                                  fs::exists(it->path() / "manifest.json", absent));
  }
  return format("while saving checkpoint {}{}",
                directory.string(),
                has_earlier ? "; earlier checkpoints are intact" : "");
}

void publish(const fs::path& save,
             const fs::path& directory,
             std::int64_t num_ranks,
             DirectoryRemover& remover,
             std::span<const CheckpointTensor> expected) {
  publish_parts(save, directory, num_ranks, remover, expected, ErrorCode::kDeviceError);
}

std::vector<fs::path> finish_interrupted_saves(const fs::path& parent) {
  std::vector<fs::path> finished;
  std::vector<fs::path> saves;
  std::error_code error;
  for (fs::directory_iterator it(parent, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    saves.push_back(it->path());
  }
  DirectoryRemover remover;
  std::ranges::sort(saves);
  for (const fs::path& save : saves) {
    const fs::path directory = saved_checkpoint(save);
    // What has the name is as good, or was put there since.
    if (!checkpoint_step(directory) || fs::exists(directory, error)) {
      continue;
    }
    try {
      if (finish_interrupted_save(save, directory, remover)) {
        finished.push_back(directory);
      }
    } catch (const Error& problem) {
      // What the disk does not take now it may take later: nothing of it is to be removed.
      if (problem.code() == ErrorCode::kDeviceError) {
        throw Error(Error(problem).add_context(
            format("{} was written when the run was interrupted, and stays: see to the disk, and "
                   "start again",
                   save.string())));
      }
      log_warning(problem.what());
    }
  }
  return finished;
}

void remove_left_saves(const fs::path& directory) {
  std::error_code error;
  const fs::path parent = directory_of(directory);
  for (fs::directory_iterator it(parent, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::optional<SaveName> name = parse_save_name(it->path());
    if (name && name->checkpoint == directory.filename() && is_of_ended_process(name->launch)) {
      std::error_code ignored;
      fs::remove_all(it->path(), ignored);
    }
  }
}

}  // namespace tessera

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace tessera {

// A mapped file that the system can no longer read, because it was cut or its disk failed, kills
// whoever touches it (SIGBUS). From the first call on the process ends with exit code 3 instead,
// after a line that names the file, unless the file is watched (note_mapping()).
void guard_mapped_files();

// Where that also leaves a record, as write_exit_record() does, for the process's `rank`. An empty
// path: nowhere.
void set_mapped_file_record(const std::filesystem::path& path, std::int64_t rank);

// That `path` is mapped at `data`, until it is no more. Whoever reads one that is `watched` asks
// afterwards whether that went well: in place of what the system can no longer read there are
// zeros, and the process goes on.
void note_mapping(const std::byte* data,
                  std::size_t size,
                  const std::filesystem::path& path,
                  bool watched = false);

// That the system could read all of the mapping at `data` that was touched. Errors: kInvalidData.
void require_readable(const std::byte* data);

void forget_mapping(const std::byte* data);

}  // namespace tessera

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace tessera {

// A mapped file that the system can no longer read, because it was cut or its disk failed, kills
// whoever touches it (SIGBUS). From the first call on the process ends with exit code 3 instead,
// after a line that names the file.
void guard_mapped_files();

// Where that also leaves a record, as write_exit_record() does, for the process's `rank`. An empty
// path: nowhere.
void set_mapped_file_record(const std::filesystem::path& path, std::int64_t rank);

// That `path` is mapped at `data`, until it is no more.
void note_mapping(const std::byte* data, std::size_t size, const std::filesystem::path& path);
void forget_mapping(const std::byte* data);

}  // namespace tessera

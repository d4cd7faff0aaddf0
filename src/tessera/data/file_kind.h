#pragma once

#include <string_view>

namespace tessera {

// What a file is that holds neither plain text nor bare ids, told by its first bytes.
struct FileKind {
  std::string_view name;        // "a Parquet file"; empty: none that is known
  std::string_view advice;      // what to do about it
  bool is_of_any_file = false;  // the advice is not of data alone
};

// As much of a file's front as tells its kind.
inline constexpr std::size_t kFileKindBytes = 512;

// The kind of a file that begins with `front`, where that leaves no doubt.
FileKind known_kind(std::string_view front);

}  // namespace tessera

#pragma once

#include <filesystem>
#include <optional>

namespace tessera {

// Where `file`, which is in `directory`, leads if links take it out of the repository that the
// directory is: its own tree, and for a snapshot in a cache of Hugging Face's hub (REPOSITORY/
// snapshots/REVISION) REPOSITORY/blobs, where all of its files are. Who made the links may not be
// who may read what they lead to. Nothing where the file stays in there, and where there is none at
// the links' end.
std::optional<std::filesystem::path> leads_out(const std::filesystem::path& directory,
                                               const std::filesystem::path& file);

}  // namespace tessera

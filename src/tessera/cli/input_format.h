#pragma once

#include <filesystem>
#include <string_view>

namespace tessera {

// What a data file is by its name, .gz and .zst aside: "jsonl", "megatron" or "text". What is no
// file but has a .idx is a pair's prefix.
std::string_view format_by_name(std::filesystem::path path);

}  // namespace tessera

#include "tessera/cli/input_format.h"

#include <system_error>

#include "tessera/data/byte_stream.h"

namespace tessera {

std::string_view format_by_name(std::filesystem::path path) {
  if (compression_of(path) != Compression::kNone) {
    path.replace_extension();
  }
  const std::filesystem::path extension = path.extension();
  if (extension == ".jsonl" || extension == ".ndjson") {
    return "jsonl";
  }
  std::error_code error;
  const bool is_prefix = !std::filesystem::exists(path, error) &&
                         std::filesystem::exists(path.string() + ".idx", error);
  return extension == ".bin" || extension == ".idx" || is_prefix ? "megatron" : "text";
}

}  // namespace tessera

// Any bytes as a safetensors file: it is read whole or refused with an error that names the file
// and an offset.

#include "tessera/checkpoint/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include "fuzz/check.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace {

// A file that is only in memory.
const tessera::FileDescriptor& memory_file() {
  static const tessera::FileDescriptor kFile(::memfd_create("input", MFD_CLOEXEC));
  return kFile;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tessera::require;
  const tessera::FileDescriptor& file = memory_file();
  require(::ftruncate(file.get(), 0) == 0);
  require(::pwrite(file.get(), data, size, 0) == static_cast<ssize_t>(size));
  try {
    const tessera::SafetensorsFile tensors(tessera::MappedFile(file, "input"), "input");
    std::size_t bytes = 0;
    for (const tessera::SafetensorsTensor& tensor : tensors.tensors()) {
      require(tensors.find(tensor.name) == &tensor);
      require(tensor.data.empty() || (tensor.data.data() >= tensors.bytes().data() &&
                                      tensor.data.data() + tensor.data.size() <=
                                          tensors.bytes().data() + tensors.bytes().size()));
      bytes += tensor.data.size();
    }
    require(bytes <= size);
  } catch (const tessera::Error& error) {
    require(error.code() == tessera::ErrorCode::kInvalidData);
    const std::string_view what = error.what();
    require(what.starts_with("input: "));
    require(tessera::has_number_behind(what, "offset ") ||
            tessera::has_number_behind(what, "not JSON at byte ") ||
            tessera::has_number_behind(what, "header: byte ") || tessera::names_encoding(what));
  }
  return 0;
}

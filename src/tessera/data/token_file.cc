#include "tessera/data/token_file.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::size_t kWriteBytes = std::size_t{1} << 20U;

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& directory) : path_(directory / "tokens-XXXXXX") {
  std::string name = path_.string();
  file_ = FileDescriptor(::mkostemp(name.data(), O_CLOEXEC));
  TESSERA_REQUIRE(file_.get() >= 0,
                  ErrorCode::kDeviceError,
                  "cannot make a file for tokens in {}: {}",
                  directory.string(),
                  std::strerror(errno));
  ::unlink(name.c_str());
}

void TokenFile::append(std::span<const std::int32_t> tokens) {
  TESSERA_CHECK(map_.bytes().empty(), "tokens appended to a sealed file");
  pending_.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  size_ += tokens.size();
  if (pending_.size() >= kWriteBytes) {
    flush();
  }
}

void TokenFile::flush() {
  write_all(file_, pending_, path_);
  pending_.clear();
}

void TokenFile::seal() {
  flush();
  pending_.shrink_to_fit();
  map_ = MappedFile(file_, path_);
}

std::span<const std::int32_t> TokenFile::tokens() const {
  TESSERA_CHECK(map_.bytes().size() == size_ * sizeof(std::int32_t), "tokens read before seal()");
  return {reinterpret_cast<const std::int32_t*>(map_.bytes().data()), size_};
}

}  // namespace tessera

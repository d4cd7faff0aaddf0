#include "tessera/data/test_compress.h"

#include <zlib.h>
#include <zstd.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::string gzip(std::string_view bytes) {
  z_stream stream{};
  TESSERA_CHECK(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK,
                "no gzip");
  std::string out(::deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<unsigned>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<unsigned>(out.size());
  TESSERA_CHECK(::deflate(&stream, Z_FINISH) == Z_STREAM_END, "no room");
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

std::string zstd(std::string_view bytes) {
  std::string out(::ZSTD_compressBound(bytes.size()), '\0');
  out.resize(::ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 3));
  return out;
}

}  // namespace

std::string compressed(Compression compression, std::string_view bytes) {
  switch (compression) {
    case Compression::kNone:
      return std::string(bytes);
    case Compression::kGzip:
      return gzip(bytes);
    case Compression::kZstd:
      return zstd(bytes);
  }
  return "";
}

}  // namespace tessera

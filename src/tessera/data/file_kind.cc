#include "tessera/data/file_kind.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kWriteOut =
    "write what is in it as JSONL, as text, or as a file of bare ids";
constexpr std::string_view kUnpack = "unpack it, or pack it as .gz or .zst";

// Bytes at the front of a file.
struct Magic {
  std::string_view bytes;
  FileKind kind;
};

// Sources: the formats' own documents, and file(1)'s database of magic numbers.
constexpr std::array kMagics = {
    Magic{
        "\x93NUMPY"sv,
        {"a NumPy array (.npy)", "format tokens reads one of integers; else write out its texts"}},
    Magic{"PK\x03\x04"sv, {"a zip archive (.zip, .npz, .pt, .docx)", kWriteOut}},
    Magic{"PK\x05\x06"sv, {"an empty zip archive (.zip, .npz)", kWriteOut}},
    Magic{"PAR1"sv, {"a Parquet file", kWriteOut}},
    Magic{"ARROW1\0\0"sv, {"an Arrow file", kWriteOut}},
    Magic{"FEA1"sv, {"a Feather file", kWriteOut}},
    Magic{"Obj\x01"sv, {"an Avro file", kWriteOut}},
    Magic{"\x89HDF\r\n\x1a\n"sv, {"an HDF5 file", kWriteOut}},
    Magic{"SQLite format 3\0"sv, {"an SQLite database", kWriteOut}},
    Magic{"\x80\x02}q"sv, {"a pickle", kWriteOut}},
    Magic{"\x80\x02]q"sv, {"a pickle", kWriteOut}},
    Magic{"\x80\x03}q"sv, {"a pickle", kWriteOut}},
    Magic{"\x80\x03]q"sv, {"a pickle", kWriteOut}},
    Magic{"\x80\x02\x8a\x0al\xfc\x9c\x46"sv, {"a checkpoint of PyTorch (a pickle)", kWriteOut}},
    Magic{"(lp0\n"sv, {"a pickle", kWriteOut}},
    Magic{"(dp0\n"sv, {"a pickle", kWriteOut}},
    Magic{"(lp1\n"sv, {"a pickle", kWriteOut}},
    Magic{"(dp1\n"sv, {"a pickle", kWriteOut}},
    Magic{"ccopy_reg\n_reconstructor\n"sv, {"a pickle", kWriteOut}},
    Magic{"]q\0"sv, {"a pickle", kWriteOut}},
    Magic{"}q\0"sv, {"a pickle", kWriteOut}},
    Magic{"version https://git-lfs.github.com/spec/v1"sv,
          {"a Git LFS pointer", "the file itself is not there yet; `git lfs pull` gets it", true}},
    Magic{"GGUF\x02\0\0\0"sv, {"a GGUF model", "name data: these are weights"}},
    Magic{"GGUF\x03\0\0\0"sv, {"a GGUF model", "name data: these are weights"}},
    Magic{"MMIDIDX\0\0"sv,
          {"the index of a Megatron data set (.idx)", "format megatron reads it with its .bin"}},
    Magic{"TNTIDX\0\0"sv,
          {"the index of an old Megatron data set (.idx)",
           "write its ids out again as a mapped data set (MMIDIDX)"}},
    Magic{"\x28\xb5\x2f\xfd"sv, {"a zstd file", "unpack it", true}},
    Magic{"\xfd\x37zXZ\0"sv, {"an xz file", kUnpack}},
    Magic{"\x04\x22\x4d\x18"sv, {"an lz4 file", kUnpack}},
    Magic{"7z\xbc\xaf\x27\x1c"sv, {"a 7z archive", kUnpack}},
    Magic{"Rar!\x1a\x07"sv, {"a rar archive", kUnpack}},
    Magic{"\xff\x06\0\0sNaPpY"sv, {"a snappy file", kUnpack}},
    Magic{"\x89PNG\r\n\x1a\n"sv, {"a PNG image", kWriteOut}},
    Magic{"\xff\xd8\xff\xe0"sv, {"a JPEG image", kWriteOut}},
    Magic{"\xff\xd8\xff\xe1"sv, {"a JPEG image", kWriteOut}},
    Magic{"GIF89a"sv, {"a GIF image", kWriteOut}},
    Magic{"\x7f"
          "ELF"sv,
          {"a program (ELF)", "name a file of text"}},
    Magic{"%PDF-"sv, {"a PDF document", kWriteOut}},
    Magic{"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"sv, {"an Office document", kWriteOut}},
};

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i) {
    value = value << 8U | static_cast<unsigned char>(bytes[i - 1]);
  }
  return value;
}

// A block of bzip2 begins with the digits of pi, the end of an empty one with those of its root.
bool is_bzip2(std::string_view front) {
  const std::string_view block = front.substr(0, 10).substr(front.size() < 4 ? front.size() : 4);
  return front.starts_with("BZh"sv) && front.size() >= 10 && front[3] >= '1' && front[3] <= '9' &&
         (block == "\x31\x41\x59\x26\x53\x59"sv || block == "\x17\x72\x45\x38\x50\x90"sv);
}

// Protocols 4 and 5 begin with a frame, whose length no file comes near to filling.
bool is_framed_pickle(std::string_view front) {
  return front.size() >= 11 && front[0] == '\x80' && (front[1] == 4 || front[1] == 5) &&
         front[2] == '\x95' && little_endian(front.substr(3, 8)) < std::uint64_t{1} << 40U;
}

// A stream of Arrow's messages, as Hugging Face's datasets keep them: a mark, the length of the
// schema's message, padded to 8 bytes, and the message.
bool is_arrow_stream(std::string_view front) {
  if (front.size() < 16 || !front.starts_with("\xff\xff\xff\xff"sv)) {
    return false;
  }
  const std::uint64_t length = little_endian(front.substr(4, 4));
  return length >= 16 && length < std::uint64_t{1} << 24U && length % 8 == 0 &&
         little_endian(front.substr(8, 4)) < length;
}

// The mark is a word of English, too, but that has no control characters after it.
bool is_orc(std::string_view front) {
  return front.starts_with("ORC"sv) && std::ranges::any_of(front.substr(3, 13), [](char c) {
           return static_cast<unsigned char>(c) < 0x20 &&
                  "\t\n\r\f"sv.find(c) == std::string_view::npos;
         });
}

// A record of TensorFlow: its length, a checksum of that, and what it is: mostly an Example, a
// message whose one field, of this length, is all of it.
bool is_tfrecord(std::string_view front) {
  if (front.size() < 18 || front[12] != '\x0a') {
    return false;
  }
  std::uint64_t field = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    const auto byte = static_cast<unsigned char>(front[13 + i]);
    field |= std::uint64_t{byte & 0x7fU} << 7 * i;
    if (byte < 0x80) {
      return field > 0 && little_endian(front.substr(0, 8)) == field + i + 2;
    }
  }
  return false;
}

// The length of a header, and the header: a JSON object.
bool is_safetensors(std::string_view front) {
  return front.size() >= 10 && little_endian(front.substr(0, 8)) >= 2 &&
         little_endian(front.substr(0, 8)) <= std::uint64_t{100} << 20U && front[8] == '{' &&
         (front[9] == '"' || front[9] == '}');
}

// The header has three bits of flags that nobody uses.
bool is_gzip(std::string_view front) {
  return front.size() >= 10 && front.starts_with("\x1f\x8b\x08"sv) &&
         static_cast<unsigned char>(front[3]) < 0x20;
}

bool is_tar(std::string_view front) {
  return front.size() >= 263 && front.substr(257, 5) == "ustar"sv;
}

}  // namespace

FileKind known_kind(std::string_view front) {
  for (const Magic& magic : kMagics) {
    if (front.starts_with(magic.bytes)) {
      return magic.kind;
    }
  }

  struct Test {
    bool (*is_one)(std::string_view front);
    FileKind kind;
  };

  constexpr std::array kTests = {
      Test{is_bzip2, {"a bzip2 file", kUnpack}},
      Test{is_framed_pickle, {"a pickle", kWriteOut}},
      Test{is_arrow_stream, {"an Arrow stream", kWriteOut}},
      Test{is_orc, {"an ORC file", kWriteOut}},
      Test{is_tfrecord, {"a file of TensorFlow records", kWriteOut}},
      Test{is_safetensors, {"a safetensors file", "name data: these are weights"}},
      Test{is_gzip, {"a gzip file", "unpack it", true}},
      Test{is_tar, {"a tar archive", kUnpack}},
  };
  const auto* const found =
      std::ranges::find_if(kTests, [&](const Test& test) { return test.is_one(front); });
  return found == kTests.end() ? FileKind{} : found->kind;
}

}  // namespace tessera

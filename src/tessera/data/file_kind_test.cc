#include "tessera/data/file_kind.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace tessera {
namespace {

using namespace std::string_view_literals;

std::string named(std::string_view front) {
  return std::string(known_kind(front).name);
}

// Fronts as the programs that make these files write them: numpy.save, zipfile, pyarrow, h5py,
// sqlite3, pickle.dumps (protocols 2 to 5), torch.save, safetensors, tarfile, bz2, lzma.
TEST(FileKind, TellsContainersByTheirFirstBytes) {
  EXPECT_EQ(named("\x93NUMPY\x01\0v\0{'descr': '<u2'"sv), "a NumPy array (.npy)");
  EXPECT_EQ(named("PK\x03\x04\x14\0\0\0\x08\0"sv), "a zip archive (.zip, .npz, .pt, .docx)");
  EXPECT_EQ(named("PAR1\x15\x04\x15\x10"sv), "a Parquet file");
  EXPECT_EQ(named("ARROW1\0\0\xff\xff\xff\xff"sv), "an Arrow file");
  EXPECT_EQ(named("\xff\xff\xff\xff\x78\0\0\0\x10\0\0\0\0\0\x0a\0"sv), "an Arrow stream");
  EXPECT_EQ(named("\x89HDF\r\n\x1a\n\0\0"sv), "an HDF5 file");
  EXPECT_EQ(named("SQLite format 3\0\x10"sv), "an SQLite database");
  EXPECT_EQ(named("\x80\x04\x95\x0f\0\0\0\0\0\0\0]\x94("sv), "a pickle");
  EXPECT_EQ(named("\x80\x05\x95\x0f\0\0\0\0\0\0\0}\x94("sv), "a pickle");
  EXPECT_EQ(named("\x80\x02]q\0(K\x01K\x02"sv), "a pickle");
  EXPECT_EQ(named("\x40\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\""sv), "a safetensors file");
  EXPECT_EQ(named("BZh91AY&SY"sv), "a bzip2 file");
  EXPECT_EQ(named("BZh9\x17\x72\x45\x38\x50\x90\0\0\0\0"sv), "a bzip2 file");
  EXPECT_EQ(named("\xfd\x37zXZ\0\0\x04"sv), "an xz file");
  EXPECT_EQ(named("MMIDIDX\0\0\x01\0\0\0\0\0\0\0"sv), "the index of a Megatron data set (.idx)");
  EXPECT_EQ(named("TNTIDX\0\0\1\0\0\0"sv), "the index of an old Megatron data set (.idx)");
  EXPECT_EQ(named("ORC\x1d\0\0\n\x0b"sv), "an ORC file");
  // tf.io.TFRecordWriter, of an Example with one feature: 8 bytes of length, 4 of checksum.
  EXPECT_EQ(named("\x11\0\0\0\0\0\0\0\x3f\x1d\xa2\x56\n\x0f\n\r\n\1a\x12\x08"sv),
            "a file of TensorFlow records");
  EXPECT_EQ(named("(lp0\nI1\naI2\na."sv), "a pickle");
  EXPECT_EQ(named("(dp0\nVa\np1\nI1\ns."sv), "a pickle");
  EXPECT_EQ(named("]q\0(K\1K\2e."sv), "a pickle");
  EXPECT_EQ(named("version https://git-lfs.github.com/spec/v1\noid sha256:4d"sv),
            "a Git LFS pointer");
  std::string tar("dir/a.txt");
  tar.resize(257);
  EXPECT_EQ(named(tar + "ustar" + std::string(250, '\0')), "a tar archive");
}

TEST(FileKind, TakesTextForText) {
  for (const std::string_view text : {""sv,
                                      "{\"text\": \"PAR1\"}"sv,
                                      "BZh9 is how a file of bzip2 begins"sv,
                                      "P"sv,
                                      "ORC is a format, ORCHESTRA a word"sv,
                                      "version https://git-lfs.github.com/ has a specification"sv,
                                      "(lp0 is how a pickle begins"sv,
                                      "\xff\xfe{\0\"\0"sv,
                                      "\xff\xff\xff\xff"sv,
                                      "Objects are"sv,
                                      "GGUF is a format"sv,
                                      "\x80\x04 bytes that are no UTF-8"sv}) {
    EXPECT_EQ(named(text), "") << text;
  }
}

}  // namespace
}  // namespace tessera

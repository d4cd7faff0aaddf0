// Damage of every kind to every file of a checkpoint: never a crash, never taken for good.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/ir/dtype.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CorruptionTest : public ::testing::Test {
 protected:
  CorruptionTest() {
    const std::vector<float> values = {1, -2, 3, -4};
    const auto bytes = std::as_bytes(std::span(values));
    const std::vector<CheckpointTensor> tensors = {
        {.name = "w", .role = TensorRole::kParameter, .shape = {2, 2}, .data = bytes},
        {.name = "w", .role = TensorRole::kMoment1, .shape = {2, 2}, .data = bytes},
        {.name = "w", .role = TensorRole::kMoment2, .shape = {2, 2}, .data = bytes}};
    save_checkpoint(directory_, {.step = 1, .model = "{}", .config = ""}, tensors);
    for (const fs::directory_entry& entry : fs::directory_iterator(directory_)) {
      files_.push_back(entry.path());
    }
  }

  // Opening must fail with an error that names the file; nothing else may happen.
  void expect_refused(const fs::path& file, const std::string& what) const {
    try {
      const CheckpointReader reader(directory_);
      ADD_FAILURE() << what << " of " << file << " was not seen";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidData) << error.what();
      EXPECT_THAT(error.message(), HasSubstr(file.filename().string())) << what;
    }
  }

  // Without checksums damage may pass, but only as other values of the same tensors.
  void expect_no_crash() const {
    try {
      const CheckpointReader reader(directory_, {.verify = Verify::kSizes});
      EXPECT_EQ(reader.tensors().size(), 3U);
      for (const ManifestTensor& tensor : reader.tensors()) {
        EXPECT_EQ(reader.read(tensor.name, tensor.role).size(), 16U);
      }
      EXPECT_THROW(reader.verify(), Error);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidData) << error.what();
    }
  }

  TestDirectory root_;
  fs::path directory_ = checkpoint_directory(root_.path(), 1);
  std::vector<fs::path> files_;
};

TEST_F(CorruptionTest, EveryFlippedByteIsSeen) {
  ASSERT_EQ(files_.size(), 3U);
  for (const fs::path& file : files_) {
    const std::string good = read_file(file);
    for (std::size_t i = 0; i < good.size(); ++i) {
      for (const unsigned flip : {1U, 255U}) {
        std::string bad = good;
        bad[i] = static_cast<char>(static_cast<unsigned char>(bad[i]) ^ flip);
        write_test_file(file, bad);
        expect_refused(file, format("byte {}", i));
        expect_no_crash();
      }
    }
    write_test_file(file, good);
  }
  CheckpointReader(directory_).verify();
}

TEST_F(CorruptionTest, EveryTruncationAndAdditionIsSeen) {
  for (const fs::path& file : files_) {
    const std::string good = read_file(file);
    for (std::size_t size = 0; size < good.size(); size += 7) {
      write_test_file(file, good.substr(0, size));
      expect_refused(file, format("truncation to {}", size));
      expect_no_crash();
    }
    write_test_file(file, good + "x");
    expect_refused(file, "a byte more");
    expect_no_crash();
    write_test_file(file, good);
  }
}

TEST_F(CorruptionTest, EveryMissingFileIsSeen) {
  for (const fs::path& file : files_) {
    const std::string good = read_file(file);
    fs::remove(file);
    expect_refused(file, "removal");
    write_test_file(file, good);
  }
}

TEST_F(CorruptionTest, VerifyFindsDamageAfterOpening) {
  for (const fs::path& file : files_) {
    const CheckpointReader reader(directory_);
    reader.verify();
    const std::string good = read_file(file);
    // In place, as a failing disk does.
    std::string bad = good;
    bad[good.size() / 2] = static_cast<char>(bad[good.size() / 2] + 1);
    std::ofstream(file, std::ios::in | std::ios::binary) << bad;  // does not truncate
    EXPECT_THROW(reader.verify(), Error) << file;
    write_test_file(file, good);
  }
}

}  // namespace
}  // namespace tessera

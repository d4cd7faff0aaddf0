// Damage of every kind to every file of a checkpoint: never a crash, never taken for good.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_saver.h"
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

// A number of the environment, so that one can ask for more.
std::int64_t number_from(const char* name, std::int64_t usual) {
  const char* const text = std::getenv(name);
  return text == nullptr ? usual : std::stoll(text);
}

// Damages drawn at random, to a checkpoint of three ranks beside one of another step. As many as
// TESSERA_DAMAGES says (500), after the seed TESSERA_DAMAGE_SEED (1): each depends on its number
// and the seed alone, so that one that was not seen can be drawn again by TESSERA_DAMAGE_FIRST.
class DamageTest : public ::testing::Test {
 protected:
  DamageTest() {
    for (const std::int64_t step : {1, 2}) {
      save(step);
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(directory_)) {
      files_.push_back(entry.path().filename().string());
    }
    std::ranges::sort(files_);
    for (const std::string& name : files_) {
      good_.push_back(read_file(directory_ / name));
    }
  }

  void save(std::int64_t step) const {
    constexpr std::int64_t kRanks = 3;
    constexpr std::size_t kElements = 50;
    std::vector<std::unique_ptr<CheckpointSaver>> savers;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      std::vector<float> values(kElements);
      std::iota(values.begin(), values.end(), static_cast<float>(1000 * step + 100 * rank));
      std::vector<CheckpointTensor> tensors;
      for (const TensorRole role :
           {TensorRole::kParameter, TensorRole::kMoment1, TensorRole::kMoment2}) {
        for (const char* const name : {"a", "b"}) {
          TensorSlice part = whole_slice({kRanks * std::ssize(values)});
          part.begin = rank * std::ssize(values);
          part.count = std::ssize(values);
          tensors.push_back({.name = name,
                             .role = role,
                             .shape = {kRanks * std::ssize(values)},
                             .slice = part,
                             .data = std::as_bytes(std::span(values))});
        }
      }
      savers.push_back(std::make_unique<CheckpointSaver>(SaverOptions{
          .rank = rank, .num_ranks = kRanks, .max_file_bytes = 400, .launch = "launch"}));
      savers.back()->write(checkpoint_directory(root_.path(), step),
                           {.step = step, .model = "{}", .config = "text"},
                           tensors);
    }
    for (const auto& saver : savers) {
      saver->finish();
    }
  }

  std::size_t draw(std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_);
  }

  // Some bytes of it are others, or it has another length.
  std::string damaged(const std::string& good) {
    std::string bad = good;
    const std::size_t at = draw(good.size());
    const std::size_t count = 1 + draw(std::min<std::size_t>(good.size() - at, 64));
    switch (draw(7)) {
      case 0:
        bad[at] = static_cast<char>(bad[at] ^ static_cast<char>(1U << draw(8)));
        break;
      case 1:
        bad[at] = static_cast<char>(draw(256));
        break;
      case 2:
        bad.replace(at, count, count, '\0');
        break;
      case 3:  // what follows moves
        bad.erase(at, count);
        break;
      case 4:
        bad.insert(at, count, static_cast<char>(draw(256)));
        break;
      case 5:
        bad.resize(at);
        break;
      default: {  // what JSON still reads: another digit
        const std::size_t digit = bad.find_first_of("0123456789", at);
        if (digit != std::string::npos) {
          bad[digit] = static_cast<char>('0' + draw(10));
        }
        break;
      }
    }
    return bad;
  }

  // Does something to the checkpoint; returns what the error must have, one of several names where
  // several files are damaged; nothing where nothing has changed.
  std::vector<std::string> damage() {
    const std::size_t one = draw(files_.size());
    const fs::path path = directory_ / files_[one];
    switch (draw(9)) {
      case 0:
        fs::remove(path);
        return {files_[one]};
      case 1: {
        const std::string& name = files_[draw(files_.size())];
        const fs::path other = directory_ / name;
        if (read_file(path) == read_file(other)) {
          return {};
        }
        fs::rename(path, directory_ / "third");
        fs::rename(other, path);
        fs::rename(directory_ / "third", other);
        return {files_[one], name};
      }
      case 2:  // the file of the other step
        write_test_file(path, read_file(checkpoint_directory(root_.path(), 1) / files_[one]));
        return {files_[one]};
      case 3:
        fs::rename(path, directory_ / ("x" + files_[one]));
        return {files_[one]};
      case 4:
        fs::remove(path);
        if (draw(2) == 0) {
          TESSERA_CHECK(::mkfifo(path.c_str(), 0666) == 0, "no pipe {}", path.string());
        } else {
          fs::create_directory(path);
        }
        return {files_[one]};
      case 5:  // all of the other step's
        for (const std::string& name : files_) {
          write_test_file(directory_ / name,
                          read_file(checkpoint_directory(root_.path(), 1) / name));
        }
        return {"expected the 2 of the directory's name"};
      default: {
        const std::string bad = damaged(good_[one]);
        write_test_file(path, bad);
        return bad == good_[one] ? std::vector<std::string>() : std::vector{files_[one]};
      }
    }
  }

  void repair() const {
    for (const fs::directory_entry& entry : fs::directory_iterator(directory_)) {
      const std::string name = entry.path().filename().string();
      if (!entry.is_regular_file() || !std::ranges::binary_search(files_, name)) {
        fs::remove_all(entry.path());
      }
    }
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const fs::path file = directory_ / files_[i];
      if (!fs::exists(file) || read_file(file) != good_[i]) {
        write_test_file(file, good_[i]);
      }
    }
  }

  TestDirectory root_;
  fs::path directory_ = checkpoint_directory(root_.path(), 2);
  std::vector<std::string> files_;
  std::vector<std::string> good_;
  std::mt19937_64 random_;
};

TEST_F(DamageTest, IsAlwaysSeen) {
  const std::int64_t seed = number_from("TESSERA_DAMAGE_SEED", 1);
  const std::int64_t first = number_from("TESSERA_DAMAGE_FIRST", 0);
  const std::int64_t count = number_from("TESSERA_DAMAGES", 500);
  std::cout << format("seed {}, damages {} to {}\n", seed, first, first + count - 1);
  for (std::int64_t i = first; i < first + count; ++i) {
    std::seed_seq sequence({seed, i});
    random_.seed(sequence);
    std::vector<std::string> names;
    while (names.empty()) {
      names = damage();
    }
    try {
      const CheckpointReader reader(directory_);
      FAIL() << "damage " << i << " of seed " << seed << " was not seen: " << names.front();
    } catch (const Error& error) {
      const std::string message = error.what();
      ASSERT_EQ(error.code(), ErrorCode::kInvalidData) << i << ": " << message;
      ASSERT_TRUE(std::ranges::any_of(
          names, [&](const std::string& name) { return message.find(name) != std::string::npos; }))
          << "damage " << i << " of seed " << seed << ": " << message << " does not name "
          << names.front();
    }
    repair();
  }
  CheckpointReader(directory_).verify();
}

// Whatever else lies there changes nothing, and nobody waits for it.
TEST_F(DamageTest, WhatIsNotListedIsNotLookedAt) {
  ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0666), 0);
  ASSERT_EQ(::mkfifo((directory_ / "rank-00003-model-00001-of-00001.safetensors").c_str(), 0666),
            0);
  fs::create_directory(directory_ / "folder");
  fs::create_symlink("nowhere", directory_ / "link");
  write_test_file(directory_ / "part-00000-of-00003.json", "left behind");
  write_test_file(directory_ / "manifest.json.tmp.1", "left behind");
  CheckpointReader(directory_).verify();
  EXPECT_EQ(find_damage(directory_), "");
  EXPECT_EQ(find_newest_checkpoint(root_.path()), directory_);
  // Nor what lies beside it.
  ASSERT_EQ(::mkfifo((root_.path() / ".tmp-step-00000003.launch.0").c_str(), 0666), 0);
  ASSERT_EQ(::mkfifo((root_.path() / "pipe").c_str(), 0666), 0);
  EXPECT_THAT(finish_interrupted_saves(root_.path()), ::testing::IsEmpty());
  EXPECT_EQ(find_newest_checkpoint(root_.path()), directory_);
}

TEST_F(DamageTest, AnotherStepsNameIsRefused) {
  const fs::path renamed = checkpoint_directory(root_.path(), 3);
  fs::rename(directory_, renamed);
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { CheckpointReader reader(renamed); }),
              HasSubstr("manifest.json: found step 2, expected the 3 of the directory's name"));
  fs::create_directory_symlink(renamed.filename(), root_.path() / "best");
  EXPECT_THAT(find_damage(root_.path() / "best"), HasSubstr("found step 2"));
  fs::rename(renamed, root_.path() / "mine");
  CheckpointReader(root_.path() / "mine").verify();
}

}  // namespace
}  // namespace tessera

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/checkpoint_saver.h"

// For tests: checkpoints of three ranks.
namespace tessera {

inline constexpr std::int64_t kRanks = 3;
inline const std::vector<std::int64_t> kShape = {4, 6};  // one tensor, whole: 24 elements

inline CheckpointMeta meta_of(std::int64_t step) {
  return {.step = step, .model = "{}"};
}

inline std::set<std::string> names_in(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const std::filesystem::directory_entry& entry :
       std::filesystem::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

// Rank r of three holds a part of "w" as a plan would cut it: ranks 0 and 1 the two flat halves of
// its left columns, rank 2 its right ones.
class SaverTest : public ::testing::Test {
 protected:
  SaverTest() : values_(24) { std::iota(values_.begin(), values_.end(), 100.0F); }

  TensorSlice slice(std::int64_t rank) const {
    if (rank == 2) {
      return {.offset = {0, 4}, .extent = {4, 2}, .begin = 0, .count = 8};
    }
    return {.offset = {0, 0}, .extent = {4, 4}, .begin = rank * 7, .count = rank == 0 ? 7 : 9};
  }

  // The slice's elements, by their places in the whole.
  std::vector<float> part(std::int64_t rank) const {
    const TensorSlice cut = slice(rank);
    std::vector<float> result;
    for (std::int64_t i = cut.begin; i < cut.begin + cut.count; ++i) {
      const std::int64_t row = i / cut.extent[1];
      const std::int64_t column = cut.offset[1] + i % cut.extent[1];
      result.push_back(values_[static_cast<std::size_t>(row * 6 + column)]);
    }
    return result;
  }

  std::vector<CheckpointTensor> tensors(std::int64_t rank, const std::vector<float>& data) const {
    return {{.name = "w",
             .role = TensorRole::kMoment1,
             .shape = kShape,
             .slice = slice(rank),
             .data = std::as_bytes(std::span(data))}};
  }

  void start(std::int64_t rank, std::int64_t step = 1) {
    std::vector<float> data = part(rank);
    savers_[static_cast<std::size_t>(rank)]->start(
        checkpoint_directory(parent_, step), meta_of(step), tensors(rank, data));
    data.assign(data.size(), 0.0F);  // training goes on
  }

  void start_all(std::int64_t step = 1) {
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      start(rank, step);
    }
    for (const auto& saver : savers_) {
      ASSERT_EQ(saver->wait(), SaveStatus::kWritten);
    }
  }

  void finish_all() {
    for (const auto& saver : savers_) {
      saver->finish();
    }
  }

  void abandon_all() {
    for (const auto& saver : savers_) {
      saver->wait();
      saver->abandon();
    }
  }

  void expect_values(std::int64_t step) const {
    const CheckpointReader reader(checkpoint_directory(parent_, step));
    const std::vector<std::byte> found = reader.read("w", TensorRole::kMoment1);
    EXPECT_TRUE(std::ranges::equal(found, std::as_bytes(std::span(values_))));
    // Every stretch of it, from wherever its slices lie: one by one, and all in one pass.
    std::deque<std::vector<float>> loaded;
    std::vector<TensorRead> reads;
    for (std::int64_t first = 0; first <= 24; ++first) {
      for (std::int64_t count = 0; count <= 24 - first; ++count) {
        std::vector<float>& out = loaded.emplace_back(static_cast<std::size_t>(count));
        const auto bytes = std::as_writable_bytes(std::span(out));
        reader.read("w", TensorRole::kMoment1, first, bytes);
        ASSERT_TRUE(std::ranges::equal(out, expected(first, out))) << first << " " << count;
        out.assign(out.size(), 0.0F);
        reads.push_back(
            {.tensor = reader.find("w", TensorRole::kMoment1), .first = first, .out = bytes});
      }
    }
    reader.load(reads);
    for (std::size_t i = 0; i < reads.size(); ++i) {
      ASSERT_TRUE(std::ranges::equal(loaded[i], expected(reads[i].first, loaded[i])))
          << reads[i].first << " " << loaded[i].size();
    }
  }

  std::span<const float> expected(std::int64_t first, std::span<const float> like) const {
    return std::span(values_).subspan(static_cast<std::size_t>(first), like.size());
  }

  static std::vector<std::unique_ptr<CheckpointSaver>> make_savers(
      const std::string& launch = "launch") {
    std::vector<std::unique_ptr<CheckpointSaver>> savers;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      savers.push_back(std::make_unique<CheckpointSaver>(
          SaverOptions{.rank = rank, .num_ranks = kRanks, .threads = 2, .launch = launch}));
    }
    return savers;
  }

  TestDirectory root_;
  std::filesystem::path parent_ = root_.path() / "checkpoints";
  std::vector<float> values_;
  std::vector<std::unique_ptr<CheckpointSaver>> savers_ = make_savers();
};

}  // namespace tessera

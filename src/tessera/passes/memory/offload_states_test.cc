#include "tessera/passes/memory/offload_states.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/passes/memory/test_offloaded.h"
#include "tessera/program/region.h"
#include "tessera/program/space_traffic.h"

namespace tessera {
namespace {

constexpr std::int64_t kPiece = 8192;

// 32 rows of 160 elements of 4 bytes: fewer would not end with a page.
constexpr std::int64_t kMost = 20'480;

Program with_moments_in(Space space) {
  return offloaded_step({.optimizer = space, .piece_bytes = kPiece});
}

std::int64_t bytes_moved(std::int64_t wanted) {
  const Program program =
      offloaded_step({.optimizer = Space::kFile, .moved = {.optimizer = wanted}});
  std::int64_t bytes = 0;
  for (const Buffer& buffer : program.buffers) {
    bytes += buffer.space == Space::kFile ? buffer.bytes : 0;
  }
  return bytes;
}

// As much as is wanted, and less than a tensor more; spread over the update.
TEST(OffloadStates, MovesAsMuchAsIsWanted) {
  constexpr std::int64_t kLargest = std::int64_t{300} * 64 * 4;
  const std::int64_t all = bytes_moved(OffloadedBytes().optimizer);
  EXPECT_EQ(bytes_moved(0), 0);
  for (int part = 1; part < 16; ++part) {
    const std::int64_t wanted = all / 16 * part;
    EXPECT_GE(bytes_moved(wanted), wanted);
    EXPECT_LT(bytes_moved(wanted), wanted + kLargest);
  }
  EXPECT_EQ(bytes_moved(all - 1), all);
  const Program half =
      offloaded_step({.optimizer = Space::kFile, .moved = {.optimizer = bytes_moved(all) / 2}}, 3);
  std::int64_t seen = 0;
  std::int64_t moved = 0;
  for (const Buffer& buffer : half.buffers) {
    if (buffer.category == Category::kOptimizer && buffer.bytes >= kPageBytes) {
      seen += buffer.bytes;
      moved += buffer.space == Space::kFile ? buffer.bytes : 0;
      EXPECT_LE(std::abs(2 * moved - seen), 2 * kLargest) << buffer.name;
    }
  }
  EXPECT_EQ(seen, all);
}

// Every byte is fetched and stored once, in pieces that begin with pages and are no larger than
// they are to be, but where so few rows have no whole pages.
TEST(OffloadStates, MovesEachStateOnceInPieces) {
  const Program program = with_moments_in(Space::kFile);
  std::map<BufferId, std::int64_t> fetched;
  std::map<BufferId, std::int64_t> stored;
  std::size_t num_cut = 0;
  for (const Instruction& instruction : program.segments.back().instructions) {
    const auto count = [&](const std::vector<TensorRef>& tensors, auto& bytes) {
      for (const TensorRef& tensor : tensors) {
        EXPECT_EQ(tensor.offset % kPageBytes, 0);
        EXPECT_LE(tensor.type.num_bytes(), kMost);
        num_cut += tensor.type.num_bytes() < program[tensor.buffer].bytes ? 1 : 0;
        bytes[tensor.buffer] += tensor.type.num_bytes();
      }
    };
    if (is_a<FetchAttrs>(instruction)) {
      count(instruction.operands, fetched);
    } else if (is_a<StoreAttrs>(instruction)) {
      count(instruction.results, stored);
    }
  }
  EXPECT_GT(num_cut, 20U);
  EXPECT_EQ(fetched, stored);
  std::int64_t all = 0;
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    const bool is_there = fetched.contains(BufferId::of(i));
    EXPECT_EQ(buffer.space == Space::kFile, is_there) << buffer.name;
    if (is_there) {
      EXPECT_EQ(fetched[BufferId::of(i)], buffer.bytes);
      all += buffer.padded_bytes();
    }
  }
  EXPECT_EQ(program.file_bytes, all);
  EXPECT_EQ(program.host_bytes, 0);
  EXPECT_EQ(space_traffic(program, Space::kFile).stored, all);
  EXPECT_EQ(space_traffic(program, Space::kHost), SpaceTraffic());
}

TEST(OffloadStates, SparesTheirMemory) {
  const Program here = offloaded_step(OffloadOptions());
  const Program there = with_moments_in(Space::kHost);
  EXPECT_EQ(here.host_bytes + here.file_bytes, 0);
  EXPECT_LT(there.arena_bytes, here.arena_bytes - there.host_bytes / 10 * 9);
  EXPECT_EQ(memory_by_category(there)[3].category, Category::kOptimizer);
  EXPECT_LT(memory_by_category(there)[3].peak_bytes, kPageBytes);
}

TEST(OffloadStates, NoWaitIsIdle) {
  for (const WaitsLeftOut& waits : {leave_out_waits<FetchAttrs>(with_moments_in(Space::kFile)),
                                    leave_out_waits<StoreAttrs>(with_moments_in(Space::kFile))}) {
    EXPECT_EQ(waits.tried, waits.refused);
    EXPECT_GT(waits.tried, 30);
  }
}

// A store that goes before the piece is updated would be of what was there before.
TEST(OffloadStates, StoresWhatIsUpdated) {
  const Program program = with_moments_in(Space::kFile);
  std::set<BufferId> updated;
  for (const Instruction& instruction : program.segments.back().instructions) {
    if (is_a<AdamwAttrs>(instruction)) {
      for (const TensorRef& result : instruction.results) {
        updated.insert(result.buffer);
      }
    } else if (is_a<StoreAttrs>(instruction)) {
      for (const TensorRef& operand : instruction.operands) {
        EXPECT_EQ(updated.erase(operand.buffer), 1U);
      }
    }
  }
}

// Outside the update only the device's memory is touched, and there only moments are not.
TEST(OffloadStates, AKernelThatReadsElsewhereIsRefused) {
  Program program = with_moments_in(Space::kFile);
  for (Instruction& instruction : program.segments.back().instructions) {
    if (is_a<FetchAttrs>(instruction)) {
      instruction.op = make_op(GeluAttrs{});
      instruction.operands.resize(1);
      instruction.results.resize(1);
      break;
    }
  }
  try {
    verify(program);
    ADD_FAILURE() << "was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("of the file, expected one of the device"));
  }
}

}  // namespace
}  // namespace tessera

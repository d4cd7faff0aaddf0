#include "tessera/comm/testing/conformance.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <memory>
#include <numeric>
#include <thread>
#include <type_traits>

#include "tessera/base/half.h"
#include "tessera/comm/testing/channel_cases.h"

namespace tessera {
namespace {

// Small ones, those about as long as a message of one piece, and one that is moved piece by piece.
constexpr std::int64_t kSizes[] = {0, 1, 5, 63, 64, 960, 961, 4097, 100'003};
constexpr std::int64_t kLong = 1'500'001;

std::vector<std::int64_t> everybody(const World& world) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Small whole numbers, so that sums in any order are exact.
float value_of(std::int64_t rank, std::int64_t index) {
  return static_cast<float>((rank * 37 + index * 11) % 23) - 9.0F;
}

template <class T>
T as(float value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(value);
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
std::vector<T> values_of(std::int64_t rank, std::int64_t count) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(as<T>(value_of(rank, i)));
  }
  return values;
}

template <class T>
T folded(Fold fold, std::int64_t num_ranks, std::int64_t index) {
  float result = value_of(0, index);
  for (std::int64_t rank = 1; rank < num_ranks; ++rank) {
    const float next = value_of(rank, index);
    result = fold == Fold::kSum ? result + next : std::max(result, next);
  }
  return as<T>(result);
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return DType::kBF16;
  } else {
    return std::is_same_v<T, float> ? DType::kF32 : DType::kI64;
  }
}

template <class T>
std::span<std::byte> bytes(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

template <class T>
Elements elements(std::vector<T>& values) {
  return {.dtype = dtype_of<T>(),
          .data = bytes(values).data(),
          .count = static_cast<std::int64_t>(values.size())};
}

// The same bits in every element.
template <class T>
void check_equal(std::span<const T> found, std::span<const T> expected, std::string_view what) {
  TESSERA_CHECK(found.size() == expected.size(),
                "{}: {} elements, expected {}",
                what,
                found.size(),
                expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    TESSERA_CHECK(std::ranges::equal(std::as_bytes(found.subspan(i, 1)),
                                     std::as_bytes(expected.subspan(i, 1))),
                  "{}: element {} of {} differs",
                  what,
                  i,
                  found.size());
  }
}

// The part of `rank` among values that are `cut` short of `num_ranks` whole parts of `stride`.
Part cut_part(std::int64_t rank, std::int64_t num_ranks, std::int64_t stride, std::int64_t cut) {
  return part_of(rank, stride, std::max<std::int64_t>(num_ranks * stride - cut, 0));
}

struct PartsCase {
  Fold fold = Fold::kSum;
  std::int64_t stride = 0;
  std::int64_t cut = 0;
  bool in_place = false;
};

void gather_parts(World& world, Communicator& group, const PartsCase& parts) {
  const Part own = cut_part(world.rank(), group.size(), parts.stride, parts.cut);
  const Part last = cut_part(group.size() - 1, group.size(), parts.stride, parts.cut);
  std::vector<float> all(static_cast<std::size_t>(last.begin + last.size), -1.0F);
  auto part = values_of<float>(world.rank(), own.size);
  std::span<float> given(part);
  if (parts.in_place) {
    given = std::span(all).subspan(static_cast<std::size_t>(own.begin), given.size());
    std::ranges::copy(part, given.begin());
  }
  group.all_gather(
      std::as_bytes(given), bytes(all), static_cast<std::size_t>(parts.stride) * sizeof(float));
  std::vector<float> expected;
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    std::ranges::copy(
        values_of<float>(rank, cut_part(rank, group.size(), parts.stride, parts.cut).size),
        std::back_inserter(expected));
  }
  check_equal<float>(all, expected, format("all_gather of parts of {}", parts.stride));
}

void all_gather(World& world) {
  const auto group = world.group(everybody(world));
  for (const std::int64_t stride : kSizes) {
    for (const std::int64_t cut : {std::int64_t{0}, stride / 2, stride + stride / 3}) {
      for (const bool in_place : {false, true}) {
        gather_parts(world, *group, {.stride = stride, .cut = cut, .in_place = in_place});
      }
    }
  }
  gather_parts(world, *group, {.stride = kLong, .cut = 7});
}

template <class T>
void scatter_parts(World& world, Communicator& group, const PartsCase& parts) {
  const Part own = cut_part(world.rank(), group.size(), parts.stride, parts.cut);
  const Part last = cut_part(group.size() - 1, group.size(), parts.stride, parts.cut);
  auto all = values_of<T>(world.rank(), last.begin + last.size);
  std::vector<T> other(static_cast<std::size_t>(own.size), T{});
  Elements part = elements(other);
  if (parts.in_place) {
    part.data = bytes(all).data() + static_cast<std::size_t>(own.begin) * sizeof(T);
  }
  group.reduce_scatter(parts.fold, elements(all), part, parts.stride);
  std::vector<T> expected;
  for (std::int64_t i = 0; i < own.size; ++i) {
    expected.push_back(folded<T>(parts.fold, group.size(), own.begin + i));
  }
  check_equal<T>(std::span(reinterpret_cast<const T*>(part.data), expected.size()),
                 expected,
                 format("reduce_scatter of parts of {} {}", parts.stride, name(part.dtype)));
}

template <class T>
void scatter_all_parts(World& world) {
  const auto group = world.group(everybody(world));
  for (const Fold fold : {Fold::kSum, Fold::kMax}) {
    for (const std::int64_t stride : kSizes) {
      for (const std::int64_t cut : {std::int64_t{0}, std::int64_t{70}}) {
        for (const bool in_place : {false, true}) {
          scatter_parts<T>(
              world, *group, {.fold = fold, .stride = stride, .cut = cut, .in_place = in_place});
        }
      }
    }
  }
  scatter_parts<T>(world, *group, {.stride = kLong, .cut = kLong - 2});
}

void reduce_scatter(World& world) {
  scatter_all_parts<float>(world);
  scatter_all_parts<BFloat16>(world);
  scatter_all_parts<std::int64_t>(world);
}

template <class T>
void reduce_all(World& world, Fold fold, std::int64_t size, bool in_place) {
  const auto group = world.group(everybody(world));
  auto in = values_of<T>(world.rank(), size);
  std::vector<T> other(in.size(), T{});
  std::vector<T>& out = in_place ? in : other;
  group->all_reduce(fold, elements(in), elements(out));
  std::vector<T> expected;
  for (std::int64_t i = 0; i < size; ++i) {
    expected.push_back(folded<T>(fold, group->size(), i));
  }
  check_equal<T>(out, expected, format("all_reduce of {} {}", size, name(dtype_of<T>())));
}

void all_reduce(World& world) {
  for (const bool in_place : {false, true}) {
    for (const Fold fold : {Fold::kSum, Fold::kMax}) {
      for (const std::int64_t size : kSizes) {
        reduce_all<float>(world, fold, size, in_place);
        reduce_all<BFloat16>(world, fold, size, in_place);
        reduce_all<std::int64_t>(world, fold, size, in_place);
      }
    }
    reduce_all<float>(world, Fold::kSum, 4 * kLong, in_place);
  }
}

// Sums depend on the order.
float odd(std::int64_t rank, std::int64_t i) {
  return 1.0F / static_cast<float>(3 + rank + 7 * i);
}

// Sums fold in rank order: bits that a computation in that order gives, on every rank.
void sums_fold_in_rank_order(World& world) {
  const auto group = world.group(everybody(world));
  for (const std::int64_t count : {7, 3000}) {
    std::vector<float> values;
    std::vector<float> expected;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(odd(world.rank(), i));
      float sum = odd(0, i);
      for (std::int64_t rank = 1; rank < world.size(); ++rank) {
        sum += odd(rank, i);
      }
      expected.push_back(sum);
    }
    group->all_reduce(Fold::kSum, elements(values), elements(values));
    check_equal<float>(values, expected, "the sum in rank order");
  }
}

void all_to_all(World& world) {
  const auto group = world.group(everybody(world));
  std::vector<std::int64_t> sizes(std::begin(kSizes), std::end(kSizes));
  sizes.push_back(kLong);
  for (const std::int64_t size : sizes) {
    auto send = values_of<float>(world.rank(), size * group->size());
    std::vector<float> receive(send.size(), -1.0F);
    group->all_to_all(bytes(send), bytes(receive));
    std::vector<float> expected;
    for (std::int64_t from = 0; from < group->size(); ++from) {
      for (std::int64_t i = 0; i < size; ++i) {
        expected.push_back(value_of(from, world.rank() * size + i));
      }
    }
    check_equal<float>(receive, expected, format("all_to_all of stretches of {}", size));
  }
}

void ring_shift(World& world) {
  const auto group = world.group(everybody(world));
  std::vector<std::int64_t> sizes(std::begin(kSizes), std::end(kSizes));
  sizes.push_back(kLong);
  const std::int64_t before = (world.rank() + world.size() - 1) % world.size();
  for (const std::int64_t size : sizes) {
    auto send = values_of<float>(world.rank(), size);
    std::vector<float> receive(send.size(), -1.0F);
    group->ring_shift(bytes(send), bytes(receive));
    check_equal<float>(
        receive, values_of<float>(before, size), format("ring_shift of {} elements", size));
  }
}

// Nobody returns from an operation while another rank still reads its memory.
void memory_may_be_used_again_at_once(World& world) {
  const auto group = world.group(everybody(world));
  for (const std::size_t size : {std::size_t{777}, std::size_t{20'000}}) {
    std::vector<float> in(size);
    std::vector<float> out(size);
    for (int round = 0; round < 100; ++round) {
      std::ranges::fill(in, static_cast<float>(round + world.rank()));
      group->all_reduce(Fold::kMax, elements(in), elements(out));
      std::ranges::fill(in, 1e9F);
      const auto expected = static_cast<float>(round + world.size() - 1);
      TESSERA_CHECK(std::ranges::all_of(out, [&](float x) { return x == expected; }),
                    "round {}: expected {}",
                    round,
                    expected);
    }
  }
}

std::int64_t now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

// Nobody leaves a barrier before everybody has entered it, by the clock that all ranks of a machine
// share.
void barrier_holds_everybody(World& world) {
  const auto group = world.group(everybody(world));
  for (std::int64_t round = 0; round < 20; ++round) {
    if (round % world.size() == world.rank()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::vector<std::int64_t> entered = {now()};
    group->barrier();
    const std::int64_t left = now();
    group->all_reduce(Fold::kMax, elements(entered), elements(entered));
    TESSERA_CHECK(left >= entered[0], "round {}: left before all had entered", round);
  }
}

// This rank adds its number, in groups of ranks that are equal modulo `step`.
void sum_ranks(World& world, Communicator& group, std::int64_t step) {
  std::vector<std::int64_t> value = {world.rank()};
  group.all_reduce(Fold::kSum, elements(value), elements(value));
  std::int64_t expected = 0;
  for (std::int64_t rank = world.rank() % step; rank < world.size(); rank += step) {
    expected += rank;
  }
  TESSERA_CHECK(value[0] == expected, "the sum is {}, expected {}", value[0], expected);
}

std::vector<std::int64_t> equal_ranks(const World& world, std::int64_t step) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = world.rank() % step; rank < world.size(); rank += step) {
    ranks.push_back(rank);
  }
  return ranks;
}

// Groups of one run do not disturb each other, may list ranks in any order, and may be made again.
void groups_are_independent(World& world) {
  for (int again = 0; again < 3; ++again) {
    std::vector<std::int64_t> backwards = everybody(world);
    std::ranges::reverse(backwards);
    const auto all = world.group(backwards);
    const auto halves = world.group(equal_ranks(world, 2));
    const auto thirds = world.group(equal_ranks(world, 3));
    TESSERA_CHECK(all->rank() == world.size() - 1 - world.rank(), "rank {}", all->rank());
    TESSERA_CHECK(halves->rank() == world.rank() / 2, "rank {}", halves->rank());
    for (int round = 0; round < 30; ++round) {
      sum_ranks(world, *all, 1);
      sum_ranks(world, *halves, 2);
      sum_ranks(world, *thirds, 3);
    }
  }
}

// Groups of other generations are used from other threads at the same time.
void generations_run_side_by_side(World& world) {
  std::array<std::string, 3> errors;
  std::vector<std::jthread> threads;
  for (std::size_t generation = 0; generation < errors.size(); ++generation) {
    threads.emplace_back([&, generation] {
      try {
        const auto group = world.group(everybody(world), static_cast<std::int64_t>(generation));
        for (std::int64_t round = 0; round < 40; ++round) {
          const auto count = static_cast<std::size_t>(1 + round * 500);
          std::vector<float> values(count, static_cast<float>(generation + 1));
          group->all_reduce(Fold::kSum, elements(values), elements(values));
          const auto expected = static_cast<float>((generation + 1) * group->size());
          TESSERA_CHECK(std::ranges::all_of(values, [&](float x) { return x == expected; }),
                        "generation {}, round {}: expected {}",
                        generation,
                        round,
                        expected);
        }
      } catch (const Error& error) {
        errors[generation] = error.what();
        world.abort(error.what());
      }
    });
  }
  threads.clear();
  for (const std::string& error : errors) {
    TESSERA_CHECK(error.empty(), "{}", error);
  }
}

void check_refused(World& world,
                   const std::vector<std::int64_t>& members,
                   const std::string& expected) {
  std::string found = "was accepted";
  try {
    world.group(members);
  } catch (const Error& error) {
    found = error.code() == ErrorCode::kInvalidArgument ? error.message() : error.what();
  }
  TESSERA_CHECK(found == expected, "{}: expected {}", found, expected);
}

void refuses_bad_groups(World& world) {
  const std::int64_t rank = world.rank();
  const std::int64_t size = world.size();
  const std::int64_t other = (rank + 1) % size;
  check_refused(
      world,
      {rank, size},
      format("a group of ranks {}, {}: expected distinct ranks of [0, {})", rank, size, size));
  check_refused(
      world,
      {rank, rank},
      format("a group of ranks {}, {}: expected distinct ranks of [0, {})", rank, rank, size));
  if (other != rank) {
    check_refused(
        world, {other}, format("a group of ranks {}: expected rank {} among them", other, rank));
  }
}

constexpr ConformanceCase kCases[] = {
    {"AllGather", all_gather},
    {"ReduceScatter", reduce_scatter},
    {"AllReduce", all_reduce},
    {"SumsFoldInRankOrder", sums_fold_in_rank_order},
    {"AllToAll", all_to_all},
    {"RingShift", ring_shift},
    {"MemoryMayBeUsedAgainAtOnce", memory_may_be_used_again_at_once},
    {"BarrierHoldsEverybody", barrier_holds_everybody},
    {"GroupsAreIndependent", groups_are_independent},
    {"GenerationsRunSideBySide", generations_run_side_by_side},
    {"RefusesBadGroups", refuses_bad_groups},
};

void all_reduce_of(World& world, std::size_t count) {
  const auto group = world.group(everybody(world));
  group->barrier();  // the failure is in the operation, not in the first meeting
  std::vector<float> values(count);
  group->all_reduce(Fold::kSum, elements(values), elements(values));
}

// The last rank has made its group, but does not come to the operation.
void member_stays_away(World& world) {
  const auto group = world.group(everybody(world));
  group->barrier();
  if (world.rank() + 1 < world.size()) {
    std::vector<float> values(10);
    group->all_reduce(Fold::kSum, elements(values), elements(values));
  }
}

// The last rank never makes the group.
void member_makes_no_group(World& world) {
  if (world.rank() + 1 < world.size()) {
    world.group(everybody(world))->barrier();
  }
}

void members_disagree_on_size(World& world) {
  all_reduce_of(world, world.rank() == 0 ? 8 : 9);
}

void members_disagree_on_long_size(World& world) {
  all_reduce_of(world, world.rank() == 0 ? 80'000 : 90'000);
}

void members_disagree_on_operation(World& world) {
  const auto group = world.group(everybody(world));
  std::vector<float> values(2048);
  if (world.rank() == 0) {
    group->barrier();
  } else {
    group->all_reduce(Fold::kSum, elements(values), elements(values));
  }
}

// The last rank gives up while the others wait for it, or are about to.
void a_rank_aborts(World& world) {
  const std::string reason = "the last rank ran out of memory";
  const auto group = world.group(everybody(world));
  TESSERA_CHECK(!world.abort_reason().has_value(), "aborted before anybody gave up");
  group->barrier();
  if (world.rank() + 1 == world.size()) {
    world.abort(reason);
  }
  try {
    group->barrier();
  } catch (const Error&) {
    TESSERA_CHECK(world.abort_reason() == reason, "another reason than was given");
    throw;
  }
}

constexpr auto kDisagree = {ErrorCode::kInternal, ErrorCode::kPeerFailure};

std::vector<FailureCase> make_failure_cases() {
  // A rank learns what is wrong by itself, or from the first that did.
  std::vector<FailureCase> all = {
      {.name = "MemberStaysAway",
       .run = member_stays_away,
       .codes = {ErrorCode::kTimeout, ErrorCode::kPeerFailure},
       .text = "all_reduce of 40 bytes: no answer within",
       .last_rank_returns = true},
      {.name = "MemberMakesNoGroup",
       .run = member_makes_no_group,
       .codes = {ErrorCode::kTimeout, ErrorCode::kPeerFailure},
       .text = "barrier of 0 bytes: no answer within",
       .last_rank_returns = true},
      {.name = "MembersDisagreeOnSize",
       .run = members_disagree_on_size,
       .codes = kDisagree,
       .text = "rank 0 calls all_reduce of 32 bytes"},
      {.name = "MembersDisagreeOnLongSize",
       .run = members_disagree_on_long_size,
       .codes = kDisagree,
       .text = "rank 0 calls all_reduce of 320000 bytes"},
      {.name = "MembersDisagreeOnOperation",
       .run = members_disagree_on_operation,
       .codes = kDisagree,
       .text = "barrier of 0 bytes"},
      {.name = "ARankAborts",
       .run = a_rank_aborts,
       .codes = {ErrorCode::kPeerFailure},
       .text = "the last rank ran out of memory"},
  };
  const std::vector<FailureCase> of_channels = channel_failures();
  all.insert(all.end(), of_channels.begin(), of_channels.end());
  return all;
}

}  // namespace

std::span<const ConformanceCase> conformance_cases() {
  static const std::vector<ConformanceCase> kAll = [] {
    std::vector<ConformanceCase> all(std::begin(kCases), std::end(kCases));
    all.insert(all.end(), channel_cases().begin(), channel_cases().end());
    return all;
  }();
  return kAll;
}

std::span<const FailureCase> failure_cases() {
  static const std::vector<FailureCase> kFailures = make_failure_cases();
  return kFailures;
}

std::string expect_failure(const FailureCase& failure, World& world) {
  const bool returns = failure.last_rank_returns && world.rank() + 1 == world.size();
  try {
    failure.run(world);
  } catch (const Error& error) {
    TESSERA_CHECK(std::ranges::find(failure.codes, error.code()) != failure.codes.end() &&
                      error.message().find(failure.text) != std::string::npos,
                  "{} fails by {}: {}; expected \"{}\"",
                  failure.name,
                  to_string(error.code()),
                  error.what(),
                  failure.text);
    return error.message();
  }
  TESSERA_CHECK(returns, "{} does not fail on rank {}", failure.name, world.rank());
  return "no part in the failure";
}

namespace {

template <class T>
void append(std::vector<std::byte>& results, std::vector<T>& values) {
  const std::span<std::byte> added = bytes(values);
  results.insert(results.end(), added.begin(), added.end());
}

template <class T>
void append_results(World& world, Fold fold, std::int64_t size, std::vector<std::byte>& results) {
  const auto group = world.group(everybody(world));
  std::vector<T> values;
  for (std::int64_t i = 0; i < size; ++i) {
    const float value = odd(world.rank(), i);
    values.push_back(as<T>(std::is_integral_v<T> ? 1e6F * value : value));
  }
  std::vector<T> sum(values.size());
  group->all_reduce(fold, elements(values), elements(sum));
  append(results, sum);
  // Parts that are not all of one length.
  const std::int64_t stride = size / group->size() + 1;
  const Part own = part_of(group->rank(), stride, size);
  std::vector<T> part(static_cast<std::size_t>(own.size));
  group->reduce_scatter(fold, elements(values), elements(part), stride);
  append(results, part);
  group->all_gather(bytes(part), bytes(sum), static_cast<std::size_t>(stride) * sizeof(T));
  append(results, sum);
}

}  // namespace

std::vector<std::byte> collective_results(World& world) {
  std::vector<std::byte> results;
  for (const Fold fold : {Fold::kSum, Fold::kMax}) {
    for (const std::int64_t size : {std::int64_t{7}, std::int64_t{5000}, kLong}) {
      append_results<float>(world, fold, size, results);
      append_results<BFloat16>(world, fold, size, results);
      append_results<std::int64_t>(world, fold, size, results);
    }
  }
  return results;
}

}  // namespace tessera

#include <atomic>
#include <cerrno>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <new>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/base/direct_file.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/half.h"
#include "tessera/base/mapped_files.h"
#include "tessera/base/random.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/testing/faults.h"
#include "tessera/base/text.h"
#include "tessera/base/thread_team.h"
#include "tessera/base/toml.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Text, IsPrintedWithoutWhatATerminalActsOn) {
  EXPECT_EQ(printable("a\tb\nc \u4f60"), "a\tb\nc \u4f60");
  EXPECT_EQ(printable("\x1b[2J\r\x7f"), "\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b\xff\xe4\xbd", 6)), "a\\x00b\uFFFD\uFFFD");
}

// Known answers of the Random123 distribution (kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_THAT(philox(0, {0, 0, 0, 0}),
              ElementsAre(0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U));
  EXPECT_THAT(philox(0xffffffffffffffffULL, {~0U, ~0U, ~0U, ~0U}),
              ElementsAre(0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU));
  EXPECT_THAT(philox(0x299f31d0a4093822ULL, {0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}),
              ElementsAre(0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U));
}

TEST(Normal, MomentsAndCut) {
  ThreadTeam team(2);
  std::vector<float> values(1 << 20);
  fill_normal(random_key(42, "weights"), 0, {.std = 2.0F}, values, &team);
  double sum = 0;
  double square = 0;
  double fourth = 0;
  for (const float v : values) {
    sum += v;
    square += double{v} * v;
    fourth += std::pow(double{v}, 4);
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0.0, 0.01);
  EXPECT_NEAR(square / n, 4.0, 0.03);
  EXPECT_NEAR(fourth / n / 16.0, 3.0, 0.05);

  fill_normal(random_key(42, "weights"), 0, {.std = 1.0F, .cut = 1.5F}, values, &team);
  EXPECT_LE(*std::max_element(values.begin(), values.end()), 1.5F + 1e-5F);
  EXPECT_GE(*std::min_element(values.begin(), values.end()), -1.5F - 1e-5F);
}

// The share of variates below z is Phi(z), in the middle and in the tail.
TEST(Normal, Distribution) {
  ThreadTeam team(2);
  std::vector<float> values(1 << 22);
  fill_normal(7, 0, {}, values, &team);
  for (const double z : {-4.0, -2.5, -1.0, 0.0, 0.5, 2.0, 3.5}) {
    const auto below = static_cast<double>(
        std::count_if(values.begin(), values.end(), [&](float v) { return double{v} < z; }));
    const double expected =
        0.5 * std::erfc(-z / std::sqrt(2.0)) * static_cast<double>(values.size());
    EXPECT_NEAR(below, expected, 5.0 * std::sqrt(expected)) << z;
  }
}

TEST(Normal, DependsOnIndexAlone) {
  ThreadTeam team(2);
  std::vector<float> whole(1003);
  fill_normal(9, 0, {}, whole, &team);
  for (const std::size_t first : {0U, 1U, 6U, 500U}) {
    std::vector<float> part(whole.size() - first);
    fill_normal(9, first, {}, part);
    EXPECT_EQ(part,
              std::vector<float>(whole.begin() + static_cast<std::ptrdiff_t>(first), whole.end()))
        << first;
  }
  std::vector<float> aligned(1000);
  fill_normal(9, 0, {}, aligned, &team);
  EXPECT_EQ(aligned, std::vector<float>(whole.begin(), whole.begin() + 1000));
}

TEST(Half, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(to_bfloat16(1.0F).bits, 0x3f80U);
  EXPECT_EQ(to_bfloat16(1.00390625F).bits, 0x3f80U);  // tie to even
  EXPECT_EQ(to_bfloat16(1.01171875F).bits, 0x3f82U);  // tie to even, upwards
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(to_float(to_bfloat16(-std::numeric_limits<float>::infinity())),
            -std::numeric_limits<float>::infinity());
}

TEST(Half, Float16RoundTripsEveryValue) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const Float16 half{static_cast<std::uint16_t>(bits)};
    const float value = to_float(half);
    if (!std::isnan(value)) {
      EXPECT_EQ(to_float16(value).bits, half.bits) << bits;
    }
  }
  EXPECT_EQ(to_float16(65519.0F).bits, 0x7bffU);
  EXPECT_EQ(to_float16(65520.0F).bits, 0x7c00U);
}

TEST(Units, Text) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_count(6163712), "6.16 M");
  EXPECT_EQ(format_duration(185), "3m05s");
  EXPECT_EQ(format_plural(1, "step"), "1 step");
  EXPECT_EQ(format_plural(1234, "step"), "1,234 steps");
  EXPECT_EQ(format_grouped(-1234567), "-1,234,567");
  EXPECT_EQ(edit_distance("learning_rate", "lerning_rat"), 2);
}

TEST(Units, Suggestions) {
  const std::vector<std::string> names = {"bandwidth", "latency", "size"};
  EXPECT_EQ(did_you_mean("bandwdith", names), "; did you mean \"bandwidth\"?");
  EXPECT_EQ(did_you_mean("colour", names), "");
  EXPECT_EQ(did_you_mean("size", {}), "");
}

TEST(Units, Quantities) {
  EXPECT_EQ(parse_quantity("200 GB/s", "B/s"), 200e9);
  EXPECT_EQ(parse_quantity("12.5GB/s", "B/s"), 12.5e9);
  EXPECT_EQ(parse_quantity("64 GiB", "B"), 68719476736.0);
  EXPECT_EQ(parse_quantity("1.7 us", "s"), 1.7e-6);
  EXPECT_EQ(parse_quantity("3 ms", "s"), 3e-3);
  EXPECT_EQ(parse_quantity("0 s", "s"), 0.0);
  EXPECT_EQ(parse_quantity("191.5 TFLOP/s", "FLOP/s"), 191.5e12);
  for (const std::string_view text :
       {"", "GB", "64", "64 gb", "64  GB", "64 GB/s", "64 XB", "inf GB", "64 GB "}) {
    EXPECT_EQ(parse_quantity(text, "B"), std::nullopt) << text;
  }
}

TEST(Units, QuantitiesReadBack) {
  EXPECT_EQ(format_quantity(200e9, "B/s"), "200 GB/s");
  EXPECT_EQ(format_quantity(12.5e9, "B/s"), "12.5 GB/s");
  EXPECT_EQ(format_quantity(68719476736.0, "B"), "64 GiB");
  EXPECT_EQ(format_quantity(47.85e12, "FLOP/s"), "47.85 TFLOP/s");
  EXPECT_EQ(format_quantity(2e-6, "s"), "2 us");
  EXPECT_EQ(format_quantity(0.0, "s"), "0 s");
  EXPECT_EQ(format_quantity(std::numeric_limits<double>::infinity(), "s"), std::nullopt);
  EXPECT_EQ(format_quantity(std::nan(""), "s"), std::nullopt);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double value = std::ldexp(uniform(1, i), static_cast<int>(i % 120) - 60);
    const std::string text = format_quantity(value, "B/s").value_or("none");
    EXPECT_EQ(parse_quantity(text, "B/s"), value) << text;
  }
}

TEST(Toml, TextOfValues) {
  EXPECT_EQ(toml_string("a \"b\"\n\x01"), "\"a \\\"b\\\"\\n\\u0001\"");
  EXPECT_EQ(toml_number(3), "3.0");
  EXPECT_EQ(toml_number(1e-300), "1e-300");
  const toml::table table = parse_toml("x = [1]\n  y = 2\n", "a.toml");
  EXPECT_EQ(toml_place("a.toml", table.get("y")->source()), "a.toml:2:7");
  EXPECT_EQ(toml_type(*table.get("x")), "array");
}

TEST(Error, CodesAndContext) {
  EXPECT_EQ(exit_code(ErrorCode::kInvalidConfig), 2);
  EXPECT_EQ(exit_code(ErrorCode::kInvalidData), 3);
  EXPECT_EQ(exit_code(ErrorCode::kOutOfMemory), 4);
  EXPECT_EQ(exit_code(ErrorCode::kPeerFailure), 5);
  try {
    with_context([] { return std::string("rank 3"); },
                 [] { TESSERA_CHECK(1 == 2, "one is {}", 1); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), StartsWith("src/tessera/base/base_test.cc:"));
    EXPECT_THAT(error.what(), HasSubstr("1 == 2: one is 1 (rank 3)"));
  }
}

// The link stays, and so does what is no file.
TEST(File, AtomicWritesGoThroughLinksAndToDevices) {
  const TestDirectory made;
  const std::filesystem::path& directory = made.path();
  std::filesystem::create_directory(directory / "far");
  std::filesystem::create_symlink("far/target", directory / "link");
  for (const char* const text : {"one", "two"}) {
    write_file_atomic(directory / "link", text);
    EXPECT_TRUE(std::filesystem::is_symlink(directory / "link"));
    EXPECT_FALSE(std::filesystem::is_symlink(directory / "far/target"));
    EXPECT_EQ(read_file(directory / "far/target"), text);
  }
  std::filesystem::create_symlink("/dev/full", directory / "full");
  for (const std::filesystem::path& full :
       {directory / "full", std::filesystem::path("/dev/full")}) {
    EXPECT_THAT(error_of(ErrorCode::kDeviceError, [&] { write_file_atomic(full, "lost"); }),
                HasSubstr("No space left on device"));
    EXPECT_TRUE(std::filesystem::is_character_file(full));
  }
  write_file_atomic("/dev/null", "taken");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

// A pipe that nobody writes would be waited for.
TEST(File, RefusesAtOnceWhatIsNoRegularFile) {
  const TestDirectory made;
  const std::filesystem::path pipe = made.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::filesystem::path link = made.path() / "link";
  std::filesystem::create_symlink("pipe", link);
  const auto refusal = [](const std::filesystem::path& path) {
    return error_of(ErrorCode::kInvalidData, [&] { open_for_reading(path); });
  };
  EXPECT_EQ(refusal(pipe), format("{} is not a regular file but a pipe", pipe.string()));
  EXPECT_EQ(refusal(link), format("{} is not a regular file but a pipe", link.string()));
  EXPECT_EQ(refusal("/dev/null"), "/dev/null is not a regular file but a device");
  EXPECT_EQ(refusal(made.path()),
            format("{} is not a regular file but a directory", made.path().string()));
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { const MappedFile mapped(pipe); }),
              HasSubstr("but a pipe"));
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { const DirectReader reader(pipe); }),
              HasSubstr("but a pipe"));
  EXPECT_FALSE(FileLock::is_held(pipe));
}

TEST(File, AtomicWriteReadMapAndLock) {
  const TestDirectory made;
  const std::filesystem::path& directory = made.path();
  write_file_atomic(directory / "a", "one");
  write_file_atomic(directory / "a", "two");
  EXPECT_EQ(read_file(directory / "a"), "two");
  EXPECT_EQ(MappedFile(directory / "a").text(), "two");
  EXPECT_EQ(error_of(ErrorCode::kInvalidConfig, [&] { write_file_atomic(directory, "three"); }),
            directory.string() + " is a directory, expected the name of a file to write");
  try {
    read_file(directory / "missing");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_THAT(error.what(), HasSubstr("missing: No such file"));
  }
  const FileLock lock(directory / "lock", "the run");
  try {
    const FileLock second(directory / "lock", "the run");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    EXPECT_THAT(error.what(), HasSubstr("in use by process"));
  }
}

// Whoever cut it: the process must not die without a word.
TEST(MappedFileDeathTest, ThatWasCutIsNamed) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "tokens.bin";
  const std::filesystem::path record = directory.path() / "exit-3.json";
  constexpr std::size_t kBytes = 100'000;
  const auto read_cut = [&] {
    guard_mapped_files();
    set_mapped_file_record(record, 3);
    write_file_atomic(path, std::string(kBytes, 'x'));
    MappedFile first(path);
    const MappedFile file = std::move(first);
    const MappedFile other(path);
    std::filesystem::resize_file(path, 10);
    std::exit(static_cast<int>(file.bytes()[kBytes - 1]));
  };
  EXPECT_EXIT(read_cut(),
              testing::ExitedWithCode(3),
              "error: .*tokens.bin: it can no longer be read: it was cut");
  EXPECT_THAT(read_file(record),
              AllOf(HasSubstr("{\"rank\":3,\"exit_code\":3,\"error\":\"invalid data\""),
                    HasSubstr("tokens.bin: it can no longer be read")));
}

// Whoever asks afterwards may go on: the rest of the file is what it was.
TEST(File, AWatchedOneThatWasCutIsAnError) {
  constexpr std::size_t kBytes = 100'000;
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "tokens.bin";
  const auto read_cut = [&] {
    guard_mapped_files();
    write_file_atomic(path, std::string(kBytes, 'x'));
    const MappedFile file(path, /*watched=*/true);
    file.require_readable();
    std::filesystem::resize_file(path, 10);
    const bool is_zero =
        file.bytes()[kBytes - 1] == std::byte{0} && file.bytes()[kBytes / 2] == std::byte{0};
    try {
      file.require_readable();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::exit(is_zero && error.code() == ErrorCode::kInvalidData ? 7 : 1);
    }
    std::exit(0);
  };
  EXPECT_EXIT(
      read_cut(), testing::ExitedWithCode(7), "^[^\n]*tokens.bin: it can no longer be read: ");
}

// Lustre without its option, NFS without its daemon: a run must be possible there.
TEST(FileLock, OfAFileSystemWithoutLocksIsAWarning) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "lock";
  for (const int error : {ENOSYS, EOPNOTSUPP, ENOLCK}) {
    const Faults faults({{.call = FaultCall::kLock, .path = path.string(), .error = error}});
    testing::internal::CaptureStderr();
    const FileLock lock(path, "the run");
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("warning: the run cannot be locked ("));
    EXPECT_EQ(faults.hits(), 1);
  }
  const Faults faults({{.call = FaultCall::kLock, .path = path.string(), .error = EIO}});
  EXPECT_THROW(FileLock(path, "the run"), Error);
}

// One that opened the file before its holder took it away and locked it after would be a second.
TEST(FileLock, HasOneHolderThoughEachTakesItsFileAway) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "lock";
  std::atomic<int> holders = 0;
  std::atomic<int> overlaps = 0;
  std::atomic<int> taken = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int attempt = 0; attempt < 1500; ++attempt) {
        try {
          const FileLock lock(path, "the run");
          overlaps += ++holders > 1 ? 1 : 0;
          ++taken;
          --holders;
          std::filesystem::remove(path);
        } catch (const Error& error) {
          ASSERT_EQ(error.code(), ErrorCode::kInvalidConfig) << error.what();
        }
      }
    });
  }
  threads.clear();
  EXPECT_EQ(overlaps, 0);
  EXPECT_GT(taken, 4);
}

template <class Exception>
Error converted(const Exception& exception) {
  return to_error(std::make_exception_ptr(exception));
}

TEST(ToError, KeepsWhatMustBeKnown) {
  Error mine(ErrorCode::kInvalidData, "bad line");
  mine.add_context("in a.txt");
  EXPECT_EQ(converted(mine).code(), ErrorCode::kInvalidData);
  EXPECT_STREQ(converted(mine).what(), "bad line (in a.txt)");
  const Error refused = converted(std::filesystem::filesystem_error(
      "status", "/closed/x", std::make_error_code(std::errc::permission_denied)));
  EXPECT_EQ(refused.code(), ErrorCode::kDeviceError);
  EXPECT_EQ(refused.message(), "cannot access /closed/x: Permission denied");
  EXPECT_EQ(converted(std::bad_alloc()).code(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(converted(std::runtime_error("odd")).code(), ErrorCode::kInternal);
  EXPECT_EQ(converted(std::runtime_error("odd")).message(), "unexpected: odd");
}

}  // namespace
}  // namespace tessera

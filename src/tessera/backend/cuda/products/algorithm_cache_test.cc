#include "tessera/backend/cuda/products/algorithm_cache.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"

namespace tessera::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

class AlgorithmCacheOf : public testing::Test {
 protected:
  std::filesystem::path at(const char* name) const { return directory_.path() / name; }

  static void keep(const std::string& machine,
                   const std::vector<std::filesystem::path>& files,
                   const std::string& algorithm) {
    AlgorithmCache cache(machine, files);
    cache.add("8 x 8", algorithm);
    cache.keep();
  }

  // What is said while a cache of the file is made.
  static std::string said_of(const std::filesystem::path& file) {
    testing::internal::CaptureStderr();
    AlgorithmCache cache("machine", {file});
    return testing::internal::GetCapturedStderr();
  }

 private:
  TestDirectory directory_;
};

TEST_F(AlgorithmCacheOf, KeepsWhatItWasTold) {
  {
    AlgorithmCache cache("H200", {at("run/gemms.txt"), at("user/gemms.txt")});
    EXPECT_EQ(cache.use("8 x 8"), std::nullopt);
    cache.add("8 x 8", "01");
    cache.add("8 x 16", "02");
    EXPECT_THAT(cache.use("8 x 8"), Optional(std::string("01")));
    EXPECT_FALSE(std::filesystem::exists(at("run/gemms.txt")));
    cache.keep();
  }
  for (const char* file : {"run/gemms.txt", "user/gemms.txt"}) {
    AlgorithmCache cache("H200", {at(file)});
    EXPECT_THAT(cache.use("8 x 8"), Optional(std::string("01"))) << file;
    EXPECT_THAT(cache.use("8 x 16"), Optional(std::string("02"))) << file;
  }
}

// Another device, or another version of the library, has algorithms of its own.
TEST_F(AlgorithmCacheOf, HoldsForOneMachine) {
  keep("H200", {at("gemms.txt")}, "01");
  keep("H100", {at("gemms.txt")}, "02");
  EXPECT_THAT(AlgorithmCache("H200", {at("gemms.txt")}).use("8 x 8"), Optional(std::string("01")));
  EXPECT_THAT(AlgorithmCache("H100", {at("gemms.txt")}).use("8 x 8"), Optional(std::string("02")));
}

// A run that goes on computes as it began, whatever other runs measured since.
TEST_F(AlgorithmCacheOf, TheFirstFileDecides) {
  keep("H200", {at("run.txt")}, "01");
  keep("H200", {at("user.txt")}, "02");
  AlgorithmCache cache("H200", {at("run.txt"), at("user.txt")});
  EXPECT_THAT(cache.use("8 x 8"), Optional(std::string("01")));
}

// What a run took from the user's file is in its own, so that it needs no other to go on.
TEST_F(AlgorithmCacheOf, TheFirstFileHasAllThatWasUsed) {
  keep("H200", {at("user.txt")}, "01");
  AlgorithmCache run("H200", {at("run.txt"), at("user.txt")});
  run.use("8 x 8");
  run.keep();
  std::filesystem::remove(at("user.txt"));
  EXPECT_THAT(AlgorithmCache("H200", {at("run.txt"), at("user.txt")}).use("8 x 8"),
              Optional(std::string("01")));
}

// What was measured first stays for all: a run that measures for itself keeps its own.
TEST_F(AlgorithmCacheOf, LaterFilesKeepWhatTheyHave) {
  AlgorithmCache mine("H200", {at("mine.txt"), at("user.txt")});
  keep("H200", {at("yours.txt"), at("user.txt")}, "01");
  mine.add("8 x 8", "02");
  mine.keep();
  EXPECT_THAT(AlgorithmCache("H200", {at("user.txt")}).use("8 x 8"), Optional(std::string("01")));
  EXPECT_THAT(AlgorithmCache("H200", {at("mine.txt")}).use("8 x 8"), Optional(std::string("02")));
}

TEST_F(AlgorithmCacheOf, WhatOthersWriteMeanwhileStays) {
  AlgorithmCache one("H200", {at("gemms.txt")});
  AlgorithmCache other("H200", {at("gemms.txt")});
  one.add("8 x 8", "01");
  other.add("8 x 16", "02");
  one.keep();
  other.keep();
  AlgorithmCache both("H200", {at("gemms.txt")});
  EXPECT_THAT(both.use("8 x 8"), Optional(std::string("01")));
  EXPECT_THAT(both.use("8 x 16"), Optional(std::string("02")));
}

// Ranks: the leader has files, the others what it says; what each measured holds when all have
// heard of it.
TEST_F(AlgorithmCacheOf, AreOneOfSeveralRanks) {
  keep("H200", {at("user.txt")}, "01");
  AlgorithmCache leader("H200", {at("run.txt"), at("user.txt")});
  AlgorithmCache other("H200", {});
  other.take(std::vector{leader.known()});
  EXPECT_THAT(other.use("8 x 8"), Optional(std::string("01")));

  leader.note("8 x 16", "02");
  other.note("8 x 16", "03");
  other.note("8 x 32", "04");
  EXPECT_EQ(leader.use("8 x 16"), std::nullopt);
  const std::vector<std::string> heard = {leader.noted(), "torn\n" + other.noted()};
  leader.take(heard);
  other.take(heard);
  for (AlgorithmCache* const cache : {&leader, &other}) {
    EXPECT_THAT(cache->use("8 x 16"), Optional(std::string("02")));
    EXPECT_THAT(cache->use("8 x 32"), Optional(std::string("04")));
    cache->keep();
  }
  // The run's file has what any of them used of the user's, and this what is new.
  EXPECT_THAT(AlgorithmCache("H200", {at("run.txt")}).use("8 x 8"), Optional(std::string("01")));
  for (const char* file : {"run.txt", "user.txt"}) {
    EXPECT_THAT(AlgorithmCache("H200", {at(file)}).use("8 x 16"), Optional(std::string("02")));
    EXPECT_THAT(AlgorithmCache("H200", {at(file)}).use("8 x 32"), Optional(std::string("04")));
  }
}

TEST_F(AlgorithmCacheOf, LeavesOutLinesThatAreNone) {
  const std::filesystem::path file = at("gemms.txt");
  keep("machine", {file}, "01");
  write_file_atomic(file, read_file(file) + "torn\n");
  EXPECT_THAT(said_of(file),
              HasSubstr("gemms.txt:3: found 4 bytes, expected machine, product and"));
  EXPECT_THAT(AlgorithmCache("machine", {file}).use("8 x 8"), Optional(std::string("01")));
}

TEST_F(AlgorithmCacheOf, LeavesOutAFileOfAnotherForm) {
  write_file_atomic(at("gemms.txt"), "machine\t8 x 8\t01\n");
  EXPECT_THAT(said_of(at("gemms.txt")), HasSubstr("expected the header of version 1"));
  EXPECT_THAT(said_of(at("nothing.txt")), IsEmpty());
}

TEST_F(AlgorithmCacheOf, SaysOnceThatAFileCannotBeWritten) {
  write_file_atomic(at("file"), "");
  AlgorithmCache cache("machine", {at("file") / "gemms.txt"});
  testing::internal::CaptureStderr();
  cache.add("8 x 8", "01");
  cache.keep();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("are not kept: cannot create"));
  testing::internal::CaptureStderr();
  cache.add("8 x 16", "02");
  cache.keep();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
  EXPECT_THAT(cache.use("8 x 16"), Optional(std::string("02")));
}

}  // namespace
}  // namespace tessera::cuda

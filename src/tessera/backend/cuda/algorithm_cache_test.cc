#include "tessera/backend/cuda/algorithm_cache.h"

#include <filesystem>
#include <string>

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
  }
  for (const char* file : {"run/gemms.txt", "user/gemms.txt"}) {
    AlgorithmCache cache("H200", {at(file)});
    EXPECT_THAT(cache.use("8 x 8"), Optional(std::string("01"))) << file;
    EXPECT_THAT(cache.use("8 x 16"), Optional(std::string("02"))) << file;
  }
}

// Another device, or another version of the library, has algorithms of its own.
TEST_F(AlgorithmCacheOf, HoldsForOneMachine) {
  AlgorithmCache("H200", {at("gemms.txt")}).add("8 x 8", "01");
  AlgorithmCache("H100", {at("gemms.txt")}).add("8 x 8", "02");
  EXPECT_THAT(AlgorithmCache("H200", {at("gemms.txt")}).use("8 x 8"), Optional(std::string("01")));
  EXPECT_THAT(AlgorithmCache("H100", {at("gemms.txt")}).use("8 x 8"), Optional(std::string("02")));
}

// A run that goes on computes as it began, whatever other runs measured since.
TEST_F(AlgorithmCacheOf, TheFirstFileDecides) {
  AlgorithmCache("H200", {at("run.txt")}).add("8 x 8", "01");
  AlgorithmCache("H200", {at("user.txt")}).add("8 x 8", "02");
  AlgorithmCache cache("H200", {at("run.txt"), at("user.txt")});
  EXPECT_THAT(cache.use("8 x 8"), Optional(std::string("01")));
}

// What a run took from the user's file is in its own, so that it needs no other to go on.
TEST_F(AlgorithmCacheOf, TheFirstFileHasAllThatWasUsed) {
  AlgorithmCache("H200", {at("user.txt")}).add("8 x 8", "01");
  AlgorithmCache("H200", {at("run.txt"), at("user.txt")}).use("8 x 8");
  std::filesystem::remove(at("user.txt"));
  EXPECT_THAT(AlgorithmCache("H200", {at("run.txt"), at("user.txt")}).use("8 x 8"),
              Optional(std::string("01")));
}

// What was measured first stays for all: a run that measures for itself keeps its own.
TEST_F(AlgorithmCacheOf, LaterFilesKeepWhatTheyHave) {
  AlgorithmCache mine("H200", {at("mine.txt"), at("user.txt")});
  AlgorithmCache("H200", {at("yours.txt"), at("user.txt")}).add("8 x 8", "01");
  mine.add("8 x 8", "02");
  EXPECT_THAT(AlgorithmCache("H200", {at("user.txt")}).use("8 x 8"), Optional(std::string("01")));
  EXPECT_THAT(AlgorithmCache("H200", {at("mine.txt")}).use("8 x 8"), Optional(std::string("02")));
}

TEST_F(AlgorithmCacheOf, WhatOthersWriteMeanwhileStays) {
  AlgorithmCache one("H200", {at("gemms.txt")});
  AlgorithmCache other("H200", {at("gemms.txt")});
  one.add("8 x 8", "01");
  other.add("8 x 16", "02");
  AlgorithmCache both("H200", {at("gemms.txt")});
  EXPECT_THAT(both.use("8 x 8"), Optional(std::string("01")));
  EXPECT_THAT(both.use("8 x 16"), Optional(std::string("02")));
}

TEST_F(AlgorithmCacheOf, LeavesOutLinesThatAreNone) {
  const std::filesystem::path file = at("gemms.txt");
  AlgorithmCache("machine", {file}).add("8 x 8", "01");
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
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("are not kept: cannot create"));
  testing::internal::CaptureStderr();
  cache.add("8 x 16", "02");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
  EXPECT_THAT(cache.use("8 x 16"), Optional(std::string("02")));
}

}  // namespace
}  // namespace tessera::cuda

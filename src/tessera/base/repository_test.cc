#include "tessera/base/repository.h"

#include <filesystem>
#include <optional>

#include <gtest/gtest.h>

#include "tessera/base/test_directory.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class RepositoryTest : public testing::Test {
 protected:
  RepositoryTest() {
    fs::create_directories(own_ / "onnx");
    fs::create_directories(snapshot_);
    fs::create_directories(hub_ / "blobs");
    write_test_file(own_ / "a", "a");
    write_test_file(hub_ / "blobs" / "1f", "b");
    write_test_file(root_ / "private", "c");
  }

  void link(const fs::path& from, const fs::path& to) { fs::create_symlink(to, from); }

  TestDirectory directory_;
  fs::path root_ = fs::canonical(directory_.path());
  fs::path own_ = root_ / "model";
  fs::path hub_ = root_ / "models--x--y";
  fs::path snapshot_ = hub_ / "snapshots" / "9c";
};

TEST_F(RepositoryTest, WhatStaysInTheDirectoryIsItsOwn) {
  link(own_ / "b", "a");
  link(own_ / "c", own_ / "onnx" / ".." / "a");
  for (const char* const name : {"a", "b", "c", "absent"}) {
    EXPECT_EQ(leads_out(own_, name), std::nullopt) << name;
  }
  link(root_ / "other", own_);
  EXPECT_EQ(leads_out(root_ / "other", "a"), std::nullopt);
  EXPECT_EQ(leads_out(root_ / "other", "b"), std::nullopt);
}

TEST_F(RepositoryTest, LinksOutOfItAreFollowedToTheirEnd) {
  link(own_ / "b", root_ / "private");
  link(own_ / "c", "b");
  link(own_ / "d", "../private");
  link(root_ / "model2", root_ / "private");  // the name only begins as the directory's
  link(own_ / "f", "../model2");
  for (const char* const name : {"b", "c", "d", "f"}) {
    EXPECT_EQ(leads_out(own_, name), root_ / "private") << name;
  }
  // To nothing, and in a circle.
  link(own_ / "g", "../gone");
  link(own_ / "h", "h");
  EXPECT_EQ(leads_out(own_, "g"), std::nullopt);
  EXPECT_EQ(leads_out(own_, "h"), std::nullopt);
}

TEST_F(RepositoryTest, SnapshotsOfAHubHaveTheirFilesInBlobs) {
  link(snapshot_ / "a", "../../blobs/1f");
  link(snapshot_ / "b", "../../../private");
  link(snapshot_ / "c", "../../blobs/../../private");
  EXPECT_EQ(leads_out(snapshot_, "a"), std::nullopt);
  EXPECT_EQ(leads_out(snapshot_, "b"), root_ / "private");
  EXPECT_EQ(leads_out(snapshot_, "c"), root_ / "private");
  // Another repository's blobs, and those beside a directory that is no snapshot.
  fs::create_directories(root_ / "models--z" / "blobs");
  write_test_file(root_ / "models--z" / "blobs" / "2e", "d");
  link(snapshot_ / "d", "../../../models--z/blobs/2e");
  EXPECT_EQ(leads_out(snapshot_, "d"), root_ / "models--z" / "blobs" / "2e");
  fs::create_directories(root_ / "blobs");
  write_test_file(root_ / "blobs" / "3d", "e");
  link(own_ / "i", "../blobs/3d");
  EXPECT_EQ(leads_out(own_, "i"), root_ / "blobs" / "3d");
}

}  // namespace
}  // namespace tessera

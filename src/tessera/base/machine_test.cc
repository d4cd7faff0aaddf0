#include "tessera/base/machine.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sched.h>

#include "tessera/base/test_directory.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A control group file system of its own.
class CgroupLimitsTest : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(root_); }

  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  CgroupLimits limits() { return cgroup_limits(root_, root_ / "self"); }

 private:
  fs::path root_ = fs::path(testing::TempDir()) / "tessera_cgroup_limits_test";
};

TEST_F(CgroupLimitsTest, NothingIsLimitedWithoutGroups) {
  EXPECT_FALSE(limits().cores);
  EXPECT_FALSE(limits().memory_bytes);
}

TEST_F(CgroupLimitsTest, Version2TakesTheTightestAncestor) {
  write("self", "0::/a/b\n");
  write("a/b/cpu.max", "max 100000\n");
  write("a/b/memory.max", "max\n");
  EXPECT_FALSE(limits().cores);
  EXPECT_FALSE(limits().memory_bytes);
  write("a/cpu.max", "250000 100000\n");
  write("a/b/memory.max", "5000000000\n");
  write("memory.max", "6000000000\n");
  EXPECT_EQ(limits().cores, 2.5);
  EXPECT_EQ(limits().memory_bytes, 5000000000);
  write("cpu.max", "150000 100000\n");
  EXPECT_EQ(limits().cores, 1.5);
}

TEST_F(CgroupLimitsTest, Version1) {
  write("self", "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n");
  write("cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  write("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(limits().cores);
  write("cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
  write("memory/job/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(limits().cores, 4.0);
  EXPECT_EQ(limits().memory_bytes, 1073741824);
}

TEST_F(CgroupLimitsTest, HostPathInsideAContainer) {
  write("self", "1:cpu:/docker/0123\nnot a group\n");
  write("cpu/cpu.cfs_quota_us", "300000\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits().cores, 3.0);
}

TEST(UsableCores, FollowsTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), CPU_COUNT(&before));

  int core = 0;
  while (!CPU_ISSET(core, &before)) {
    ++core;
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(UsableMemory, IsAtMostTheMachines) {
  std::ifstream file("/proc/meminfo");
  std::string label;
  std::int64_t total_kib = 0;
  file >> label >> total_kib;
  ASSERT_EQ(label, "MemTotal:");
  EXPECT_GT(usable_memory_bytes(), 0);
  EXPECT_LE(usable_memory_bytes(), total_kib * 1024);
}

TEST(Machine, FreeMemoryIsWhatTheKernelCallsAvailable) {
  const TestDirectory directory;
  const std::filesystem::path file = directory.path() / "meminfo";
  write_test_file(file, "MemTotal:  9 kB\nMemFree:  1 kB\nMemAvailable:       3 kB\n");
  EXPECT_EQ(free_memory_bytes(file), 3072);
  EXPECT_EQ(free_memory_bytes(directory.path() / "missing"), usable_memory_bytes());
  EXPECT_LE(free_memory_bytes(), usable_memory_bytes());
}

// The base directory specification: a path that is not absolute does not count.
TEST(UserCacheDirectory, IsWhereTheUsersProgramsCache) {
  const auto with = [](const char* cache, const char* home) {
    const auto set = [](const char* name, const char* value) {
      return value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
    };
    EXPECT_EQ(set("XDG_CACHE_HOME", cache), 0);
    EXPECT_EQ(set("HOME", home), 0);
    return user_cache_directory();
  };
  const char* const found = std::getenv("HOME");
  const std::string home = found == nullptr ? "/" : found;
  EXPECT_EQ(with("/scratch/cache", "/users/a"), fs::path("/scratch/cache/tessera"));
  EXPECT_EQ(with(nullptr, "/users/a"), fs::path("/users/a/.cache/tessera"));
  EXPECT_EQ(with("cache", "/users/a"), fs::path("/users/a/.cache/tessera"));
  EXPECT_EQ(with(nullptr, nullptr), std::nullopt);
  with(nullptr, home.c_str());
}

}  // namespace
}  // namespace tessera

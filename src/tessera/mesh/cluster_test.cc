#include "tessera/mesh/cluster.h"

#include <filesystem>
#include <limits>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"

namespace tessera {
namespace {

constexpr std::string_view kHead =
    "name = \"c\"\n"
    "[device]\n"
    "name = \"d\"\n"
    "memory = \"64 GB\"\n"
    "memory_bandwidth = 1.6e12\n"
    "peak = { f32 = \"47.85 TFLOP/s\", bf16 = 0 }\n";

constexpr std::string_view kPair =
    "[[levels]]\n"
    "name = \"pair\"\n"
    "size = 2\n"
    "bandwidth = \"200 GB/s\"\n"
    "latency = \"2 us\"\n";

std::filesystem::path cluster_file(std::string_view name) {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "configs" / "clusters" / name;
}

// The message of the kInvalidConfig error that reading `text` ends in.
std::string refusal(std::string_view text) {
  try {
    parse_cluster(text, "c.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    return error.what();
  }
  ADD_FAILURE() << "was accepted:\n" << text;
  return "";
}

// `text` with its one `from` replaced.
std::string with(std::string_view text, std::string_view from, std::string_view to) {
  std::string changed(text);
  const std::size_t at = changed.find(from);
  TESSERA_CHECK(at != std::string::npos, "no {}", from);
  return changed.replace(at, from.size(), to);
}

std::string whole() {
  return std::string(kHead) + std::string(kPair);
}

TEST(ParseCluster, ReadsWhatStandsInIt) {
  const Cluster cluster = parse_cluster(whole(), "c.toml");
  const Cluster expected = {.name = "c",
                            .device = {.name = "d",
                                       .memory_bytes = 64'000'000'000,
                                       .memory_bandwidth = 1.6e12,
                                       .peak_flops = {.f32 = 47.85e12, .bf16 = 0}},
                            .levels = {{"pair", 2, 200e9, 2e-6, false}},
                            .source = "c.toml"};
  EXPECT_EQ(cluster, expected);
}

TEST(ParseCluster, NamesThePlaceOfWhatItRefuses) {
  EXPECT_EQ(refusal("name = \n"),
            "c.toml:1:8: Error while parsing key-value pair: expected value, "
            "saw '\\n'");
  EXPECT_EQ(refusal(whole() + "bandwdith = 3\n"),
            "c.toml:12:1: unknown key \"levels.bandwdith\"; did you mean \"bandwidth\"?");
  EXPECT_EQ(refusal(with(kHead, "f32", "fp32")),
            "c.toml:6:10: unknown key \"device.peak.fp32\"; did you mean \"f32\"?");
  EXPECT_EQ(refusal(with(whole(), "[device]", "[devices]")),
            "c.toml:2:2: unknown key \"devices\"; did you mean \"device\"?");
  EXPECT_EQ(refusal("device = 3\nname = \"c\"\n"),
            "c.toml:1:10: device: found integer 3, expected a section [device]");
  EXPECT_EQ(refusal("name = 3\n"), "c.toml:1:8: name: found integer 3, expected string");
  EXPECT_EQ(refusal("name = \"c\"\n"),
            "c.toml:1:1: device is missing, expected a section [device]");
  EXPECT_EQ(refusal(kHead),
            "c.toml:1:1: levels is missing, expected one [[levels]] table or more, innermost "
            "first");
  EXPECT_EQ(refusal(with(whole(), "size = 2\n", "")),
            "c.toml:7:1: levels.size is missing, expected integer from 1 to 2147483647");
}

// All keys that may be left out.
constexpr std::string_view kFull =
    "name = \"c\"\n"
    "\n"
    "[device]\n"
    "name = \"d\"\n"
    "memory = \"64 GB\"\n"
    "memory_bandwidth = \"1.6 TB/s\"\n"
    "peak = { f32 = \"67 TFLOP/s\", bf16 = \"989 TFLOP/s\", f8 = \"1.979 PFLOP/s\" }\n"
    "units = 132\n"
    "tiles = [[128, 256], [64, 64]]\n"
    "host_link = \"55 GB/s\"\n"
    "\n"
    "[device.curve]\n"
    "matmul = { bf16 = 0.8, f8 = 0.71 }\n"
    "k_half = 210.0\n"
    "tile_half = 18.0\n"
    "stream = 0.82\n"
    "kernel = \"3 us\"\n"
    "attention = { forward = 0.7, backward = 0.84, half = 750.0 }\n"
    "comm_share = 0.12\n"
    "\n"
    "[[levels]]\n"
    "name = \"node\"\n"
    "size = 8\n"
    "bandwidth = \"450 GB/s\"\n"
    "latency = \"4 us\"\n"
    "half = \"9.9 MB\"\n"
    "efficiency = 0.82\n"
    "switch_reduces = true\n"
    "\n"
    "[host]\n"
    "cores = 2\n"
    "memory_bandwidth = \"46.7 GB/s\"\n"
    "\n"
    "[noise]\n"
    "spread = 0.002\n"
    "\n"
    "[cost]\n"
    "per_device_hour = \"2.5 USD\"\n"
    "\n"
    "[storage]\n"
    "bandwidth = \"100 GB/s\"\n"
    "disk = \"3 GB/s\"\n"
    "\n"
    "[source]\n"
    "curve = \"by hand\"\n";

TEST(ParseCluster, ReadsWhatMayBeLeftOut) {
  const Cluster cluster = parse_cluster(kFull, "c.toml");
  const Cluster expected = {
      .name = "c",
      .device = {.name = "d",
                 .memory_bytes = 64'000'000'000,
                 .memory_bandwidth = 1.6e12,
                 .peak_flops = {.f32 = 67e12, .bf16 = 989e12, .f8 = 1979e12},
                 .units = 132,
                 .tiles = {{128, 256}, {64, 64}},
                 .host_link = 55e9,
                 .curve = DeviceCurve{.matmul = {.bf16 = 0.8, .f8 = 0.71},
                                      .k_half = 210,
                                      .tile_half = 18,
                                      .stream = 0.82,
                                      .kernel = 3e-6,
                                      .attention = {.forward = 0.7, .backward = 0.84, .half = 750},
                                      .comm_share = 0.12}},
      .levels = {{.name = "node",
                  .size = 8,
                  .bandwidth = 450e9,
                  .latency = 4e-6,
                  .half = 9.9e6,
                  .efficiency = 0.82,
                  .switch_reduces = true}},
      .host = {.cores = 2, .memory_bandwidth = 46.7e9},
      .spread = 0.002,
      .device_hour_usd = 2.5,
      .storage_bandwidth = 100e9,
      .disk_bandwidth = 3e9,
      .curve_source = "by hand",
      .source = "c.toml"};
  EXPECT_EQ(cluster, expected);
  EXPECT_EQ(to_toml(cluster), kFull);
  const Cluster disk = parse_cluster(with(kFull, "bandwidth = \"100 GB/s\"\n", ""), "c.toml");
  EXPECT_EQ(disk.storage_bandwidth, 0.0);
  EXPECT_EQ(disk.disk_bandwidth, 3e9);
}

// What `kFull` with `to` in the place of `from` is refused with.
std::string refusal_of(std::string_view from, std::string_view to) {
  return refusal(with(kFull, from, to));
}

TEST(ParseCluster, RefusesUnknownKeysOfCurves) {
  EXPECT_EQ(refusal_of("k_half", "k_halve"),
            "c.toml:14:1: unknown key \"device.curve.k_halve\"; did you mean \"k_half\"?");
  EXPECT_EQ(refusal_of("f8 = 0.71", "fp8 = 0.71"),
            "c.toml:13:24: unknown key \"device.curve.matmul.fp8\"; did you mean \"f8\"?");
  EXPECT_EQ(refusal_of("half = 750", "s0 = 750"),
            "c.toml:18:47: unknown key \"device.curve.attention.s0\"");
  EXPECT_EQ(refusal_of("switch_reduces", "switch_reduce"),
            "c.toml:28:1: unknown key \"levels.switch_reduce\"; did you mean \"switch_reduces\"?");
  EXPECT_EQ(refusal_of("cores", "core"),
            "c.toml:31:1: unknown key \"host.core\"; did you mean \"cores\"?");
  EXPECT_EQ(refusal_of("spread", "sigma"), "c.toml:35:1: unknown key \"noise.sigma\"");
  EXPECT_EQ(refusal_of("[storage]\nbandwidth", "[storage]\nspeed"),
            "c.toml:41:1: unknown key \"storage.speed\"");
  EXPECT_EQ(refusal_of("per_device_hour", "per_hour"),
            "c.toml:38:1: unknown key \"cost.per_hour\"");
  EXPECT_EQ(refusal_of("[source]\ncurve", "[source]\ncurves"),
            "c.toml:45:1: unknown key \"source.curves\"; did you mean \"curve\"?");
}

TEST(ParseCluster, RefusesKeysThatContradictOthers) {
  EXPECT_EQ(refusal_of("units = 132\n", ""),
            "c.toml:8:9: device.tiles: found array, expected device.units beside them");
  EXPECT_EQ(refusal_of("tiles = [[128, 256], [64, 64]]\n", ""),
            "c.toml:8:9: device.units: found integer 132, expected device.tiles beside them");
  EXPECT_EQ(refusal_of("\"1.6 TB/s\"", "0"),
            "c.toml:12:1: device.curve: found table, expected none, since "
            "device.memory_bandwidth is not known");
  const std::string_view whole_file = kFull;
  const std::size_t begin = whole_file.find("\n[device.curve]");
  const std::size_t end = whole_file.find("\n[[levels]]");
  EXPECT_EQ(refusal_of(whole_file.substr(begin, end - begin), ""),
            "c.toml:36:9: source.curve: found string \"by hand\", expected none, since there is no "
            "[device.curve]");
}

TEST(ParseCluster, RefusesLevelsThatContradictThemselves) {
  EXPECT_EQ(refusal_of("\"450 GB/s\"", "0"),
            "c.toml:26:8: levels.half: found string \"9.9 MB\", expected none, since the bandwidth "
            "is not known");
  const std::string unknown = with(kFull, "\"450 GB/s\"", "0");
  EXPECT_EQ(
      refusal(with(unknown, "half = \"9.9 MB\"\nefficiency = 0.82\n", "")),
      "c.toml:26:18: levels.switch_reduces: found boolean, expected none, since the bandwidth "
      "is not known");
  EXPECT_EQ(
      refusal(with(unknown, "half = \"9.9 MB\"\n", "")),
      "c.toml:26:14: levels.efficiency: found number 0.82, expected none, since the bandwidth "
      "is not known");
  // NVLink's switches make more of a link than it carries; others cannot.
  const std::string beyond = with(kFull, "efficiency = 0.82", "efficiency = 1.07");
  EXPECT_EQ(parse_cluster(beyond, "c.toml").levels[0].efficiency, 1.07);
  EXPECT_EQ(refusal(with(beyond, "switch_reduces = true\n", "")),
            "c.toml:27:14: levels.efficiency: found number 1.07, expected a share: a number above "
            "0, at most 1 without switch_reduces");
  EXPECT_EQ(
      refusal_of("efficiency = 0.82", "efficiency = 2.5"),
      "c.toml:27:14: levels.efficiency: found number 2.5, expected a share: a number above 0, "
      "at most 2");
}

// Each dtype that has a peak has a share, its own or that of bf16, and no other has one.
TEST(ParseCluster, RefusesSharesThatDoNotFitThePeaks) {
  EXPECT_EQ(refusal_of(", f8 = \"1.979 PFLOP/s\"", ""),
            "c.toml:13:29: device.curve.matmul.f8: found number 0.71, expected none, since "
            "device.peak.f8 is not known");
  EXPECT_EQ(refusal_of("bf16 = 0.8, ", ""),
            "c.toml:13:10: device.curve.matmul: found table, expected a share of bf16 in it, since "
            "device.peak.bf16 is known");
  const std::string narrow = with(kFull, "bf16 = \"989 TFLOP/s\"", "bf16 = 0");
  EXPECT_EQ(refusal(narrow),
            "c.toml:13:19: device.curve.matmul.bf16: found number 0.8, expected none, since "
            "device.peak.bf16 is not known");
  EXPECT_EQ(refusal(with(narrow, "bf16 = 0.8, ", "")),
            "c.toml:13:10: device.curve.matmul: found table, expected a share of f32 in it, since "
            "device.peak.f32 is known");
  EXPECT_EQ(refusal(with(narrow, "bf16 = 0.8, f8 = 0.71", "f32 = 0.9")),
            "c.toml:13:10: device.curve.matmul: found table, expected a share of f8 in it, since "
            "device.peak.f8 is known");
  const std::string f32 = with(narrow, "bf16 = 0.8", "f32 = 0.9");
  EXPECT_EQ(parse_cluster(f32, "c.toml").device.curve.value_or(DeviceCurve{}).matmul,
            (DeviceCurve::Matmul{.f32 = 0.9, .f8 = 0.71}));
  const std::string none =
      with(with(narrow, "\"67 TFLOP/s\"", "0"), ", f8 = \"1.979 PFLOP/s\"", "");
  EXPECT_EQ(refusal(with(none, "bf16 = 0.8, f8 = 0.71", "")),
            "c.toml:13:10: device.curve.matmul: found table, expected no [device.curve], since no "
            "peak of device.peak is known");
  EXPECT_EQ(refusal(with(none, "bf16 = 0.8, f8 = 0.71", "f32 = 0.8")),
            "c.toml:13:18: device.curve.matmul.f32: found number 0.8, expected none, since "
            "device.peak.f32 is not known");
}

TEST(ParseCluster, RefusesFiguresThatNoCurveHas) {
  EXPECT_EQ(refusal_of("bf16 = 0.8", "bf16 = 1.2"),
            "c.toml:13:19: device.curve.matmul.bf16: found number 1.2, expected a share: a number "
            "above 0, at most 1");
  EXPECT_EQ(refusal_of("stream = 0.82", "stream = 0"),
            "c.toml:16:10: device.curve.stream: found integer 0, expected a share: a number above "
            "0, at most 1");
  EXPECT_EQ(refusal_of("stream = 0.82", "stream = nan"),
            "c.toml:16:10: device.curve.stream: found number nan, expected a share: a number above "
            "0, at most 1");
  EXPECT_EQ(refusal_of("k_half = 210.0", "k_half = \"many\""),
            "c.toml:14:10: device.curve.k_half: found string \"many\", expected a number from 0 to "
            "1000000");
  EXPECT_EQ(refusal_of("stream = 0.82\n", ""),
            "c.toml:12:1: device.curve.stream is missing, expected a share: a number above 0, at "
            "most 1");
  for (const std::string_view tiles :
       {"3", "[]", "[128]", "[[128]]", "[[128, 0]]", "[[128, 1.5]]", "[[1000001, 1]]"}) {
    EXPECT_THAT(refusal_of("[[128, 256], [64, 64]]", tiles),
                testing::AllOf(testing::HasSubstr("device.tiles: found"),
                               testing::HasSubstr("expected pairs of rows and columns from 1 to "
                                                  "1000000, such as [[128, 256], [64, 64]]")))
        << tiles;
  }
  EXPECT_EQ(
      refusal_of("2.5 USD", "2.5 EUR"),
      "c.toml:38:19: cost.per_device_hour: found string \"2.5 EUR\", expected a number of USD, "
      "at least 0 (0: not known), or text such as \"2.50 USD\"");
  EXPECT_EQ(refusal_of("cores = 2", "cores = 0"),
            "c.toml:31:9: host.cores: found integer 0, expected integer from 1 to 2147483647");
}

TEST(ParseCluster, NamesWhatItFoundAndExpected) {
  EXPECT_EQ(refusal(with(whole(), "size = 2", "size = 0")),
            "c.toml:9:8: levels.size: found integer 0, expected integer from 1 to 2147483647");
  EXPECT_EQ(refusal(with(whole(), "size = 2", "size = 2.0")),
            "c.toml:9:8: levels.size: found number 2.0, expected integer from 1 to 2147483647");
  EXPECT_EQ(refusal(with(whole(), "\"200 GB/s\"", "\"200 GB\"")),
            "c.toml:10:13: levels.bandwidth: found string \"200 GB\", expected a number of B/s, "
            "at least 0 (0: not known), or text such as \"200 GB/s\"");
  EXPECT_EQ(refusal(with(whole(), "\"2 us\"", "-1")),
            "c.toml:11:11: levels.latency: found integer -1, expected a number of s, at least 0 "
            "(0: not known), or text such as \"2 us\"");
  EXPECT_EQ(refusal(with(whole(), "\"2 us\"", "true")),
            "c.toml:11:11: levels.latency: found boolean, expected a number of s, at least 0 (0: "
            "not known), or text such as \"2 us\"");
  EXPECT_EQ(refusal(with(whole(), "\"64 GB\"", "0.5")),
            "c.toml:4:10: device.memory: found number 0.5, expected whole bytes, at most 8 PiB");
  EXPECT_EQ(refusal(whole() + "shared = 1\n"),
            "c.toml:12:10: levels.shared: found integer 1, expected true or false");
  EXPECT_EQ(refusal(with(kHead, "{ f32 = \"47.85 TFLOP/s\", bf16 = 0 }", "3")),
            "c.toml:6:8: device.peak: found integer 3, expected a table such as { f32 = \"67 "
            "TFLOP/s\", bf16 = 0 }");
  EXPECT_EQ(refusal("levels = [3]\n" + std::string(kHead)),
            "c.toml:1:11: levels: found integer 3, expected one [[levels]] table or more, "
            "innermost first");
  EXPECT_EQ(refusal("levels = []\n" + std::string(kHead)),
            "c.toml:1:10: levels: found array, expected one [[levels]] table or more, innermost "
            "first");
}

TEST(ParseCluster, RefusesNamesThatMeshesCannotUse) {
  for (const std::string_view name : {"", "2", "a.b", "a b", "\u00e9"}) {
    EXPECT_EQ(refusal(with(whole(), "\"pair\"", "\"" + std::string(name) + "\"")),
              "c.toml:8:8: levels.name: found string \"" + std::string(name) +
                  "\", expected a letter, then letters, digits, '_' or '-', such as \"node\"");
  }
  EXPECT_EQ(refusal(whole() + std::string(kPair)),
            "c.toml:13:8: levels.name: found string \"pair\", expected a name that no level "
            "before it has");
}

TEST(ParseCluster, RefusesMoreDevicesThanRanksCanCount) {
  const std::string large = with(whole(), "size = 2", "size = 2147483647");
  EXPECT_EQ(parse_cluster(large, "c.toml").num_devices(), 2147483647);
  EXPECT_EQ(refusal(large + with(kPair, "pair", "node")),
            "c.toml:14:8: levels.size: found integer 2, expected at most 1, since there are "
            "2147483647 devices below this level and at most 2147483647 in all");
}

TEST(LoadCluster, AnUnreadableFileIsAConfigError) {
  const TestDirectory directory;
  try {
    load_cluster(directory.path() / "absent.toml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    EXPECT_THAT(error.what(), testing::StartsWith("cluster file: "));
    EXPECT_THAT(error.what(), testing::HasSubstr("absent.toml"));
  }
}

TEST(ClusterText, EveryFileReadsBackEqual) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(cluster_file(""))) {
    const Cluster cluster = load_cluster(entry.path());
    EXPECT_EQ(cluster.name, entry.path().stem());
    EXPECT_EQ(cluster.source, entry.path());
    EXPECT_EQ(parse_cluster(to_toml(cluster), cluster.source), cluster) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 16);
}

TEST(ClusterText, AnyFigureReadsBackEqual) {
  const Cluster cluster = {
      .name = "odd \"name\"\n",
      .device = {.name = "",
                 .memory_bytes = 9007199254740992,
                 .memory_bandwidth = 1.0 / 3.0,
                 .peak_flops = {.f32 = std::numeric_limits<double>::max(), .bf16 = 5e-324}},
      .levels = {{"a", 1, 0.1, 0.0, true}, {"b_2-c", 7, 1e22, 1e-7 / 3.0, false}}};
  EXPECT_EQ(parse_cluster(to_toml(cluster), ""), cluster) << to_toml(cluster);
}

TEST(ClusterText, IsWhatPeopleWrite) {
  EXPECT_EQ(to_toml(parse_cluster(whole() + "shared = true\n", "c.toml")),
            "name = \"c\"\n"
            "\n"
            "[device]\n"
            "name = \"d\"\n"
            "memory = \"64 GB\"\n"
            "memory_bandwidth = \"1.6 TB/s\"\n"
            "peak = { f32 = \"47.85 TFLOP/s\", bf16 = \"0 FLOP/s\" }\n"
            "\n"
            "[[levels]]\n"
            "name = \"pair\"\n"
            "size = 2\n"
            "bandwidth = \"200 GB/s\"\n"
            "latency = \"2 us\"\n"
            "shared = true\n");
}

TEST(LocalCluster, IsOneLevel) {
  const Cluster cluster = local_cluster(6);
  EXPECT_EQ(cluster.num_devices(), 6);
  ASSERT_EQ(cluster.levels.size(), 1U);
  EXPECT_EQ(cluster.levels[0], (Level{"local", 6, 0.0, 0.0, false}));
  EXPECT_EQ(parse_cluster(to_toml(cluster), ""), cluster);
  EXPECT_THROW(local_cluster(0), Error);
}

TEST(ClusterFiles, Frontier) {
  const Cluster cluster = load_cluster(cluster_file("frontier.toml"));
  EXPECT_EQ(cluster.num_devices(), 2 * 4 * 9408);
  EXPECT_EQ(cluster.device.memory_bytes, 64'000'000'000);
  EXPECT_EQ(cluster.device.peak_flops.bf16, 191.5e12);
  EXPECT_EQ(cluster.device.host_link, 36e9);
  ASSERT_EQ(cluster.levels.size(), 3U);
  EXPECT_EQ(cluster.levels[0].bandwidth, 200e9);
  EXPECT_EQ(cluster.levels[1].bandwidth, 50e9);
  // 12.5 GB/s for each of a node's 8 devices.
  EXPECT_TRUE(cluster.levels[2].shared);
  EXPECT_EQ(cluster.levels[2].bandwidth / 8, 12.5e9);
}

TEST(ClusterFiles, TwoLevelGpus) {
  const Cluster cluster = load_cluster(cluster_file("h100-dgx.toml"));
  EXPECT_EQ(cluster.num_devices(), 16384);
  EXPECT_EQ(cluster.device.memory_bytes, 80'000'000'000);
  EXPECT_EQ(cluster.device.peak_flops.bf16, 989e12);
  ASSERT_EQ(cluster.levels.size(), 2U);
  EXPECT_EQ(cluster.levels[0].bandwidth, 450e9);
  EXPECT_EQ(cluster.levels[1].bandwidth, 50e9);
}

// Chips of one family differ in what their makers say of them alone. What one of them loses by less
// power is in its shares of the peak, which are not known yet.
TEST(ClusterFiles, ChipsOfAFamilyShareTheirConstants) {
  const std::vector<std::vector<std::string>> families = {
      {"a100-80g-selene.toml", "a100-40g.toml", "system-ii.toml"},
      {"h100-dgx.toml", "h200.toml", "h100-500w-hbm2e.toml"},
      {"b200.toml", "gb200-nvl72.toml"}};
  constexpr std::string_view kLessPower = "h100-500w-hbm2e.toml";
  for (const std::vector<std::string>& family : families) {
    const DeviceSpec first = load_cluster(cluster_file(family[0])).device;
    const DeviceCurve first_curve = first.curve.value_or(DeviceCurve{});
    for (const std::string& file : family) {
      const DeviceSpec device = load_cluster(cluster_file(file)).device;
      EXPECT_EQ(device.units, first.units) << file;
      EXPECT_EQ(device.tiles, first.tiles) << file;
      DeviceCurve curve = device.curve.value_or(DeviceCurve{});
      if (file == kLessPower && device.curve) {
        curve.matmul = first_curve.matmul;
      }
      EXPECT_TRUE(curve == first_curve || (file == kLessPower && !device.curve)) << file;
    }
  }
}

// As data sheets have them: TFLOP/s of bf16, TB/s, GB, units, devices of the
// innermost levels that share a node's links, GB/s of these and of each device beyond.
TEST(ClusterFiles, HaveTheFactsOfTheirChips) {
  struct Facts {
    std::string_view file;
    double tflops;
    double memory_tb_per_s;
    std::int64_t memory_gb;
    std::int64_t units;
    std::int64_t node;
    double intra;
    double inter;
  };

  for (const Facts& facts : {Facts{"a100-80g-selene.toml", 312, 2.039, 80, 108, 8, 300, 25},
                             Facts{"a100-40g.toml", 312, 1.555, 40, 108, 8, 300, 25},
                             Facts{"h100-dgx.toml", 989, 3.35, 80, 132, 8, 450, 50},
                             Facts{"h100-500w-hbm2e.toml", 989, 2.4, 96, 132, 8, 450, 50},
                             Facts{"h200.toml", 989, 4.8, 141, 132, 8, 450, 50},
                             Facts{"b200.toml", 2250, 8, 180, 148, 8, 900, 50},
                             Facts{"gb200-nvl72.toml", 2500, 8, 186, 148, 72, 900, 50},
                             Facts{"frontier.toml", 191.5, 1.6, 64, 110, 8, 50, 12.5},
                             Facts{"v100-dgx2.toml", 125, 0.9, 32, 80, 16, 150, 6.25}}) {
    const Cluster cluster = load_cluster(cluster_file(facts.file));
    EXPECT_DOUBLE_EQ(cluster.device.peak_flops.bf16, facts.tflops * 1e12) << facts.file;
    EXPECT_DOUBLE_EQ(cluster.device.memory_bandwidth, facts.memory_tb_per_s * 1e12) << facts.file;
    EXPECT_EQ(cluster.device.memory_bytes, facts.memory_gb * 1'000'000'000) << facts.file;
    EXPECT_EQ(cluster.device.units, facts.units) << facts.file;
    const Level& outermost = cluster.levels.back();
    const std::int64_t node = cluster.num_devices() / outermost.size;
    EXPECT_EQ(node, facts.node) << facts.file;
    EXPECT_DOUBLE_EQ(cluster.levels[cluster.levels.size() - 2].bandwidth, facts.intra * 1e9)
        << facts.file;
    const double links = outermost.shared ? static_cast<double>(node) : 1.0;
    EXPECT_DOUBLE_EQ(outermost.bandwidth / links, facts.inter * 1e9) << facts.file;
  }
}

TEST(ClusterFiles, VirtualOnesHaveFrontiersRatios) {
  const std::vector<std::vector<std::int64_t>> radices = {
      {2}, {2, 2}, {2, 3}, {2, 2, 2}, {2, 2, 3}};
  const std::vector<std::string> names = {"pair", "node", "cluster"};
  const std::vector<double> per_device = {200e9, 50e9, 12.5e9};
  for (const std::vector<std::int64_t>& sizes : radices) {
    std::int64_t ranks = 1;
    for (const std::int64_t size : sizes) {
      ranks *= size;
    }
    const Cluster cluster = load_cluster(cluster_file(format("virtual-{}.toml", ranks)));
    ASSERT_EQ(cluster.levels.size(), sizes.size());
    EXPECT_EQ(cluster.num_devices(), ranks);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Level& level = cluster.levels[i];
      EXPECT_EQ(level.name, names[i]);
      EXPECT_EQ(level.size, sizes[i]);
      EXPECT_FALSE(level.shared);
      EXPECT_EQ(level.bandwidth / cluster.levels[0].bandwidth, per_device[i] / per_device[0]);
    }
  }
}

}  // namespace
}  // namespace tessera

#include "tessera/cli/machine_report.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"

namespace tessera {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;

MachineFacts good_machine() {
  return {.build = "tessera 1.2.3",
          .build_type = "Release",
          .cpu = "Some Processor",
          .cores = 8,
          .usable_cores = 8,
          .simd = "AVX3",
          .dnnl_isa = "AVX-512 with AMX",
          .bf16 = Bf16::kMatrix,
          .memory_bytes = 16 * kGibibyte,
          .usable_memory_bytes = 16 * kGibibyte,
          .directory = "/data",
          .directory_is_writable = true,
          .free_disk_bytes = 100 * kGibibyte,
          .devices = {.usable = {{.name = "NVIDIA H200",
                                  .architecture = "sm_90",
                                  .memory_bytes = 140 * kGibibyte,
                                  .free_bytes = 139 * kGibibyte}},
                      .versions = "driver: 580.95.05 (CUDA 13.0); CUDA runtime 13.0, cuBLASLt "
                                  "13.1.0, cuDNN 9.19.0"},
          .nccl = "NCCL 2.28.9"};
}

TEST(MachineReport, NothingIsMissing) {
  EXPECT_EQ(format_report(good_machine()),
            "tessera 1.2.3\n"
            "cpu       Some Processor\n"
            "cores     8 usable of 8\n"
            "kernels   own: AVX3 (Highway); matrix products: AVX-512 with AMX (oneDNN)\n"
            "bf16      native, matrix (AMX)\n"
            "memory    16.0 GiB usable of 16.0 GiB\n"
            "disk      100 GiB free in /data\n"
            "gpu       NVIDIA H200 (sm_90), 139 GiB free of 140 GiB\n"
            "cuda      driver: 580.95.05 (CUDA 13.0); CUDA runtime 13.0, cuBLASLt 13.1.0, cuDNN "
            "9.19.0, NCCL 2.28.9\n"
            "\n"
            "Nothing is missing.\n");
}

// Each lack gives its one line, and no other.
TEST(MachineReport, SaysWhatIsMissingAndHowToGetIt) {
  const auto notes_after = [](auto change) {
    MachineFacts facts = good_machine();
    change(facts);
    const std::string report = format_report(facts);
    const std::string title = "\nWhat would help:\n";
    const std::size_t at = report.find(title);
    return at == std::string::npos ? "" : report.substr(at + title.size());
  };
  EXPECT_THAT(notes_after([](MachineFacts& m) { m.usable_cores = 2; }),
              StartsWith("- 6 of 8 cores are out of reach: widen the job's allocation"));
  EXPECT_THAT(notes_after([](MachineFacts& m) { m.simd_is_narrow = true; }),
              StartsWith("- no AVX2: "));
  EXPECT_THAT(notes_after([](MachineFacts& m) { m.bf16 = Bf16::kEmulated; }),
              StartsWith("- no native bf16: leave train.dtype at f32"));
  EXPECT_THAT(notes_after([](MachineFacts& m) { m.bf16 = Bf16::kVector; }),
              StartsWith("- no AMX: "));
  EXPECT_THAT(notes_after([](MachineFacts& m) { m.usable_memory_bytes = 2 * kGibibyte; }),
              StartsWith("- a control group limits the memory: raise the job's limit"));
  EXPECT_THAT(notes_after([](MachineFacts& m) {
                m.memory_bytes = kGibibyte / 2;
                m.usable_memory_bytes = kGibibyte / 2;
              }),
              StartsWith("- less than 1 GiB of memory: only tiny models fit"));
  EXPECT_EQ(notes_after([](MachineFacts& m) { m.devices = {.problem = "no driver"}; }),
            "- for runs on a GPU (run.device = \"cuda\"): no driver\n");
  EXPECT_EQ(notes_after([](MachineFacts& m) {
              m.devices = {.unusable = {"GPU 0 is old"}, .problem = "GPU 0 is old"};
            }),
            "- GPU 0 is old\n");
  EXPECT_EQ(notes_after([](MachineFacts& m) { m.devices.missing = {"no cuDNN 9"}; }),
            "- no cuDNN 9\n");
  EXPECT_EQ(notes_after([](MachineFacts& m) {
              m.nccl = "";
              m.nccl_problem = "no plugin";
            }),
            "- for runs on several GPUs: no plugin\n");
  EXPECT_THAT(notes_after([](MachineFacts& m) { m.directory_is_writable = false; }),
              StartsWith("- /data is not writable: set run.dir"));
  EXPECT_THAT(notes_after([](MachineFacts& m) { m.free_disk_bytes = kGibibyte - 1; }),
              StartsWith("- less than 1 GiB of disk: "));
  EXPECT_THAT(notes_after([](MachineFacts& m) { m.build_type = "Debug"; }),
              StartsWith("- a Debug build is slow: "));
}

// Where there is no GPU, what GPUs would use is not missing.
TEST(MachineReport, WithoutAGpuNoLibraryIsMissing) {
  MachineFacts facts = good_machine();
  facts.devices = {.versions = "driver: none", .missing = {"no cuDNN 9"}, .problem = "no driver"};
  facts.nccl = "";
  facts.nccl_problem = "no plugin";
  const std::string report = format_report(facts);
  EXPECT_THAT(report, HasSubstr("cuda      driver: none, NCCL none\n"));
  EXPECT_THAT(report,
              EndsWith("What would help:\n- for runs on a GPU (run.device = \"cuda\"): no "
                       "driver\n"));
}

TEST(MachineFacts, OfThisMachine) {
  const MachineFacts facts = inspect_machine(testing::TempDir());
  EXPECT_EQ(facts.usable_cores, usable_cores());
  EXPECT_GE(facts.cores, facts.usable_cores);
  EXPECT_EQ(facts.usable_memory_bytes, usable_memory_bytes());
  EXPECT_GE(facts.memory_bytes, facts.usable_memory_bytes);
  EXPECT_TRUE(facts.directory_is_writable);
  EXPECT_GT(facts.free_disk_bytes, 0);
  EXPECT_NE(facts.simd, "Unknown");
}

TEST(MachineFacts, MissingDirectory) {
  try {
    inspect_machine("/no/such/directory");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeviceError);
    EXPECT_EQ(error.message(),
              "cannot ask for the free space of /no/such/directory: No such file or directory");
  }
}

}  // namespace
}  // namespace tessera

// What is said of machines with GPUs and without, over what stands for CUDA's runtime and NVIDIA's
// management library.

#include "tessera/backend/cuda/machine/find_devices.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include "tessera/backend/cuda/stand_in/stand_in_machine.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"

namespace tessera::cuda {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

constexpr int kMajor = TESSERA_CUDA_ARCHITECTURE / 10;
constexpr int kMinor = TESSERA_CUDA_ARCHITECTURE % 10;
constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";

StandInDevice usable_gpu() {
  return {.name = "NVIDIA One", .major = kMajor, .minor = kMinor};
}

StandInDevice older_gpu() {
  return {.name = "NVIDIA Zero", .major = kMajor - 1, .minor = 6};
}

class FindDevices : public testing::Test {
 protected:
  // Before the library is looked for, which it then is.
  static void SetUpTestSuite() {
    ASSERT_NE(::dlopen(TESSERA_STAND_IN_NVML, RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
  }

  void SetUp() override { ::unsetenv(kVisible); }

  void TearDown() override {
    ::unsetenv(kVisible);
    stand_in_machine() = {};
  }

  // Whatever is found, nothing is left for the next launch of a kernel to fail with.
  static Devices find() {
    Devices devices;
    find_devices(devices);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    return devices;
  }

  static void expect_none(const Devices& devices) {
    EXPECT_THAT(devices.usable, IsEmpty());
    EXPECT_EQ(num_usable_devices(), 0);
    EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [] { ordinal_of(0); }),
                HasSubstr("CUDA device 0 of 0 that this build can use"));
  }
};

TEST_F(FindDevices, NoDriver) {
  stand_in_machine() = {.driver_version = 0, .devices = {}};
  const Devices devices = find();
  expect_none(devices);
  EXPECT_THAT(devices.problem,
              AllOf(StartsWith("this machine has no NVIDIA driver"),
                    HasSubstr("install version 580 or newer")));
  EXPECT_THAT(devices.versions, StartsWith("driver: none; CUDA runtime 13."));
}

TEST_F(FindDevices, ADriverOlderThanTheToolkit) {
  stand_in_machine() = {.driver_version = 12040, .devices = {usable_gpu()}};
  const Devices devices = find();
  expect_none(devices);
  EXPECT_THAT(devices.problem,
              AllOf(StartsWith("the NVIDIA driver knows CUDA 12.4, this build needs 13."),
                    HasSubstr("install driver 580 or newer")));
  EXPECT_THAT(devices.versions, StartsWith("driver: 580.95.05 (CUDA 12.4); CUDA runtime 13."));
}

TEST_F(FindDevices, NoGpu) {
  stand_in_machine().devices.clear();
  const Devices devices = find();
  expect_none(devices);
  EXPECT_THAT(devices.problem,
              AllOf(StartsWith("the driver sees no GPU"), HasSubstr("nvidia-smi")));
}

TEST_F(FindDevices, GpusThatAreHidden) {
  stand_in_machine().devices.clear();
  for (const char* value : {"", "7"}) {
    ::setenv(kVisible, value, 1);
    const Devices devices = find();
    expect_none(devices);
    EXPECT_EQ(devices.problem,
              format("the driver shows no GPU: CUDA_VISIBLE_DEVICES = \"{}\" hides them", value));
  }
}

TEST_F(FindDevices, ADriverThatCannotBeUsed) {
  stand_in_machine().count_error = cudaErrorSystemDriverMismatch;
  const Devices devices = find();
  expect_none(devices);
  EXPECT_EQ(devices.problem,
            "the driver cannot be used: cudaErrorSystemDriverMismatch (system has unsupported "
            "display driver / cuda driver combination): check nvidia-smi");
}

TEST_F(FindDevices, AnArchitectureWithoutKernels) {
  stand_in_machine().devices = {older_gpu()};
  const Devices devices = find();
  expect_none(devices);
  EXPECT_EQ(devices.problem,
            format("GPU 0, NVIDIA Zero, is sm_{0}6, and this build has kernels for sm_{1}: "
                   "configure with -DTESSERA_CUDA_ARCHITECTURE={0}6 and build again",
                   kMajor - 1,
                   TESSERA_CUDA_ARCHITECTURE));
  EXPECT_THAT(devices.unusable, ElementsAre(devices.problem));
}

// Another process may hold it, or it is broken.
TEST_F(FindDevices, AGpuThatCannotBeUsed) {
  StandInDevice held = usable_gpu();
  held.error = cudaErrorDevicesUnavailable;
  stand_in_machine().devices = {held, usable_gpu()};
  const Devices devices = find();
  EXPECT_THAT(devices.problem, IsEmpty());
  EXPECT_THAT(devices.usable, SizeIs(1));
  EXPECT_THAT(devices.unusable,
              ElementsAre(StartsWith("GPU 0, NVIDIA One, cannot be used: cudaSetDevice() failed "
                                     "with cudaErrorDevicesUnavailable")));
  EXPECT_EQ(num_usable_devices(), 1);
  EXPECT_EQ(ordinal_of(0), 1);
  stand_in_machine().devices = {held};
  const Devices none = find();
  expect_none(none);
  EXPECT_THAT(none.problem, HasSubstr("cannot be used"));
}

// A run is refused as one that does not fit.
TEST_F(FindDevices, AGpuThatIsFull) {
  StandInDevice full = usable_gpu();
  full.error = cudaErrorMemoryAllocation;
  stand_in_machine().devices = {full};
  const Devices devices = find();
  ASSERT_THAT(devices.usable, SizeIs(1));
  EXPECT_EQ(devices.usable[0].free_bytes, 0);
}

// Runs count the GPUs that they can use.
TEST_F(FindDevices, GpusOfSeveralKinds) {
  StandInDevice newer = usable_gpu();
  newer.major += 1;
  StandInDevice same_generation = usable_gpu();
  same_generation.minor += 1;
  stand_in_machine().devices = {older_gpu(), usable_gpu(), newer, same_generation};
  const Devices devices = find();
  EXPECT_THAT(devices.problem, IsEmpty());
  ASSERT_THAT(devices.usable, SizeIs(2));
  EXPECT_EQ(devices.usable[0].name, "NVIDIA One");
  EXPECT_EQ(devices.usable[0].architecture, format("sm_{}", TESSERA_CUDA_ARCHITECTURE));
  EXPECT_EQ(devices.usable[1].architecture, format("sm_{}{}", kMajor, kMinor + 1));
  EXPECT_THAT(devices.unusable, ElementsAre(StartsWith("GPU 0, "), StartsWith("GPU 2, ")));
  EXPECT_EQ(num_usable_devices(), 2);
  EXPECT_EQ(ordinal_of(0), 1);
  EXPECT_EQ(ordinal_of(1), 3);
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [] { ordinal_of(2); }),
              HasSubstr("CUDA device 2 of 2"));
}

// The management library knows the first, and has no answer for a slice of the second, nor for the
// third: CUDA is asked for these, by a context.
TEST_F(FindDevices, MemoryIsThatOfTheGpu) {
  StandInDevice whole = usable_gpu();
  whole.total_bytes = 142'000'000'000;
  whole.free_bytes = 1;
  StandInDevice slice = usable_gpu();
  slice.total_bytes = 20'000'000'000;
  slice.free_bytes = 19'000'000'000;
  StandInDevice unknown = usable_gpu();
  unknown.total_bytes = 80'000'000'000;
  unknown.free_bytes = 70'000'000'000;
  stand_in_machine().devices = {whole, slice, unknown};
  const Devices devices = find();
  ASSERT_THAT(devices.usable, SizeIs(3));
  EXPECT_EQ(devices.usable[0].memory_bytes, 142'000'000'000);
  EXPECT_EQ(devices.usable[0].free_bytes, 140'000'000'000);
  EXPECT_EQ(devices.usable[1].memory_bytes, 20'000'000'000);
  EXPECT_EQ(devices.usable[1].free_bytes, 19'000'000'000);
  EXPECT_EQ(devices.usable[2].memory_bytes, 80'000'000'000);
  EXPECT_EQ(devices.usable[2].free_bytes, 70'000'000'000);
}

// Selecting a GPU would make a context on it.
TEST_F(FindDevices, NoGpuIsSelectedThatTheLibraryKnows) {
  StandInDevice known = usable_gpu();
  known.total_bytes = 142'000'000'000;
  StandInDevice selected = older_gpu();
  selected.free_bytes = 5;
  stand_in_machine().devices = {known, known, selected};
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
  EXPECT_THAT(find().usable, SizeIs(2));
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(free_bytes, 5);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

}  // namespace
}  // namespace tessera::cuda
